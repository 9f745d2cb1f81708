"""What a log and a session say about an item, as one row of numbers for each pair of them.

The same columns on every log; what a log does not have (categories, skips, places) is 0 in them and counts as nothing.
Features of items, where a data set has them, add columns of their own (`content_evidence`).
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
from bcd4rec.models.content_evidence import OWN as CONTENT_OWN
from bcd4rec.models.content_evidence import ContentEvidence, content_columns
from bcd4rec.models.content_lists import ContentLists
from bcd4rec.models.evidence_kernels import (
    CATEGORY_POSITIVE,
    CATEGORY_SHARE,
    CATEGORY_SHARES,
    COLUMNS,
    OWN,
    POPULARITY,
    POSITIVE,
    SHOWN,
    SIMILAR_LIKED,
    TARGET,
    TASTE_LIKED,
    TASTE_SKIPPED,
    VOTED,
    VOTES,
    Boards,
    Items,
)
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
    content: ContentLists | None  # the features of the best, and the best by features


class Evidence:
    """Knowledge about items and past sessions, ready to be asked about sessions."""

    def __init__(self, knowledge: Knowledge, likes: Sequences, content: ContentEvidence | None = None):
        self.knowledge, self.content = knowledge, content
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

    @property
    def columns(self) -> int:
        """How many numbers a row of evidence has."""
        return COLUMNS + content_columns(None if self.content is None else self.content.content)

    def _boards(self) -> Boards:
        """Working space, one for each thread."""
        if not hasattr(self._local, "boards"):
            self._local.boards = kernels.make_boards(self.items)
        boards: Boards = self._local.boards
        return boards

    def rows(self, states: States, candidates: IntArray) -> FloatArray:
        """(B, C, columns) about `candidates` (B, C), padded with `PAD`, whose rows are 0."""
        refuse_other_items(candidates, PAD, self.n_items)
        wanted = np.require(candidates, np.int32, ["C", "W"])
        out = np.zeros((*wanted.shape, self.columns), np.float32)
        positives, skips, votes = self._histories(states)
        kernels.rows_of(positives, skips, votes, wanted, self.items, self._boards(), out)
        if self.content is not None:
            self.content.rows(positives, skips, wanted, out[..., COLUMNS:])
        return out

    def as_new(self, rows: FloatArray, items: IntArray) -> FloatArray:
        """`rows` (n, columns) about `items` (n,) as they would be if nobody had ever been shown these."""
        if self.content is None:
            raise ValueError("without features nothing is foreseen")
        found, foreseen = rows.copy(), self.content.foreseen
        found[:, SIMILAR_LIKED : TASTE_SKIPPED + 1] = 0.0
        found[:, [POPULARITY, SHOWN, VOTES, VOTED]] = 0.0
        found[:, POSITIVE], found[:, TARGET] = foreseen.positive[items], foreseen.target[items]
        found[:, CATEGORY_POSITIVE] = found[:, CATEGORY_SHARE] * found[:, POSITIVE]
        found[:, COLUMNS : COLUMNS + CONTENT_OWN] = self.content.told[items]
        return found

    def own_sums(self, weights: FloatArray) -> FloatArray:
        """(R, A) weights (R, columns) · the items' own columns: what `sums` are without a session."""
        found: FloatArray = weights[:, :OWN] @ self.items.own.T
        if self.content is not None:
            found += self.content.own_sums(weights[:, COLUMNS:])
        return found

    def sums(self, states: States, weights: FloatArray, own: FloatArray | None = None) -> FloatArray:
        """(R, B, A) weights (R, columns) · evidence about every item, without making the rows.

        `own` are the `own_sums` of the weights, where they are known already.
        """
        weights = np.ascontiguousarray(weights, np.float32)
        own = self.own_sums(weights) if own is None else own
        out = np.repeat(own[:, None], len(states), axis=1)
        tastes = np.zeros((len(weights), len(states), self.items.tastes.shape[1]), np.float32)
        positives, skips, votes = self._histories(states)
        known = np.ascontiguousarray(weights[:, :COLUMNS])
        kernels.add_sums(positives, skips, votes, known, self.items, self._boards(), out, tastes)
        if tastes.any():
            out += tastes @ self._axes
        if self.content is not None:
            self.content.add_sums(positives, skips, weights[:, COLUMNS:], out)
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
        content = None if self.content is None else ContentLists.of(self.content, best, values[-1])
        return Lists(best, np.ascontiguousarray(self.items.tastes[best].T), offsets, grouped[kept], content)

    def listed(self, states: States, lists: Lists, weights: FloatArray) -> FloatArray:
        """(R, B, C) what tastes and features of states say about the items of `lists.best`, by weights (R, columns)."""
        tastes, rows, last = self.items.tastes, np.arange(len(states)), np.maximum(states.lengths - 1, 0)
        final = states.positives[rows, last][:, None]
        sums = np.stack([_summed(tastes, items) for items in (states.positives, final, states.skips)])  # (3, B, D)
        found: FloatArray = np.tensordot(weights[:, TASTE_LIKED : TASTE_SKIPPED + 1], sums, 1) @ lists.tastes
        if self.content is not None and lists.content is not None:
            self.content.add_sums(*_plain(states), weights[:, COLUMNS:], found, lists.content.best)
        return found

    def pools(self, states: States, lists: Lists, weights: FloatArray, more: IntArray) -> IntArray:
        """(B, C) the items among which the best are for each state, ascending behind the padding: those that the
        session has something to do with, the best of its categories, the best by features and weights (R, columns), and
        its `more` (B, M)."""
        positives, skips, votes = self._histories(states)
        if self.content is not None and lists.content is not None:
            known, look = self.content, lists.content.near
            each = zip(positives[:, None], skips[:, None], strict=True)
            more = _beside(more, [look(known, liked, skipped, weights[:, COLUMNS:]) for liked, skipped in each])
        found: IntArray = kernels.pools_of(
            positives, skips, votes, more, lists.category_offsets, lists.category_order, self.items, self._boards()
        )
        return found

    def _histories(self, states: States) -> tuple[IntArray, IntArray, Votes]:
        refuse_other_items(states.skips, PAD, self.n_items)
        votes = self.neighbours.votes(states)  # looks at the positive items
        return *_plain(states), votes

    def arrays(self) -> dict[str, NDArray[Any]]:
        likes = self.neighbours.sequences
        content = {} if self.content is None else self.content.arrays()
        return self.knowledge.arrays() | {"likes.items": likes.items, "likes.offsets": likes.offsets} | content

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        knowledge = Knowledge.restore(arrays)
        items, offsets = arrays["likes.items"], arrays["likes.offsets"]
        refuse_other_lists("likes", offsets, items, len(offsets) - 1, knowledge.n_items)
        return cls(knowledge, Sequences(items, offsets), ContentEvidence.restore(arrays, knowledge.n_items))


def _plain(states: States) -> tuple[IntArray, IntArray]:
    """Kernels are compiled for arrays that can be written to, so memory-mapped ones are copied."""
    return np.require(states.positives, np.int32, ["C", "W"]), np.require(states.skips, np.int32, ["C", "W"])


def _beside(more: IntArray, others: list[IntArray]) -> IntArray:
    """(B, M + N) with the lists of `others` beside each row; a row that lacks some has its first item again instead."""
    wider = np.repeat(more[:, :1], max(map(len, others)), axis=1)
    for row, items in zip(wider, others, strict=True):
        row[: len(items)] = items
    return np.concatenate([more, wider], axis=1)


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
