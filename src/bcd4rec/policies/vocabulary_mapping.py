"""A policy that learned one vocabulary, used where items are numbered by another."""

from dataclasses import replace

import numpy as np

from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.policies.mixture import Mixture, map_mixture
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.scorer import Scorer


class MappedScorer:
    """Items that the scorer does not know leave its states and score −inf."""

    def __init__(self, scorer: Scorer, learned: Vocabulary, spoken: Vocabulary):
        self._scorer = scorer
        self._to_learned = np.append(learned.positions_of(spoken), PAD)  # the last entry maps PAD
        self._n_items = len(spoken)

    @property
    def n_items(self) -> int:
        return self._n_items

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        known = States(self._map(states.positives), self._map(states.skips))
        if candidates is not None:
            return self._scorer.scores(known, self._to_learned[candidates])
        scores = np.pad(self._scorer.scores(known), ((0, 0), (0, 1)), constant_values=-np.inf)
        return scores[:, self._to_learned[:-1]]

    def _map(self, history: IntArray) -> IntArray:
        """Item numbers of the learned vocabulary; unknown items are dropped and the rest moves up."""
        learned = self._to_learned[history]
        order = np.argsort(learned == PAD, axis=1, kind="stable")
        return np.take_along_axis(learned, order, axis=1)


def map_scorer(scorer: Scorer, learned: Vocabulary, spoken: Vocabulary) -> Scorer:
    """`scorer` for items numbered as in `spoken`; itself where the numbers are the same."""
    return scorer if learned.ids.equals(spoken.ids) else MappedScorer(scorer, learned, spoken)


def map_policy(policy: Policy, spoken: Vocabulary) -> Policy:
    """`policy` for items numbered as in `spoken`; itself where the numbers are the same."""
    if policy.vocabulary.ids.equals(spoken.ids):
        return policy
    if isinstance(policy, Mixture):
        return map_mixture(policy, *(map_policy(one, spoken) for one in policy.parts))
    places = policy.vocabulary.positions_of(spoken)
    known = places >= 0
    vectors = policy.vectors
    return replace(
        policy,
        scorer=MappedScorer(policy.scorer, policy.vocabulary, spoken),
        vocabulary=spoken,
        vectors=None if vectors is None else np.where(known[:, None], vectors[places], np.float32(0)),
        popularity=None if policy.popularity is None else np.where(known, policy.popularity[places], np.int32(0)),
    )
