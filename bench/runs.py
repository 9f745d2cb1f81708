"""Runs side by side: the time of a set of tasks with one process beside that with two."""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bcd4rec.runner.running import Crew
from bcd4rec.runner.store import TaskStore
from bcd4rec.runner.tasks import Task

TASKS = int(os.environ.get("BENCH_TASKS", 8))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", 600))  # some seconds a task


@dataclass(frozen=True)
class Work(Task):
    """Computes with one thread and waits for nothing: what training does."""

    number: int
    rounds: int

    def make(self, folder: Path, store: TaskStore) -> None:
        matrix = np.random.default_rng(self.number).normal(size=(300, 300))
        for _ in range(self.rounds):
            matrix = np.tanh(matrix @ matrix.T / 300)
        np.save(folder / "result.npy", matrix)


def _seconds(jobs: int) -> float:
    """Without the start of the processes, which a run pays once."""
    with tempfile.TemporaryDirectory() as folder, Crew(TaskStore(Path(folder)), jobs) as crew:
        crew.make([Work(TASKS + number, 1) for number in range(jobs)])
        began = time.perf_counter()
        crew.make([Work(number, ROUNDS) for number in range(TASKS)])
        return time.perf_counter() - began


def run() -> dict[str, float]:
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    one, two = _seconds(1), _seconds(2)
    os.environ.pop("OPENBLAS_NUM_THREADS") if before is None else os.environ.update(OPENBLAS_NUM_THREADS=before)
    table = Table(title=f"{TASKS} tasks, load of the machine {os.getloadavg()[0]:.1f}", title_justify="left")
    for name in ("", "seconds", "speed-up"):
        table.add_column(name, justify="right")
    table.add_row("one process", f"{one:.1f}", "1.00")
    table.add_row("two processes", f"{two:.1f}", f"{one / two:.2f}")
    Console().print(table)
    return {"runs.two_processes_over_one": one / two}
