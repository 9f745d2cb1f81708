"""Tables of any length become one Parquet file with row groups of one length, and come back group by group."""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP = 1_000_000  # transitions; fixed, so that the bytes of a data set do not depend on how it was cut into chunks


class TransitionFile:
    """Written through when the block ends without an exception."""

    def __init__(self, path: Path):
        self.total = 0
        self._path = path
        self._writer: pq.ParquetWriter | None = None
        self._waiting: pa.Table | None = None

    def write(self, frame: pl.DataFrame) -> None:
        table = frame.to_arrow()
        self.total += len(table)
        waiting = table if self._waiting is None else pa.concat_tables([self._waiting, table])
        while len(waiting) >= ROW_GROUP:
            self._write_group(waiting[:ROW_GROUP])
            waiting = waiting[ROW_GROUP:]
        self._waiting = waiting

    def _write_group(self, table: pa.Table) -> None:
        self._writer = self._writer or pq.ParquetWriter(self._path, table.schema, compression="zstd")
        self._writer.write_table(table.combine_chunks())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._waiting is not None and (len(self._waiting) or self._writer is None):
                self._write_group(self._waiting)
        finally:
            if self._writer is not None:
                self._writer.close()


def row_groups(path: Path) -> Iterator[pl.DataFrame]:
    """What a file holds, a row group at a time."""
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            yield pl.DataFrame(file.read_row_group(number))
