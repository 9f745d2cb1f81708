"""`python -m bench.serving [SECONDS]`: requests a second and latencies of a real server on loopback.

A load process keeps four connections busy with sessions of ten recommendations; half of the sessions are kept by the
server, and every recommendation gets feedback, which is stored meanwhile. The no-op endpoint of the same server tells
what HTTP alone costs. The last line is one JSON object.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import torch
from rich.console import Console
from rich.table import Table

from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.models.q_network import QNetwork, QNetworkConfig
from bcd4rec.policies import bundle
from bcd4rec.policies.quantile_policy import QuantilePolicy

WIDTH, LENGTH, SKIPS, KINDS = 100, 10, 40, 825
SMALL, LARGE = 6_666, 1_000_000
ABOUT = {
    "method": "bcd4rec",
    "history": {"length": LENGTH, "skips": SKIPS},
    "responses": {"rewards": {"skip": 0, "click": 1, "buy": 5}},
}
REPORTED = ("requests_per_second", "p50_ms", "p90_ms", "p99_ms", "errors")
CPU = {"server": "server ms", "client": "load ms"}  # processor time
Measures = dict[str, float]


def made_up(items: int, folder: Path) -> Path:
    """A policy with random weights over items of some hundred kinds."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    kinds = rng.normal(size=(KINDS, WIDTH)).astype(np.float32)
    vectors = kinds[rng.integers(KINDS, size=items)]
    vectors += 0.5 * rng.standard_normal(vectors.shape, np.float32)
    vectors *= 0.3
    network = QNetwork(vectors, QNetworkConfig(head="implicit"))
    folder.mkdir()
    ids = Vocabulary(pl.Series("item_id", range(items)))
    bundle.save(QuantilePolicy(network), "quantile_policy", ids, folder, ABOUT, np.arange(items, dtype=np.int32))
    return folder


@contextlib.contextmanager
def server(policy: Path, scratch: Path) -> Iterator[tuple[str, str, int]]:
    """Host, port and process number of `bcd4rec serve`."""
    options = ["--port", "0", "--rate", "0", "--json", "--database", str(scratch / "store.sqlite")]
    paths = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        [sys.executable, "-m", "bcd4rec.cli", "serve", str(policy), *options],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the server did not start")
        host, port = json.loads(line)["address"].removeprefix("http://").split(":")
        yield host, port, process.pid
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def load(host: str, port: str, process: int, kind: str, seconds: float, items: int) -> Measures:
    """What the load process measured, and milliseconds of processor time for each answer, here and there."""
    before = processor_seconds(process)
    command = [sys.executable, "-m", "bench._load", host, port, kind, str(seconds), str(items)]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": paths}, timeout=600
    )
    measures: Measures = json.loads(done.stdout)
    asked = measures.pop("asked")
    measures["server"] = 1e3 * (processor_seconds(process) - before) / asked
    measures["client"] = 1e3 * measures.pop("client_seconds") / asked
    return measures


def processor_seconds(process: int) -> float:
    """Processor time that the process and its threads have had."""
    used = psutil.Process(process).cpu_times()
    return float(used.user + used.system)


def peak_memory(process: int) -> float:
    """MiB that the process has had at most."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def main(seconds: float = 10.0) -> None:
    measured: dict[str, Measures] = {}
    memory: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        for items in (SMALL, LARGE):
            scratch = Path(name) / str(items)
            scratch.mkdir()
            with server(made_up(items, scratch / "policy"), scratch) as (host, port, process):
                if items == SMALL:
                    measured["noop"] = load(host, port, process, "noop", seconds / 2, items)
                measured[str(items)] = load(host, port, process, "recommend", seconds, items)
                memory[str(items)] = peak_memory(process)
    Console().print(table_of(measured, memory, seconds))
    print(json.dumps({kind: {name: one[name] for name in REPORTED} for kind, one in measured.items()}))


def table_of(measured: dict[str, Measures], memory: dict[str, float], seconds: float) -> Table:
    """For people; milliseconds of processor time tell more than the clock where others use the machine, too."""
    table = Table(title=f"bcd4rec serve, {seconds:g} s each", title_justify="left")
    for column in ("items", "req./s", "p50", "p90", "p99 ms", "errors", "feedback/s", *CPU.values(), "MiB"):
        table.add_column(column, justify="right")
    for kind, one in measured.items():
        times = [f"{one[name]:.2f}" for name in ("p50_ms", "p90_ms", "p99_ms")]
        stored = f"{one['stored'] / seconds:,.0f}" if kind in memory else ""
        cpu = [f"{one[name]:.2f}" for name in CPU]
        used = f"{memory[kind]:,.0f}" if kind in memory else ""
        table.add_row(kind, f"{one['requests_per_second']:,.0f}", *times, f"{one['errors']}", stored, *cpu, used)
    return table


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
