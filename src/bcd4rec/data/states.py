"""A batch of session states, as every policy and model takes it."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

# The arrays of this project, whatever their axes.
IntArray = NDArray[np.int32]  # items
FloatArray = NDArray[np.float32]  # scores, vectors
Rows = NDArray[np.int64]  # numbers of rows, offsets, counts
Doubles = NDArray[np.float64]
Mask = NDArray[np.bool_]

PAD = -1  # stands for "no item" wherever an array of item indices is wider than its content
HISTORY = 10  # L: how many positive items a state remembers


@dataclass(frozen=True)
class States:
    """B states: the last L positive items and, if the history keeps them, the last S skipped items.

    Both arrays hold item indices, oldest first, filled from the left and padded on the right with `PAD`,
    so that `positives[b, :lengths[b]]` is the content. S = 0 when the history is of positives alone.
    """

    positives: IntArray  # (B, L)
    skips: IntArray  # (B, S)

    @property
    def lengths(self) -> IntArray:
        """(B,) how many positive items each state holds."""
        lengths: IntArray = (self.positives != PAD).sum(axis=1, dtype=np.int32)
        return lengths

    def __len__(self) -> int:
        return len(self.positives)

    def __getitem__(self, rows: object) -> Self:
        """The states of these rows (a slice, a mask or indices)."""
        return type(self)(self.positives[rows], self.skips[rows])  # type: ignore[call-overload]

    @classmethod
    def empty(cls, batch: int, length: int = HISTORY, skips: int = 0) -> Self:
        """The states of sessions that have just begun."""
        return cls(np.full((batch, length), PAD, np.int32), np.full((batch, skips), PAD, np.int32))

    @classmethod
    def of(cls, sessions: list[list[int]], length: int = HISTORY) -> Self:
        """States from lists of positive item indices, oldest first; the last `length` are kept."""
        states = cls.empty(len(sessions), length)
        for row, items in enumerate(sessions):
            recent = items[-length:]
            states.positives[row, : len(recent)] = recent
        return states


def append(history: IntArray, rows: IntArray, items: IntArray) -> IntArray:
    """`history` (B, L) with `items[j]` appended to row `rows[j]`; full rows forget their oldest item."""
    result = history.copy()
    if history.shape[1] == 0 or len(rows) == 0:
        return result
    full = result[rows, -1] != PAD
    moved = rows[full]
    result[moved, :-1] = history[moved, 1:]
    position = np.minimum((history[rows] != PAD).sum(axis=1), history.shape[1] - 1)
    result[rows, position] = items
    return result


def after_slate(states: States, items: IntArray, liked: NDArray[np.bool_]) -> States:
    """The states after a slate (B, K): liked items join the positives, the others the skips, in the slate's order."""
    positives, skips = states.positives, states.skips
    for place in range(items.shape[1]):
        rows = np.flatnonzero(liked[:, place]).astype(np.int32)
        positives = append(positives, rows, items[rows, place])
        rows = np.flatnonzero(~liked[:, place] & (items[:, place] != PAD)).astype(np.int32)
        skips = append(skips, rows, items[rows, place])
    return States(positives, skips)
