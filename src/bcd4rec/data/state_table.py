"""The distinct states of a log, numbered in the order of their first appearance.

A state is known by a hash of 128 bits and written where it first appears, so that 20 bytes of it stay in memory however
many items it holds. Among a billion states the chance that any two share a hash is about 10⁻²¹.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.states import PAD, IntArray, Mask, Rows

Hashes = NDArray[np.uint64]
SLICE = 1 << 15  # states that are held whole at once
FIRST, SECOND = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93  # odd, so that multiplying by them loses nothing


def hashes(rows: IntArray, odd: int) -> Hashes:
    """(n,) a hash of 64 bits of each row of (n, width), the same on every machine."""
    found = np.full(len(rows), odd, np.uint64)
    for column in np.ascontiguousarray(rows.T, np.int32).view(np.uint32):
        found ^= column
        found *= np.uint64(odd)
        found ^= found >> np.uint64(32)
    return found


class StateTable:
    """Knows which states it has seen; state 0 is the empty session. `write` gets the new states (n, L + S) in order."""

    def __init__(self, length: int, skips: int, write: Callable[[IntArray], None]):
        self.length, self.skips, self._write = length, skips, write
        empty = np.full((1, length + skips), PAD, np.int32)
        # Sorted by the first hash, then by the second.
        self._first, self._second, self._ids = hashes(empty, FIRST), hashes(empty, SECOND), np.zeros(1, np.int32)
        write(empty)

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, count: int, rows: Callable[[Rows], IntArray]) -> IntArray:
        """(count,) ids of the states `rows(arange(count))`; new states get the next free ids.

        `rows` makes the states (n, L + S) of any n numbers below `count`: they are never all in memory at once.
        """
        first, second = np.empty(count, np.uint64), np.empty(count, np.uint64)
        for part in _slices(np.arange(count)):
            some = rows(part)
            first[part], second[part] = hashes(some, FIRST), hashes(some, SECOND)
        order = np.lexsort((second, first))  # stable: the first appearance of a state stays before the others
        first, second = first[order], second[order]
        start = np.append(True, (first[1:] != first[:-1]) | (second[1:] != second[:-1]))[:count]
        appearance, first, second = order[start], first[start], second[start]  # (distinct,)
        place, known = self._find(first, second)
        ids = np.empty(len(first), np.int32)
        ids[known] = self._ids[place[known]]
        new = np.flatnonzero(~known)
        new_order = np.argsort(appearance[new])
        ids[new[new_order]] = np.arange(len(self), len(self) + len(new), dtype=np.int32)
        for part in _slices(appearance[new][new_order]):
            self._write(rows(part))
        self._first = np.insert(self._first, place[new], first[new])
        self._second = np.insert(self._second, place[new], second[new])
        self._ids = np.insert(self._ids, place[new], ids[new])
        found = np.empty(count, np.int32)
        found[order] = ids[np.cumsum(start) - 1]
        return found

    def _find(self, first: Hashes, second: Hashes) -> tuple[Rows, Mask]:
        """(n,) where each pair of hashes stands or would stand, and whether it is there."""
        place: Rows = np.searchsorted(self._first, first).astype(np.int64)

        def there(rows: Rows) -> Mask:
            at = np.minimum(place[rows], len(self) - 1)
            return np.asarray((place[rows] < len(self)) & (self._first[at] == first[rows]))

        same = np.flatnonzero(there(np.arange(len(first))))
        while len(same):  # once, but for states that share the first hash with another
            same = same[self._second[place[same]] < second[same]]
            place[same] += 1
            same = same[there(same)]
        known = there(np.arange(len(first)))
        known[known] = self._second[place[known]] == second[known]
        return place, known


def _slices(numbers: Rows) -> Iterator[Rows]:
    for begin in range(0, len(numbers), SLICE):
        yield numbers[begin : begin + SLICE]


@contextmanager
def state_files(folder: Path, length: int, skips: int) -> Iterator[Callable[[IntArray], None]]:
    """A function that appends states (n, L + S) to `positives.npy` and `skips.npy`, which are whole at the end."""
    with ArrayFile(folder / "positives.npy", length) as liked, ArrayFile(folder / "skips.npy", skips) as skipped:

        def write(rows: IntArray) -> None:
            liked.append(rows[:, :length])
            skipped.append(rows[:, length:])

        yield write


class ArrayFile:
    """Integers (n, width) in a file that grows row by row and ends up with the bytes of `np.save`."""

    def __init__(self, path: Path, width: int):
        self._rows, self._width = 0, width
        self._file = path.open("wb")
        self._write_header()

    def append(self, rows: IntArray) -> None:
        self._rows += len(rows)
        self._file.write(np.ascontiguousarray(rows, "<i4").data)

    def _write_header(self) -> None:
        """NumPy leaves room in it for any number of rows."""
        shape = (self._rows, self._width)
        np.lib.format.write_array_header_1_0(self._file, {"descr": "<i4", "fortran_order": False, "shape": shape})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._file.seek(0)
            self._write_header()
        self._file.close()
