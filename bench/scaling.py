"""Training by the size of catalogue and log: `python -m bench.scaling [--items N …] [--sessions N …] [--preset paper]`.

Every cell is a made-up log, prepared by one process and learned from by another with one thread, which is measured:
processor seconds until the updates (evidence, pre-training, allowed sets), updates per second, seconds in all, peak
memory. Other load on the machine does not stretch processor time. Results are appended to --out line by line, cells
that are there are not measured again, and `--plot FILE` draws what is there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ITEMS = SESSIONS = (10_000, 100_000, 1_000_000)
SMALL = (10_000, 100_000)  # what `python -m bench` measures: minutes, not hours
UPDATES = 300
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")

Cell = dict[str, Any]


def worker(*arguments: str) -> Cell:
    paths = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "bench._scaling_worker", *arguments],
        env=os.environ | dict.fromkeys(THREADS, "1") | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: Cell = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(items: int, sessions: int, preset: str, folder: Path) -> Cell:
    """`folder` keeps the prepared logs, since both presets learn from the same."""
    home = folder / f"{items}-{sessions}"
    if not (home / "dataset").is_dir():
        home.mkdir(parents=True, exist_ok=True)
        worker("prepare", str(items), str(sessions), str(home))
        (home / "log.parquet").unlink()
    found = worker("train", str(home), str(items), preset, str(UPDATES))
    return {"items": items, "sessions": sessions, "preset": preset} | found


def show(cells: list[Cell]) -> None:
    table = Table("items", "sessions", "network", "preparing, s", "updates/s", "recall", "in all, s", "GiB")
    for one in cells:
        recall = f"{one['sets']['recall']:.3f}" if one["sets"] else "exact"
        begun = one["preparing"]
        row = (f"{begun:.0f}", f"{one['updates_per_second']:.0f}", recall, f"{one['seconds']:.0f}", f"{one['gib']:.1f}")
        table.add_row(f"{one['items']:,}", f"{one['sessions']:,}", one["preset"], *row)
    Console().print(table)


def draw(cells: list[Cell], path: Path) -> None:
    """Seconds and memory by the size of the catalogue, a line for each size of the log."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "bcd4rec"
    from matplotlib import pyplot

    kinds = sorted({one["preset"] for one in cells})
    figure, axes = pyplot.subplots(len(kinds), 3, figsize=(10, 3 * len(kinds)), squeeze=False, layout="constrained")
    named = {"seconds": "seconds in all", "updates_per_second": "updates per second", "gib": "peak memory, GiB"}
    for row, kind in zip(axes, kinds, strict=True):
        for axis, (name, title) in zip(row, named.items(), strict=True):
            for sessions in sorted({one["sessions"] for one in cells}):
                mine = sorted(
                    (one["items"], one[name]) for one in cells if one["preset"] == kind and one["sessions"] == sessions
                )
                if mine:
                    axis.plot(*zip(*mine, strict=True), marker="o", label=f"{sessions:,} sessions")
            axis.set(xscale="log", xlabel="items", title=f"{kind}: {title}")
            axis.set_ylim(bottom=0)
    axes[0][0].legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})


def run_grid(items: list[int], sessions: list[int], preset: str, folder: Path, out: Path | None) -> list[Cell]:
    known = [json.loads(line) for line in out.read_text().splitlines()] if out is not None and out.is_file() else []
    done = {(one["items"], one["sessions"], one["preset"]) for one in known}
    for count in items:
        for size in sessions:
            if (count, size, preset) in done:
                continue
            print(f"{count:,} items, {size:,} sessions, {preset} …", file=sys.stderr, flush=True)
            known.append(measure(count, size, preset, folder))
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(known[-1]) + "\n")
    return known


def run() -> dict[str, float]:
    """Ratios by name: what ten times the catalogue costs with the same log."""
    with tempfile.TemporaryDirectory() as folder:
        cells = run_grid(list(SMALL), [SMALL[0]], "default", Path(folder), None)
    show(cells)
    small, large = cells
    return {
        "scaling.seconds_over_tenth": large["seconds"] / small["seconds"],
        "scaling.update_cost_over_tenth": small["updates_per_second"] / large["updates_per_second"],
        "scaling.peak_gib": large["gib"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--items", type=int, nargs="*", default=list(ITEMS))
    parser.add_argument("--sessions", type=int, nargs="*", default=list(SESSIONS))
    parser.add_argument("--preset", choices=("default", "paper"), default="default")
    parser.add_argument("--folder", type=Path, help="where prepared logs are kept; a temporary one by default")
    parser.add_argument("--out", type=Path, help="JSON lines; cells that it has are not measured again")
    parser.add_argument("--plot", type=Path, help="an SVG of all cells of --out")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        cells = run_grid(given.items, given.sessions, given.preset, folder, given.out)
    show(cells)
    if given.plot is not None:
        draw(cells, given.plot)


if __name__ == "__main__":
    main()
