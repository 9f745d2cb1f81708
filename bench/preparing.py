"""Preparing a log: rows per second and peak memory in streaming, beside the straightforward pandas version.

`python -m bench.preparing --rows 100000000 [--jobs 2]` prepares a tenth of so many rows and all of them, so that one
sees what grows. It needs 30 GB of disk for 100 million rows, in TMPDIR.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

ROWS = int(os.environ.get("BENCH_ROWS", 10_000_000))
ITEMS, SESSION_ROWS, BATCH_SESSIONS = 50_000, 20, 50_000

OURS = """
import json, resource, sys, time
from pathlib import Path
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.responses import DIGINETICA
from bcd4rec.data.schema import Log
from bcd4rec.data.transitions import TransitionConfig
from bcd4rec.runner.mapping import Helpers
jobs = int(sys.argv[4])
how = PrepareConfig(transitions=TransitionConfig.parse({"history": sys.argv[3]}, "history"))
began = time.perf_counter()
log, out, helpers = Log(Path(sys.argv[1])), Path(sys.argv[2]), Helpers(jobs)
config = prepare(log, DIGINETICA, how, out, force=True, side_by_side=helpers)["config"]
seconds = time.perf_counter() - began
ours, largest = (resource.getrusage(of).ru_maxrss / 2**20 for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
gib = ours + (jobs * largest if jobs > 1 else 0)  # at most: as if all had their largest at once
print(json.dumps({"seconds": seconds, "gib": gib, "length": config["length"], "skips": config["skips"]}))
"""

# The job as one writes it first: sort, walk over the sessions, keep the last liked and skipped items as tuples.
PANDAS = """
import json, resource, sys, time
import numpy as np, pandas as pd
began = time.perf_counter()
log = pd.read_parquet(sys.argv[1]).head(int(sys.argv[3])).sort_values(["session_id", "timestamp"], kind="stable")
items = {item: number for number, item in enumerate(np.sort(log["item_id"].unique()))}
rewards = {"skip": 0.0, "click": 1.0, "buy": 5.0}
length, skips = int(sys.argv[4]), int(sys.argv[5])
states, rows = {}, []
for _, session in log.groupby("session_id", sort=False):
    liked, skipped, last = (), (), len(session) - 1
    state = states.setdefault((liked, skipped), len(states))
    for place, (item, response) in enumerate(zip(session["item_id"], session["response"])):
        action, reward = items[item], rewards[response]
        if reward > 0:
            liked = (liked + (action,))[-length:]
        else:
            skipped = (skipped + (action,))[-skips:]
        after = states.setdefault((liked, skipped), len(states))
        rows.append((state, action, reward, after, 0.0 if place == last else 0.9))
        state = after
pd.DataFrame(rows, columns=["state", "action", "reward", "next_state", "discount"]).to_parquet(sys.argv[2])
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds, "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}))
"""


def write_log(path: Path, rows: int) -> None:
    """A shop's log in time order, with skewed popularity, written in batches."""
    rng = np.random.default_rng(0)
    weights = 1.0 / np.arange(1, ITEMS + 1) ** 0.8
    upper = np.cumsum(weights / weights.sum())
    writer: pq.ParquetWriter | None = None
    sessions = rows // SESSION_ROWS
    for first in range(0, sessions, BATCH_SESSIONS):
        count = min(BATCH_SESSIONS, sessions - first)
        size = count * SESSION_ROWS
        start = (first + np.arange(count)) * 5
        frame = pl.DataFrame(
            {
                "session_id": np.repeat(np.arange(first, first + count), SESSION_ROWS),
                "timestamp": (start[:, None] + np.arange(SESSION_ROWS) * 10).reshape(-1) + 1_700_000_000,
                "item_id": np.searchsorted(upper, rng.random(size)) + 1_000_000,
                "response": np.array(["skip", "click", "buy"])[np.searchsorted([0.88, 0.99], rng.random(size))],
            }
        ).to_arrow()
        writer = writer or pq.ParquetWriter(path, frame.schema)
        writer.write_table(frame)
    if writer is not None:
        writer.close()


def _run(script: str, *arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def run() -> dict[str, float]:
    """Ratios by name. pandas gets a tenth of the rows: it is slow, and its time grows in proportion."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.parquet"
        write_log(log, ROWS)
        ours = _run(OURS, str(log), f"{folder}/dataset", "all", "1")
        few = max(ROWS // 10, SESSION_ROWS)
        sizes = (f"{ours[name]:.0f}" for name in ("length", "skips"))
        pandas = _run(PANDAS, str(log), f"{folder}/pandas.parquet", str(few), *sizes)
    _show([("bcd4rec prepare", ROWS, ours), ("pandas, a loop over sessions", few, pandas)])
    return {
        "prepare.rows_per_second_over_pandas": (ROWS / ours["seconds"]) / (few / pandas["seconds"]),
        "prepare.peak_gib": ours["gib"],
    }


def _show(found: list[tuple[str, int, dict[str, float]]]) -> None:
    table = Table(title="preparing a log", title_justify="left")
    for name in ("", "rows", "rows per second", "peak memory, GiB"):
        table.add_column(name, justify="right")
    for name, rows, one in found:
        table.add_row(name, f"{rows:,}", f"{rows / one['seconds']:,.0f}", f"{one['gib']:.2f}")
    Console().print(table)


def grow(rows: int, history: str, jobs: int) -> dict[str, float]:
    """What becomes of speed and memory when there are ten times as many rows."""
    found = []
    for count in (rows // 10, rows):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log.parquet"
            write_log(log, count)
            found.append(
                (
                    f"history {history}, jobs {jobs}",
                    count,
                    _run(OURS, str(log), f"{folder}/dataset", history, str(jobs)),
                )
            )
        _show(found[-1:])
    _show(found)
    (_, few, small), (_, many, large) = found
    return {
        "prepare.rows_per_second": many / large["seconds"],
        "prepare.speed_over_a_tenth": (many / large["seconds"]) / (few / small["seconds"]),
        "prepare.peak_gib": large["gib"],
        "prepare.peak_over_a_tenth": large["gib"] / small["gib"],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--history", choices=["all", "positives"], default="all")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    print(json.dumps({name: round(value, 3) for name, value in grow(given.rows, given.history, given.jobs).items()}))
