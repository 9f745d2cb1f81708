"""The slate rule is chosen by the log alone, the same way for every method.

Which items are unavailable is read off what the log shows again (`data.repeats`). Whether a slate that was skipped may
be repeated, and how much an item loses by others like it (λ), is tried: users learned from the log (`models.
slate_choice`) play sessions with the slates that the scorer makes under each rule, all rules with the same luck. A rule
other than the plain one must be better by more than `SURE` standard errors.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.repeats import count_repeats
from bcd4rec.data.states import PAD, Doubles, IntArray, States
from bcd4rec.models.response_regression import slates
from bcd4rec.models.slate_choice import SlateUsers, fit_slate_users
from bcd4rec.policies.policy import Policy, Sessions
from bcd4rec.policies.slates import AfterSkip, Unavailable
from bcd4rec.seeding import generator

WEAK, MIDDLE, STRONG = 0.5, 1.0, 2.0  # values of λ: the middle one is tried first, then that on its better side
SURE = 1.0  # standard errors by which a rule must be better than the plain one
USERS = 250  # sessions that are played under each rule
STEPS, PLACES = 20, 20  # of longer sessions and slates, so much is played
ITEMS = 2000  # of larger catalogues, the items most shown are played with
FEWEST = 100  # slates that users can be learned from
SUPPORT = 0.1  # of the places after a skipped slate hold what was just skipped: what repeating slates do is known then


@dataclass(frozen=True)
class ChosenRule:
    """A slate rule, why it was chosen, and the figures that decided."""

    diversity: float
    after_skip: AfterSkip
    unavailable: Unavailable
    reason: str
    scores: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Played:
    """What B sessions of one rule came to."""

    likes: Doubles  # (B,) expected positive responses
    slates: Doubles  # (B,)

    @property
    def rate(self) -> float:
        """Positive responses for a slate."""
        return float(self.likes.sum() / self.slates.sum())

    def gain(self, other: "Played") -> tuple[float, float]:
        """How much better than `other`, with the same users, and the standard error of that."""
        apart = self._influence() - other._influence()
        return self.rate - other.rate, float(apart.std(ddof=1) / np.sqrt(len(apart)))

    def _influence(self) -> Doubles:
        return np.asarray((self.likes - self.rate * self.slates) / self.slates.mean())


@dataclass(frozen=True)
class Beginnings:
    """Held-out sessions before their first slate, how many slates each had, and how many items these."""

    states: States
    lengths: NDArray[np.int64]
    places: int

    @classmethod
    def of(cls, dataset: Dataset, seed: int) -> "Beginnings":
        shown = dataset.transitions("validation")
        starts, sizes = slates(shown)
        session = shown.session[starts].astype(np.int64)
        first = np.flatnonzero(np.diff(session, prepend=-1))
        lengths = np.diff(np.append(first, len(starts)))
        some = np.sort(generator(seed, "sessions played").permutation(len(first))[:USERS])
        places = int(np.median(sizes))
        return cls(
            dataset.states[shown.state[starts[first[some]]]], np.minimum(lengths[some], STEPS), min(places, PLACES)
        )


def choose_rule(policy: Policy, dataset: Dataset, seed: int, users: SlateUsers | None = None) -> ChosenRule:
    """The rule for a policy that has learned from the train split.

    `users` save time where the rules of several methods are chosen from one log: they are `fit_slate_users(dataset,
    seed)`, whatever the method.
    """
    again = count_repeats(dataset)
    unavailable, why = again.unavailable()
    if trouble := cannot_tell(dataset):
        return ChosenRule(0.0, "repeat", unavailable, f"{why}; the rest is as the ranking has it, because {trouble}")
    users = users or fit_slate_users(dataset, seed)
    return Stage(policy, users, Beginnings.of(dataset, seed), unavailable, seed).choose(why)


def cannot_tell(dataset: Dataset) -> str | None:
    """Why users cannot be learned from this log; None where they can."""
    if not (dataset.sessions["split"] == "validation").any():
        return "no sessions were held out to learn users from"
    shown = dataset.transitions("validation")
    positive = np.isin(shown.response, [dataset.responses.code(name) for name in dataset.responses.positive])
    if positive.all():
        return "nothing was skipped in this log"
    if not positive.any():
        return "nothing was liked in the held-out sessions"
    if len(slates(shown)[0]) < FEWEST:
        return f"the held-out sessions have fewer than {FEWEST} slates"
    return None


class Stage:
    """Where a policy's slates meet learned users."""

    def __init__(self, policy: Policy, users: SlateUsers, beginnings: Beginnings, unavailable: Unavailable, seed: int):
        self._policy, self._users, self._begin, self._unavailable = policy, users, beginnings, unavailable
        count = len(beginnings.states)
        steps = int(beginnings.lengths.max(initial=0))
        self._draws = generator(seed, "luck of played sessions").random((steps, count, beginnings.places))
        self._items = _most_shown(users, policy.n_items)
        self._played: dict[tuple[float, AfterSkip], Played] = {}

    def choose(self, why: str) -> ChosenRule:
        after_skip, after = self._after_skip()
        diversity, spreading = self._diversity(after_skip)
        told = {
            "played": [
                {"diversity": tried[0], "after_skip": tried[1], "rate": played.rate}
                for tried, played in self._played.items()
            ],
            "sessions": len(self._begin.states),
            "slate_size": self._begin.places,
            "redundancy": self._users.redundancy,
            "redundancy_z": self._users.z,
            "one_choice": self._users.one_choice,
        }
        return ChosenRule(diversity, after_skip, self._unavailable, f"{why}; {after}; {spreading}", told)

    def _after_skip(self) -> tuple[AfterSkip, str]:
        if self._unavailable in ("shown", "recommended"):
            return "repeat", "so a skipped slate cannot come back"
        if not self._users.after_skips or self._begin.lengths.max() < 2:
            return "repeat", "no slate follows one that was skipped whole"
        share = self._users.again / self._users.after_skips
        if share < SUPPORT:
            told = f"after a skipped slate {100 * share:.1f} % of the places of the log hold what was just skipped"
            return "exclude", f"{told}, too few to know what repeating it brings, so slates leave it out"
        gain, error = self.play(0.0, "exclude").gain(self.play(0.0, "repeat"))
        told = f"leaving out what was just skipped changes positive responses by {_points(gain, error)} of slates"
        return ("exclude", told) if gain > SURE * error else ("repeat", f"{told}, so it may be repeated")

    def _diversity(self, after_skip: AfterSkip) -> tuple[float, str]:
        if self._begin.places < 2:
            return 0.0, "slates of one item have nothing to spread"
        if self._policy.vectors is None or not self._policy.vectors.any():
            return 0.0, "the log does not tell which items are alike"
        plain = self.play(0.0, after_skip)
        gains = {MIDDLE: self.play(MIDDLE, after_skip).gain(plain)}
        further = STRONG if gains[MIDDLE][0] > 0 else WEAK
        gains[further] = self.play(further, after_skip).gain(plain)
        best = max(gains, key=lambda tried: gains[tried][0])
        gain, error = gains[best]
        told = f"spreading slates by λ = {best:g} changes them by {_points(gain, error)}"
        return (best, told) if gain > SURE * error else (0.0, f"{told} at best, so slates are not spread")

    def play(self, diversity: float, after_skip: AfterSkip) -> Played:
        """Every session with as many slates as it had, under one rule."""
        rule = (diversity, after_skip)
        if rule not in self._played:
            self._played[rule] = self._play(diversity, after_skip)
        return self._played[rule]

    def _play(self, diversity: float, after_skip: AfterSkip) -> Played:
        policy = self._policy.with_rule(diversity=diversity, after_skip=after_skip, unavailable=self._unavailable)
        states, lengths, k = self._begin.states, self._begin.lengths, self._begin.places
        gone = states.positives if self._unavailable in ("liked", "shown") else states.positives[:, :0]
        sessions = Sessions(states, gone, np.full((len(states), k), PAD, np.int32))
        likes = np.zeros(len(states))
        for step, draws in enumerate(self._draws):
            alive = np.flatnonzero(lengths > step)
            here = sessions[alive]
            slates = policy.slates(here, k, candidates=self._pool(len(alive))).items
            chances = self._users.chances(here.states, slates, here.skipped)
            likes[alive] += chances.sum(axis=1)
            items, liked = np.full((len(states), k), PAD, np.int32), np.zeros((len(states), k), np.bool_)
            items[alive] = slates
            liked[alive] = self._users.answers(chances, draws[alive]) & (slates != PAD)
            sessions = policy.after(sessions, items, liked)  # who has left was shown nothing
        return Played(likes, lengths.astype(np.float64))

    def _pool(self, count: int) -> IntArray | None:
        if self._items is None:
            return None
        return np.ascontiguousarray(np.broadcast_to(self._items, (count, len(self._items))))


def _most_shown(users: SlateUsers, n_items: int) -> IntArray | None:
    """(C,) the items to play with, ascending; None for all of them."""
    if n_items <= ITEMS:
        return None
    shown = users.evidence.knowledge.shown
    return np.sort(np.argsort(-shown, kind="stable")[:ITEMS]).astype(np.int32)


def _points(gain: float, error: float) -> str:
    return f"{100 * gain:+.1f} ± {200 * error:.1f} points"
