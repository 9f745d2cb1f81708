"""One request: from a session to a slate, by the policy's own code; large catalogues are searched first."""

from typing import Any

import numpy as np

from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.data.vocabulary import ItemId
from bcd4rec.policies.policy import Policy, Sessions
from bcd4rec.policies.ranking import top
from bcd4rec.policies.scorer import Explaining
from bcd4rec.policies.slates import Slates, deviation
from bcd4rec.seeding import generator
from bcd4rec.serving.batching import Batcher
from bcd4rec.serving.loading import Served
from bcd4rec.serving.retrieval import Retrieval

LIGHT = 20_000  # items that are scored in less than a millisecond
SAMPLE = 1_000  # items that tell how far scores lie apart where not all are scored


class Recommender:
    """A loaded policy and, for large catalogues, the index that finds its candidates."""

    def __init__(self, served: Served, retrieval: Retrieval | None = None):
        self.served, self.retrieval = served, retrieval
        # None where a request takes milliseconds, so that others should not wait for it.
        self.batcher = Batcher(served.policy.scorer) if served.policy.n_items <= LIGHT else None
        some = generator(0, "deviation").integers(served.policy.n_items, size=(1, SAMPLE), dtype=np.int32)
        self._sample: IntArray = np.sort(some)

    @property
    def policy(self) -> Policy:
        return self.served.policy

    def slate(
        self,
        sessions: Sessions,
        k: int,
        rng: np.random.Generator | None = None,
        candidates: list[int] | None = None,
        excluded: list[int] | None = None,
        scores: FloatArray | None = None,
    ) -> Slates:
        """The slate (1, K) of one session; without `rng` it does not explore.

        `scores` (1, A) are those of all items, where they are known already.
        """
        out = np.array([excluded], np.int32) if excluded else None
        loss, pool = None, None
        if candidates is not None:
            pool, scores = np.unique(np.array(candidates, np.int32))[None], None
        elif self.retrieval is not None:
            kept_out = sessions.unavailable.size + sessions.skipped.size + len(excluded or ())
            found, scores = self.retrieval.best(sessions.states, k + kept_out)
            pool, loss = found[None], self._loss(sessions.states)
        slates = self.policy.slates(sessions, k, rng, pool, out, scores=scores, loss=loss)
        there = slates.items[0] != PAD
        return Slates(slates.items[:, there], slates.propensities[:, there], slates.values[:, there])

    def _loss(self, states: States) -> FloatArray | None:
        if not self.policy.rule.diversity:
            return None
        return self.policy.rule.diversity * deviation(self.policy.scorer.scores(states, self._sample))

    def log_likelihood(self, states: States) -> FloatArray | None:
        """(A,) under the behaviour model, where the bundle has one."""
        scorer = self.policy.scorer
        if not isinstance(scorer, Explaining) or scorer.behaviour is None:
            return None
        return np.asarray(scorer.log_likelihood(states)[0])

    def explain(self, sessions: Sessions, slate: Slates, k: int) -> tuple[list[dict[str, Any]], Any]:
        """For each item of the slate quantiles and likelihood; and what the behaviour policy and MostPop would show."""
        items, likelihood = slate.items[0], self.log_likelihood(sessions.states)
        quantiles = self.policy.quantiles(sessions, items)
        details = [
            {
                "quantiles": quantiles[place] if quantiles is not None else None,
                "likelihood": float(np.exp(likelihood[item])) if likelihood is not None else None,
            }
            for place, item in enumerate(items)
        ]
        popularity = self.policy.popularity
        counts = None if popularity is None else popularity.astype(np.float32)
        gone = sessions.unavailable[0]
        return details, {"behaviour": self._best(likelihood, gone, k), "popular": self._best(counts, gone, k)}

    def _best(self, scores: FloatArray | None, gone: IntArray, k: int) -> list[ItemId] | None:
        if scores is None:
            return None
        scores = scores.copy()
        scores[gone] = -np.inf
        return [self.served.vocabulary.id(item) for item in top(scores[None], k)[0] if item >= 0]
