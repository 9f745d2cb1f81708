"""From rows of files to sessions in time order, a chunk at a time, so that memory does not grow with the log."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from bcd4rec.data import tags
from bcd4rec.data.ordering import ChunkFile, DisorderError
from bcd4rec.data.responses import Responses
from bcd4rec.data.schema import BadLog, Log, LogProblem
from bcd4rec.data.spool import into_files
from bcd4rec.data.tables import collect, shown
from bcd4rec.errors import InputError

CHUNK_ROWS = 1_000_000  # rows that are in memory at once …
MOST_CHUNKS = 200  # … or more, so that a log is not cut into more files than can be open
CARRIED = ("request_id", "step", "position", "propensity", "request_category")
MICROSECONDS_PER_DAY = 86_400_000_000
ONE = "expected one category per item, or the same several in each of its rows"

Tick = Callable[[str, float], None]  # what is being done, and which share of it is done


def no_tick(stage: str, share: float) -> None:
    """For callers that show no progress."""


@dataclass(frozen=True)
class SessionIndex:
    """The sessions and items of a log, and where its rows lie, as integers, ready to be read in chunks of sessions.

    `sessions`: session_id, start, end, rows, and of the rows those that are organic, that are positive (organic or
    not) and that were skipped, in order of their start (then of their appearance); user_id where the log has it.
    `items`: item_id, category, impressions (without organic events), in ascending order of ids; where some have several
    categories also `categories`, all of them, the main one first.
    """

    log: Log
    responses: Responses
    sessions: pl.DataFrame
    items: pl.DataFrame
    opening: pl.DataFrame | None = None  # session_id, item, response: organic events in front of sessions, in order

    @classmethod
    def build(cls, log: Log, responses: Responses, tick: Tick = no_tick) -> "SessionIndex":
        """One streaming pass over the files."""
        category, same = _category_texts(log)
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
                same.min().alias("same"),
                same.max().alias("other"),
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
            .agg(pl.col("category", "same").min(), pl.col("other").max(), pl.col("impressions").sum())
            .sort("item_id")
        )
        torn = merged_items.filter(pl.col("same") != pl.col("other"))
        if not torn.is_empty():
            raise BadLog([_category_problem(log, torn)])
        if merged_items["impressions"].sum() == 0:
            found = f"{log.path}: every row is organic, expected rows of what was recommended"
            by_rule = any(rule.startswith("organic:") for rule in log.own.rules.values())
            what = "organic: out of --responses" if by_rule else f"the column {log.tables[0].name('organic')} out"
            raise BadLog([LogProblem("empty", f"{found}; leave {what} if it was.", len(merged_items))])
        merged_items = merged_items.drop("same", "other")
        if log.several_categories:
            merged_items = tags.if_several(with_categories(merged_items, tags.read(pl.col("category"))))
        return cls(log, responses, merged_sessions, merged_items)

    def chunks(self, spool: Path, sessions: pl.DataFrame | None = None, tick: Tick = no_tick) -> Iterator[pl.DataFrame]:
        """The rows of `sessions` (all by default; a subset of `self.sessions` in any order) in whole sessions.

        Columns: session (row of `sessions`), step, organic, order, time, item, response (code), position (−1 for
        none), propensity; sorted by session, time of the request and place in the slate. A step is a slate; an
        organic row is a request of its own and has the step of the slate that comes after it. `spool` is a folder
        for temporary files. Rows whose time runs backwards and rows that stand twice raise `BadLog`.
        """
        files = self.chunk_files(spool, sessions, tick)
        for number, file in enumerate(files):
            tick("sessions to transitions", number / len(files))
            with self.worded(sessions):
                yield file.rows()
            file.path.unlink()

    def chunk_files(
        self, spool: Path, sessions: pl.DataFrame | None = None, tick: Tick = no_tick
    ) -> Sequence[ChunkFile]:
        """The rows of `sessions` in files of whole sessions, in their order, which `rows` of each puts in order."""
        sessions = self.sessions if sessions is None else sessions
        size = max(CHUNK_ROWS, -(-int(sessions["rows"].sum()) // MOST_CHUNKS))
        keyed = sessions.select(
            "session_id",
            pl.int_range(pl.len(), dtype=pl.UInt32).alias("session"),
            ((pl.col("rows").cum_sum() - pl.col("rows")) // size).cast(pl.UInt32).alias("chunk"),
        )
        opening: dict[Any, pl.DataFrame] = {}
        if self.opening is not None:
            front = self.opening.join(keyed, on="session_id", maintain_order="left").drop("session_id")
            opening = front.partition_by("chunk", as_dict=True, include_key=False, maintain_order=True)
        tick("reading impressions", 0.0)
        rows = self._integers(keyed)
        files = into_files(rows, "chunk", spool, lambda share: tick("reading impressions", share))
        sort, slate = self.log.options.sort, self.log.slate
        return [ChunkFile(path, sort, slate, opening.get((number,))) for number, path in files.items()]

    def _integers(self, sessions: pl.DataFrame) -> pl.LazyFrame:
        """The whole log as integer columns."""
        items = self.items.select("item_id", pl.int_range(pl.len(), dtype=pl.Int32).alias("item"))
        codes = pl.DataFrame({"response": self.responses.names, "code": range(len(self.responses.names))}).lazy()
        order = pl.col("row").cast(pl.Int64)
        numbered = [
            frame.with_columns((order + number * 2**40).alias("order"))
            for number, (_, frame) in enumerate(self.log.frames())
        ]
        # One join for all files: each would build its own table of all sessions.
        return (
            pl.concat(numbered)
            .join(sessions.lazy(), on="session_id", how="inner")
            .join(items.lazy(), on="item_id", how="inner")
            .join(codes, on="response", how="inner")
            .select(
                "session",
                "chunk",
                "order",
                "time",
                "item",
                pl.col("code").cast(pl.UInt8).alias("response"),
                "organic",
                *(name for name in CARRIED if self.log.has(name)),
            )
        )

    @contextmanager
    def worded(self, sessions: pl.DataFrame | None = None) -> Iterator[None]:
        """What is wrong with the order of rows of `sessions`, told with the names that the log has for it."""
        try:
            yield
        except DisorderError as error:
            raise BadLog([self._problem(error, self.sessions if sessions is None else sessions)]) from None

    @property
    def _time_name(self) -> str:
        return "timestamp" if self.log.clock else "step"

    def _problem(self, wrong: DisorderError, sessions: pl.DataFrame) -> LogProblem:
        number, row = divmod(wrong.order, 2**40)
        twice = wrong.kind == "duplicate"
        found = (
            f"item {shown(self.items['item_id'][wrong.item])} of session "
            f"{shown(sessions['session_id'][wrong.session])} "
            + ("once more" if twice else "with a time before the row above")
        )
        fix = "sort each session's rows by time, or pass --sort"
        once = "each impression once; remove one, or let a reader do it (--format, --set repeats=merge)"
        expected = once if twice else f"time in order; {fix}"
        many = f" ({wrong.count:,} such rows)" if wrong.count > 1 else ""
        table = self.log.tables[number]
        where = table.place("item_id" if twice else self._time_name, row)
        return LogProblem(wrong.kind, f"{where}: found {found}, expected {expected}{many}.", wrong.count)


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


def _category_texts(log: Log) -> tuple[pl.Expr, pl.Expr]:
    """What rows say about the category of their item, and a text that is the same where they say the same.

    Several categories are the same in any order. Where rows have them in different orders, the order that is the first
    by the alphabet counts: whatever is read first, and whatever is added later, all come to the same.
    """
    if not log.has("category"):
        return pl.lit(None, pl.String), pl.lit(None, pl.String)
    column = pl.col("category")
    return (tags.written(column), tags.as_set(column)) if log.several_categories else (column, column)


def with_categories(items: pl.DataFrame, lists: pl.Expr) -> pl.DataFrame:
    """`category`, the main one, is the first of `categories`."""
    return items.with_columns(lists.alias("categories")).with_columns(
        pl.col("categories").list.first().alias("category")
    )


def _category_problem(log: Log, torn: pl.DataFrame) -> LogProblem:
    """Name the first row that gives an item another category than the rows before it did."""
    item, seen, (_, same) = torn["item_id"][0], None, _category_texts(log)
    for table, frame in log.frames():
        query = frame.filter((pl.col("item_id") == item) & pl.col("category").is_not_null()).select("row", same=same)
        for row, category in collect(table, query).sort("row").iter_rows():
            seen = category if seen is None else seen
            if category != seen:
                where = table.place("category", row)
                found, before = (shown(tags.plain(one.split(tags.BETWEEN))) for one in (category, seen))
                many = f" ({len(torn):,} such items)" if len(torn) > 1 else ""
                sentence = f"{where}: found {found} for item {shown(item)}, which had {before} before, {ONE}{many}."
                return LogProblem("two categories", sentence, len(torn))
    raise InputError(f"{log.path} changed while it was read; run the command again.")
