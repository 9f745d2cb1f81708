"""The CIKM Cup 2016 (Diginetica) folder: impression lists of queries, with clicks, purchases and categories."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import polars as pl

from bcd4rec.data.origin import Origin
from bcd4rec.data.readers._diginetica_files import NAMES, Folder
from bcd4rec.data.readers._lists import ListReader, chunked, chunks_of_sessions, exploded, progress_of, write_log
from bcd4rec.data.readers._raw import NO_ID, open_raw, read_typed, typed
from bcd4rec.data.readers.reader import READERS, Reading
from bcd4rec.data.sessions import MICROSECONDS_PER_DAY, Tick, no_tick
from bcd4rec.data.tables import ROW, RawTable
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
VIEWS_ALONE = "views in sessions without an impression"


@READERS.register("diginetica")
class DigineticaReader(ListReader):
    """A folder with train-queries.csv, train-clicks.csv, train-purchases.csv and product-categories.csv.

    One query is one slate, and a place in its list is a position. An item of the list that was clicked there is a
    click, one that was bought in the session after it was shown a buy, any other a skip. An item view (where there is
    train-item-views.csv) that is the first the session had to do with its item, shown in no query by then, is an
    organic click.
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
    organic: bool = True
    """Take views of items that no query of the session had shown by then as organic clicks; false leaves them out."""
    strict: bool = False
    """Refuse clicks and purchases that fit no impression, instead of dropping and counting them."""

    def read(self, raw: Path, out: Path, spool: Path, tick: Tick = no_tick) -> Reading:
        reading = Reading()
        folder = Folder(raw, self.without, self.source, reading)
        tick("reading clicks and purchases", 0.0)
        purchases = folder.purchases()
        categories = folder.categories()
        views = None
        if self.source == "views":
            shown = self._views(folder, tick, reading)
        else:
            table = open_raw(folder.path("queries"), (*QUERY_COLUMNS, "items"), reading, ";")
            queries, views = self._times(self._queries(table, reading), folder, reading)
            shown = self._lists(folder, table, queries, spool, tick, reading)
        parts = self._bought(shown, purchases, reading)
        finished = (self._finished(part, views, categories, reading) for part in parts)
        write_log(self, finished, out, spool, reading, Origin.beside(raw))
        folder.remark_categories(out)
        return reading

    def _lists(
        self, folder: Folder, table: RawTable, queries: pl.DataFrame, spool: Path, tick: Tick, reading: Reading
    ) -> Iterator[pl.DataFrame]:
        """The places of the lists: list (the query), session_id, item_id, position, clicked, and the times."""
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

    def _queries(self, table: RawTable, reading: Reading) -> pl.DataFrame:
        """list (the query), session_id, timeframe, eventdate, weight (its length)."""
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
        return queries

    def _times(
        self, queries: pl.DataFrame, folder: Folder, reading: Reading
    ) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """Queries, and the views of their sessions where they are wanted and there, with their times and chunks."""
        found = folder.views() if self.organic and folder.has("views") else None
        if found is None:
            if self.organic:
                reading.remarks.append(f"{NAMES['views']} is missing: what sessions found by themselves is not known")
            return with_time(queries), None
        views = found.join(queries, on="session_id", how="semi")
        reading.drop(VIEWS_ALONE, found.height - views.height)
        unseen = queries["session_id"].n_unique() - views["session_id"].n_unique()
        if unseen:  # no fault, but a great many of them may be
            reading.remarks.append(f"{unseen:,} sessions of queries have no item view; they are read all the same")
        events = with_time(pl.concat([queries, views.with_columns(weight=pl.lit(1, pl.Int64))], how="diagonal"))
        asked = pl.col("list").is_not_null()
        return events.filter(asked).drop("item_id"), events.filter(~asked).select(*KEYS, "timeframe", "time", "start")

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

    def _finished(
        self, shown: pl.DataFrame, views: pl.DataFrame | None, categories: pl.DataFrame | None, reading: Reading
    ) -> pl.DataFrame:
        rows = self.shape(shown, reading)
        if views is not None:
            own = views.join(shown, on="session_id", how="semi", maintain_order="left")
            organic = organic_clicks(own, shown, rows, reading)
            rows = pl.concat([rows, organic], how="diagonal")
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


def organic_clicks(views: pl.DataFrame, shown: pl.DataFrame, kept: pl.DataFrame, reading: Reading) -> pl.DataFrame:
    """Of the views of some sessions those that nobody recommended; all others are counted.

    A click in a list leaves a view of its item, too, at its time or later, and people come back to what they have
    seen. So a view is organic only if it is the first that its session had to do with the item: no query had shown
    the item by then (`shown`, whole lists), and it was not viewed before. Sessions without an impression in `kept` have
    no place in the log.
    """
    told = views.join(kept, on="session_id", how="semi", maintain_order="left")
    reading.drop(VIEWS_ALONE, views.height - told.height)
    time = pl.col("timeframe")
    first = shown.group_by(KEYS).agg(shown_at=time.min(), clicked_at=time.filter(pl.col("clicked")).min())
    told = told.sort(*KEYS, "timeframe").join(first, on=KEYS, how="left", maintain_order="left")
    for why, bad in {
        "views of items that the session had clicked in a query": time >= pl.col("clicked_at"),
        "views of items that a query had shown and nobody clicked": time >= pl.col("shown_at"),
        "views of items that the session had viewed before": ~pl.struct(KEYS).is_first_distinct(),
    }.items():
        rest = told.filter(~bad.fill_null(False))
        reading.drop(why, told.height - rest.height)
        told = rest
    return told.drop("shown_at", "clicked_at").with_columns(response=pl.lit("click"), organic=pl.lit(True))


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
