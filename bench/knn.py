"""Nearest neighbours over compressed arrays against a plain implementation over dictionaries, on made-up sessions."""

import math
import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.baselines.session_knn import SessionKNN
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sequences import Sequences

SESSIONS, ITEMS, QUERIES, SLATE = 100_000, 20_000, 300, 20
METHODS = {"sknn": (100, 1000), "vsknn": (500, 2500), "stan": (500, 2500)}  # k and sample


def make_sessions(count: int, rng: np.random.Generator) -> Sequences:
    """Sessions around one popular or rare item, of some five items: the shape of a shop's log."""
    lengths = np.minimum(rng.geometric(0.2, count), 30) + 1
    centre = np.repeat(ITEMS * rng.random(count) ** 2, lengths)
    items = (centre + rng.normal(0, 15, lengths.sum())).astype(np.int32) % ITEMS
    return Sequences(items, np.append(0, np.cumsum(lengths)).astype(np.int64))


class DictionaryKNN:
    """The methods as one writes them down: sets, dictionaries and sorting."""

    def __init__(self, method: str, train: Sequences):
        self.method = method
        self.k, self.sample = METHODS[method]
        self.sessions = [one.tolist() for one in train]
        self.sets = [set(one) for one in self.sessions]
        self.by_item: dict[int, list[int]] = defaultdict(list)
        events: dict[int, int] = defaultdict(int)
        for row, one in enumerate(self.sessions):
            for item in self.sets[row]:
                self.by_item[item].append(row)
            for item in one:
                events[item] += 1
        self.idf = {item: math.log(len(self.sessions) / count) for item, count in events.items()}

    def top(self, session: list[int], k: int) -> list[int]:
        last = {item: position for position, item in enumerate(session, start=1)}
        weights = {item: self._weight(position, len(session)) for item, position in last.items()}
        candidates = sorted({row for item in last for row in self.by_item[item]}, reverse=True)[: self.sample]
        neighbours = sorted(((self._similarity(weights, row), row) for row in candidates), reverse=True)[: self.k]
        scores: dict[int, float] = defaultdict(float)
        for similarity, row in neighbours:
            self._vote(session, weights, row, similarity, scores)
        return sorted(scores, key=lambda item: (-scores[item], item))[:k]

    def _weight(self, position: int, length: int) -> float:
        if self.method == "sknn":
            return 1.0
        return (position / length) ** 2 if self.method == "vsknn" else math.exp((position - length) / 2.5)

    def _similarity(self, weights: dict[int, float], row: int) -> float:
        shared = sum(weight for item, weight in weights.items() if item in self.sets[row])
        if self.method == "vsknn":
            return shared / len(weights)
        norm = math.sqrt(sum(weight**2 for weight in weights.values()) * len(self.sets[row]))
        age = (len(self.sessions) - row) / 1000 / 80 if self.method == "stan" else 0.0
        return shared / norm * math.exp(-age)

    def _vote(
        self, session: list[int], weights: dict[int, float], row: int, similarity: float, scores: dict[int, float]
    ) -> None:
        if self.method == "stan":
            places = {item: position for position, item in enumerate(self.sessions[row])}
            anchor = max(position for item, position in places.items() if item in weights)
            for item, position in places.items():
                scores[item] += similarity * math.exp(-abs(position - anchor) / 5)
            return
        step = next(step for step, item in enumerate(reversed(session), start=1) if item in self.sets[row])
        for item in self.sets[row]:
            rare = (1 + 5 * self.idf[item]) / step if self.method == "vsknn" else 1.0
            scores[item] += similarity * rare


def _rate(answer: Callable[[], object], queries: int) -> float:
    start = time.perf_counter()
    answer()
    return queries / (time.perf_counter() - start)


def run() -> dict[str, float]:
    """Queries a second, one at a time in both cases; ours over the dictionary's."""
    rng = np.random.default_rng(0)
    train, asked = make_sessions(SESSIONS, rng), make_sessions(QUERIES, rng)
    queries = [Sequences.of([one.tolist()]) for one in asked]
    table = Table("method", "dictionary", "ours", "ratio", title="nearest neighbours, queries/s on one core")
    ratios: dict[str, float] = {}
    for method in METHODS:
        policy, plain = BASELINES[method]().fit(Dataset.from_sequences(train, ITEMS), 0), DictionaryKNN(method, train)
        assert isinstance(policy, SessionKNN)
        found, _ = policy.top(asked, SLATE)  # also compiles
        expected = [plain.top(one.tolist(), SLATE) for one in asked]
        same = np.mean(
            [row[: len(plain_row)].tolist() == plain_row for row, plain_row in zip(found, expected, strict=True)]
        )
        assert same > 0.95, f"{method}: {same:.0%} of the lists agree"  # sums in another order may swap near-equals
        slow = _rate(lambda plain=plain: [plain.top(one.tolist(), SLATE) for one in asked], QUERIES)  # type: ignore[misc]
        fast = _rate(lambda policy=policy: [policy.top(one, SLATE) for one in queries], QUERIES)  # type: ignore[misc]
        ratios[f"knn.{method}_over_dictionary"] = fast / slow
        table.add_row(method, f"{slow:,.0f}", f"{fast:,.0f}", f"{fast / slow:.1f}")
    Console().print(table)
    return ratios


if __name__ == "__main__":
    run()
