"""Candidates for catalogues that are too large to score whole: an inverted file finds, exact values re-rank.

Items are grouped around centres, and a query looks only into the groups whose centres score best. How many groups
that are is chosen by measurement: the fewest with which the policy's own queries find what an exact search finds.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from bcd4rec.data.states import FloatArray, IntArray, States
from bcd4rec.errors import InputError
from bcd4rec.seeding import generator
from bcd4rec.serving.loading import Served
from bcd4rec.serving.model import OnnxPolicy

LARGE = 100_000  # from more items on
POOL = 200  # items that are retrieved at least
QUERIES, DEPTH = 64, 20  # recall is measured on so many queries, over so many best items
WANTED = 0.97  # recall
SAMPLE = 64  # items to learn each centre from


@dataclass(frozen=True)
class Measured:
    """What the search misses, and what it costs."""

    recall: float
    probes: int
    milliseconds: float


class Retrieval:
    """Finds the items with the largest inner products."""

    def __init__(self, policy: OnnxPolicy, states: States, seed: int = 0):
        self._faiss = _import_faiss()
        self._faiss.omp_set_num_threads(1)  # as many requests as threads run side by side
        table = np.ascontiguousarray(policy.tower.table)
        self._index = self._build(table, seed)
        queries = policy.preference(states)[0]
        self.measured = self._choose_probes(queries, exact_best(queries, table, DEPTH))

    def _build(self, table: FloatArray, seed: int) -> Any:
        items, width = table.shape
        faiss, lists = self._faiss, int(2 * np.sqrt(items))
        quantiser = faiss.IndexFlatIP(width)
        index = faiss.IndexIVFScalarQuantizer(
            quantiser, width, lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        )
        index.cp.niter, index.cp.seed = 6, 1234
        rows = generator(seed, "retrieval").choice(items, min(items, SAMPLE * lists), replace=False)
        index.train(table[np.sort(rows)])
        for start in range(0, items, 50_000):
            index.add(table[start : start + 50_000])
        self._keep = quantiser
        return index

    def _choose_probes(self, queries: FloatArray, expected: IntArray) -> Measured:
        """The fewest groups with the wanted recall, or the best that a sixteenth of them gives."""
        probes, most = 8, max(8, self._index.nlist // 16)
        while True:
            self._index.nprobe = probes
            began = time.perf_counter()
            found = [self.pool(query[None], 1) for query in queries]
            spent = 1e3 * (time.perf_counter() - began) / len(queries)
            recall = float(np.mean([np.isin(row, pool).mean() for row, pool in zip(expected, found, strict=True)]))
            if recall >= WANTED or probes >= most:
                return Measured(recall, probes, spent)
            probes *= 2

    def pool(self, preference: FloatArray, least: int) -> IntArray:
        """(C,) the likely best items of one preference vector (1, D), ascending; at least `least` if there are."""
        _, items = self._index.search(np.ascontiguousarray(preference), POOL + least)
        found: IntArray = np.sort(items[0][items[0] >= 0]).astype(np.int32)
        return found


def exact_best(queries: FloatArray, table: FloatArray, depth: int) -> IntArray:
    """(Q, depth) the items with the largest inner products, in any order, over blocks of the table."""
    best = np.full((len(queries), depth), -np.inf, np.float32)
    items = np.zeros((len(queries), depth), np.int32)
    for start in range(0, len(table), 50_000):
        block = queries @ table[start : start + 50_000].T
        values = np.concatenate([best, block], axis=1)
        numbers = np.concatenate([items, np.tile(np.arange(start, start + block.shape[1]), (len(queries), 1))], axis=1)
        places = np.argpartition(-values, depth - 1, axis=1)[:, :depth]
        best, items = np.take_along_axis(values, places, 1), np.take_along_axis(numbers, places, 1).astype(np.int32)
    return items


def likely_states(served: Served, policy: OnnxPolicy, seed: int = 0) -> States:
    """Sessions as the policy would meet them: after a random item each next one is among those it likes best."""
    luck = generator(seed, "retrieval", "queries")
    table = policy.tower.table
    sessions = [[int(item)] for item in luck.integers(len(table), size=QUERIES)]
    sessions[0] = []
    for _ in range(2):
        queries = policy.preference(_states(served, sessions))[0]
        best = exact_best(queries, table, DEPTH)
        for row in range(1, QUERIES):
            if luck.random() < 0.5:
                sessions[row].append(int(luck.choice(best[row])))
    return _states(served, sessions)


def _states(served: Served, sessions: list[list[int]]) -> States:
    positives = States.of(sessions, served.length).positives
    return States(positives, States.empty(len(sessions), 0, served.skips).skips)


def retrieval_for(served: Served, large: int = LARGE) -> Retrieval | None:
    """None where the catalogue is small enough to be scored whole, or where the policy has no vectors."""
    policy = served.policy
    if not isinstance(policy, OnnxPolicy) or policy.n_items <= large or policy.constrained:
        return None
    return Retrieval(policy, likely_states(served, policy))


def _import_faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError:
        raise InputError("Large catalogues need faiss: pip install 'bcd4rec[serve]'.") from None
    return faiss
