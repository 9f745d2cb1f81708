"""The canonical impression log: one row per shown item, as Parquet or CSV, scanned and never loaded whole.

Required columns: `session_id`, `item_id`, `response`, and `timestamp` or `step`.
Optional columns: `request_id` (which slate), `position`, `category`, `propensity`, and `organic`: true where something
happened that nobody recommended.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import polars as pl

from bcd4rec.config import Config
from bcd4rec.data import tags
from bcd4rec.data.files import log_files
from bcd4rec.data.places import partition_values
from bcd4rec.data.responses import DIGINETICA, Responses
from bcd4rec.data.tables import IDS, RawTable, collect, is_text, open_table, shown
from bcd4rec.errors import InputError

INTEGER = r"^(-?[1-9][0-9]*|0)$"  # how an integer id is written; "007" and "1.0" are strings
ISO = re.compile(r"\d{4}-\d\d-\d\d(?:([T ])\d\d:\d\d(:\d\d(?:\.\d+)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?")
YEAR_10000 = 253_402_300_800_000_000  # in microseconds: no log is that late, but one read in the wrong unit may be


class LogOptions(Config):
    """How a raw table is read."""

    time_unit: Literal["s", "ms", "us"] = "s"
    """Unit of an integer `timestamp`, counted from 1970."""
    string_ids: bool = False
    """Read all ids as strings, also where some of them look like numbers."""
    time_format: str = ""
    """How a `timestamp` is written where it is neither a number nor an ISO date, in the letters of strftime."""
    sort: bool = False
    """Order each session's rows by time instead of refusing rows whose time runs backwards."""


@dataclass(frozen=True)
class LogProblem:
    """One thing that is wrong with a log; `sentence` is what a person reads."""

    kind: str
    sentence: str
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "count": self.count, "message": self.sentence}


class BadLog(InputError):  # noqa: N818 (what it is, not that it is an error)
    """A log with problems; the message is the first of them."""

    def __init__(self, problems: list[LogProblem]):
        more = f" ({len(problems) - 1} more kinds of problem: see `bcd4rec check`.)" if len(problems) > 1 else ""
        super().__init__(problems[0].sentence + more)
        self.problems = problems


@dataclass(frozen=True)
class OwnNames:
    """What a raw file calls what is in the canonical log that a reader made of it."""

    columns: Mapping[str, str] = field(default_factory=dict)  # by canonical names
    rules: Mapping[str, str] = field(default_factory=dict)  # what its values of the response are, as --responses says
    numbered: bool = True  # a row of the log is the row of the raw file with the same number
    mapped: bool = True  # --map names columns, as it does unless a format knows its own


