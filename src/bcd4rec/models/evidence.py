"""What a log and a session say about an item, as one row of numbers for each pair of them.

The same columns on every log; what a log does not have (categories, skips, places) is 0 in them and counts as nothing.
A value that is linear in these columns is cheap to compute for a whole catalogue: a product with the items' own columns
and tastes, and sums over the items that the session has something to do with.
"""

import threading
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.knowledge import Knowledge, refuse_other_lists
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, FloatArray, IntArray, Rows, States
from bcd4rec.models import evidence_kernels as kernels
from bcd4rec.models.evidence_kernels import CATEGORY_SHARES, COLUMNS, OWN, TASTE_LIKED, TASTE_SKIPPED, Boards, Items
from bcd4rec.models.knn_kernels import Votes
from bcd4rec.models.session_neighbours import SequenceAndTime, SessionNeighbours, refuse_other_items

NAMES = (
    "positive lift",
    "target lift",
    "popularity",
    "shown",
    "similar to liked",
    "similar to last liked",
    "follows last liked",
    "similar to skipped",
    "taste of liked",
    "taste of last liked",
    "taste of skipped",
    "liked before",
    "liked last",
    "skipped before",
    "share of likes in category",
    "category of first like",
    "category of last like",
    "likes in category",
    "skips in category",
    "share in category × positive lift",
    "votes of similar sessions",
    "any vote",
)
SUMMARY = 4  # what is told of a session itself, see `summary`
LISTED = 6_000  # best items of a large catalogue that any session looks at


class Lists(NamedTuple):
    """The best items when a session says nothing about them."""

    best: IntArray  # (C,) ascending
    tastes: FloatArray  # (D, C) theirs
    category_offsets: Rows
    category_order: IntArray  # the best items of category c stand from offsets[c] to offsets[c + 1], best first


