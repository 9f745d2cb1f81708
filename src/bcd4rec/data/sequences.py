"""Sessions as plain lists of positive items: what supervised and nearest-neighbour methods learn from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.states import IntArray


@dataclass(frozen=True)
class Sequences:
    """Ragged lists of item indices, in time order of the sessions: list j is `items[offsets[j]:offsets[j + 1]]`."""

    items: IntArray  # (total,)
    offsets: NDArray[np.int64]  # (sessions + 1,)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> IntArray:
        return self.items[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[IntArray]:
        return (self[row] for row in range(len(self)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Self:
        lengths = np.fromiter((len(one) for one in lists), np.int64, len(lists))
        flat = [item for one in lists for item in one]
        return cls(np.asarray(flat, np.int32), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
