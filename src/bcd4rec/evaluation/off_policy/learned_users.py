"""Sessions that users learned from the log play with the new policy: indicative only.

The users are those that slate rules are tried on (`models.slate_choice`): learned anew without a fifth of the sessions
each time, so the interval says how much depends on who is in the log. It says nothing about what such users get wrong,
which is most where a policy leads to states that the log does not know.
"""

import numpy as np
import polars as pl

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.knowledge import folds
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.states import PAD, IntArray
from bcd4rec.evaluation.off_policy.decisions import Doubles
from bcd4rec.evaluation.off_policy.replay import logged_slates
from bcd4rec.evaluation.off_policy.verdict import Indicative, over_refits
from bcd4rec.models.slate_choice import SlateUsers, fit_slate_users
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.rule_choice import cannot_tell
from bcd4rec.policies.vocabulary_mapping import map_policy
from bcd4rec.seeding import generator

REFITS = 5
SESSIONS = 300  # that are played with each
STEPS, PLACES = 50, 20  # of longer sessions and slates, so much is played


def learned_users(
    dataset: Dataset, new: Policy, logger: Policy | None, seed: int, tick: Tick = no_tick
) -> list[Indicative]:
    """Positive responses a step of the new policy and of the logger, where that is known; else of the log.

    Nothing where users cannot be learned from this log.
    """
    nobody = np.zeros(len(dataset.sessions), np.bool_)
    if cannot_tell(_split(dataset, nobody, seed)) is not None:
        return []
    beginnings = _beginnings(dataset, seed)
    players = [_speaking(one, dataset) for one in (new, logger) if one is not None]
    left_out = list(folds(dataset.owners, REFITS, generator(seed, "users refitted")))
    found = []
    for number in range(REFITS + 1):
        tick("indicative: learned users", number / (REFITS + 1))
        without = nobody if number == REFITS else left_out[number]
        users = fit_slate_users(_split(dataset, without, seed), seed)
        rates = [play(users, one, *beginnings, seed) for one in players]
        found.append((rates[0], rates[1] if logger is not None else _logged_rate(dataset)))
    *parts, whole = found
    name = dataset.responses.positive[0] if len(dataset.responses.positive) == 1 else "positive"
    return [over_refits("learned users", name, whole, np.array(parts))]


def _speaking(policy: Policy, dataset: Dataset) -> Policy:
    alike = policy.vocabulary.ids.equals(dataset.vocabulary.ids)
    return policy if alike else map_policy(policy, dataset.vocabulary)


def _split(dataset: Dataset, without: np.ndarray[tuple[int], np.dtype[np.bool_]], seed: int) -> Dataset:
    """A third of the sessions that are left tell what items are worth, the others which go together."""
    third = generator(seed, "sessions of users").random(len(without)) < 1 / 3
    split = np.where(without, "left out", np.where(third, "validation", "train"))
    sessions = dataset.sessions.with_columns(split=pl.Series(split))
    return Dataset(dataset.manifest, dataset.items, sessions, dataset.frame, dataset.states)


def _beginnings(dataset: Dataset, seed: int) -> tuple[IntArray, int]:
    """(B,) how many slates some sessions had, and how many items slates have."""
    shown = dataset.frame.filter(~pl.col("organic")).group_by("session", "step").len()
    lengths = shown.group_by("session").len().sort("session")["len"].to_numpy()
    some = generator(seed, "sessions played by users").permutation(len(lengths))[:SESSIONS]
    places = int(np.median(shown["len"].to_numpy()))
    return np.minimum(lengths[np.sort(some)], STEPS).astype(np.int32), min(places, PLACES)


def play(users: SlateUsers, policy: Policy, lengths: IntArray, k: int, seed: int) -> float:
    """Positive responses a step over sessions of so many slates, that begin with nothing."""
    luck, rng = generator(seed, "luck of learned users"), generator(seed, "exploration before learned users")
    sessions = policy.begin(len(lengths))
    total = 0.0
    for step in range(int(lengths.max(initial=0))):
        alive = (lengths > step)[:, None]
        slates = policy.slates(sessions, k, rng).items
        items = np.where(alive, slates, PAD)
        skipped = sessions.skipped if sessions.skipped.shape[1] else np.full((len(lengths), 1), PAD, np.int32)
        chances: Doubles = users.chances(sessions.states, items, skipped)
        total += float(chances.sum())
        liked = users.answers(chances, luck.random(items.shape)) & (items != PAD)
        sessions = policy.after(sessions, items, liked)
    return total / float(lengths.sum())


def _logged_rate(dataset: Dataset) -> float:
    codes = [dataset.responses.code(name) for name in dataset.responses.positive]
    positives = slates = 0
    for some in logged_slates(dataset):
        positives += int(np.isin(some.responses, codes).sum())
        slates += len(some)
    return positives / max(slates, 1)
