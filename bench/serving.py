"""`python -m bench.serving [SECONDS]`: requests a second and latencies of a real server on loopback.

Policies over evidence: one that learned from a log of the simulated shop, and one of so many such shops side by side
that there are a million items. Networks with random weights, served through ONNX.

A load process keeps four connections busy with sessions of ten recommendations; half of the sessions are kept by the
server, and every recommendation gets feedback, which is stored meanwhile. The no-op endpoint of the same server tells
what HTTP alone costs. The last line is one JSON object.
"""

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import torch
from rich.console import Console
from rich.table import Table

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.knowledge import Knowledge, Neighbours
from bcd4rec.data.responses import Responses
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.models.evidence import Evidence
from bcd4rec.models.q_network import QNetwork, QNetworkConfig
from bcd4rec.models.response_regression import ResponseModel
from bcd4rec.policies import bundle
from bcd4rec.policies.evidence_policy import EvidencePolicy
from bcd4rec.policies.policy import Memory, Policy
from bcd4rec.policies.quantile_policy import QuantilePolicy
from bcd4rec.policies.scorer import SavedScorer
from bcd4rec.sim.rollout import rollout, with_ids, with_openings
from bcd4rec.sim.shop import Shop
from bcd4rec.sim.shop_config import preset
from bcd4rec.workflows.comparison import BEHAVIOUR, contestant
from bcd4rec.workflows.fitting import Fitted, fit

WIDTH, LENGTH, SKIPS, KINDS = 100, 10, 40, 825
SMALL, LARGE = 6_666, 1_000_000
USERS = 6_000  # of the log that evidence is learned from; they see nearly all of the 6,666 items
RESPONSES = Responses(rewards={"skip": 0, "click": 1, "buy": 5})
REPORTED = ("requests_per_second", "p50_ms", "p90_ms", "p99_ms", "errors")
CPU = {"server": "server ms", "client": "load ms"}  # processor time
Measures = dict[str, float]