class Log:
    """All files of one log, typed: ids as Int64 or String, `time` as Int64 microseconds or steps.

    The typed rows always have `organic`, which is false where the files have no such column.
    """

    def __init__(self, path: Path, options: LogOptions | None = None, tables: list[RawTable] | None = None):
        self.path = path
        self.options = options or LogOptions()
        self.own = OwnNames()
        if tables is None:
            tables = [open_table(file, partition_values(path, file)) for file in log_files(path)]
        self.tables = tables
        for table in self.tables[1:]:
            if table.columns != self.tables[0].columns:
                here, there = (", ".join(map(one.name, one.columns)) for one in (table, self.tables[0]))
                raise InputError(
                    f"{table.path} has the columns {here}, but {self.tables[0].path} has {there}; all files of a log "
                    "need the same columns."
                )
        self.columns = self.tables[0].columns
        self.clock = "timestamp" in self.columns
        self.several_categories = self.has("category") and any(
            table.frame.collect_schema()["category"] == pl.List for table in tables
        )
        self.id_types = {name: self._id_type(name) for name in IDS}
        self._time_formats = {
            table.path: self.options.time_format or _iso_format(table) for table in self.tables if self.clock
        }

    def called(self, names: OwnNames) -> Self:
        """The log, of which messages speak as the raw file does."""
        self.own = names
        self.tables = [
            replace(table, own_names={**table.own_names, **names.columns}, numbered=names.numbered)
            for table in self.tables
        ]
        return self

    def has(self, column: str) -> bool:
        return column in self.columns

    @property
    def slate(self) -> tuple[str, ...]:
        """The column whose equal values make a slate of a session's rows, where there is one."""
        return tuple(name for name in ("request_id", "step") if self.has(name))[:1]

    def _id_type(self, name: str) -> Any:
        """Int64 or String for a whole column over all files; a mixture is an error."""
        kinds: dict[str, Path] = {}
        for table in self.tables:
            dtype = table.frame.collect_schema()[name]
            kind = self._text_kind(table, name) if table.text else "strings" if is_text(dtype) else "integers"
            if kind is not None and dtype != pl.Null:
                kinds.setdefault(kind, table.path)
        if self.options.string_ids or set(kinds) == {"strings"}:
            return pl.String
        if len(kinds) > 1:
            raise InputError(
                f"{kinds['strings']}: column {self.tables[0].name(name)} holds strings, but {kinds['integers']} holds "
                "integers; write one type, or pass --string-ids to read all ids as strings."
            )
        return pl.Int64

    def _text_kind(self, table: RawTable, name: str) -> str | None:
        """What the strings of a CSV column are; None where there are none."""
        if self.options.string_ids:
            return "strings"
        written = pl.col(name).str.contains(INTEGER)
        integer = pl.when(written).then(pl.col(name).cast(pl.Int64, strict=False).is_not_null()).otherwise(written)
        query = table.frame.select("row", pl.col(name).alias("value"), integer.alias("integer")).select(
            pl.col("integer").sum().alias("integers"),
            (~pl.col("integer")).sum().alias("strings"),
            pl.struct("row", "value").filter(~pl.col("integer")).first().alias("string"),
            pl.struct("row", "value").filter(pl.col("integer")).first().alias("number"),
        )
        counts = collect(table, query).row(0, named=True)
        if counts["integers"] and counts["strings"]:
            # Those that are fewer are the odd ones.
            odd, others = ("string", "integers") if counts["strings"] <= counts["integers"] else ("number", "strings")
            found = counts[odd]
            raise InputError(
                f"{table.place(name, found['row'])}: found {shown(found['value'])} among {others} "
                f"({counts['strings']:,} strings, {counts['integers']:,} integers); mend the row, or pass --string-ids "
                "to read all ids as strings."
            )
        return "strings" if counts["strings"] else "integers" if counts["integers"] else None

    def frames(self) -> Iterator[tuple[RawTable, pl.LazyFrame]]:
        """Each file with its typed lazy frame. A value that cannot be typed becomes null: see `row_problems`."""
        return ((table, table.frame.select(self.typed_columns(table))) for table in self.tables)

    def typed_columns(self, table: RawTable) -> list[pl.Expr]:
        schema = table.frame.collect_schema()
        columns = [pl.col("row")]
        columns += [pl.col(name).cast(self.id_types[name], strict=False) for name in IDS]
        columns.append(self._time(table, schema).alias("time"))
        columns.append(pl.col("response").cast(pl.String, strict=False))
        columns += [_integer(name, schema[name]) for name in ("step", "position") if self.has(name)]
        texts = ("request_id", "user_id", "request_category")
        columns += [pl.col(name).cast(pl.String) for name in texts if self.has(name)]
        if self.has("category"):
            columns.append(self._category(schema["category"]))
        if self.has("propensity"):
            columns.append(pl.col("propensity").cast(pl.Float64, strict=False))
        columns.append(_flag("organic") if self.has("organic") else pl.lit(False).alias("organic"))
        return columns

    def _category(self, dtype: pl.DataType) -> pl.Expr:
        """A text, or in a log with lists of categories a list in all its files."""
        column = pl.col("category")
        if not self.several_categories:
            return column.cast(pl.String)
        return tags.cleaned(column) if dtype == pl.List else tags.parted(column, "")

    def _time(self, table: RawTable, schema: pl.Schema) -> pl.Expr:
        """The order of rows as an integer: microseconds since 1970, or the step."""
        if not self.clock:
            return _integer("step", schema["step"])
        column, dtype = pl.col("timestamp"), schema["timestamp"]
        if dtype.is_temporal():
            return column.cast(pl.Datetime("us")).cast(pl.Int64)
        if dtype == pl.String:
            if pattern := self._time_formats[table.path]:
                return column.str.to_datetime(pattern, time_unit="us", strict=False).cast(pl.Int64)
            column = column.cast(pl.Float64, strict=False)
        scale = {"s": 1_000_000, "ms": 1_000, "us": 1}[self.options.time_unit]
        whole = column.cast(pl.Int64, strict=False) * scale if dtype.is_integer() else column * scale
        possible = (column.cast(pl.Float64) * scale).abs() < YEAR_10000
        return pl.when(possible).then(whole.round().cast(pl.Int64, strict=False))


def _integer(name: str, dtype: pl.DataType) -> pl.Expr:
    """A column as integers; what is not one becomes null, also 1.5."""
    column = pl.col(name)
    if dtype.is_float() or dtype.is_decimal():
        column = pl.when(column == column.floor()).then(column)
    return column.cast(pl.Int64, strict=False).alias(name)


def _flag(name: str) -> pl.Expr:
    """A column of true and false, written in either way; nothing is false, and what is neither becomes null."""
    written = pl.col(name).cast(pl.String).str.strip_chars().str.to_lowercase().fill_null("false")
    return pl.when(written.is_in(["true", "1"])).then(True).when(written.is_in(["false", "0"])).then(False).alias(name)


def _iso_format(table: RawTable) -> str | None:
    """The format of the timestamps of a file, by its first one; None for numbers and for what no format fits."""
    if table.frame.collect_schema()["timestamp"] != pl.String:
        return None
    first = collect(table, table.frame.select(pl.col("timestamp").drop_nulls()).head(1))
    found = ISO.fullmatch(first.item()) if len(first) else None
    if found is None:
        return None
    between, seconds, zone = found.groups()
    clock = f"{between}%H:%M{':%S%.f' if seconds else ''}{'%#z' if zone else ''}" if between else ""
    return f"%Y-%m-%d{clock}"


