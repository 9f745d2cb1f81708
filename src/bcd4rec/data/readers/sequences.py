"""Plain sessions of items, all of them positive: one list per row of a Parquet file, or one line of a text file."""

from pathlib import Path

import polars as pl
from pydantic import Field

from bcd4rec.data.files import first_line
from bcd4rec.data.readers._columns import write_canonical
from bcd4rec.data.readers._shaping import drop_rare
from bcd4rec.data.readers.reader import READERS, Reader, Reading
from bcd4rec.data.schema import Log, LogOptions
from bcd4rec.data.sequences import refuse_other_than_lists
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.tables import ROW, RawTable, collect, scan
from bcd4rec.errors import InputError

LINE = "line"


@READERS.register("sequences")
class SequencesReader(Reader):
    """A Parquet file with a column of lists, or a text file with one session per line, oldest session first.

    A session's id is the number of its row or line, each of its items is an impression of its own with the response
    `click`, and its place is the step. There is no time and there are no skips: such a data set is for pre-training and
    for baselines that learn from positive items, not for agents, which need what was skipped.
    """

    column: str = "items"
    """The column of lists in a Parquet file."""
    string_ids: bool = False
    """Read all ids as strings, also where some of them look like numbers."""
    min_length: int = Field(default=1, ge=1)
    """Drop sessions with fewer items than this."""

    min_support: int = Field(default=1, ge=1)
    """Drop items with fewer appearances than this, and sessions that have no others."""

    def read(self, raw: Path, out: Path, spool: Path, tick: Tick = no_tick) -> Reading:
        reading = Reading()
        if not raw.is_file():
            raise InputError(f"{raw} is not a file; expected a Parquet file of lists or a text file of sessions.")
        tick("reading sessions", 0.0)
        lists = self._parquet(raw) if raw.suffix == ".parquet" else self._lines(raw)
        lists = self._counted(lists, reading)
        steps = pl.int_ranges(pl.col("items").list.len()).alias("step")
        rows = (
            lists.frame.with_columns(steps)
            .explode("items", "step")
            .select(
                "row",
                pl.col("row").cast(pl.String if lists.text else pl.Int64).alias("session_id"),
                pl.col("items").alias("item_id"),
                "step",
                pl.lit("click").alias("response"),
            )
        )
        table = RawTable(raw, rows, ("session_id", "item_id", "step", "response"), lists.text)
        log, every = Log(raw, LogOptions(string_ids=self.string_ids), [table]), spool / "all-items.parquet"
        write_canonical(log, out if self.min_support == 1 else every, reading, tick)
        if self.min_support > 1:
            drop_rare(every, out, self.min_support, reading)
        return reading

    def _parquet(self, raw: Path) -> RawTable:
        table = scan(raw, "parquet")
        refuse_other_than_lists(raw, table.frame.drop(ROW).collect_schema(), [self.column], [self.column])
        lists = pl.col(self.column).fill_null([])
        return RawTable(raw, table.frame.select(pl.col(ROW).alias("row"), lists.alias("items")), (), False)

    def _lines(self, raw: Path) -> RawTable:
        """Items stand between blanks, commas or semicolons."""
        first_line(raw)
        with raw.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    line.decode("utf-8-sig")
                except UnicodeDecodeError:
                    raise InputError(f"{raw}, line {number} is not UTF-8; save the file as UTF-8.") from None
        lines = pl.scan_lines(raw, name=LINE, row_index_name="row", row_index_offset=1)
        items = pl.col(LINE).str.strip_prefix("\ufeff").str.extract_all(r"[^\s,;]+")
        return RawTable(raw, lines.select("row", items.alias("items")), (), True)

    def _counted(self, lists: RawTable, reading: Reading) -> RawTable:
        """Without nulls in lists and without short sessions, which are counted."""
        length, full = pl.col("items").list.len(), pl.col("items").list.drop_nulls()
        counts = collect(
            lists,
            lists.frame.select(
                pl.len().alias("sessions"),
                length.sum().alias("items"),
                (length.sum() - full.list.len().sum()).alias("nulls"),
                (full.list.len() < self.min_length).sum().alias("short"),
            ),
        ).row(0, named=True)
        reading.read = {"sessions": counts["sessions"], "items": counts["items"]}
        reading.drop("items that are null", counts["nulls"])
        reading.drop(f"sessions with fewer than {self.min_length} items", counts["short"])
        if counts["sessions"] == counts["short"]:
            raise InputError(f"{lists.path} holds no session of {self.min_length} or more items.")
        kept = lists.frame.with_columns(full).filter(pl.col("items").list.len() >= self.min_length)
        return RawTable(lists.path, kept, (), lists.text)
