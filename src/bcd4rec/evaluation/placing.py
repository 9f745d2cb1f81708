"""Where a policy places an item among others that might have stood there: for logs of one item at a time.

A score that looks ahead carries the worth of the moment beside that of the item, so scores of different moments cannot
be compared, only places can. The place of an item is the share of its rivals in the same state that score lower, equal
ones counting half; a rival weighs by how often the log shows it, so that the place is the chance that another item of
the log would have been worse.
"""

from dataclasses import dataclass

import numpy as np

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.repeats import Unavailable, count_repeats
from bcd4rec.data.states import Doubles, FloatArray, IntArray, Mask, States
from bcd4rec.seeding import generator

RIVALS, LEAST = 400, 100  # draws, where the log shows more items than that; fewer where many places are asked for
SCORES = 1 << 24  # of rivals, that are worth computing for each policy
GONE: dict[Unavailable, tuple[str, ...]] = {
    "liked": ("positives",),
    "shown": ("positives", "skips"),
    "recommended": ("skips",),  # a state does not tell which of its positives were recommended
    "nothing": (),
}


@dataclass(frozen=True)
class Rivals:
    """The same items for every policy."""

    items: IntArray  # (M,) ascending
    weights: Doubles  # (M,) how often each was shown, or drawn
    gone: tuple[str, ...]  # what of a state is not shown again: its `positives`, its `skips`

    def available(self, states: States, n_items: int) -> Mask:
        """(B, M) rivals that could be shown in each state."""
        place = np.full(n_items + 1, len(self.items))  # PAD, which is −1, has the last entry; no rival the last column
        place[self.items] = np.arange(len(self.items))
        free = np.ones((len(states.positives), len(self.items) + 1), np.bool_)
        for name in self.gone:
            np.put_along_axis(free, place[getattr(states, name)], False, axis=1)
        return free[:, :-1]

    def places(self, own: FloatArray, others: FloatArray, counted: Mask) -> Doubles:
        """(B,) the place of each `own` (B,) score among the `counted` ones of `others` (B, M); ½ without any."""
        weights = np.where(counted, self.weights, 0.0)
        below = np.where(others < own[:, None], weights, 0.0).sum(axis=1)
        equal = np.where(others == own[:, None], weights, 0.0).sum(axis=1)
        total = weights.sum(axis=1)
        return np.where(total > 0, (below + equal / 2) / np.where(total > 0, total, 1.0), 0.5)


def enough_rivals(places: int) -> int:
    """How many to draw for so many places: the more places, the less each has to be exact."""
    return min(RIVALS, max(LEAST, SCORES // max(places, 1)))


def rivals_of(dataset: Dataset, seed: int, most: int = RIVALS) -> Rivals:
    """Items of the train split by how often it shows them: all, or `most` draws."""
    shown = dataset.items["impressions"].to_numpy().astype(np.float64)
    items = np.flatnonzero(shown)
    weights = shown[items]
    if len(items) > most:
        drawn = generator(seed, "rivals").choice(items, most, p=weights / weights.sum())
        items, counts = np.unique(drawn, return_counts=True)
        weights = counts.astype(np.float64)
    kept_out, _ = count_repeats(dataset).unavailable()
    return Rivals(items.astype(np.int32), weights, GONE[kept_out])