class Evidence:
    """Knowledge about items and past sessions, ready to be asked about sessions."""

    def __init__(self, knowledge: Knowledge, likes: Sequences):
        self.knowledge = knowledge
        self.neighbours = SessionNeighbours(SequenceAndTime.parse({}, "defaults"), likes, knowledge.n_items)
        categories = knowledge.categories
        known = np.flatnonzero(categories >= 0).astype(np.int32)
        order = known[np.argsort(categories[known], kind="stable")]
        groups = int(categories.max(initial=-1)) + 1
        own = (knowledge.positive, knowledge.target, knowledge.popularity, knowledge.shown)
        self.items = Items(
            np.ascontiguousarray(np.stack(own, axis=1), np.float32),
            np.ascontiguousarray(categories, np.int32),
            np.append(0, np.cumsum(np.bincount(categories[known], minlength=groups))).astype(np.int64),
            order,
            knowledge.similar.offsets,
            knowledge.similar.items,
            knowledge.similar.weights,
            knowledge.followers.offsets,
            knowledge.followers.items,
            knowledge.followers.weights,
            np.ascontiguousarray(knowledge.tastes, np.float32),
        )
        self._local = threading.local()

    @property
    def n_items(self) -> int:
        return self.knowledge.n_items

    def _boards(self) -> Boards:
        """Working space, one for each thread."""
        if not hasattr(self._local, "boards"):
            self._local.boards = kernels.make_boards(self.items)
        boards: Boards = self._local.boards
        return boards

    def rows(self, states: States, candidates: IntArray) -> FloatArray:
        """(B, C, COLUMNS) about `candidates` (B, C), padded with `PAD`, whose rows are 0."""
        refuse_other_items(candidates, PAD, self.n_items)
        wanted = np.require(candidates, np.int32, ["C", "W"])
        out = np.zeros((*wanted.shape, COLUMNS), np.float32)
        kernels.rows_of(*self._histories(states), wanted, self.items, self._boards(), out)
        return out

    def own_sums(self, weights: FloatArray) -> FloatArray:
        """(R, A) weights (R, COLUMNS) · the items' own columns: what `sums` are without a session."""
        found: FloatArray = weights[:, :OWN] @ self.items.own.T
        return found

    def sums(self, states: States, weights: FloatArray, own: FloatArray | None = None) -> FloatArray:
        """(R, B, A) weights (R, COLUMNS) · evidence about every item, without making the rows.

        `own` are the `own_sums` of the weights, where they are known already.
        """
        weights = np.ascontiguousarray(weights, np.float32)
        own = self.own_sums(weights) if own is None else own
        out = np.repeat(own[:, None], len(states), axis=1)
        tastes = np.zeros((len(weights), len(states), self.items.tastes.shape[1]), np.float32)
        kernels.add_sums(*self._histories(states), weights, self.items, self._boards(), out, tastes)
        if tastes.any():
            out += tastes @ self._axes
        return out

    @cached_property
    def _axes(self) -> FloatArray:
        """(D, A) tastes by axis: products with all of them are several times faster this way round."""
        return np.ascontiguousarray(self.items.tastes.T)

    def lists(self, values: list[FloatArray]) -> Lists:
        """For `pools`: the best items by several values (A,) of them; the last also ranks within categories."""
        orders = [np.argsort(-one, kind="stable").astype(np.int32) for one in values]
        ranked = orders[-1]
        categories = self.items.categories[ranked]
        grouped = ranked[np.argsort(categories, kind="stable")][np.count_nonzero(categories < 0) :]
        sizes = np.diff(self.items.category_offsets)
        rank = np.arange(len(grouped)) - np.repeat(self.items.category_offsets[:-1], sizes)
        kept = rank < CATEGORY_SHARES
        best = np.unique(np.concatenate([order[:LISTED] for order in orders]))
        offsets = np.append(0, np.cumsum(np.minimum(sizes, CATEGORY_SHARES)))
        return Lists(best, np.ascontiguousarray(self.items.tastes[best].T), offsets, grouped[kept])

    def listed_tastes(self, states: States, lists: Lists, weights: FloatArray) -> FloatArray:
        """(R, B, C) what the tastes of states say about the items of `lists.best`, by weights (R, COLUMNS)."""
        tastes, rows, last = self.items.tastes, np.arange(len(states)), np.maximum(states.lengths - 1, 0)
        final = states.positives[rows, last][:, None]
        sums = np.stack([_summed(tastes, items) for items in (states.positives, final, states.skips)])  # (3, B, D)
        factors: FloatArray = np.tensordot(weights[:, TASTE_LIKED : TASTE_SKIPPED + 1], sums, 1) @ lists.tastes
        return factors

    def pools(self, states: States, lists: Lists, more: IntArray) -> IntArray:
        """(B, C) the items among which the best are for each state, ascending behind the padding: those that the
        session has something to do with, the best of its categories, and its `more` (B, M)."""
        found: IntArray = kernels.pools_of(
            *self._histories(states), more, lists.category_offsets, lists.category_order, self.items, self._boards()
        )
        return found

    def _histories(self, states: States) -> tuple[IntArray, IntArray, Votes]:
        refuse_other_items(states.skips, PAD, self.n_items)
        votes = self.neighbours.votes(states)  # looks at the positive items
        # Kernels are compiled for arrays that can be written to, so memory-mapped ones are copied.
        positives, skips = (np.require(one, np.int32, ["C", "W"]) for one in (states.positives, states.skips))
        return positives, skips, votes

    def arrays(self) -> dict[str, NDArray[Any]]:
        likes = self.neighbours.sequences
        return self.knowledge.arrays() | {"likes.items": likes.items, "likes.offsets": likes.offsets}

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        knowledge = Knowledge.restore(arrays)
        items, offsets = arrays["likes.items"], arrays["likes.offsets"]
        refuse_other_lists("likes", offsets, items, len(offsets) - 1, knowledge.n_items)
        return cls(knowledge, Sequences(items, offsets))


def _summed(tastes: FloatArray, items: IntArray) -> FloatArray:
    """(B, D) the sums of the tastes of `items` (B, n), padded."""
    if not items.shape[1]:
        return np.zeros((len(items), tastes.shape[1]), np.float32)
    found: FloatArray = (tastes[items] * (items != PAD)[..., None]).sum(axis=1)
    return found


def summary(states: States) -> FloatArray:
    """(B, SUMMARY) of the session itself: 1, whether anything was liked, logs of 1 + the counts of likes and skips."""
    return summary_of_counts(np.count_nonzero(states.positives != PAD, 1), np.count_nonzero(states.skips != PAD, 1))


def summary_of_counts(likes: Any, skips: Any) -> FloatArray:
    """(B, SUMMARY) of sessions with so many likes and skips (B,)."""
    found = np.ones((len(likes), SUMMARY), np.float32)
    found[:, 1], found[:, 2], found[:, 3] = np.minimum(likes, 1), np.log1p(likes), np.log1p(skips)
    return found
