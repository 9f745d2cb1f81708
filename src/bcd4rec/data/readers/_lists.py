"""Impression lists become impressions: exploded, cut, filtered and written, a chunk of whole sessions at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import polars as pl
import pyarrow.parquet as pq
from pydantic import Field, field_validator

from bcd4rec.data.origin import Origin
from bcd4rec.data.readers.reader import Reader, Reading
from bcd4rec.data.sessions import CHUNK_ROWS, Tick
from bcd4rec.data.tables import ROW, RawTable, shown
from bcd4rec.errors import InputError

CUTS = ("none", "last_touched")
NO_PLACE = -1
IMPRESSION = ~pl.col("organic")
_WANTED = {
    "positive": ("touched", "sessions without a positive response"),
    "bought": ("bought", "sessions without a purchase"),
}


class ListReader(Reader):
    """Options of formats whose impressions are lists."""

    cut: str = "last_touched"
    """Where a list ends: last_touched (after the last clicked or bought place; untouched lists are dropped,
    for nobody knows how much of them was seen), none (as it was logged), or a number of places."""
    sessions: Literal["all", "positive", "bought"] = "all"
    """Which sessions to keep: all that have an impression, those with a positive response, or with a purchase."""
    min_support: int = Field(default=1, ge=1)
    """Drop items with fewer impressions than this in what is left by the other options."""

    @field_validator("cut")
    @classmethod
    def _known(cls, cut: str) -> str:
        if cut not in CUTS and not (cut.isdecimal() and int(cut) > 0):
            raise ValueError(f"cut is {cut!r}, expected none, last_touched or a number of places above 0")
        return cut

    def shape(self, rows: pl.DataFrame, reading: Reading) -> pl.DataFrame:
        """Cut lists and drop sessions. `rows`: session_id, list, position, clicked, bought, and what is carried on."""
        rows = rows.with_columns((pl.col("clicked") | pl.col("bought")).alias("touched"))
        rows = self._cut(rows, reading)
        if self.sessions != "all":
            wanted, why = _WANTED[self.sessions]
            kept = rows.filter(pl.col(wanted).any().over("session_id"))
            reading.drop(why, rows["session_id"].n_unique() - kept["session_id"].n_unique())
            rows = kept
        response = pl.when("bought").then(pl.lit("buy")).when("clicked").then(pl.lit("click")).otherwise(pl.lit("skip"))
        return rows.with_columns(response.alias("response"), organic=pl.lit(False))

    def _cut(self, rows: pl.DataFrame, reading: Reading) -> pl.DataFrame:
        if self.cut == "none":
            return rows
        if self.cut == "last_touched":
            last = pl.col("position").filter(pl.col("touched")).max().over("list").fill_null(NO_PLACE)
        else:
            last = pl.lit(int(self.cut) - 1)
        kept = rows.filter(pl.col("position") <= last)
        untouched = rows["list"].n_unique() - kept["list"].n_unique()
        reading.drop("lists without a touched item", untouched)
        reading.drop("impressions below the cut, or in such lists", rows.height - kept.height)
        return kept


def chunks_of_sessions(sessions: pl.DataFrame) -> pl.DataFrame:
    """`sessions` (one row each, with `weight` in impressions) with a column `chunk`: whole sessions, equal shares."""
    before = pl.col("weight").cast(pl.Int64).cum_sum() - pl.col("weight")
    return sessions.with_columns((before // CHUNK_ROWS).cast(pl.UInt32).alias("chunk"))


def chunked(
    table: RawTable, columns: list[pl.Expr], keyed: pl.DataFrame, on: str, spool: Path
) -> Iterator[pl.DataFrame]:
    """The rows of a file that `keyed` knows (by the column `on`), joined with it, chunk by chunk in one pass."""
    joined = table.frame.select(columns).join(keyed.lazy(), on=on, how="inner")
    folder = spool / "chunks"
    joined.sink_parquet(pl.PartitionBy(folder, key="chunk", include_key=False), mkdir=True, engine="streaming")
    for chunk in keyed["chunk"].unique().sort():
        part = folder / f"chunk={chunk}"
        if part.is_dir():
            yield pl.concat([pl.read_parquet(file, glob=False) for file in sorted(part.iterdir())])
            for file in part.iterdir():
                file.unlink()


def exploded(rows: pl.DataFrame, separator: str, where: str, reading: Reading) -> pl.DataFrame:
    """One row per item of the text column `items`, with `item_id` and `position`; a repeated item counts once."""
    rows = rows.with_columns(pl.col("items").cast(pl.String).str.split(separator))
    length = pl.col("items").list.len()
    repeats = pl.col("items").list.n_unique() < length  # few do, so the exact comparison runs on those alone
    parts = rows.with_columns(pl.int_ranges(length, dtype=pl.Int32).alias("position"), repeats.alias("repeats"))
    parts = parts.explode("items", "position").with_columns(
        pl.col("items").str.strip_chars().cast(pl.Int64, strict=False).alias("item_id")
    )
    bad = parts.filter(pl.col("item_id").is_null())
    if not bad.is_empty():
        first = bad.row(0, named=True)
        raise InputError(f"{where}, row {first[ROW]}: found the item {shown(first['items'])}, expected an integer.")
    again = parts.filter("repeats").filter(~pl.struct("list", "item_id").is_first_distinct())
    reading.drop("places with an item that the list has above", again.height)
    parts = parts.drop("items", "repeats")
    if again.is_empty():
        return parts
    return parts.join(again.select("list", "position"), on=["list", "position"], how="anti", maintain_order="left")


class LogWriter:
    """Chunks of impressions and organic events become one canonical Parquet file, and are counted."""

    COLUMNS = ("session_id", "timestamp", "item_id", "response", "request_id", "position", "category", "organic")

    def __init__(self, out: Path, reading: Reading, origin: Origin | None = None):
        self._out, self._reading, self._origin = out, reading, origin
        self._writer: pq.ParquetWriter | None = None
        self._items: list[pl.DataFrame] = []
        self._kept = {"sessions": 0, "impressions": 0, "organic": 0, "skip": 0, "click": 0, "buy": 0}

    def write(self, rows: pl.DataFrame) -> None:
        if rows.is_empty():
            return
        rows = rows.select(name for name in self.COLUMNS if name in rows.columns)
        shown = rows.filter(IMPRESSION)
        self._kept["sessions"] += rows["session_id"].n_unique()
        self._kept["impressions"] += shown.height
        self._kept["organic"] += rows.height - shown.height
        for response, count in shown["response"].value_counts().iter_rows():
            self._kept[response] += count
        self._items.append(rows.group_by("item_id").agg(len=IMPRESSION.sum()))
        table = rows.with_columns(pl.col("timestamp").cast(pl.Datetime("us"))).to_arrow()
        schema = table.schema if self._origin is None else table.schema.with_metadata(self._origin.metadata())
        self._writer = self._writer or pq.ParquetWriter(self._out, schema, compression="zstd")
        self._writer.write_table(table, row_group_size=len(table))  # a session is never in two groups

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def items(self) -> pl.DataFrame:
        """item_id and `len`, its impressions."""
        return pl.concat(self._items).group_by("item_id").agg(pl.col("len").sum())

    def count(self) -> None:
        if self._writer is None:
            why = ", ".join(f"{count:,} {name}" for name, count in self._reading.dropped.items()) or "nothing"
            raise InputError(f"No impression is left of the raw log (dropped: {why}); change the reader's options.")
        self._reading.kept = self._kept | {"items": self.items().height}


def write_log(
    reader: ListReader,
    parts: Iterator[pl.DataFrame],
    out: Path,
    spool: Path,
    reading: Reading,
    origin: Origin | None = None,
) -> None:
    """Write the chunks, and once more without the rare items where `min_support` asks for it."""
    first = out if reader.min_support == 1 else spool / "all-items.parquet"
    writer = LogWriter(first, reading, origin)
    try:
        for rows in parts:
            writer.write(rows)
    finally:
        writer.close()
    writer.count()
    if reader.min_support > 1:
        _drop_rare(first, writer.items().filter(pl.col("len") >= reader.min_support), out, reading, origin)


def _drop_rare(first: Path, items: pl.DataFrame, out: Path, reading: Reading, origin: Origin | None) -> None:
    before = dict(reading.kept)
    writer = LogWriter(out, reading, origin)
    file = pq.ParquetFile(first)
    try:
        for group in range(file.num_row_groups):
            rows = pl.DataFrame(file.read_row_group(group))
            rows = rows.join(items.select("item_id"), on="item_id", how="semi", maintain_order="left")
            writer.write(rows.filter(IMPRESSION.any().over("session_id")))
    finally:
        writer.close()
        file.close()
    reading.drop("items with too few impressions", before["items"] - items.height)
    writer.count()
    for what in ("impressions", "sessions"):
        reading.drop(f"{what} of such items alone", before[what] - reading.kept[what])
    reading.drop("organic events of such items or sessions", before["organic"] - reading.kept["organic"])


def progress_of(parts: Iterator[pl.DataFrame], total: int, tick: Tick) -> Iterator[pl.DataFrame]:
    for number, part in enumerate(parts):
        tick("reading impressions", number / max(total, 1))
        yield part
