"""Sessions as plain lists of positive items: what supervised and nearest-neighbour methods learn from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl

from bcd4rec.data.states import IntArray, Rows
from bcd4rec.errors import InputError


@dataclass(frozen=True)
class Sequences:
    """Ragged lists of item indices, in time order of the sessions: list j is `items[offsets[j]:offsets[j + 1]]`."""

    items: IntArray  # (total,)
    offsets: Rows  # (sessions + 1,)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> IntArray:
        return self.items[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[IntArray]:
        return (self[row] for row in range(len(self)))

    @property
    def lengths(self) -> Rows:
        return np.diff(self.offsets)

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Self:
        lengths = np.fromiter((len(one) for one in lists), np.int64, len(lists))
        flat = [item for one in lists for item in one]
        return cls(np.asarray(flat, np.int32), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def refuse_other_than_lists(path: Path, schema: pl.Schema, columns: list[str], lists: list[str]) -> None:
    """A file of sessions has `columns` of whole numbers or strings; those in `lists` hold lists of them."""
    missing = [name for name in columns if name not in schema]
    if missing:
        expected = f"expected a Parquet file with {' and '.join(columns)}"
        raise InputError(f"{path} has no column {missing[0]!r} but {', '.join(schema)}; {expected}.")
    for name in columns:
        inner = inner_type(schema[name]) if name in lists else schema[name]
        if not (inner.is_integer() or inner == pl.String):
            kind = "lists of whole numbers or strings" if name in lists else "whole numbers or strings"
            raise InputError(f"{path}: column {name!r} holds {schema[name]}, expected {kind}.")


def inner_type(dtype: pl.DataType) -> pl.DataType:
    """The type inside a list type; Null for anything else."""
    inner = dtype.inner if isinstance(dtype, pl.List) else pl.Null()
    return inner if isinstance(inner, pl.DataType) else inner()
