"""Rows that are read in one order and needed in another: cut into files, each of which fits into memory."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

BATCH_ROWS = 1_000_000  # rows that are in memory at once


def into_files(rows: pl.LazyFrame, key: str, folder: Path, tick: Callable[[float], None]) -> dict[int, Path]:
    """One Arrow file in `folder` for each value of the integer column `key`, which it then has no more, by value.

    The rows are computed once, in streaming, and none of them is in memory longer than it takes to put it away.
    """
    whole = folder / "rows.parquet"
    rows.sink_parquet(whole, compression="lz4", row_group_size=BATCH_ROWS // 4)
    files: dict[int, Path] = {}
    writers: dict[int, pa.RecordBatchFileWriter] = {}
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pq.ParquetFile(whole) as spooled:
        total, done = max(spooled.metadata.num_rows, 1), 0
        try:
            for batch in spooled.iter_batches(BATCH_ROWS):
                for (value,), part in pl.DataFrame(batch).partition_by(key, as_dict=True, include_key=False).items():
                    table = part.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
                    if value not in writers:
                        files[value] = folder / f"rows-{value}.arrow"
                        writers[value] = pa.ipc.new_file(str(files[value]), table.schema, options=options)
                    writers[value].write_table(table)
                done += len(batch)
                tick(done / total)
        finally:
            for writer in writers.values():
                writer.close()
    whole.unlink()
    return dict(sorted(files.items()))
