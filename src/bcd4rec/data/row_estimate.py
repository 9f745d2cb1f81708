"""About how many rows a log has, before it is read: by its bytes, and how many of them a row takes."""

import gzip
from pathlib import Path
from typing import Any

import polars as pl

from bcd4rec.data.files import PACKED, kind_of, log_files
from bcd4rec.data.nesting import inside

HEAD = 1 << 23  # bytes of a file, unpacked, that are looked at


def about_rows(path: Path) -> int:
    """Exact for Parquet, which tells; of text files, the first of a folder speaks for the others."""
    files = log_files(path)
    if kind_of(files[0]) == "parquet":
        return sum(int(pl.scan_parquet(file, glob=False).select(pl.len()).collect().item()) for file in files)
    rows, size = _rows_and_bytes(files[0])
    return max(1, round(rows * sum(file.stat().st_size for file in files) / max(size, 1)))


def items_of_a_row(frame: pl.DataFrame, mapping: dict[str, Any], nested: str = "") -> float:
    """How many impressions a row is, on average, by the first rows of a log; `nested` is a list of rows in it."""
    column = next(iter(inside(frame.columns, nested)), "") if nested else str(mapping.get("items", ""))
    if column.endswith("*"):
        return max(1, sum(name.startswith(column[:-1]) for name in frame.columns))
    if column not in frame.columns:
        return 1.0
    values = frame[column].drop_nulls()
    counts = values.list.len() if values.dtype == pl.List else values.cast(pl.String).str.count_matches(r"[ ,;|]+") + 1
    return max(1.0, float(str(counts.mean() or 1.0)))


def _rows_and_bytes(file: Path) -> tuple[int, int]:
    """Lines of the beginning of a file, and how many bytes on the disk they take."""
    with file.open("rb") as raw:
        head = raw.read(4)
        raw.seek(0)
        if head.startswith(PACKED[".gz"]):
            with gzip.GzipFile(fileobj=raw) as plain:
                rows = plain.read(HEAD).count(b"\n")
            return rows, raw.tell()
        if head == PACKED[".zst"]:
            import pyarrow as pa

            with pa.input_stream(raw, compression="zstd") as plain:
                rows = bytes(plain.read(HEAD)).count(b"\n")
                return rows, raw.tell()
        text = raw.read(HEAD)
        return text.count(b"\n"), len(text)
