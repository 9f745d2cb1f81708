"""Training by several workers: updates a second of the paper's recurrent network with one worker and with two.

Beside the time on the clock stands the processor time of a worker, which a busy machine does not stretch: one worker's
by two workers' is the gain that two idle cores can give at most. What follows for sixteen workers is a projection: a
worker's own time is a fixed part and a part for each row, read off the two batches with one worker; the exchange of two
workers grows by the bytes that a ring sends (at best) or by its messages (at worst).
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

SESSIONS, ITEMS, STEPS = 3000, 2000, 8
UPDATES = {512: int(os.environ.get("BENCH_UPDATES", 160)), 4096: int(os.environ.get("BENCH_UPDATES", 160)) // 4}
PAPER = {"pretraining": "none", "behaviour_epochs": 1, "target_every": 1000, "beta": 0.0}


def _dataset() -> Any:
    from bcd4rec.data.dataset import Dataset

    rng = np.random.default_rng(0)
    rows = SESSIONS * STEPS
    frame = pl.DataFrame(
        {
            "session_id": np.repeat(np.arange(SESSIONS), STEPS),
            "step": np.tile(np.arange(STEPS), SESSIONS),
            "item_id": np.concatenate([rng.permutation(ITEMS), rng.integers(ITEMS, size=rows - ITEMS)]),
            "response": np.where(rng.random(rows) < 0.5, "click", "skip"),
        }
    )
    return Dataset.from_frame(frame, {"skip": 0.0, "click": 1.0})


def _measure(batch: int) -> dict[str, float]:
    """Of this worker, which may be one of a process group. The first period's cache is made before the clock starts."""
    import torch
    import torch.distributed as group

    from bcd4rec.agents.agent import AGENTS
    from bcd4rec.agents.presets import preset
    from bcd4rec.agents.together import Together
    from bcd4rec.training import Trainer, take

    torch.set_num_threads(1)
    config = AGENTS["bcd4rec"].parse(preset("paper") | PAPER | {"batch_size": batch}, "bench")
    together = Together(batch) if group.is_initialized() else None
    trainer = Trainer(config, _dataset(), together=together)
    rows = np.random.default_rng(1).choice(trainer.usable, (UPDATES[batch] + 1, batch))
    mine = rows if together is None else rows[:, together.rows]
    trainer.agent.begin_period(trainer.transitions.next_state[mine.ravel()], True)
    for step, chosen in enumerate(rows):
        if step == 1:  # the first one warms up
            began, busy = time.perf_counter(), time.process_time()
            before = 0.0 if together is None else together.seconds
        whole = take(trainer.transitions, chosen)
        trainer.agent.update(whole if together is None else together.part(whole), step)
    return {
        "updates": UPDATES[batch] / (time.perf_counter() - began),
        "processor": 1000 * (time.process_time() - busy) / UPDATES[batch],
        "waiting": 0.0 if together is None else (together.seconds - before) / (time.perf_counter() - began),
        "megabytes": 4e-6 * sum(one.numel() for one in trainer.agent.network.parameters() if one.requires_grad),
    }


def _worker(rank: int, size: int, folder: str, batch: int, answers: Any) -> None:
    import torch.distributed as group

    group.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size)
    answers.put(_measure(batch))
    group.destroy_process_group()


def _workers(size: int, batch: int) -> dict[str, float]:
    from multiprocessing import get_context

    context = get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        target = _worker if size > 1 else _alone
        given = [(rank, size, str(Path(folder)), batch, answers) for rank in range(size)]
        processes = [context.Process(target=target, args=one) for one in given]
        for one in processes:
            one.start()
        found = [answers.get(timeout=1200) for _ in processes]
        for one in processes:
            one.join()
    return {name: max(one[name] for one in found) for name in found[0]}


def _alone(rank: int, size: int, folder: str, batch: int, answers: Any) -> None:
    answers.put(_measure(batch))


def _projected(workers: int, batch: int, alone: dict[int, float], exchange: float) -> tuple[float, float]:
    """Updates a second, at worst and at best; all of the workers have a core of their own."""
    small, large = sorted(alone)
    row = (alone[large] - alone[small]) / (large - small)
    own = max(alone[small] - row * small, 0.0) + row * batch / workers
    volume, messages = 2 * (workers - 1) / workers, workers - 1.0  # both are 1 for two workers
    return 1 / (own + exchange * messages), 1 / (own + exchange * volume)


def run() -> dict[str, float]:
    ratios = {}
    table = Table(title=f"the paper's network; load of the machine {os.getloadavg()[0]:.1f}", title_justify="left")
    for name in ("batch", "workers", "updates/s", "processor ms an update", "waiting, %", "gradients, MB"):
        table.add_column(name, justify="right")
    measured = {batch: {size: _workers(size, batch) for size in (1, 2)} for batch in UPDATES}
    alone = {batch: 1 / found[1]["updates"] for batch, found in measured.items()}
    exchange = min(found[2]["waiting"] / found[2]["updates"] for found in measured.values())  # the rest is waiting
    for batch, found in measured.items():
        for size, one in found.items():
            numbers = f"{one['updates']:.2f}", f"{one['processor']:.0f}", f"{100 * one['waiting']:.0f}"
            table.add_row(f"{batch:,}", str(size), *numbers, f"{one['megabytes']:.2f}")
        worst, best = _projected(16, batch, alone, exchange)
        table.add_row(f"{batch:,}", "16, projected", f"{worst:.0f} to {best:.0f}", "", "", "")
        ratios[f"data_parallel.batch_{batch}_updates_two_over_one"] = found[2]["updates"] / found[1]["updates"]
        ratios[f"data_parallel.batch_{batch}_processor_one_over_two"] = found[1]["processor"] / found[2]["processor"]
    Console().print(table)
    return ratios