def row_problems(log: Log, responses: Responses | None) -> list[LogProblem]:
    """What can be seen row by row: nulls, wrong types, impossible propensities, and responses other than known."""
    problems: list[LogProblem] = []
    for table in log.tables:
        both = table.frame.select(
            *log.typed_columns(table), *(pl.col(name).alias(f"raw_{name}") for name in log.columns)
        )
        checks = _row_checks(log, responses)
        queries = []
        marked = both.with_columns(bad.alias(f"bad_{number}") for number, (_, _, bad, _) in enumerate(checks))
        for number, (_, column, _, _) in enumerate(checks):
            bad = pl.col(f"bad_{number}")
            queries += [
                bad.sum().alias(f"count_{number}"),
                pl.col("row").filter(bad).first().alias(f"row_{number}"),
                pl.col(f"raw_{column}").filter(bad).first().cast(pl.String).alias(f"value_{number}"),
            ]
        found = collect(table, marked.select(pl.len().alias("rows"), *queries)).row(0, named=True)
        if found["rows"] == 0:
            problems.append(LogProblem("empty", f"{table.path} has a header but no rows; expected impressions."))
        for number, (kind, column, _, expected) in enumerate(checks):
            if count := found[f"count_{number}"]:
                what = _found(log, column, found[f"value_{number}"])
                many = f" ({count:,} such rows)" if count > 1 else ""
                where = table.place(column, found[f"row_{number}"])
                problems.append(LogProblem(kind, f"{where}: found {what}, expected {expected}{many}.", count))
    return problems


def _found(log: Log, column: str, value: str | None) -> str:
    """A value as the raw file has it."""
    rules = log.own.rules if column == "response" else {}
    own = [theirs for theirs, rule in rules.items() if rule.removeprefix("organic:") == value]
    return f"{' or '.join(map(shown, own))}, which is {value} by --responses" if own else shown(value)


def _row_checks(log: Log, responses: Responses | None) -> list[tuple[str, str, pl.Expr, str]]:
    """(kind, raw column, expression that is true for bad rows, what was expected)."""
    time = "timestamp" if log.clock else "step"
    every = "a value in every row; fill it in or remove the row"
    needed = dict.fromkeys((*IDS, time, "response"))
    checks = [("null", name, pl.col(f"raw_{name}").is_null(), every) for name in needed]
    for name in log.slate:
        if name not in needed:  # what nobody recommended is in no slate
            bad = pl.col(f"raw_{name}").is_null() & ~pl.col("organic").fill_null(False)
            checks.append(("null", name, bad, every))
    expected_time = "an integer"
    if log.clock:
        unit = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}[log.options.time_unit]
        form = log.options.time_format
        others = ", --set time_format" if log.tables[0].name("timestamp") != "timestamp" else ""
        expected_time = f"an ISO date and time, all of one form, or {unit} since 1970 (see --time-unit{others})"
        expected_time = f"a time as {form} says" if form else expected_time
    for column, typed, what in (
        (time, "time", expected_time),
        *((name, name, "an integer below 2^63; --string-ids reads ids as strings") for name in IDS),
        *((name, name, what) for name, what in _TYPES.items() if log.has(name) and name != time),
    ):
        checks.append(("type", column, pl.col(typed).is_null() & pl.col(f"raw_{column}").is_not_null(), what))
    if responses is not None:
        checks.append(_response_check(list(responses.names)))
    if log.has("propensity"):
        propensity = pl.col("propensity")
        bad = propensity.is_not_null() & (propensity.is_nan() | (propensity <= 0) | (propensity > 1))
        checks.append(("propensity", "propensity", bad, "a probability above 0 and at most 1"))
    if log.has("position"):
        impossible = (pl.col("position") < 0) | (pl.col("position") >= 2**31)
        checks.append(("position", "position", impossible, "a place in the slate, counted from 0"))
    return checks


def _response_check(known: list[str]) -> tuple[str, str, pl.Expr, str]:
    unknown = pl.col("response").is_not_null() & ~pl.col("response").is_in(known)
    example = f"{known[0]}=0,{known[-1]}=4"
    expected = (
        f"one of {', '.join(known)}; give every response a reward with --rewards, e.g. {example}, or say which of them "
        f"your values are with --responses, e.g. VALUE={known[-1]}"
    )
    return "unknown response", "response", unknown, expected


_TYPES = {
    "step": "an integer",
    "position": "an integer",
    "propensity": "a number",
    "organic": "true or false, or 1 or 0; nothing is false",
}


def default_responses(log: Log) -> Responses:
    """skip=0, click=1, buy=5, less those that the log never has; used where no rewards are given."""
    seen: set[str] = set()
    for table, frame in log.frames():
        seen |= set(collect(table, frame.select(pl.col("response").unique()))["response"].drop_nulls())
    rewards = {name: reward for name, reward in DIGINETICA.rewards.items() if name == "skip" or name in seen}
    return Responses(rewards=rewards) if len(rewards) > 1 else DIGINETICA
