"""RecSys Challenge 2019 (trivago): events of sessions, with the list of items shown at each clickout."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from bcd4rec.data.readers._lists import ListReader, chunked, chunks_of_sessions, exploded, progress_of, write_log
from bcd4rec.data.readers._raw import open_raw, read_typed, typed
from bcd4rec.data.readers.reader import READERS, Reading
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.tables import ROW, RawTable
from bcd4rec.errors import InputError

COLUMNS = ("session_id", "timestamp", "step", "action_type", "reference", "impressions")
CLICKOUT = "clickout item"
TOUCHES = (CLICKOUT, "interaction item ", "search for item")  # how actions on an item begin
ORDER = ("timestamp", "step", ROW)


@READERS.register("trivago")
class TrivagoReader(ListReader):
    """A Parquet or CSV file of events, or the folder of train.csv, with impressions as "a|b|c".

    The list of a clickout is one slate at its time. The item clicked out is the conversion (buy); one that the
    session had interacted with up to then, also by an earlier clickout, a click; any other a skip.
    """

    city: bool = True
    """Let the category of an item be the city of the first list that shows it."""

    def read(self, raw: Path, out: Path, spool: Path, tick: Tick = no_tick) -> Reading:
        reading = Reading()
        table = open_raw(events_file(raw), COLUMNS, reading)
        parts = self._impressions(table, spool, tick, reading)
        write_log(self, parts, out, spool, reading)
        return reading

    def _impressions(self, table: RawTable, spool: Path, tick: Tick, reading: Reading) -> Iterator[pl.DataFrame]:
        tick("reading sessions", 0.0)
        sessions = self._sessions(table, reading)
        kinds = {"timestamp": "seconds", "step": "id"}
        columns = [pl.col(ROW), *(typed(name, kind) for name, kind in kinds.items())]
        columns += [pl.col(name).cast(pl.String) for name in ("session_id", "action_type", "reference")]
        columns += [pl.col("impressions").cast(pl.String).alias("items")]
        cities = Cities() if self.city and "city" in table.columns else None
        columns += [pl.col("city").cast(pl.String)] if cities else []
        parts = chunked(table, columns, sessions, "session_id", spool)
        for events in progress_of(parts, sessions["chunk"].n_unique(), tick):
            rows = self.shape(_responses(events, str(table.path), reading), reading)
            rows = rows.rename({"list": "request_id"}).with_columns(pl.col("timestamp") * 1_000_000)
            rows = rows.sort("start", "session_id", "request_id", "position")
            yield cities.of(rows) if cities else rows

    def _sessions(self, table: RawTable, reading: Reading) -> pl.DataFrame:
        """session_id, start, chunk of the sessions with a clickout; all others show nothing."""
        length = pl.col("impressions").cast(pl.String).str.count_matches("|", literal=True).fill_null(0) + 1
        clickout = pl.col("action_type") == CLICKOUT
        kinds = {"session_id": "text", "timestamp": "seconds", "step": "id", "action_type": "text"}
        events = read_typed(table, kinds, length.alias("weight"))
        reading.read |= {"events": events.height, "clickouts": events.filter(clickout).height}
        sessions = events.group_by("session_id").agg(
            pl.col("timestamp").min().alias("start"), pl.col("weight").sum(), clickout.any().alias("clickout")
        )
        reading.read["sessions"] = sessions.height
        kept = sessions.filter("clickout").sort("start", "session_id")
        reading.drop("sessions without a clickout", sessions.height - kept.height)
        return chunks_of_sessions(kept).select("session_id", "start", "chunk")


class Cities:
    """The category of each item seen so far; people look for places to stay in one city."""

    def __init__(self) -> None:
        self._known = pl.DataFrame(schema={"item_id": pl.Int64, "category": pl.String})

    def of(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with `category` in place of `city`; the rows come in the order of time."""
        told = rows.filter(pl.col("city").is_not_null()).select("item_id", category="city")
        told = told.unique("item_id", keep="first", maintain_order=True)
        new = told.join(self._known, on="item_id", how="anti", maintain_order="left")
        self._known = pl.concat([self._known, new])
        return rows.drop("city").join(self._known, on="item_id", how="left", maintain_order="left")


def events_file(raw: Path) -> Path:
    """The file itself, or the one in a folder that is called train.csv or is alone."""
    if not raw.is_dir():
        return raw
    files = sorted(file for file in raw.iterdir() if file.suffix in (".csv", ".parquet"))
    train = [file for file in files if file.name == "train.csv"] or files
    if len(train) != 1:
        found = ", ".join(file.name for file in files) or "no .csv or .parquet file"
        raise InputError(f"{raw} holds {found}; expected train.csv, or name the file of events.")
    return train[0]


def _responses(events: pl.DataFrame, where: str, reading: Reading) -> pl.DataFrame:
    """The places of the lists with what the user did: list, item_id, position, clicked, bought."""
    events = events.sort("session_id", *ORDER).with_row_index("list")
    events = events.with_columns(pl.col("reference").str.strip_chars().cast(pl.Int64, strict=False).alias("target"))
    clickouts = events.filter(pl.col("action_type") == CLICKOUT)
    known = clickouts.filter(pl.col("target").is_not_null())
    reading.drop("clickouts without a reference, whose outcome is withheld", clickouts.height - known.height)
    listed = known.filter(pl.col("items").fill_null("").str.len_bytes() > 0)
    reading.drop("clickouts without a list", known.height - listed.height)
    rows = exploded(listed.drop("action_type", "reference"), "|", where, reading)
    touches = events.filter(pl.any_horizontal(pl.col("action_type").str.starts_with(action) for action in TOUCHES))
    unknown = touches.filter(pl.col("target").is_null() & (pl.col("action_type") != CLICKOUT)).height
    reading.drop("interactions with an unknown item", unknown)
    first = touches.group_by("session_id", pl.col("target").alias("item_id")).agg(pl.col("list").min().alias("first"))
    rows = rows.join(first, on=["session_id", "item_id"], how="left").with_columns(
        (pl.col("first") < pl.col("list")).fill_null(False).alias("clicked"),
        (pl.col("item_id") == pl.col("target")).alias("bought"),
    )
    outside = listed.height - int(rows["bought"].sum())
    reading.drop("conversions of items outside the list", outside)
    return rows
