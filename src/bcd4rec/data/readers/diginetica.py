"""The CIKM Cup 2016 (Diginetica) folder: impression lists of queries, with clicks, purchases and categories."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import polars as pl

from bcd4rec.data.origin import Origin
from bcd4rec.data.readers._diginetica_files import Folder
from bcd4rec.data.readers._lists import ListReader, chunked, chunks_of_sessions, exploded, progress_of, write_log
from bcd4rec.data.readers._raw import NO_ID, open_raw, read_typed, typed
from bcd4rec.data.readers.reader import READERS, Reading
from bcd4rec.data.sessions import MICROSECONDS_PER_DAY, Tick, no_tick
from bcd4rec.data.tables import ROW, Table
from bcd4rec.errors import InputError

MILLISECONDS_PER_DAY = MICROSECONDS_PER_DAY // 1000
QUERY_COLUMNS = {
    "queryId": "id",
    "sessionId": "id or NA",
    "timeframe": "milliseconds",
    "eventdate": "day",
    "is.test": "flag",
}
KEYS = ["session_id", "item_id"]


@READERS.register("diginetica")
class DigineticaReader(ListReader):
    """A folder with train-queries.csv, train-clicks.csv, train-purchases.csv and product-categories.csv.

    One query is one slate, and a place in its list is a position. An item of the list that was clicked there is a
    click, one that was bought in the session after it was shown a buy, any other a skip.
    """

    periods: ClassVar[dict[str, float]] = {"user": 60.0, "train": 30.0, "test": 30.0}
    paper: ClassVar[dict[str, int]] = {
        "train sessions": 4843,
        "train tuples": 70_000,
        "test sessions": 1436,
        "items": 6666,
        "categories": 825,
    }

    source: Literal["queries", "views"] = "queries"
    """What was shown: the lists of queries, or (positives alone, for baselines) the item views as clicks."""
    test_queries: Literal["drop", "keep"] = "drop"
    """Queries with is.test = TRUE: drop, because their outcome is withheld and would read as skips, or keep."""
    purchase: Literal["once", "every"] = "once"
    """Which impression of an item is the buy: one, the last clicked (else the last) before the purchase, or every."""
    without: str = ""
    """Files to go without, separated by commas: clicks, purchases, categories."""
    strict: bool = False
    """Refuse clicks and purchases that fit no impression, instead of dropping and counting them."""

    def read(self, raw: Path, out: Path, spool: Path, tick: Tick = no_tick) -> Reading:
        reading = Reading()
        folder = Folder(raw, self.without, self.source, reading)
        tick("reading clicks and purchases", 0.0)
        purchases = folder.purchases()
        categories = folder.categories()
        shown = (
            self._views(folder, tick, reading) if self.source == "views" else self._lists(folder, spool, tick, reading)
        )
        parts = self._bought(shown, purchases, reading)
        finished = (self._finished(part, categories, reading) for part in parts)
        write_log(self, finished, out, spool, reading, Origin.beside(raw))
        folder.remark_categories(out)
        return reading

    def _lists(self, folder: Folder, spool: Path, tick: Tick, reading: Reading) -> Iterator[pl.DataFrame]:
        """The places of the lists: list (the query), session_id, item_id, position, clicked, and the times."""
        table = open_raw(folder.path("queries"), (*QUERY_COLUMNS, "items"), reading, ";")
        queries = self._query_times(table, reading)
        folder.remark_views(queries)
        clicks = self._clicks(folder, queries, reading)
        keyed = queries.select("list", "session_id", "timeframe", "time", "start", "chunk")
        columns = [pl.col(ROW), typed("queryId", "id").alias("list"), pl.col("items")]
        used = 0
        parts = chunked(table, columns, keyed, "list", spool)
        for part in progress_of(parts, queries["chunk"].n_unique(), tick):
            rows = exploded(part, ",", str(table.path), reading)
            rows = rows.join(clicks, on=["list", "item_id"], how="left").with_columns(
                pl.col("clicked").fill_null(False)
            )
            used += int(rows["clicked"].sum())
            yield rows
        self._drop_or_refuse("clicks on items that their query did not show", clicks.height - used, reading)

    def _bought(
        self, parts: Iterator[pl.DataFrame], purchases: pl.DataFrame, reading: Reading
    ) -> Iterator[pl.DataFrame]:
        sold = 0
        for part in parts:
            rows = part.pipe(bought_afterwards, purchases)
            sold += rows.filter("bought").select(KEYS).n_unique()
            yield rows if self.purchase == "every" else rows.pipe(bought_once)
        self._drop_or_refuse("purchases of items that were not shown before", purchases.height - sold, reading)

    def _query_times(self, table: Table, reading: Reading) -> pl.DataFrame:
        """list (the query), session_id, timeframe, time (microseconds), weight (its length), chunk."""
        length = pl.col("items").str.count_matches(",", literal=True).fill_null(0).cast(pl.Int64) + 1
        queries = read_typed(table, QUERY_COLUMNS, pl.when(pl.col("items").is_not_null()).then(length).alias("weight"))
        reading.read["queries"] = queries.height
        twice = queries.filter(~pl.col("queryId").is_first_distinct())
        if not twice.is_empty():
            row, query = twice.select(ROW, "queryId").row(0)
            raise InputError(f"{table.path}, row {row}: found query {query} once more, expected each query once.")
        queries = queries.rename({"queryId": "list", "sessionId": "session_id"})
        for why, bad in {
            "queries without a session (NA)": pl.col("session_id") == NO_ID,
            "queries without items": pl.col("weight").is_null(),
            "test queries, whose outcome is withheld": pl.col("is.test") & (self.test_queries == "drop"),
        }.items():
            reading.drop(why, queries.filter(bad).height)
            queries = queries.filter(~bad)
        reading.read["impressions"] = int(queries["weight"].sum())
        return with_time(queries)

    def _clicks(self, folder: Folder, queries: pl.DataFrame, reading: Reading) -> pl.DataFrame:
        """list, item_id, clicked: the clicks that belong to a query that was kept."""
        found = folder.clicks()
        clicks = found.join(
            queries.select("list", pl.col("timeframe").alias("asked")), on="list", how="left", maintain_order="left"
        )
        known = clicks.filter(pl.col("asked").is_not_null())
        if 2 * known.height < clicks.height:
            raise InputError(
                f"{folder.path('clicks')}: {clicks.height - known.height:,} of {clicks.height:,} clicks belong to no "
                f"query of {folder.path('queries').name} that is kept; was one of the files cut short?"
            )
        later = known.filter(pl.col("timeframe") >= pl.col("asked"))
        reading.drop("clicks of queries that are missing or dropped", clicks.height - known.height)
        self._drop_or_refuse("clicks before their query", known.height - later.height, reading)
        once = later.select("list", "item_id").unique(maintain_order=True)
        reading.drop("clicks on the same item of the same query again", later.height - once.height)
        return once.with_columns(pl.lit(True).alias("clicked"))

    def _drop_or_refuse(self, why: str, count: int, reading: Reading) -> None:
        if count and self.strict:
            raise InputError(f"Found {count:,} {why}; mend the files, or drop them with --set strict=false.")
        reading.drop(why, count)

    def _views(self, folder: Folder, tick: Tick, reading: Reading) -> Iterator[pl.DataFrame]:
        """Each view is an impression of one item that was clicked."""
        tick("reading views", 0.0)
        views = with_time(folder.views().with_columns(pl.lit(1).alias("weight")))
        once = views.filter(pl.struct("session_id", "time", "item_id").is_first_distinct())
        reading.drop("views of the same item at the same time again", views.height - once.height)
        once = once.sort("start", "session_id", "time", ROW).with_row_index("list")
        alone = once.with_columns(pl.lit(0).alias("position"), pl.lit(True).alias("clicked"))
        yield from alone.partition_by("chunk", maintain_order=True)

    def _finished(self, rows: pl.DataFrame, categories: pl.DataFrame | None, reading: Reading) -> pl.DataFrame:
        rows = self.shape(rows, reading)
        if categories is not None:
            rows = rows.join(categories, on="item_id", how="left")
        renamed = rows.rename({"time": "timestamp", "list": "request_id"})
        return renamed.sort("start", "session_id", "timestamp", "request_id", "position")


def bought_afterwards(rows: pl.DataFrame, purchases: pl.DataFrame) -> pl.DataFrame:
    """Mark every impression whose item was bought in its session afterwards."""
    rows = rows.join(purchases, on=KEYS, how="left")
    return rows.with_columns((pl.col("timeframe") <= pl.col("bought_at")).fill_null(False).alias("bought"))


def bought_once(rows: pl.DataFrame) -> pl.DataFrame:
    """Of the impressions that are marked for one purchase, keep the last clicked one, or else the last one."""
    candidates = rows.filter("bought").sort("clicked", "timeframe", "list")
    chosen = candidates.unique(KEYS, keep="last", maintain_order=True).select("list", "item_id", last=True)
    rows = rows.drop("bought").join(chosen, on=["list", "item_id"], how="left")
    return rows.with_columns(pl.col("last").fill_null(False).alias("bought"))


def with_time(events: pl.DataFrame) -> pl.DataFrame:
    """Calendar time of events, their session's `start`, and the session's `chunk`.

    `eventdate` is the day of the event and `timeframe` counts from the session's beginning, whose hour nobody
    tells. So a session begins at midnight of its first day, and an event is `timeframe` later: the order within a
    session is exact, and the day is right but for sessions that cross midnight.
    """
    day = pl.col("eventdate").cast(pl.Int64) - pl.col("timeframe") // MILLISECONDS_PER_DAY
    time = day.min().over("session_id") * MICROSECONDS_PER_DAY + pl.col("timeframe") * 1000
    events = events.with_columns(time.alias("time"))
    sessions = events.group_by("session_id").agg(pl.col("time").min().alias("start"), pl.col("weight").sum())
    sessions = chunks_of_sessions(sessions.sort("start", "session_id")).drop("weight")
    return events.join(sessions, on="session_id", how="left", maintain_order="left")
