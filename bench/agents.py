"""Updates of BCD4Rec on made-up sessions: against the plain formula, against d3rlpy, and at a million items.

Every contestant is a process of its own with one thread. Rounds of updates alternate between them and the median
round of each counts; seconds are of processor time, so that other load on the machine hurts all alike.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

import numpy as np
from rich.console import Console
from rich.table import Table

from bench import Skip
from bench._agent_worker import BATCH, TARGET_EVERY, make_dataset

FOLDER = Path(__file__).parent
SESSIONS, FEW_SESSIONS = 2000, 50  # few: allowed sets over a million items take some milliseconds for each state
SIZES, MILLION = (200, 6666), 1_000_000
ROUNDS = 5  # each, after one that does not count
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS")


class Contestant:
    """A process that is asked for updates, and says how long they took."""

    def __init__(self, *command: str, updates: int):
        paths = os.pathsep.join([str(FOLDER.parent), *filter(None, sys.path)])
        one_thread = dict.fromkeys(THREADS, "1")
        own = {"PYTHONPATH": paths} if command[0] == sys.executable else {"PYTHONPATH": ""}
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed on exit)
        self.process = subprocess.Popen(
            command,
            env=os.environ | one_thread | own,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.updates, self.rounds = updates, list[float]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.errors.close()

    @property
    def seconds(self) -> float:
        """Of an update, the median over rounds."""
        return statistics.median(self.rounds)

    def line(self) -> str:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.strip() == "ready" or line[0].isdigit():
                return line
        self.errors.seek(0)
        said = self.errors.read().strip().splitlines()
        raise RuntimeError(f"{self.process.args!r} has stopped without an answer: {said[-1] if said else 'no error'}")

    def work(self) -> float:
        """A round of updates: seconds of processor time for one of them."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{self.updates}\n")
        self.process.stdin.flush()
        return float(self.line()) / self.updates

    def peak(self) -> float:
        """GiB, and the end of the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return float(self.line())


def race(contestants: list[Contestant]) -> None:
    for one in contestants:
        one.line()
        one.work()
    for _ in range(ROUNDS):
        for one in contestants:
            one.rounds.append(one.work())


def worker(kind: str, items: int, sessions: int = SESSIONS) -> Contestant:
    updates = others_updates(items) if kind == "plain" else TARGET_EVERY
    arguments = ("-m", "bench._agent_worker", kind, str(items), str(sessions))
    return Contestant(sys.executable, *arguments, updates=updates)


def others_updates(items: int) -> int:
    """Rounds of about a second; only ours has a period, since it prepares the target's part for a hundred updates."""
    return 20 if items <= 1000 else 5


def d3rlpy_python() -> Path:
    """The interpreter of a virtual environment with d3rlpy, which is made where there is none."""
    home = Path(os.environ.get("BCD4REC_BENCH_CACHE", Path.home() / ".cache" / "bcd4rec-bench"))
    folder = home / "d3rlpy-2.8.1"
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        print(f"installing d3rlpy 2.8.1 into {folder}, once …", flush=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "d3rlpy==2.8.1", "torch==2.13.0"]
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, capture_output=True)
            subprocess.run([str(python), *install], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            lines = str(getattr(error, "stderr", "") or error).strip().splitlines()
            raise Skip(f"d3rlpy 2.8.1 cannot be installed ({lines[-1]})") from None
        ready.touch()
    return python


def write_log(path: Path, items: int) -> None:
    dataset = make_dataset(items, SESSIONS)
    log = dataset.transitions("train")
    np.savez(
        path,
        positives=dataset.states.positives,
        state=log.state,
        next_state=log.next_state,
        action=log.action,
        reward=log.reward,
        terminal=log.discount == 0,
    )


def show(title: str, rows: dict[str, Contestant]) -> None:
    """A table as soon as its race is over; the first row is the measure of the others."""
    table = Table("agent", "transitions per second", "time of an update", title=title, title_justify="left")
    measure = next(iter(rows.values())).seconds
    for name, one in rows.items():
        table.add_row(name, f"{BATCH / one.seconds:,.0f}", f"× {one.seconds / measure:.1f}")
    Console().print(table)


def against_others(items: int, python: Path | None) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        started = {"ours": worker("ours", items), "plain": worker("plain", items)}
        if python is not None:
            write_log(Path(folder) / "log.npz", items)
            command = (str(python), str(FOLDER / "_d3rlpy_reference.py"), f"{folder}/log.npz", str(items))
            started["d3rlpy"] = Contestant(*command, updates=others_updates(items))
        with started["ours"] as ours, started["plain"], started.get("d3rlpy", ours):
            race(list(started.values()))
    names = {"ours": "BCD4Rec", "plain": "the plain formula", "d3rlpy": "d3rlpy DiscreteBCQ, IQN"}
    show(f"{items:,} items, one core", {names[kind]: one for kind, one in started.items()})
    return {f"agents.{items}.over_{kind}": one.seconds / ours.seconds for kind, one in started.items() if one != ours}


def at_a_million() -> dict[str, float]:
    with worker("large", SIZES[-1], FEW_SESSIONS) as small, worker("large", MILLION, FEW_SESSIONS) as large:
        race([small, large])
        peak = large.peak()
    show("at most 100 allowed items, one core", {f"{SIZES[-1]:,} items": small, f"{MILLION:,} items": large})
    print(f"at {MILLION:,} items: {peak:.1f} GiB at most, preparations included", flush=True)
    return {"agents.1000000.update_cost_over_6666": large.seconds / small.seconds, "agents.1000000.peak_gib": peak}


def whole_training() -> tuple[float, float]:
    """From the data set of 2,000 simulated sessions to a BCD4Rec policy by default settings: seconds on the clock, and
    of processor time, which other load on the machine does not stretch."""
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.data.preparing import PrepareConfig, prepare
    from bcd4rec.data.schema import Log
    from bcd4rec.sim.interest_evolution import PRESETS, InterestEvolution
    from bcd4rec.sim.rollout import rollout
    from bcd4rec.workflows.comparison import contestant
    from bcd4rec.workflows.fitting import fit

    environment = InterestEvolution(PRESETS["paper"])
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.parquet"
        rollout(environment, contestant("random", environment), SESSIONS, 0).write_parquet(log)
        config = PrepareConfig()  # as `bcd4rec demo` has it
        prepare(Log(log), environment.responses, config, Path(folder) / "dataset")
        dataset = Dataset.load(Path(folder) / "dataset")
        began, worked = time.perf_counter(), time.process_time()
        fit("bcd4rec", dataset)
        return time.perf_counter() - began, time.process_time() - worked


def run() -> dict[str, float]:
    """Ratios by name. Without d3rlpy its rows are missing, and a line says why."""
    try:
        python: Path | None = d3rlpy_python()
    except Skip as reason:
        python = None
        print(f"agents: the comparison with d3rlpy is skipped, {reason}")
    print(f"updates of {BATCH} transitions", flush=True)
    ratios: dict[str, float] = {}
    for items in SIZES:
        ratios |= against_others(items, python)
    ratios |= at_a_million()
    seconds, worked = whole_training()
    print(
        f"BCD4Rec on {SESSIONS:,} simulated sessions, from the data set to the policy: {seconds:.0f} s, "
        f"and {worked:.0f} s of processor time"
    )
    return ratios | {"agents.training_seconds": seconds, "agents.training_processor_seconds": worked}


if __name__ == "__main__":
    print(run())
