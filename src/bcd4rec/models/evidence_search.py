"""Where the best items of sessions are in a large catalogue, so that not all of it has to be scored.

A session says something about few items, which are found at once. All others it tells apart by their tastes alone, and
of them only those that are good on their own can be among the best: these are listed.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from bcd4rec.data.states import FloatArray, IntArray, States
from bcd4rec.models.evidence import Evidence, Lists, summary, summary_of_counts

# Sessions with so many likes and skips: what they find best of items that they have nothing to do with is listed.
KINDS_OF_SESSIONS = summary_of_counts(likes=[0, 8, 2], skips=[0, 30, 5])

# (B, C) values of weights · evidence (R, B, C) in sessions with summaries (B, SUMMARY)
Values = Callable[[FloatArray, FloatArray], FloatArray]


class EvidenceSearch:
    """Finds the likely best items by one way to value evidence."""

    def __init__(self, evidence: Evidence, weights: FloatArray, own: FloatArray, values: Values):
        """`own` are the `own_sums` (R, A) of the weights (R, columns)."""
        self._evidence, self._weights, self._own, self._values = evidence, weights, own, values

    def pools(self, states: States, most: int) -> IntArray:
        """(B, C) the items among which the best `most` of each state are, ascending behind the padding.

        Only items that the session says nothing about but by their tastes and features can be missed, if they are not
        listed.
        """
        lists, own = self._lists
        sums = own[:, None] + self._evidence.listed(states, lists, self._weights)
        values = self._values(sums, summary(states))
        most = min(most, values.shape[1])
        places = np.argpartition(-values, most - 1, axis=1)[:, :most]
        return self._evidence.pools(states, lists, self._weights, lists.best[places])

    @cached_property
    def _lists(self) -> tuple[Lists, FloatArray]:
        """The best items, and (R, C) what their own columns say."""
        values = [self._values(self._own[:, None], one[None])[0] for one in KINDS_OF_SESSIONS]
        lists = self._evidence.lists(values)
        return lists, np.ascontiguousarray(self._own[:, lists.best])
