"""From rows of files to sessions in time order, a chunk at a time, so that memory does not grow with the log."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from bcd4rec.data.responses import Responses
from bcd4rec.data.schema import BadLog, Log, LogProblem
from bcd4rec.data.tables import collect, shown
from bcd4rec.errors import InputError

CHUNK_ROWS = 1_000_000  # rows that are in memory at once
CARRIED = ("request_id", "step", "position", "propensity", "request_category")
MICROSECONDS_PER_DAY = 86_400_000_000

Tick = Callable[[str, float], None]  # what is being done, and which share of it is done


def no_tick(stage: str, share: float) -> None:
    """For callers that show no progress."""


@dataclass(frozen=True)
class SessionIndex:
    """The sessions and items of a log, and where its rows lie, as integers, ready to be read in chunks of sessions.

    `sessions`: session_id, start, end, rows, and of the rows those that are organic, that are positive (organic or
    not) and that were skipped, in order of their start (then of their appearance); user_id where the log has it.
    `items`: item_id, category, impressions (without organic events), in ascending order of ids.
    """

    log: Log
    responses: Responses
    sessions: pl.DataFrame
    items: pl.DataFrame
    opening: pl.DataFrame | None = None  # session_id, item, response: organic events in front of sessions, in order

    @classmethod
    def build(cls, log: Log, responses: Responses, tick: Tick = no_tick) -> "SessionIndex":
        """One streaming pass over the files."""
        category = pl.col("category") if log.has("category") else pl.lit(None, pl.String)
        organic, positive = pl.col("organic"), pl.col("response").is_in(responses.positive)
        users = (
            {"user_id": pl.col("user_id").min(), "other_user": pl.col("user_id").max()} if log.has("user_id") else {}
        )
        counted = {"organic": organic, "positives": positive, "skips": ~positive & ~organic}
        sessions, items = [], []
        for number, (table, frame) in enumerate(log.frames()):
            tick("reading sessions and items", number / len(log.tables))
            by_session = frame.group_by("session_id").agg(
                pl.col("time").min().alias("start"),
                pl.col("time").max().alias("end"),
                pl.len().cast(pl.Int64).alias("rows"),
                *(rows.sum().cast(pl.Int64).alias(name) for name, rows in counted.items()),
                pl.col("row").min().cast(pl.Int64).alias("first_row"),
                **users,
            )
            by_item = frame.group_by("item_id").agg(
                category.min().alias("category"),
                category.max().alias("other_category"),
                (~organic).sum().cast(pl.Int64).alias("impressions"),
            )
            sessions.append(collect(table, by_session).with_columns(pl.lit(number).alias("file")))
            items.append(collect(table, by_item))
        merged_sessions = (
            pl.concat(sessions)
            .sort("file")
            .group_by("session_id", maintain_order=True)
            .agg(
                pl.col("start").min(),
                pl.col("end").max(),
                pl.col("rows", *counted).sum(),
                pl.col("file").first(),
                pl.col("first_row").first(),
                **users | ({"other_user": pl.col("other_user").max()} if users else {}),
            )
            .sort("start", "file", "first_row")
        )
        _refuse_two_users(log, merged_sessions)
        merged_sessions = merged_sessions.select("session_id", "start", "end", "rows", *counted, *list(users)[:1])
        merged_items = (
            pl.concat(items)
            .group_by("item_id")
            .agg(pl.col("category").min(), pl.col("other_category").max(), pl.col("impressions").sum())
            .sort("item_id")
        )
        torn = merged_items.filter(pl.col("category") != pl.col("other_category"))
        if not torn.is_empty():
            raise BadLog([_category_problem(log, torn)])
        if merged_items["impressions"].sum() == 0:
            found = f"{log.path}: every row is organic, expected rows of what was recommended"
            raise BadLog([LogProblem("empty", f"{found}; leave the column organic out if it was.", len(merged_items))])
        return cls(log, responses, merged_sessions, merged_items.drop("other_category"))

    def chunks(self, spool: Path, sessions: pl.DataFrame | None = None, tick: Tick = no_tick) -> Iterator[pl.DataFrame]:
        """The rows of `sessions` (all by default; a subset of `self.sessions` in any order) in whole sessions.

        Columns: session (row of `sessions`), step, organic, order, time, item, response (code), position (−1 for
        none), propensity; sorted by session, time of the request and place in the slate. A step is a slate; an
        organic row is a request of its own and has the step of the slate that comes after it. `spool` is a folder
        for temporary files. Rows whose time runs backwards and rows that stand twice raise `BadLog`.
        """
        sessions = self.sessions if sessions is None else sessions
        keyed = sessions.select(
            "session_id",
            pl.int_range(pl.len(), dtype=pl.UInt32).alias("session"),
            ((pl.col("rows").cum_sum() - pl.col("rows")) // CHUNK_ROWS).cast(pl.UInt32).alias("chunk"),
        )
        self._write_spool(spool / "rows.parquet", keyed, tick)
        chunks = keyed["chunk"].unique().sort()  # a session longer than a chunk leaves numbers out
        for number, chunk in enumerate(chunks):
            tick("sessions to transitions", number / len(chunks))
            rows = pl.scan_parquet(spool / "rows.parquet", glob=False).filter(pl.col("chunk") == chunk).drop("chunk")
            found = self._in_order(rows.collect(engine="streaming"), sessions)
            yield found if self.opening is None else _opened(found, self.opening, keyed)
        (spool / "rows.parquet").unlink()

    def _write_spool(self, path: Path, sessions: pl.DataFrame, tick: Tick) -> None:
        """The whole log as integer columns in one file."""
        items = self.items.select("item_id", pl.int_range(pl.len(), dtype=pl.Int32).alias("item"))
        codes = pl.DataFrame({"response": self.responses.names, "code": range(len(self.responses.names))}).lazy()
        frames = []
        for number, (_, frame) in enumerate(self.log.frames()):
            columns = [
                pl.col("session"),
                pl.col("chunk"),
                (pl.col("row").cast(pl.Int64) + number * 2**40).alias("order"),
                pl.col("time"),
                pl.col("item"),
                pl.col("code").cast(pl.UInt8).alias("response"),
                pl.col("organic"),
                *(pl.col(name) for name in CARRIED if self.log.has(name)),
            ]
            frames.append(
                frame.join(sessions.lazy(), on="session_id", how="inner")
                .join(items.lazy(), on="item_id", how="inner")
                .join(codes, on="response", how="inner")
                .select(columns)
            )
        tick("reading impressions", 0.0)
        pl.concat(frames).sink_parquet(path, compression="lz4")

    def _in_order(self, rows: pl.DataFrame, sessions: pl.DataFrame) -> pl.DataFrame:
        rows = rows.sort("session", *(["time"] if self.log.options.sort else []), "order")
        backwards = (pl.col("session") == pl.col("session").shift()) & (pl.col("time") < pl.col("time").shift())
        wrong = rows.filter(backwards)
        if not wrong.is_empty():
            fix = "sort each session's rows by time, or pass --sort"
            raise BadLog([self._problem("time backwards", wrong, sessions, self._time_name, f"time in order; {fix}")])
        slate = self.log.slate
        place = ["position"] if self.log.has("position") else []
        # Few rows show an item again in the same session, so the exact comparison runs on those alone.
        again = rows.filter(
            (pl.col("session").cast(pl.UInt64) * 2**32 + pl.col("item").cast(pl.UInt64)).is_duplicated()
        )
        twice = again.filter(~pl.struct("session", "time", "item", "organic", *place, *slate).is_first_distinct())
        if not twice.is_empty():
            raise BadLog([self._problem("duplicate", twice, sessions, "item_id", "each impression once; remove one")])
        rows = rows.with_row_index("request")
        if slate:
            first_row = pl.col("request").min().over("session", "organic", *slate)
            request = pl.when("organic").then("request").otherwise(first_row)
            rows = rows.with_columns(request.alias("request")).sort("session", "request", *place, "order")
        new_slate = (pl.col("request") != pl.col("request").shift()).fill_null(True) & ~pl.col("organic")
        slates = new_slate.cast(pl.UInt32).cum_sum().over("session")  # (n,) begun in the session up to this row
        propensity = pl.col("propensity") if self.log.has("propensity") else pl.lit(None, pl.Float64)
        position = pl.col("position") if self.log.has("position") else pl.lit(None, pl.Int64)
        return rows.select(
            "session",
            (slates - (~pl.col("organic")).cast(pl.UInt32)).alias("step"),
            "organic",
            "order",
            "time",
            "item",
            "response",
            pl.when("organic").then(None).otherwise(position).fill_null(-1).cast(pl.Int32).alias("position"),
            propensity.cast(pl.Float32).alias("propensity"),
            *(["request_category"] if self.log.has("request_category") else []),
        )

    @property
    def _time_name(self) -> str:
        return "timestamp" if self.log.clock else "step"

    def _problem(
        self, kind: str, wrong: pl.DataFrame, sessions: pl.DataFrame, column: str, expected: str
    ) -> LogProblem:
        first = wrong.sort("order").row(0, named=True)
        number, row = divmod(first["order"], 2**40)
        found = (
            f"item {shown(self.items['item_id'][first['item']])} of session "
            f"{shown(sessions['session_id'][first['session']])} "
            + ("once more" if kind == "duplicate" else "with a time before the row above")
        )
        many = f" ({len(wrong):,} such rows)" if len(wrong) > 1 else ""
        table = self.log.tables[number]
        where = f"{table.path}, row {row}, column {table.name(column)}"
        return LogProblem(kind, f"{where}: found {found}, expected {expected}{many}.", len(wrong))


def _opened(rows: pl.DataFrame, opening: pl.DataFrame, keyed: pl.DataFrame) -> pl.DataFrame:
    """Rows of whole sessions with what opens them in front; `keyed` has session_id and session (its number)."""
    starts = rows.group_by("session").agg(pl.col("time", "order").first())
    front = opening.join(keyed, on="session_id", maintain_order="left").join(
        starts, on="session", maintain_order="left"
    )
    nothing = {"step": 0, "organic": True, "position": -1, "propensity": None, "request_category": None}
    told = [pl.lit(nothing[name]).alias(name) for name in rows.columns if name in nothing]
    front = front.with_columns(told).select(pl.col(name).cast(dtype) for name, dtype in rows.schema.items())
    return pl.concat([front, rows]).sort("session", maintain_order=True)


def _refuse_two_users(log: Log, sessions: pl.DataFrame) -> None:
    if "user_id" not in sessions.columns:
        return
    torn = sessions.filter(pl.col("user_id") != pl.col("other_user"))
    if not torn.is_empty():
        session, user, other = torn.select("session_id", "user_id", "other_user").row(0)
        found = f"session {shown(session)} with the users {shown(user)} and {shown(other)}"
        many = f" ({len(torn):,} such sessions)" if len(torn) > 1 else ""
        where = f"{log.path}, column {log.tables[0].name('user_id')}"
        raise BadLog(
            [LogProblem("two users", f"{where}: found {found}, expected one user per session{many}.", len(torn))]
        )


def _category_problem(log: Log, torn: pl.DataFrame) -> LogProblem:
    """Name the first row that gives an item another category than the rows before it did."""
    item, seen = torn["item_id"][0], None
    for table, frame in log.frames():
        query = frame.filter((pl.col("item_id") == item) & pl.col("category").is_not_null()).select("row", "category")
        for row, category in collect(table, query).sort("row").iter_rows():
            seen = category if seen is None else seen
            if category != seen:
                where = f"{table.path}, row {row}, column {table.name('category')}"
                found = f"{shown(category)} for item {shown(item)}, which had {shown(seen)} before"
                many = f" ({len(torn):,} such items)" if len(torn) > 1 else ""
                sentence = f"{where}: found {found}, expected one category per item{many}."
                return LogProblem("two categories", sentence, len(torn))
    raise InputError(f"{log.path} changed while it was read; run the command again.")
