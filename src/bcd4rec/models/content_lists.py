"""Where the best items by features are in a large catalogue: in groups of items that are alike, and under each value.

Items are grouped around some of them, which are drawn; a session looks into the groups whose middle it likes best, and
under the values of what it liked, at the items of each that are best when a session says nothing.
"""

from dataclasses import dataclass

import numpy as np

from bcd4rec.data.content import Content
from bcd4rec.data.states import FloatArray, IntArray, Mask, Rows
from bcd4rec.models.content_evidence import ContentEvidence, Wanted

GROUPS, EACH = 512, 50  # groups, and items of a group or a value that are looked at
LOOKED = 32  # groups that a session looks into
LATEST = 8  # liked items whose values are looked under
AT_ONCE = 100_000  # items that are grouped at once


@dataclass(frozen=True)
class ContentLists:
    """For `near`."""

    best: Wanted  # the features of the listed items
    centres: FloatArray  # (D, G)
    group_offsets: Rows  # the best items of group g stand from offsets[g] to offsets[g + 1], best first
    group_order: IntArray
    value_offsets: Rows  # the same of the values of categorical features
    value_order: IntArray

    @classmethod
    def of(cls, known: ContentEvidence, best: IntArray, values: FloatArray) -> "ContentLists":
        """`values` (A,) are those of items when a session says nothing."""
        content = known.content
        centres, group = _grouped(content)
        ranked = np.argsort(-values, kind="stable").astype(np.int32)
        values_of = content.codes[:, ranked].T.ravel()  # item by item: tags of one may be in any row
        under = _firsts(values_of, np.repeat(ranked, len(content.codes)), content.values)
        return cls(known.some(best), centres, *_firsts(group[ranked], ranked, centres.shape[1]), *under)

    def near(self, known: ContentEvidence, positives: IntArray, skips: IntArray, weights: FloatArray) -> IntArray:
        """Items for one session, by weights (R, columns); some may come twice."""
        found = [np.empty(0, np.int32)]
        if self.centres.shape[1]:
            likings = (known.directions(positives, skips, weights)[:, 0] @ self.centres).max(axis=0)  # (G,)
            for group in np.argsort(-likings, kind="stable")[:LOOKED]:
                found.append(self.group_order[self.group_offsets[group] : self.group_offsets[group + 1]])
        liked = positives[0][positives[0] >= 0][-LATEST:]
        for value in np.unique(known.content.codes[:, liked]):
            if value >= 0:
                found.append(self.value_order[self.value_offsets[value] : self.value_offsets[value + 1]])
        return np.concatenate(found)


def _grouped(content: Content) -> tuple[FloatArray, IntArray]:
    """(D, G) the items that others are grouped around, and (A,) the group of each item; −1 for items without axes."""
    n_items, there = len(content.axes), _there(content)
    rows = np.flatnonzero(there)
    drawn = np.random.default_rng(0).choice(rows, min(GROUPS, len(rows)), replace=False)
    centres = np.ascontiguousarray(content.axes[np.sort(drawn)].T)
    group = np.full(n_items, -1, np.int32)
    for first in range(0, len(rows), AT_ONCE):
        some = rows[first : first + AT_ONCE]
        group[some] = (content.axes[some] @ centres).argmax(axis=1)
    return centres, group


def _there(content: Content) -> Mask:
    return np.asarray(content.axes.any(axis=1))


def _firsts(number: IntArray, items: IntArray, count: int) -> tuple[Rows, IntArray]:
    """Offsets and items of the first `EACH` of every number from 0 to `count`, in their order; others are left out."""
    order = np.argsort(number, kind="stable")[np.count_nonzero(number < 0) :]
    sizes = np.bincount(number[order], minlength=count)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    offsets = np.append(0, np.cumsum(np.minimum(sizes, EACH))).astype(np.int64)
    return offsets, items[order[rank < EACH]]
