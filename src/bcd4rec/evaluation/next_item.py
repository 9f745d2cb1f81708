"""Next-item prediction: P@K and MRR@K over test cases, each a session so far and the item that came next.

Lists are ranked by score, and among equal scores the lower item index comes first, so a method that scores all
items alike gains nothing by the target being one of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import HISTORY, FloatArray, IntArray, States
from bcd4rec.policies.ranking import top_scored
from bcd4rec.policies.scorer import Scorer
from bcd4rec.seeding import generator

MISSED = 0  # the rank of a target that is not in its list


@dataclass(frozen=True)
class NextItemResult:
    """What became of each case."""

    ranks: IntArray  # (cases,) the place of the target in its list, from 1, or MISSED
    k: int

    @property
    def hits(self) -> FloatArray:
        """(cases,) 1 where the target is in the list."""
        return np.where(self.ranks != MISSED, np.float32(1), np.float32(0))

    @property
    def reciprocal_ranks(self) -> FloatArray:
        """(cases,) 1 over the target's place, 0 where it is missed."""
        return (self.hits / np.maximum(self.ranks, 1)).astype(np.float32)

    def summary(self, seed: int, level: float = 0.95, resamples: int = 2000) -> dict[str, float]:
        """P@K and MRR@K in percent, each with the bounds of its bootstrap interval.

        A bootstrap sample only matters by how often it holds each rank, so the counts of the ranks are drawn.
        Cases count as independent, although those of one session are not quite.
        """
        counts = np.bincount(self.ranks, minlength=self.k + 1)
        cases = max(len(self.ranks), 1)
        shares = counts / cases if len(self.ranks) else np.eye(1, self.k + 1)[0]
        drawn = generator(seed, "bootstrap").multinomial(cases, shares, resamples) / cases  # (resamples, K + 1)
        places = np.arange(self.k + 1)
        gains = {"p": (places != MISSED).astype(float), "mrr": (places != MISSED) / np.maximum(places, 1)}
        result: dict[str, float] = {}
        for name, gain in gains.items():
            low, high = np.quantile(drawn @ gain, [(1 - level) / 2, (1 + level) / 2])
            values = {"": shares @ gain, "_low": low, "_high": high}
            result |= {f"{name}@{self.k}{suffix}": 100 * float(value) for suffix, value in values.items()}
        return result


def ranks_of(lists: IntArray, targets: IntArray) -> IntArray:
    """(cases,) where each target stands in its row of `lists` (cases, K), from 1; MISSED where it does not."""
    found = lists == targets[:, None]
    return np.where(found.any(axis=1), found.argmax(axis=1) + 1, MISSED).astype(np.int32)


def top_lists(scorer: Scorer, sessions: Sequences, k: int, batch: int = 256) -> tuple[IntArray, FloatArray]:
    """(cases, K) the best items for each session so far and their scores, K = min(k, A).

    A policy with a `top` of its own is given whole sessions; any other is given their states and ranked by scores.
    """
    if hasattr(scorer, "top"):
        items, scores = scorer.top(sessions, k)
        return items, scores
    shape = (len(sessions), min(k, scorer.n_items))
    items, scores = np.empty(shape, np.int32), np.empty(shape, np.float32)
    for rows, states in _states(sessions, batch):
        items[rows], scores[rows] = top_scored(scorer.scores(states), k)
    return items, scores


def _states(sessions: Sequences, batch: int) -> Iterator[tuple[slice, States]]:
    for start in range(0, len(sessions), batch):
        stop = min(start + batch, len(sessions))
        yield slice(start, stop), States.of([sessions[row][-HISTORY:].tolist() for row in range(start, stop)])


def evaluate_next_item(scorer: Scorer, sessions: Sequences, targets: IntArray, k: int = 20) -> NextItemResult:
    """Rank the catalogue for each session and look where its target stands."""
    lists, _ = top_lists(scorer, sessions, k)
    return NextItemResult(ranks_of(lists, targets), k)
