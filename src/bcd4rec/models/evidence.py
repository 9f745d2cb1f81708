"""What a log and a session say about an item, as one row of numbers for each pair of them.

The same columns on every log; what a log does not have (categories, skips, places) is 0 in them and counts as nothing.
A value that is linear in these columns is cheap to compute for a whole catalogue: a product with the items' own columns
and tastes, and sums over the items that the session has something to do with.
"""

import threading
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.knowledge import Knowledge
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.models import evidence_kernels as kernels
from bcd4rec.models.evidence_kernels import COLUMNS, OWN, Boards, Items
from bcd4rec.models.session_neighbours import SequenceAndTime, SessionNeighbours, check_items

NAMES = (
    "positive lift",
    "target lift",
    "popularity",
    "shown",
    "usual place",
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


class Evidence:
    """Knowledge about items and past sessions, ready to be asked about sessions."""

    def __init__(self, knowledge: Knowledge, likes: Sequences):
        self.knowledge = knowledge
        self.neighbours = SessionNeighbours(SequenceAndTime.parse({}, "defaults"), likes, knowledge.n_items)
        categories = knowledge.categories
        known = np.flatnonzero(categories >= 0).astype(np.int32)
        order = known[np.argsort(categories[known], kind="stable")]
        groups = int(categories.max(initial=-1)) + 1
        own = (knowledge.positive, knowledge.target, knowledge.popularity, knowledge.shown, knowledge.height)
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

    def _histories(self, states: States) -> tuple[IntArray, IntArray]:
        """Kernels are compiled for arrays that can be written to, so memory-mapped ones are copied."""
        check_items(states.skips, PAD, self.n_items)  # the neighbours check the positives
        positives, skips = (np.require(one, np.int32, ["C", "W"]) for one in (states.positives, states.skips))
        return positives, skips

    def rows(self, states: States, candidates: IntArray) -> FloatArray:
        """(B, C, COLUMNS) about `candidates` (B, C), padded with `PAD`, whose rows are 0."""
        wanted = np.require(candidates, np.int32, ["C", "W"])
        votes = self.neighbours.scores(states, wanted)
        out = np.zeros((*wanted.shape, COLUMNS), np.float32)
        kernels.rows_of(*self._histories(states), wanted, votes, self.items, self._boards(), out)
        return out

    def sums(self, states: States, weights: FloatArray) -> FloatArray:
        """(R, B, A) weights (R, COLUMNS) · evidence about every item, without making the rows."""
        weights = np.require(weights, np.float32, ["C"])
        own = weights[:, :OWN] @ self.items.own.T  # (R, A)
        out = np.repeat(own[:, None], len(states), axis=1)
        votes = self.neighbours.scores(states)
        kernels.add_sums(*self._histories(states), votes, weights, self.items, self._boards(), out)
        return out

    def arrays(self) -> dict[str, NDArray[Any]]:
        likes = self.neighbours.sequences
        return self.knowledge.arrays() | {"likes.items": likes.items, "likes.offsets": likes.offsets}

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        return cls(Knowledge.restore(arrays), Sequences(arrays["likes.items"], arrays["likes.offsets"]))


def summary(states: States) -> FloatArray:
    """(B, SUMMARY) of the session itself: 1, whether anything was liked, logs of 1 + the counts of likes and skips."""
    likes, skips = (states.positives != PAD).sum(axis=1), (states.skips != PAD).sum(axis=1)
    columns = (np.ones(len(states)), likes > 0, np.log1p(likes), np.log1p(skips))
    return np.stack(columns, axis=1).astype(np.float32)
