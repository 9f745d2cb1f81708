"""One request: from a session by ids to a slate with values and exact propensities."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bcd4rec.data.states import FloatArray, IntArray, States
from bcd4rec.data.vocabulary import ItemId
from bcd4rec.policies.policy import Explaining
from bcd4rec.policies.ranking import Exploration, make_slates, top
from bcd4rec.serving.batching import Batcher
from bcd4rec.serving.loading import Served
from bcd4rec.serving.retrieval import Retrieval

FRACTIONS = tuple(round(0.1 * step, 1) for step in range(1, 10))
GREEDY = Exploration()
LIGHT = 20_000  # items that are scored in less than a millisecond
SHORT, WIDE = 16, 50_000  # up to so many places and items a slate is found one item after the other


@dataclass(frozen=True)
class History:
    """A session in the policy's numbers."""

    liked: list[int]
    skipped: list[int]
    unknown: list[ItemId]


@dataclass(frozen=True)
class Slate:
    items: IntArray  # (K,)
    values: FloatArray  # (K,)
    propensities: FloatArray  # (K,)


def read_history(served: Served, events: list[tuple[ItemId, str | None]]) -> History:
    """Items without a response were liked; other responses are looked up among the policy's positive ones."""
    history = History([], [], [])
    positive = served.responses.positive
    for item, response in events:
        index = served.vocabulary.index(item)
        if index is None:
            history.unknown.append(item)
        elif response is None or response in positive:
            history.liked.append(index)
        else:
            history.skipped.append(index)
    return history


def best_of_one(scores: FloatArray, k: int) -> IntArray:
    """As `ranking.top` of one row, several times faster where slates are short: `top` is made for many rows."""
    if k > SHORT or len(scores) > WIDE or np.isnan(scores.sum()):
        places = top(scores[None], k)[0]
        return np.asarray(places[places >= 0])
    left, found = scores.copy(), []
    for _ in range(min(k, len(scores))):
        best = int(left.argmax())  # the first of equal maxima
        if left[best] == -np.inf:
            break
        found.append(best)
        left[best] = -np.inf
    return np.array(found, np.int32)


class Recommender:
    """A loaded policy and, for large catalogues, the index that finds its candidates."""

    def __init__(self, served: Served, retrieval: Retrieval | None = None):
        self.served, self.retrieval = served, retrieval
        # None where a request takes milliseconds, so that others should not wait for it.
        self.batcher = Batcher(served.policy) if served.policy.n_items <= LIGHT else None

    def slate(
        self,
        states: States,
        k: int,
        gone: list[int],
        candidates: list[int] | None,
        exploration: Exploration,
        luck: np.random.Generator | None = None,
        known: FloatArray | None = None,
    ) -> Slate:
        """The best `k` items for one state, none of them among `gone`; without `luck` it does not explore.

        `known` are the scores (1, A) of all items, where they are known already.
        """
        pool, scores = self._scored(states, k + len(gone), candidates, known)
        if gone:
            if pool is None:
                scores[0, gone] = -np.inf
            else:
                scores[0, np.isin(pool, gone)] = -np.inf
        if luck is None:
            places = best_of_one(scores[0], k)
            propensities = np.ones(len(places), np.float32)
        else:
            drawn = make_slates(scores, k, exploration, luck)
            places = drawn.items[0][drawn.items[0] >= 0]
            propensities = drawn.propensities[0, : len(places)]
        return Slate(places if pool is None else pool[places], scores[0, places], propensities)

    def _scored(
        self, states: States, least: int, candidates: list[int] | None, known: FloatArray | None
    ) -> tuple[IntArray | None, FloatArray]:
        """Items in ascending order, so that ties go to the lower one, and their scores (1, C); None for all items."""
        policy = self.served.policy
        if candidates is not None:
            pool = np.unique(np.array(candidates, np.int32))
            return pool, policy.scores(states, pool[None]) if len(pool) else np.empty((1, 0), np.float32)
        if self.retrieval is not None:
            return self.retrieval.best(states, least)
        return None, policy.scores(states) if known is None else known

    def quantiles(self, states: States, items: IntArray) -> list[dict[str, float]] | None:
        """Of each item's return, where the policy knows them."""
        policy = self.served.policy
        if not isinstance(policy, Explaining) or not policy.knows_quantiles:
            return None
        known = policy.quantiles(states[np.zeros(len(items), np.int64)], items, 50)  # (K, N)
        middles = (np.arange(known.shape[1]) + 0.5) / known.shape[1]
        rows = [np.interp(FRACTIONS, middles, row) for row in known]
        return [dict(zip(map(str, FRACTIONS), map(float, row), strict=True)) for row in rows]

    def log_likelihood(self, states: States) -> FloatArray | None:
        """(A,) under the behaviour model, where the bundle has one."""
        policy = self.served.policy
        if not isinstance(policy, Explaining) or policy.behaviour is None:
            return None
        return np.asarray(policy.log_likelihood(states)[0])

    def explain(self, states: States, slate: Slate, gone: list[int], k: int) -> tuple[list[dict[str, Any]], Any]:
        """For each item of the slate quantiles and likelihood; and what the behaviour policy and MostPop would show."""
        likelihood, quantiles = self.log_likelihood(states), self.quantiles(states, slate.items)
        details = [
            {
                "quantiles": quantiles[place] if quantiles is not None else None,
                "likelihood": float(np.exp(likelihood[item])) if likelihood is not None else None,
            }
            for place, item in enumerate(slate.items)
        ]
        popularity = self.served.popularity
        counts = None if popularity is None else popularity.astype(np.float32)
        return details, {"behaviour": self._best(likelihood, gone, k), "popular": self._best(counts, gone, k)}

    def _best(self, scores: FloatArray | None, gone: list[int], k: int) -> list[ItemId] | None:
        if scores is None:
            return None
        scores = scores.copy()
        scores[gone] = -np.inf
        return [self.served.vocabulary.id(item) for item in top(scores[None], k)[0] if item >= 0]
