"""Judging a policy by a log: impressions per second and peak memory of the replay, beside a loop over sessions."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

ROWS = int(os.environ.get("BENCH_JUDGED", 2_000_000))
ITEMS, STEPS, SLATE = 500, 4, 5
FEW = 20_000  # impressions of the loop

OURS = """
import json, resource, sys, time
from pathlib import Path
from bcd4rec.data.dataset import Dataset
from bcd4rec.workflows.log_verdict import judge_log, logger_of
from bcd4rec.workflows.fitting import fit
dataset = Dataset.load(Path(sys.argv[1]))
new = fit("popular", dataset).whole(dataset).with_rule(exploration={"kind": "epsilon", "epsilon": 0.9})
began = time.perf_counter()
verdict = judge_log(new, dataset, logger_of("random", dataset), with_model=False)
seconds = time.perf_counter() - began
gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
row = next(row for row in verdict.rows if row.estimate.method == "SNIPS")
print(json.dumps({"seconds": seconds, "gib": gib, "value": row.estimate.value.value}))
"""

# The job as one writes it first: every session is read anew before every slate, and weights are summed up.
LOOP = """
import json, resource, sys, time
from pathlib import Path
import numpy as np
from bcd4rec.data.dataset import Dataset
from bcd4rec.workflows.fitting import fit
dataset = Dataset.load(Path(sys.argv[1]))
new = fit("popular", dataset).whole(dataset).with_rule(exploration={"kind": "epsilon", "epsilon": 0.9})
rows = dataset.frame.head(int(sys.argv[2]))
ids, names = dataset.vocabulary.ids.to_list(), dataset.responses.names
began = time.perf_counter()
top = bottom = 0.0
for _, session in rows.group_by("session", maintain_order=True):
    before = []
    for _, slate in session.group_by("step", maintain_order=True):
        items = slate["action"].to_numpy()[None].astype(np.int32)
        chances = new.propensities(new.read(before).sessions, items)
        weight = float(np.prod(chances / slate["propensity"].to_numpy()))
        top, bottom = top + weight * float((slate["response"] == 1).sum()), bottom + weight
        before.append([(ids[item], names[code]) for item, code in zip(items[0], slate["response"])])
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds, "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                  "value": top / bottom}))
"""


def write_log(path: Path, rows: int) -> None:
    """Random slates, of which one item in ten is clicked; liked items are shown again."""
    rng = np.random.default_rng(0)
    slates = rows // SLATE
    sessions = slates // STEPS
    slates = sessions * STEPS
    items = rng.integers(ITEMS, size=(slates, SLATE))
    items = (items[:, :1] + np.cumsum(rng.integers(1, ITEMS // SLATE, size=(slates, SLATE)), axis=1)) % ITEMS
    pl.DataFrame(
        {
            "session_id": np.repeat(np.arange(sessions), STEPS * SLATE),
            "step": np.tile(np.repeat(np.arange(STEPS), SLATE), sessions),
            "position": np.tile(np.arange(SLATE), slates),
            "item_id": items.ravel(),
            "response": np.where(rng.random(slates * SLATE) < 0.1, "click", "skip"),
            "propensity": np.tile(1.0 / (ITEMS - np.arange(SLATE)), slates),
        }
    ).write_parquet(path)


def _run(script: str, *arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def run() -> dict[str, float]:
    """Ratios by name. The loop gets fewer impressions: it is slow, and its time grows in proportion."""
    from bcd4rec.data.preparing import PrepareConfig, prepare
    from bcd4rec.data.responses import Responses
    from bcd4rec.data.schema import Log
    from bcd4rec.data.splits import SplitConfig

    with tempfile.TemporaryDirectory() as folder:
        write_log(Path(folder) / "log.parquet", ROWS)
        clicks = Responses(rewards={"skip": 0.0, "click": 1.0})
        config = PrepareConfig(split=SplitConfig(validation=0.0))
        prepare(Log(Path(folder) / "log.parquet"), clicks, config, Path(folder) / "dataset")
        ours = _run(OURS, f"{folder}/dataset")
        few = min(FEW, ROWS)
        loop = _run(LOOP, f"{folder}/dataset", str(few))
    table = Table(title="judging a policy by a log: replay, weights and sums", title_justify="left")
    for name in ("", "impressions", "impressions per second", "peak memory, GiB"):
        table.add_column(name, justify="right")
    for name, (rows, one) in {"bcd4rec judge": (ROWS, ours), "a loop over sessions": (few, loop)}.items():
        table.add_row(name, f"{rows:,}", f"{rows / one['seconds']:,.0f}", f"{one['gib']:.2f}")
    Console().print(table)
    return {
        "judge.rows_per_second_over_loop": (ROWS / ours["seconds"]) / (few / loop["seconds"]),
        "judge.peak_gib": ours["gib"],
    }
