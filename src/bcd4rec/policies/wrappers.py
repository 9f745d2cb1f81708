"""Policies around policies: other item numbers, candidate lists."""

import numpy as np

from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.policies.policy import Policy


class Candidates:
    """Only these items can be recommended, whatever the session; all others score −inf."""

    def __init__(self, policy: Policy, items: IntArray):
        self._policy = policy
        self._allowed = np.zeros(policy.n_items, np.bool_)
        self._allowed[items[items != PAD]] = True

    @property
    def n_items(self) -> int:
        return self._policy.n_items

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        scores = self._policy.scores(states, candidates)
        allowed = self._allowed if candidates is None else self._allowed[candidates]
        return np.where(allowed, scores, np.float32(-np.inf))


class Translated:
    """A policy that learned one vocabulary, used where items are numbered by another.

    Items that the policy does not know leave its states and score −inf.
    """

    def __init__(self, policy: Policy, learned: Vocabulary, spoken: Vocabulary):
        self._policy = policy
        self._to_learned = np.append(learned.positions_of(spoken), PAD)  # the last entry translates PAD
        self._n_items = len(spoken)

    @property
    def n_items(self) -> int:
        return self._n_items

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        known = States(self._translate(states.positives), self._translate(states.skips))
        if candidates is not None:
            return self._policy.scores(known, self._to_learned[candidates])
        scores = np.pad(self._policy.scores(known), ((0, 0), (0, 1)), constant_values=-np.inf)
        return scores[:, self._to_learned[:-1]]

    def _translate(self, history: IntArray) -> IntArray:
        """Item numbers of the learned vocabulary; unknown items are dropped and the rest moves up."""
        learned = self._to_learned[history]
        order = np.argsort(learned == PAD, axis=1, kind="stable")
        return np.take_along_axis(learned, order, axis=1)


def speaking(policy: Policy, learned: Vocabulary, spoken: Vocabulary) -> Policy:
    """`policy` for items numbered as in `spoken`; itself where the numbers are the same."""
    return policy if learned.ids.equals(spoken.ids) else Translated(policy, learned, spoken)
