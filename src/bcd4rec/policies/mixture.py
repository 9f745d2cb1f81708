"""A step toward a new policy: each place of a slate is the new one's with probability α, else the old one's.

Both policies are kept whole, with their own memories and slate rules. Whose a place is is drawn anew for every place,
given what stands above, so its propensity is (1 − α) old + α new. Where only ε differs between the two, the mixture is
the same ranking with an ε between theirs. Mixing whole slates would be as much of a step, but a log tells far less of
it: with v_j the variance of the weight of a place, weights of slates vary by α² (Π (1 + v_j) − 1) instead of by
Π (1 + α² v_j) − 1.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.states import PAD, Doubles, FloatArray, IntArray, States
from bcd4rec.errors import InputError
from bcd4rec.policies.policy import Memory, Policy, Sessions, of_pool, some_pool
from bcd4rec.policies.scorer import Scorer
from bcd4rec.policies.slates import Exploration, Filling, SlateRule, Slates

MIXTURE = "mixture"  # what bundles call it in place of a kind of scorer


def mixed_propensities(old: Doubles, new: Doubles, alpha: float) -> Doubles:
    """(n, K) conditional propensities where a place is the new policy's with probability α, else the old one's."""
    return (1 - alpha) * old + alpha * new


class MixedFilling(Filling):
    """Two slates in the making that are one."""

    def __init__(self, new: Filling, old: Filling, share: float):
        self._new, self._old, self._share = new, old, share

    def draw(self, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
        (by_new, new_values), (by_old, old_values) = self._new.draw(rng), self._old.draw(rng)
        mine = rng.random(len(by_new)) < self._share
        return np.where(mine, by_new, by_old), np.where(mine, new_values, old_values)

    def put(self, columns: IntArray) -> None:
        self._new.put(columns)
        self._old.put(columns)


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
        if rng is None:
            new, old = self.parts
            one = new if self.share >= 0.5 else old
            return one.slates(_seen_by(one, sessions), k, None, candidates, unavailable, only)
        candidates = some_pool(candidates)
        filling = self.filling(sessions, candidates, unavailable, only)
        columns = np.full((len(sessions), k), PAD, np.int32)
        values = np.full(columns.shape, -np.inf, np.float32)
        going = np.ones(len(sessions), np.bool_)
        for place in range(k):
            drawn, worth = filling.draw(rng)
            going &= drawn != PAD  # a slate ends where whose turn it is has nothing left
            columns[going, place], values[going, place] = drawn[going], worth[going]
            filling.put(columns[:, place])
        items = columns if candidates is None else of_pool(candidates, columns)
        return Slates(items, self.propensities(sessions, items, candidates, unavailable), values)

    def filling(
        self,
        sessions: Sessions,
        candidates: IntArray | None = None,
        unavailable: IntArray | None = None,
        only: NDArray[np.intp] | None = None,
    ) -> Filling:
        new, old = (one.filling(_seen_by(one, sessions), candidates, unavailable, only) for one in self.parts)
        return MixedFilling(new, old, self.share)

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
    """The policy whose places are those of `new` with probability `share`, else of `old`."""
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
