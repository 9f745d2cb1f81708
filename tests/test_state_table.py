"""The table of distinct states: the numbers and rows of a plain dictionary, with 20 bytes of each state in memory."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bcd4rec.data import state_table
from bcd4rec.data.state_table import FIRST, SECOND, ArrayFile, Distinct, StateTable, hashes, state_files
from bcd4rec.data.states import PAD, IntArray, Rows

LENGTH, SKIPS = 3, 2


def batches() -> list[IntArray]:
    """States of a few items, so that many come again within a batch and in later ones; one batch is empty."""
    rng = np.random.default_rng(5)
    drawn = [rng.integers(PAD, 2, (count, LENGTH + SKIPS)).astype(np.int32) for count in (17, 0, 1, 230, 41)]
    return [*drawn, drawn[0]]


def numbered(some: list[IntArray]) -> tuple[list[list[int]], list[tuple[int, ...]]]:
    """Ids of each batch and the distinct states, by a dictionary."""
    known = {(PAD,) * (LENGTH + SKIPS): 0}
    return [[known.setdefault(tuple(row), len(known)) for row in rows.tolist()] for rows in some], list(known)


def added(some: list[IntArray]) -> tuple[list[list[int]], list[tuple[int, ...]], StateTable]:
    written: list[IntArray] = []
    table = StateTable(LENGTH, SKIPS, written.append)

    def part_of(rows: IntArray) -> Callable[[Rows], IntArray]:
        def part(index: Rows) -> IntArray:
            assert len(index) <= state_table.SLICE  # never all of them at once
            return rows[index]

        return part

    ids = [table.add(Distinct.among(len(rows), part_of(rows)), part_of(rows)).tolist() for rows in some]
    return ids, [tuple(row) for row in np.concatenate(written).tolist()], table


@pytest.mark.parametrize("size", [1, 7, 1 << 15])
def test_it_numbers_states_as_a_dictionary_does(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(state_table, "SLICE", size)
    ids, rows, table = added(batches())
    assert (ids, rows) == numbered(batches())
    assert len(table) == len(rows) > 100


def test_a_table_goes_on_from_the_states_of_another() -> None:
    half = len(batches()) // 2
    ids, before, _ = added(batches()[:half])
    written: list[IntArray] = []
    table = StateTable(LENGTH, SKIPS, written.append, np.array_split(np.array(before, np.int32), 3))
    for rows in batches()[half:]:
        ids.append(table.add(Distinct.among(len(rows), rows.__getitem__), rows.__getitem__).tolist())
    assert (ids, [tuple(row) for row in np.concatenate(written).tolist()]) == numbered(batches())


@pytest.mark.parametrize("same", [FIRST, SECOND])
def test_states_that_share_one_hash_stay_apart(monkeypatch: pytest.MonkeyPatch, same: int) -> None:
    monkeypatch.setattr(state_table, "hashes", lambda rows, odd: hashes(rows, odd) * np.uint64(odd != same))
    assert added(batches())[:2] == numbered(batches())


@pytest.mark.parametrize("few", [FIRST, SECOND])
def test_states_that_share_one_hash_with_some_stay_apart(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(
        state_table, "hashes", lambda rows, odd: hashes(rows, odd) % np.uint64(5) if odd == few else hashes(rows, odd)
    )
    assert added(batches())[:2] == numbered(batches())


def test_a_hash_is_the_same_everywhere() -> None:
    rows = np.array([[0, 1, 70_000], [PAD, PAD, PAD], [2**31 - 1, 0, 5], [1, 0, 70_000]], np.int32)
    for odd in (FIRST, SECOND):
        for row, found in zip(rows.tolist(), hashes(rows, odd).tolist(), strict=True):
            expected = odd
            for value in row:
                expected = ((expected ^ (value % 2**32)) * odd) % 2**64
                expected ^= expected >> 32
            assert found == expected
    assert hashes(rows[:1], FIRST).tolist() == [16959809766880839191]


def test_one_hash_alone_tells_many_states_apart() -> None:
    """Neighbours in every column, the states that a weak hash would take for each other first."""
    grid = np.stack(np.meshgrid(*[np.arange(PAD, 15)] * 4, indexing="ij"), axis=-1).reshape(-1, 4).astype(np.int32)
    for odd in (FIRST, SECOND):
        for rows in (grid, grid[:, ::-1] << 16, np.pad(grid, ((0, 0), (0, 9)), constant_values=PAD)):
            found = hashes(rows, odd)
            assert len(np.unique(found)) == len(grid) == 16**4
            for part in (found >> np.uint64(48), found & np.uint64(0xFFFF)):  # ends of it look random, too
                assert abs(len(np.unique(part)) - 16**4 * (1 - np.exp(-1))) < 800


@pytest.mark.parametrize(("width", "counts"), [(4, (3, 0, 1200, 5)), (0, (2, 9)), (1, ()), (1, (100_000, 1))])
def test_a_file_grows_to_the_bytes_of_a_saved_array(tmp_path: Path, width: int, counts: tuple[int, ...]) -> None:
    parts = [np.random.default_rng(count).integers(PAD, 9, (count, width)).astype(np.int32) for count in counts]
    with ArrayFile(tmp_path / "grown.npy", width) as file:
        for part in parts:
            file.append(part)
    np.save(tmp_path / "saved.npy", np.concatenate([np.empty((0, width), np.int32), *parts]))
    assert (tmp_path / "grown.npy").read_bytes() == (tmp_path / "saved.npy").read_bytes()


def test_positives_and_skips_are_files_of_their_own(tmp_path: Path) -> None:
    rows = batches()[3]
    with state_files(tmp_path, LENGTH, SKIPS) as write:
        write(rows[:100])
        write(rows[100:])
    assert np.array_equal(np.load(tmp_path / "positives.npy"), rows[:, :LENGTH])
    assert np.array_equal(np.load(tmp_path / "skips.npy"), rows[:, LENGTH:])