def network(items: int) -> QuantilePolicy:
    """Random weights over items of some hundred kinds."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    kinds = rng.normal(size=(KINDS, WIDTH)).astype(np.float32)
    vectors = kinds[rng.integers(KINDS, size=items)]
    vectors += 0.5 * rng.standard_normal(vectors.shape, np.float32)
    vectors *= 0.3
    return QuantilePolicy(QNetwork(vectors, QNetworkConfig(head="implicit")))


@functools.cache
def learned() -> EvidencePolicy:
    """From a log of the simulated shop, quickly."""
    shop = Shop(preset("pages"))
    log = rollout(shop, contestant(BEHAVIOUR, shop), USERS, 0)
    dataset = Dataset.from_frame(with_ids(with_openings(log, shop), shop), shop.responses)
    found: Fitted = fit("bcd4rec", dataset, {"updates": 100})
    assert isinstance(found.scorer, EvidencePolicy)
    return found.scorer


def side_by_side(policy: EvidencePolicy, shops: int) -> EvidencePolicy:
    """As many shops as one: each has its own items, categories and sessions, and its luck with responses."""
    evidence, rng = policy.model.evidence, np.random.default_rng(0)
    known, likes, step = evidence.knowledge, evidence.neighbours.sequences, evidence.n_items

    def moved(items: np.ndarray, size: int) -> np.ndarray:
        shift = size * np.arange(shops, dtype=items.dtype)[:, None]
        return np.where(items < 0, items, items + shift).astype(items.dtype).ravel()

    def offsets(one: np.ndarray) -> np.ndarray:
        return np.append(0, np.cumsum(np.tile(np.diff(one), shops)))

    def neighbours(one: Neighbours) -> Neighbours:
        return Neighbours(offsets(one.offsets), moved(one.items, step), np.tile(one.weights, shops))

    def numbers(one: np.ndarray) -> np.ndarray:
        return (np.tile(one, shops) + 0.1 * rng.standard_normal(shops * step)).astype(np.float32)

    own = (known.positive, known.target, known.popularity, known.shown)
    knowledge = Knowledge(
        moved(known.categories, int(known.categories.max()) + 1),
        *map(numbers, own),
        neighbours(known.similar),
        neighbours(known.followers),
        np.tile(known.tastes, (shops, 1)),
    )
    sessions = Sequences(moved(likes.items, step), offsets(likes.offsets))
    model = ResponseModel(Evidence(knowledge, sessions), policy.model.weights)
    return EvidencePolicy(model, policy.returns, policy.behaviour)


POLICIES: dict[str, Callable[[], SavedScorer]] = {
    "evidence": learned,
    "evidence, large": lambda: side_by_side(learned(), -(-LARGE // learned().n_items)),
    "network": lambda: network(SMALL),
    "network, large": lambda: network(LARGE),
}


def save(scorer: SavedScorer, folder: Path) -> Path:
    ids = Vocabulary(pl.Series("item_id", range(scorer.n_items)))
    counts, memory = np.arange(scorer.n_items, dtype=np.int32), Memory(length=LENGTH, skips=SKIPS)
    about = {"method": "bcd4rec"}
    bundle.save(Policy(scorer, ids, memory, responses=RESPONSES, popularity=counts, about=about), folder)
    return folder


@contextlib.contextmanager
def server(policy: Path, database: str, workers: int = 1) -> Iterator[tuple[str, str, int]]:
    """Host, port and process number of `bcd4rec serve`."""
    options = ["--port", "0", "--rate", "0", "--json", "--database", database, "--workers", str(workers)]
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


def load(host: str, port: str, process: int, kind: str, seconds: float, connections: int = 4) -> Measures:
    """What the load process measured, and milliseconds of processor time for each answer, here and there."""
    before = processor_seconds(process)
    command = [sys.executable, "-m", "bench._load", host, port, kind, str(seconds), str(connections)]
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
    """Processor time that the process, its threads and its workers have had."""
    return sum(one.cpu_times().user + one.cpu_times().system for one in family(process))


def family(process: int) -> list[psutil.Process]:
    """The process and its workers."""
    return [psutil.Process(process), *psutil.Process(process).children()]


def peak_memory(process: int) -> float:
    """MiB that the process has had at most."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def main(seconds: float = 10.0) -> None:
    measured: dict[str, Measures] = {}
    memory: dict[str, float] = {}
    items: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        for kind, make in POLICIES.items():
            scratch = Path(name) / kind
            scratch.mkdir()
            policy = make()
            items[kind] = policy.n_items
            with server(save(policy, scratch / "policy"), str(scratch / "store.sqlite")) as (host, port, process):
                del policy
                if not measured:
                    measured["noop"] = load(host, port, process, "noop", seconds / 2)
                measured[kind] = load(host, port, process, "recommend", seconds)
                memory[kind] = peak_memory(process)
    Console(width=120).print(table_of(measured, memory, items, seconds))
    print(json.dumps({kind: {name: one[name] for name in REPORTED} for kind, one in measured.items()}))


def table_of(measured: dict[str, Measures], memory: dict[str, float], items: dict[str, int], seconds: float) -> Table:
    """For people; milliseconds of processor time tell more than the clock where others use the machine, too."""
    table = Table(title=f"bcd4rec serve, {seconds:g} s each", title_justify="left")
    for column in ("policy", "items", "req./s", "p50", "p90", "p99 ms", "errors", "stored/s", *CPU.values(), "MiB"):
        table.add_column(column, justify="right", no_wrap=True)
    for kind, one in measured.items():
        times = [f"{one[name]:.2f}" for name in ("p50_ms", "p90_ms", "p99_ms")]
        stored = f"{one['stored'] / seconds:,.0f}" if kind in memory else ""
        cpu = [f"{one[name]:.2f}" for name in CPU]
        used = f"{memory[kind]:,.0f}" if kind in memory else ""
        count = f"{items[kind]:,}" if kind in items else ""
        table.add_row(kind, count, f"{one['requests_per_second']:,.0f}", *times, f"{one['errors']}", stored, *cpu, used)
    return table


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
