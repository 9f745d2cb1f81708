"""What features say about an item in a session: how alike it is to what was liked, and what to expect if it is new.

These columns stand behind those of `evidence` where a data set has features of items, and are not there where it has
none:

    new                      1 for an item that nobody was shown
    new × foreseen lifts     of positive responses, of the target, of likes: what its features let expect; 0 for others
    alike to liked, last liked, skipped     three for each feature: the mean inner product of a block of axes, or the
                                            share of the items with the same value; of tags, the mean cosine
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.content import Content
from bcd4rec.data.foresight import Foreseen
from bcd4rec.data.states import FloatArray, IntArray
from bcd4rec.models import content_kernels as kernels
from bcd4rec.models.content_kernels import PARTS

OWN = 4  # columns of the item alone


def content_columns(content: Content | None) -> int:
    """How many columns features add."""
    return 0 if content is None else OWN + PARTS * content.features


@dataclass(frozen=True)
class ContentEvidence:
    """Features, and what is foreseen by them."""

    content: Content
    foreseen: Foreseen

    @cached_property
    def told(self) -> FloatArray:
        """(A, OWN) of every item as if it were new."""
        known = self.foreseen
        ones = np.ones(len(known.new), np.float32)
        return np.stack([ones, known.positive, known.target, known.popularity], axis=1)

    @cached_property
    def own(self) -> FloatArray:
        """(A, OWN) 0 for items that are not new."""
        return self.told * self.foreseen.new[:, None]

    def rows(self, positives: IntArray, skips: IntArray, candidates: IntArray, out: FloatArray) -> None:
        """(B, C, columns) into `out`, which is zero; nothing where there is no candidate."""
        content = self.content
        alike = np.zeros((*candidates.shape, PARTS * content.features), np.float32)
        kernels.likeness_rows(
            positives,
            skips,
            candidates,
            self._profiles(positives, skips),
            content.axes,
            content.blocks,
            content.codes,
            content.rows,
            content.shares,
            np.zeros((PARTS, content.values), np.float32),
            alike,
        )
        there = candidates >= 0
        out[there, :OWN] = self.own[candidates[there]]
        out[..., OWN:] = alike

    def own_sums(self, weights: FloatArray) -> FloatArray:
        """(R, A) weights (R, columns) · the items' own columns."""
        found: FloatArray = weights[:, :OWN] @ self.own.T
        return found

    def add_sums(
        self, positives: IntArray, skips: IntArray, weights: FloatArray, out: FloatArray, some: "Wanted | None" = None
    ) -> None:
        """(R, B, C) add weights (R, columns) · evidence about every item, or `some`, without the items' own columns."""
        content, wanted = self.content, some or self.everything
        if content.axes.shape[1]:
            out += self.directions(positives, skips, weights) @ wanted.axes
        if len(content.codes):
            coded = np.ascontiguousarray(self._by_feature(weights)[:, len(content.blocks) - 1 :])
            board = np.zeros((PARTS, content.values), np.float32)
            mine = content.codes, content.rows, content.shares
            kernels.add_values(positives, skips, coded, *mine, wanted.codes, wanted.shares, board, out)

    def directions(self, positives: IntArray, skips: IntArray, weights: FloatArray) -> FloatArray:
        """(R, B, D) whose products with the axes of items are what these say about them, by weights (R, columns)."""
        blocks = self.content.blocks
        by_axis = np.repeat(self._by_feature(weights)[:, : len(blocks) - 1], np.diff(blocks), axis=1)  # (R, D, PARTS)
        profile = self._profiles(positives, skips)
        return np.ascontiguousarray(np.einsum("rdp,bpd->rbd", by_axis, profile), np.float32)

    @staticmethod
    def _by_feature(weights: FloatArray) -> FloatArray:
        """(R, features, PARTS)"""
        return np.ascontiguousarray(weights[:, OWN:], np.float32).reshape(len(weights), -1, PARTS)

    def _profiles(self, positives: IntArray, skips: IntArray) -> FloatArray:
        out = np.zeros((len(positives), PARTS, self.content.axes.shape[1]), np.float32)
        kernels.profiles(positives, skips, self.content.axes, out)
        return out

    @cached_property
    def everything(self) -> "Wanted":
        return Wanted.of(self.content)

    def some(self, items: IntArray) -> "Wanted":
        return Wanted.of(self.content.of(items))

    def arrays(self) -> dict[str, NDArray[Any]]:
        return self.content.arrays() | self.foreseen.arrays()

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]], n_items: int) -> Self | None:
        """None where there are no features."""
        if not any(name.startswith(("content.", "foreseen.")) for name in arrays):
            return None
        return cls(Content.restore(arrays, n_items), Foreseen.restore(arrays, n_items))


@dataclass(frozen=True)
class Wanted:
    """Items that are asked about, laid out for products with all of them."""

    axes: FloatArray  # (D, C)
    codes: IntArray  # (K, C)
    shares: FloatArray  # (K, C)

    @classmethod
    def of(cls, content: Content) -> "Wanted":
        return cls(np.ascontiguousarray(content.axes.T), content.codes, content.shares)
