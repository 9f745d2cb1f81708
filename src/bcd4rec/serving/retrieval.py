"""Candidates for catalogues that are too large to score whole: some are found, and exact values rank them.

Policies that know where their best items are find them themselves. Where values are inner products, an inverted file
does: items are grouped around centres, and a query looks only into the groups whose centres score best. How many groups
that are is chosen by measurement: the fewest with which the policy's own queries find what an exact search finds.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bcd4rec.artifacts import atomic_file, parse_json, write_json
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.states import FloatArray, IntArray, States
from bcd4rec.models.inner_products import exact_best, import_faiss, inverted_file
from bcd4rec.policies.bundle import EXPORT_ANEW, Bundle, worded
from bcd4rec.policies.ranking import top
from bcd4rec.policies.scorer import Scorer, Shortlisting
from bcd4rec.seeding import generator
from bcd4rec.serving.loading import Served
from bcd4rec.serving.model import OnnxPolicy

LARGE = 100_000  # from more items on
POOL = 200  # items that are retrieved at least
QUERIES, DEPTH = 64, 20  # recall is measured on so many queries, over so many best items
FEW_QUERIES = 16  # where an exact search takes a while
WANTED = 0.97  # recall
INDEX, MEASURED = "retrieval.faiss", "retrieval.json"


@dataclass(frozen=True)
class Measured:
    """What the search misses, and what it costs."""

    recall: float  # of the best `DEPTH`
    milliseconds: float
    probes: int = 0  # groups that are looked into


class Retrieval(Protocol):
    """Finds the likely best items of one state."""

    means: str  # how it does that
    measured: Measured

    def best(self, states: States, least: int) -> tuple[IntArray, FloatArray]:
        """(C,) items, ascending, at least `least` if there are, and (1, C) their scores."""
        ...


class Shortlists:
    """What the policy finds itself."""

    means = "the policy's own lists"

    def __init__(self, policy: Shortlisting, states: States):
        """Measure on `states`."""
        self._policy = policy
        hits, spent = [], []
        for row in range(len(states)):
            one = states[row : row + 1]
            expected = top(policy.scores(one), DEPTH)[0]
            began = time.perf_counter()
            found, _ = self.best(one, 1)
            spent.append(1e3 * (time.perf_counter() - began))
            hits.append(np.isin(expected, found).mean())
        self.measured = Measured(float(np.mean(hits)), float(np.median(spent)))

    def best(self, states: States, least: int) -> tuple[IntArray, FloatArray]:
        items = self._policy.shortlist(states, POOL + least)
        return items, self._policy.scores(states, items[None])


class InvertedFile:
    """Finds the items with the largest inner products."""

    means = "faiss"

    def __init__(self, policy: OnnxPolicy, index: Any, measured: Measured | None = None):
        self._faiss = import_faiss()
        self._policy, self._index = policy, index
        self.measured = measured or Measured(0.0, 0.0, 1)
        self._index.nprobe = self.measured.probes

    @classmethod
    def build(cls, policy: OnnxPolicy, states: States, tick: Tick = no_tick, seed: int = 0) -> "InvertedFile":
        """Group the items, and measure on the preferences of `states` how many groups have to be looked into."""
        table, queries = policy.tower.table, policy.preference(states)[0]
        found = cls(policy, inverted_file(table, tick, seed))
        found.measured = found._choose_probes(queries, exact_best(queries, table, DEPTH))
        return found

    def best(self, states: States, least: int) -> tuple[IntArray, FloatArray]:
        known = self._policy.preference(states)
        items = self.pool(known[0], least)
        return items, self._policy.scores(states, items[None], known)

    def save(self, folder: Path) -> list[Path]:
        """Beside the bundle's arrays, for servers that start at once."""
        with atomic_file(folder / INDEX, force=True) as partial:
            import_faiss().write_index(self._index, str(partial))
        with atomic_file(folder / MEASURED, force=True) as partial:
            write_json(partial, asdict(self.measured))
        return [folder / INDEX, folder / MEASURED]

    @classmethod
    def read(cls, policy: OnnxPolicy, saved: Bundle) -> "InvertedFile | None":
        """What `save` wrote, where it is listed as a part of this bundle."""
        if INDEX not in saved.checksums:
            return None
        with worded(saved.folder, EXPORT_ANEW):
            measured = Measured(**parse_json(saved.read(MEASURED), saved.folder / MEASURED))
            index = import_faiss().deserialize_index(np.frombuffer(saved.read(INDEX), np.uint8))
            if (index.ntotal, index.d) != policy.tower.table.shape or not 0 < measured.probes <= index.nlist:
                raise ValueError(f"{INDEX} is not of these items")
            found = cls(policy, index, measured)
            if not len(found.pool(np.ones((1, index.d), np.float32), 1)):
                raise ValueError(f"{INDEX} finds nothing")
        return found

    def _choose_probes(self, queries: FloatArray, expected: IntArray) -> Measured:
        """The fewest groups with the wanted recall, or what an eighth of them gives."""
        probes, most = 8, min(self._index.nlist, max(64, self._index.nlist // 8))
        while True:
            self._index.nprobe = probes
            began = time.perf_counter()
            found = [self.pool(query[None], 1) for query in queries]
            spent = 1e3 * (time.perf_counter() - began) / len(queries)
            recall = float(np.mean([np.isin(row, pool).mean() for row, pool in zip(expected, found, strict=True)]))
            if recall >= WANTED or probes >= most:
                return Measured(recall, spent, probes)
            probes = min(2 * probes, most)

    def pool(self, preference: FloatArray, least: int) -> IntArray:
        """(C,) the likely best items of one preference vector (1, D), ascending; at least `least` if there are."""
        self._faiss.omp_set_num_threads(1)  # of the calling thread; requests run side by side instead
        _, items = self._index.search(np.ascontiguousarray(preference), POOL + least)
        there = (items[0] >= 0) & (items[0] < self._policy.n_items)
        found: IntArray = np.sort(items[0][there]).astype(np.int32)
        return found


def likely_states(served: Served, best: Callable[[States], IntArray], count: int = QUERIES, seed: int = 0) -> States:
    """Sessions as the policy would meet them: after a random item each next one is among the `best` (B, DEPTH)."""
    rng = generator(seed, "retrieval", "queries")
    sessions = [[int(item)] for item in rng.integers(served.policy.n_items, size=count)]
    sessions[0] = []
    for _ in range(2):
        found = best(_states(served, sessions))
        for row in range(1, count):
            if rng.random() < 0.5:
                sessions[row].append(int(rng.choice(found[row])))
    return _states(served, sessions)


def _states(served: Served, sessions: list[list[int]]) -> States:
    memory = served.policy.memory
    positives = States.of(sessions, memory.length).positives
    return States(positives, States.empty(len(sessions), 0, memory.skips).skips)


def retrieval_for(served: Served, large: int = LARGE, tick: Tick = no_tick) -> Retrieval | None:
    """None where the catalogue is small enough to be scored whole, or where the policy has to be."""
    policy = served.policy.scorer
    if policy.n_items <= large:
        return None
    if isinstance(policy, OnnxPolicy):
        return inverted_file_for(served, policy, tick)
    if isinstance(policy, Shortlisting) and not policy.constrained:
        return Shortlists(policy, likely_states(served, lambda states: _ranked(policy, states), FEW_QUERIES))
    return None


def inverted_file_for(served: Served, policy: OnnxPolicy, tick: Tick = no_tick) -> InvertedFile | None:
    """The stored one, or a new one; None where a constraint needs the whole catalogue."""
    if policy.constrained:
        return None
    table = policy.tower.table
    return InvertedFile.read(policy, served.bundle) or InvertedFile.build(
        policy,
        likely_states(served, lambda states: exact_best(policy.preference(states)[0], table, DEPTH)),
        tick,
    )


def _ranked(policy: Scorer, states: States) -> IntArray:
    """(B, DEPTH) state by state, because a row of scores of a large catalogue is large."""
    return np.concatenate([top(policy.scores(states[row : row + 1]), DEPTH) for row in range(len(states))])
