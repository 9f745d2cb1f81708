"""The distinct states of a log, numbered in the order of their first appearance.

A state is known by a hash of 128 bits and written where it first appears, so that 20 bytes of it stay in memory however
many items it holds. Among a billion states the chance that any two share a hash is about 10⁻²¹.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.states import PAD, IntArray, Mask, Rows

Hashes = NDArray[np.uint64]
MakeRows = Callable[[Rows], IntArray]  # the states (n, L + S) of n of their numbers
SLICE = 1 << 15  # states that are held whole at once
FRESH = 8  # new states are sorted in among the old ones when they are more than one in so many
FIRST, SECOND = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93  # odd, so that multiplying by them loses nothing


def hashes(rows: IntArray, odd: int) -> Hashes:
    """(n,) a hash of 64 bits of each row of (n, width), the same on every machine."""
    found = np.full(len(rows), odd, np.uint64)
    for column in np.ascontiguousarray(rows.T, np.int32).view(np.uint32):
        found ^= column
        found *= np.uint64(odd)
        found ^= found >> np.uint64(32)
    return found


@dataclass(frozen=True)
class Distinct:
    """The distinct states among some, sorted by both hashes."""

    first: Hashes
    second: Hashes
    appearance: Rows  # (distinct,) which of the states was the first of its kind
    place: Rows  # (count,) which of the distinct states each one is

    @classmethod
    def among(cls, count: int, rows: MakeRows) -> "Distinct":
        """Of the states `rows(arange(count))`, which are never all in memory at once."""
        first, second = np.empty(count, np.uint64), np.empty(count, np.uint64)
        for part in _slices(np.arange(count)):
            some = rows(part)
            first[part], second[part] = hashes(some, FIRST), hashes(some, SECOND)
        order = np.lexsort((second, first))  # stable: the first appearance of a state stays before the others
        first, second = first[order], second[order]
        start = np.append(True, (first[1:] != first[:-1]) | (second[1:] != second[:-1]))[:count]
        place = np.empty(count, np.int64)
        place[order] = np.cumsum(start) - 1
        return cls(first[start], second[start], order[start], place)


@dataclass
class _Run:
    """States that are known, sorted by the first hash, then by the second."""

    first: Hashes
    second: Hashes
    ids: IntArray

    def __len__(self) -> int:
        return len(self.ids)

    def find(self, first: Hashes, second: Hashes) -> tuple[Rows, Mask]:
        """(n,) where each pair of hashes stands or would stand, and whether it is there."""
        place: Rows = np.searchsorted(self.first, first).astype(np.int64)

        def there(rows: Rows) -> Mask:
            at = np.minimum(place[rows], max(len(self) - 1, 0))
            return np.asarray((place[rows] < len(self)) & (self.first[at] == first[rows]))

        if not len(self):
            return place, np.zeros(len(first), np.bool_)
        same = np.flatnonzero(there(np.arange(len(first))))
        while len(same):  # once, but for states that share the first hash with another
            same = same[self.second[place[same]] < second[same]]
            place[same] += 1
            same = same[there(same)]
        known = there(np.arange(len(first)))
        known[known] = self.second[place[known]] == second[known]
        return place, known

    def insert(self, place: Rows, first: Hashes, second: Hashes, ids: IntArray) -> None:
        self.first = np.insert(self.first, place, first)
        self.second = np.insert(self.second, place, second)
        self.ids = np.insert(self.ids, place, ids)


def _no_states() -> _Run:
    return _Run(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int32))


class StateTable:
    """Knows which states it has seen; state 0 is the empty session. `write` gets the new states (n, L + S) in order."""

    def __init__(
        self,
        length: int,
        skips: int,
        write: Callable[[IntArray], None],
        known: Iterable[IntArray] | None = None,
    ):
        """`known` are blocks (n, L + S) of states that another table has written, from the empty one on."""
        self.length, self.skips, self._write = length, skips, write
        first, second = [], []
        for rows in [np.full((1, length + skips), PAD, np.int32)] if known is None else known:
            write(rows)
            first.append(hashes(rows, FIRST))
            second.append(hashes(rows, SECOND))
        firsts, seconds = np.concatenate(first), np.concatenate(second)
        order = np.lexsort((seconds, firsts))
        # New states go to a small run first, so that the large one is not copied for every chunk.
        self._old, self._new = _Run(firsts[order], seconds[order], order.astype(np.int32)), _no_states()

    def __len__(self) -> int:
        return len(self._old) + len(self._new)

    def add(self, distinct: Distinct, rows: MakeRows) -> IntArray:
        """(count,) ids of the states that `distinct` was found among; new ones get the next free ids.

        `rows` makes the states (n, L + S) of any n of their numbers: those that are new are written.
        """
        first, second = distinct.first, distinct.second
        in_old, old = self._old.find(first, second)
        in_new, recent = self._new.find(first, second)
        ids = np.empty(len(first), np.int32)
        ids[old], ids[recent] = self._old.ids[in_old[old]], self._new.ids[in_new[recent]]
        new = np.flatnonzero(~old & ~recent)
        order = np.argsort(distinct.appearance[new])
        ids[new[order]] = np.arange(len(self), len(self) + len(new), dtype=np.int32)
        for part in _slices(distinct.appearance[new][order]):
            self._write(rows(part))
        self._new.insert(in_new[new], first[new], second[new], ids[new])
        if len(self._new) * FRESH > len(self._old):
            small = self._new
            self._old.insert(self._old.find(small.first, small.second)[0], small.first, small.second, small.ids)
            self._new = _no_states()
        found: IntArray = ids[distinct.place]
        return found


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
