"""A step toward a new policy: each slate is the new one's with probability α, else the old one's.

Both policies are kept whole, with their own memories and slate rules. Which of them makes a slate is drawn anew for
every slate, so the probability of the places of a slate is that of a mixture: what stands above tells whose it is.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.states import PAD, Doubles, FloatArray, IntArray, States
from bcd4rec.errors import InputError
from bcd4rec.policies.policy import Memory, Policy, Sessions
from bcd4rec.policies.scorer import Scorer
from bcd4rec.policies.slates import Exploration, SlateRule, Slates

MIXTURE = "mixture"  # what bundles call it in place of a kind of scorer


def mixed_propensities(old: Doubles, new: Doubles, alpha: float) -> Doubles:
    """(n, K) conditional propensities where a slate is the new policy's with probability α, else the old one's.

    What is above tells whose slate it is, so a place's probability is a ratio of mixed probabilities of prefixes. A
    slate that neither would have begun has nothing to be conditional on, and gets 0.
    """
    prefix = (1 - alpha) * np.cumprod(old, axis=1) + alpha * np.cumprod(new, axis=1)
    before = np.concatenate([np.ones((len(prefix), 1)), prefix[:, :-1]], axis=1)
    found: Doubles = np.divide(prefix, before, out=np.zeros_like(prefix), where=before > 0)
    return found


class LastOf:
    """A scorer that is asked with longer memories than it has learned with."""

    def __init__(self, scorer: Scorer, memory: Memory):
        self._scorer, self._memory = scorer, memory

    @property
    def n_items(self) -> int:
        return self._scorer.n_items

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        return self._scorer.scores(last_of(states, self._memory), candidates)


@dataclass(frozen=True)
class Mixture(Policy):
    """Made by `mix`. Where it must not explore, the slate is that of the policy with the larger share."""

    new: Policy | None = None
    old: Policy | None = None
    share: float = 0.5  # α

    @property
    def parts(self) -> tuple[Policy, Policy]:
        if self.new is None or self.old is None:
            raise ValueError("a mixture is made by `mix`, of two policies")
        return self.new, self.old

    def with_rule(self, **changes: Any) -> Self:
        raise InputError("A mixture shows slates by the rules of its two policies; change theirs, and mix them again.")

    def slates(
        self,
        sessions: Sessions,
        k: int,
        rng: np.random.Generator | None = None,
        candidates: IntArray | None = None,
        unavailable: IntArray | None = None,
        only: NDArray[np.intp] | None = None,
        scores: FloatArray | None = None,
        loss: FloatArray | None = None,
    ) -> Slates:
        """As of any policy; `scores` and `loss` are not used, because each policy has its own."""
        new, old = self.parts
        if rng is None:
            one = new if self.share >= 0.5 else old
            return one.slates(_seen_by(one, sessions), k, None, candidates, unavailable, only)
        mine = rng.random(len(sessions)) < self.share
        by_new, by_old = (
            one.slates(_seen_by(one, sessions), k, rng, candidates, unavailable, only) for one in (new, old)
        )
        items = np.where(mine[:, None], by_new.items, by_old.items)
        values = np.where(mine[:, None], by_new.values, by_old.values)
        return Slates(items, self.propensities(sessions, items, candidates, unavailable), values)

    def propensities(
        self,
        sessions: Sessions,
        items: IntArray,
        candidates: IntArray | None = None,
        unavailable: IntArray | None = None,
        scores: FloatArray | None = None,
    ) -> FloatArray:
        new, old = (
            one.propensities(_seen_by(one, sessions), items, candidates, unavailable).astype(np.float64)
            for one in self.parts
        )
        return mixed_propensities(old, new, self.share).astype(np.float32)


def mix(new: Policy, old: Policy, share: float) -> Mixture:
    """The policy that shows `new` with probability `share` at each slate, else `old`."""
    if not 0.0 <= share <= 1.0:
        raise InputError(f"The share of the new policy is {share}, expected 0 to 1.")
    if not new.vocabulary.ids.equals(old.vocabulary.ids):
        raise InputError(
            f"Only policies of one catalogue can be mixed, and these know {new.n_items:,} and {old.n_items:,} items; "
            "train the new one on a log with the same items."
        )
    if new.rule.unavailable != old.rule.unavailable:
        found = f"{new.rule.unavailable} and {old.rule.unavailable}"
        raise InputError(f"Only policies that leave out the same items of a session can be mixed: found {found}.")
    if new.responses != old.responses:
        raise InputError("Only policies that have learned with the same rewards can be mixed.")
    memory = Memory(
        length=max(new.memory.length, old.memory.length),
        skips=max(new.memory.skips, old.memory.skips),
        unanswered=new.memory.unanswered,
    )
    return Mixture(
        LastOf(new.scorer, new.memory),
        new.vocabulary,
        memory,
        SlateRule(unavailable=new.rule.unavailable, exploration=Exploration(kind="own")),
        new.responses,
        None,
        new.popularity,
        {"method": f"{new.name} in {share:g} of {old.name}", "origin": new.about.get("origin")},
        new,
        old,
        share,
    )


def map_mixture(policy: Mixture, new: Policy, old: Policy) -> Mixture:
    """The same of two policies that speak of other items."""
    return replace(mix(new, old, policy.share), about=policy.about)


def _seen_by(policy: Policy, sessions: Sessions) -> Sessions:
    return Sessions(last_of(sessions.states, policy.memory), sessions.unavailable, sessions.skipped)


def last_of(states: States, memory: Memory) -> States:
    """What a shorter memory holds of the same sessions."""
    return States(_last(states.positives, memory.length), _last(states.skips, memory.skips))


def _last(history: IntArray, width: int) -> IntArray:
    """(B, width) the last items of each row, which is filled from the left."""
    if history.shape[1] <= width:
        return history
    length = (history != PAD).sum(axis=1)
    first = np.maximum(length - width, 0)
    return np.take_along_axis(history, first[:, None] + np.arange(width), axis=1)
