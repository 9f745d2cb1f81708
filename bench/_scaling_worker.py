"""One cell of `bench.scaling` in a process of its own: `python -m bench._scaling_worker prepare|train …`.

    prepare ITEMS SESSIONS FOLDER    a made-up log and its data set, in FOLDER
    train FOLDER ITEMS PRESET UPDATES    learns from it, saves the policy, and prints one JSON object

Logs are made in batches by vectorised NumPy: popularity falls by Zipf's law, and a session keeps to a neighbourhood of
the catalogue, so that items are liked together.
"""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

STEPS, SLATE = 3, 4  # slates of a session, items of a slate
ZIPF = 0.8
NEAR, STRAY = 50, 0.3  # items of a neighbourhood; the share of what is shown that comes from anywhere
CATEGORY = 1000  # items of a category
CLICKED, BOUGHT = 0.5, 0.1  # slates with a click, clicks that are purchases
BATCH = 50_000  # sessions that are made at once
EPOCHS = 1  # passes of pre-training: what is measured is how long one takes


def write_log(path: Path, items: int, sessions: int) -> None:
    rng = np.random.default_rng(0)
    upper = np.cumsum(1.0 / np.arange(1, items + 1) ** ZIPF)
    upper /= upper[-1]
    turned = rng.permutation(items)  # popular items are everywhere in the catalogue
    writer: pq.ParquetWriter | None = None
    for first in range(0, sessions, BATCH):
        frame = _sessions(first, min(BATCH, sessions - first), upper, turned, rng).to_arrow()
        writer = writer or pq.ParquetWriter(path, frame.schema)
        writer.write_table(frame)
    if writer is not None:
        writer.close()


def _sessions(first: int, count: int, upper: Any, turned: Any, rng: np.random.Generator) -> pl.DataFrame:
    shape, items = (count, STEPS, SLATE), len(turned)
    anchor = turned[np.searchsorted(upper, rng.random((count, 1, 1)))]
    near = (anchor // NEAR * NEAR + (NEAR * rng.random(shape) ** 2).astype(np.int64)) % items
    shown = np.where(rng.random(shape) < STRAY, turned[np.searchsorted(upper, rng.random(shape))], near)
    liked = rng.integers(SLATE, size=shape[:2])[..., None] == np.arange(SLATE)
    liked &= rng.random((count, STEPS, 1)) < CLICKED
    code = liked.astype(np.int64) + (liked & (rng.random(shape) < BOUGHT))
    session = np.broadcast_to(np.arange(first, first + count)[:, None, None], shape)
    time_of = np.broadcast_to(1_700_000_000 + session * 5 + np.arange(STEPS)[:, None] * 10, shape)
    return pl.DataFrame(
        {
            "session_id": session.ravel(),
            "timestamp": time_of.ravel(),
            "item_id": shown.ravel(),
            "category": (shown // CATEGORY).ravel(),
            "position": np.broadcast_to(np.arange(SLATE), shape).ravel(),
            "response": np.array(["skip", "click", "buy"])[code.ravel()],
        }
    )


def prepare_cell(items: int, sessions: int, folder: Path) -> dict[str, Any]:
    from bcd4rec.data.preparing import PrepareConfig, prepare
    from bcd4rec.data.responses import DIGINETICA
    from bcd4rec.data.schema import Log

    log = folder / "log.parquet"
    write_log(log, items, sessions)
    began = time.process_time()
    prepare(Log(log), DIGINETICA, PrepareConfig(), folder / "dataset", force=True)
    return {"prepare_seconds": time.process_time() - began}


def whole_catalogue(dataset: Any, items: int) -> Any:
    """With the items that no session was shown: a data set has those of its log alone."""
    seen = dataset.items["item_id"].to_numpy()
    rest = np.setdiff1d(np.arange(items), seen)
    category = pl.Series(rest // CATEGORY).cast(dataset.items["category"].dtype)
    unseen = pl.DataFrame({"item_id": rest, "category": category}).with_columns(
        impressions=pl.lit(0), positives=pl.lit(0)
    )
    columns = dataset.items.columns
    together = pl.concat([dataset.items, unseen.cast(dataset.items.schema).select(columns)])
    return type(dataset)(dataset.manifest, together, dataset.sessions, dataset.frame, dataset.states)


def train_cell(folder: Path, items: int, preset: str, updates: int) -> dict[str, Any]:
    """As `bcd4rec train bcd4rec` does it, with the clock at each stage."""
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.workflows.fitting import Watcher, fit, with_preset

    stages: list[tuple[str, float]] = []

    class Clock(Watcher):
        begun, reported = 0.0, 0.0  # processor time at the first and at the last report
        first = updates = 0  # at the first report, and since

        def stage(self, name: str, loss: float) -> None:
            stages.append((name, time.process_time()))

        def report(self, trainer: Any, report: Any) -> None:
            if self.begun:
                self.updates, self.reported = report.step - self.first, time.process_time()
            else:  # until then code was compiled and sets were made
                self.first, self.begun = report.step, time.process_time()

    dataset, clock = whole_catalogue(Dataset.load(folder / "dataset"), items), Clock()
    began = time.process_time()
    settings: dict[str, Any] = {"updates": updates}
    if preset == "paper":
        settings = with_preset("bcd4rec", preset, settings | {"pretraining_epochs": EPOCHS})
    fitted = fit("bcd4rec", dataset, settings, watcher=clock, search="none")
    learned = time.process_time()
    fitted.whole(dataset).save(folder / "policy", force=True)
    return {
        "seconds": time.process_time() - began,
        "preparing": clock.begun - began,
        "updates_per_second": clock.updates / max(clock.reported - clock.begun, 1e-9),
        "saving": time.process_time() - learned,
        "stages": [(name, round(at - began, 2)) for name, at in stages],
        "sets": fitted.about.get("sets"),
        "states": len(dataset.states),
        "impressions": len(dataset.frame),
    }


def main(task: str, *arguments: str) -> None:
    if task == "prepare":
        found = prepare_cell(int(arguments[0]), int(arguments[1]), Path(arguments[2]))
    else:
        import torch

        torch.set_num_threads(1)
        found = train_cell(Path(arguments[0]), int(arguments[1]), arguments[2], int(arguments[3]))
    found["gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
