"""The canonical impression log: one row per shown item, as Parquet or CSV, scanned and never loaded whole.

Required columns: `session_id`, `item_id`, `response`, and `timestamp` or `step`.
Optional columns: `request_id` (which slate), `position`, `category`, `propensity`.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from bcd4rec.config import Config
from bcd4rec.data.responses import DIGINETICA, Responses
from bcd4rec.errors import InputError

IDS = ("session_id", "item_id")
OPTIONAL = ("request_id", "position", "category", "propensity")
COLUMNS = (*IDS, "timestamp", "step", "response", *OPTIONAL)
INTEGER = r"^(-?[1-9][0-9]{0,17}|0)$"  # how an integer id is written; "007" and "1.0" are strings
PARQUET_MAGIC = b"PAR1"


class LogOptions(Config):
    """How a raw table is read."""

    time_unit: Literal["s", "ms", "us"] = "s"
    """Unit of an integer `timestamp`, counted from 1970."""
    string_ids: bool = False
    """Read all ids as strings, also where some of them look like numbers."""
    sort: bool = False
    """Order each session's rows by time instead of refusing rows whose time runs backwards."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a log; `sentence` is what a person reads."""

    kind: str
    sentence: str
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "count": self.count, "message": self.sentence}


class BadLog(InputError):
    """A log with problems; the message is the first of them."""

    def __init__(self, problems: list[Problem]):
        more = f" ({len(problems) - 1} more kinds of problem: see `bcd4rec check`.)" if len(problems) > 1 else ""
        super().__init__(problems[0].sentence + more)
        self.problems = problems


@dataclass(frozen=True)
class Table:
    """One file of a log: `frame` has `row` (data rows from 1), the canonical columns that exist, and nothing else."""

    path: Path
    frame: pl.LazyFrame
    columns: tuple[str, ...]
    text: bool  # CSV: every column is still a string


def log_files(path: Path) -> list[Path]:
    """The files of a log: the file itself, or the Parquet or CSV files of a folder in order of their names."""
    if not path.exists():
        raise InputError(f"{path} does not exist; expected a Parquet or CSV file of impressions.")
    if path.is_file():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in (".parquet", ".csv") and file.is_file())
    if not files:
        raise InputError(f"{path} is a folder without .parquet or .csv files; name the file of impressions.")
    return files


def open_table(path: Path) -> Table:
    """Look at the head of a file and scan it lazily."""
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty (0 bytes); expected a Parquet or CSV table with a header.")
    with path.open("rb") as file:
        head = file.read(4)
        file.seek(-min(4, path.stat().st_size), 2)
        tail = file.read(4)
    if path.suffix == ".csv":
        frame, names = _scan_csv(path)
    elif head != PARQUET_MAGIC:
        raise InputError(f"{path} is not a Parquet file (it starts with {head!r}); a CSV file must be named .csv.")
    elif tail != PARQUET_MAGIC:
        raise InputError(f"{path} is cut short: a Parquet file ends with {PARQUET_MAGIC!r}; copy it again.")
    else:
        try:
            frame = pl.scan_parquet(path, row_index_name="row", row_index_offset=1)
            names = frame.collect_schema().names()[1:]
        except (pl.exceptions.PolarsError, OSError) as error:
            raise InputError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}.") from None
    columns = tuple(name for name in COLUMNS if name in names)
    missing = [name for name in (*IDS, "response") if name not in columns]
    if "timestamp" not in columns and "step" not in columns:
        missing.append("timestamp (or step)")
    if missing:
        found = ", ".join(names) or "none"
        raise InputError(f"{path}: column {missing[0]} is missing; the columns found are {found}.")
    return Table(path, frame.select("row", *columns), columns, path.suffix == ".csv")


def _scan_csv(path: Path) -> tuple[pl.LazyFrame, list[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names = next(csv.reader(file))
    except (UnicodeDecodeError, csv.Error, StopIteration) as error:
        raise InputError(f"{path}: the header cannot be read as UTF-8 CSV ({error}); save the file as UTF-8.") from None
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path}: the header names column {twice!r} twice; rename one of them.")
    return pl.scan_csv(path, infer_schema=False, row_index_name="row", row_index_offset=1), names


def unreadable_row(path: Path) -> str:
    """Where a CSV file stops being a table, for the message of a failed scan."""
    with path.open("rb") as file:
        width = len(next(csv.reader([file.readline().decode("utf-8-sig")])))
        for row, line in enumerate(file, start=1):
            try:
                fields = next(csv.reader([line.decode("utf-8")]), [])
            except UnicodeDecodeError:
                return f"row {row} is not UTF-8; save the file as UTF-8"
            if len(fields) > width:
                return f"row {row} has {len(fields)} fields, expected {width}; quote fields that contain commas"
    return "a quoted field is never closed"


class Log:
    """All files of one log, typed: ids as Int64 or String, `time` as Int64 microseconds or steps."""

    def __init__(self, path: Path, options: LogOptions | None = None):
        self.path = path
        self.options = options or LogOptions()
        self.tables = [open_table(file) for file in log_files(path)]
        for table in self.tables[1:]:
            if table.columns != self.tables[0].columns:
                raise InputError(
                    f"{table.path} has the columns {', '.join(table.columns)}, but {self.tables[0].path} has "
                    f"{', '.join(self.tables[0].columns)}; all files of a log need the same columns."
                )
        self.columns = self.tables[0].columns
        self.clock = "timestamp" in self.columns
        self.id_types = {name: self._id_type(name) for name in IDS}

    def has(self, column: str) -> bool:
        return column in self.columns

    def _id_type(self, name: str) -> Any:
        """Int64 or String for a whole column over all files; a mixture is an error."""
        kinds: dict[str, Path] = {}
        for table in self.tables:
            dtype = table.frame.collect_schema()[name]
            if table.text:
                kind = self._text_kind(table, name)
            elif dtype.is_integer():
                kind = "integers"
            elif dtype in (pl.String, pl.Categorical) or isinstance(dtype, pl.Enum):
                kind = "strings"
            else:
                raise InputError(
                    f"{table.path}: column {name} has type {dtype}, expected integers or strings; cast it before."
                )
            kinds.setdefault(kind, table.path)
        if self.options.string_ids or set(kinds) == {"strings"}:
            return pl.String
        if len(kinds) > 1:
            raise InputError(
                f"{kinds['strings']}: column {name} holds strings, but {kinds['integers']} holds integers; "
                "write one type, or pass --string-ids to read all ids as strings."
            )
        return pl.Int64

    def _text_kind(self, table: Table, name: str) -> str:
        if self.options.string_ids:
            return "strings"
        integer = pl.col(name).str.contains(INTEGER)
        counts = collect(
            table,
            table.frame.select(
                integer.sum().alias("integers"),
                (~integer).sum().alias("strings"),
                pl.col("row").filter(~integer).first().alias("row"),
                pl.col(name).filter(~integer).first().alias("value"),
            ),
        ).row(0, named=True)
        if counts["integers"] and counts["strings"]:
            raise InputError(
                f"{table.path}, row {counts['row']}, column {name}: found {counts['value']!r} among integers "
                f"({counts['strings']} strings, {counts['integers']} integers); mend the row, or pass --string-ids "
                "to read all ids as strings."
            )
        return "strings" if counts["strings"] else "integers"

    def frames(self) -> Iterator[tuple[Table, pl.LazyFrame]]:
        """Each file with its typed lazy frame. A value that cannot be typed becomes null: see `row_problems`."""
        return ((table, table.frame.select(self.typed_columns(table))) for table in self.tables)

    def typed_columns(self, table: Table) -> list[pl.Expr]:
        schema = table.frame.collect_schema()
        columns = [pl.col("row")]
        columns += [pl.col(name).cast(self.id_types[name], strict=False) for name in IDS]
        columns.append(self._time(table, schema).alias("time"))
        columns.append(pl.col("response").cast(pl.String, strict=False))
        if self.has("step"):
            columns.append(pl.col("step").cast(pl.Int64, strict=False))
        for name in ("request_id", "category"):
            if self.has(name):
                columns.append(pl.col(name).cast(pl.String, strict=False))
        if self.has("position"):
            columns.append(pl.col("position").cast(pl.Int64, strict=False))
        if self.has("propensity"):
            columns.append(pl.col("propensity").cast(pl.Float64, strict=False))
        return columns

    def _time(self, table: Table, schema: pl.Schema) -> pl.Expr:
        """The order of rows as an integer: microseconds since 1970, or the step."""
        if not self.clock:
            return pl.col("step").cast(pl.Int64, strict=False)
        column, dtype = pl.col("timestamp"), schema["timestamp"]
        scale = {"s": 1_000_000, "ms": 1_000, "us": 1}[self.options.time_unit]
        if dtype.is_temporal():
            return column.cast(pl.Datetime("us")).cast(pl.Int64)
        if dtype == pl.String:
            number = column.cast(pl.Float64, strict=False) * scale
            date = column.str.to_datetime(time_unit="us", strict=False)
            if table.text and self._looks_numeric(table):
                return number.round().cast(pl.Int64, strict=False)
            return date.cast(pl.Int64)
        if dtype.is_float():
            return (column * scale).round().cast(pl.Int64, strict=False)
        return column.cast(pl.Int64, strict=False) * scale

    @staticmethod
    def _looks_numeric(table: Table) -> bool:
        first = collect(table, table.frame.select(pl.col("timestamp").drop_nulls().first()))
        try:
            float(first.item() or "0")
        except ValueError:
            return False
        return True


def collect(table: Table, query: pl.LazyFrame) -> pl.DataFrame:
    """Run a query over one file in streaming; a file that breaks in the middle is named with the place."""
    try:
        return query.collect(engine="streaming")
    except (pl.exceptions.PolarsError, OSError) as error:
        if table.text:
            raise InputError(f"{table.path}: {unreadable_row(table.path)}.") from None
        reason = str(error).splitlines()[0]
        raise InputError(f"{table.path} is damaged ({reason}); copy or write it again.") from None


def row_problems(log: Log, responses: Responses) -> list[Problem]:
    """What can be seen row by row: nulls, wrong types, unknown responses, impossible propensities."""
    problems: list[Problem] = []
    for table in log.tables:
        both = table.frame.select(*log.typed_columns(table), *(pl.col(name).alias(f"raw_{name}") for name in log.columns))
        checks = _row_checks(log, responses)
        queries = []
        for number, (_, column, bad, _) in enumerate(checks):
            queries += [
                bad.sum().alias(f"count_{number}"),
                pl.col("row").filter(bad).first().alias(f"row_{number}"),
                pl.col(f"raw_{column}").filter(bad).first().cast(pl.String).alias(f"value_{number}"),
            ]
        found = collect(table, both.select(pl.len().alias("rows"), *queries)).row(0, named=True)
        if found["rows"] == 0:
            problems.append(Problem("empty", f"{table.path} has a header but no rows; expected impressions."))
        for number, (kind, column, _, expected) in enumerate(checks):
            if count := found[f"count_{number}"]:
                value = found[f"value_{number}"]
                what = "nothing" if value is None else repr(value)
                many = f" ({count:,} such rows)" if count > 1 else ""
                where = f"{table.path}, row {found[f'row_{number}']}, column {column}"
                problems.append(Problem(kind, f"{where}: found {what}, expected {expected}{many}.", count))
    return problems


def _row_checks(log: Log, responses: Responses) -> list[tuple[str, str, pl.Expr, str]]:
    """(kind, raw column, expression that is true for bad rows, what was expected)."""
    time = "timestamp" if log.clock else "step"
    checks = [
        ("null", name, pl.col(f"raw_{name}").is_null(), "a value in every row; fill it in or remove the row")
        for name in (*IDS, time, "response")
    ]
    expected_time = "an ISO date and time or a number (see --time-unit)" if log.clock else "an integer"
    for column, typed, what in (
        (time, "time", expected_time),
        *((name, name, "an id of the column's type") for name in IDS),
        *((name, name, what) for name, what in _NUMBERS.items() if log.has(name) and name != time),
    ):
        checks.append(("type", column, pl.col(typed).is_null() & pl.col(f"raw_{column}").is_not_null(), what))
    known = list(responses.names)
    names = ", ".join(known)
    checks.append(
        (
            "unknown response",
            "response",
            pl.col("response").is_not_null() & ~pl.col("response").is_in(known),
            f"one of {names}; give every response a reward with --rewards, e.g. {known[0]}=0,{known[-1]}=4",
        )
    )
    if log.has("propensity"):
        propensity = pl.col("propensity")
        bad = propensity.is_not_null() & (propensity.is_nan() | (propensity <= 0) | (propensity > 1))
        checks.append(("propensity", "propensity", bad, "a probability above 0 and at most 1"))
    if log.has("position"):
        checks.append(("position", "position", pl.col("position") < 0, "a place in the slate, counted from 0"))
    return checks


_NUMBERS = {"step": "an integer", "position": "an integer", "propensity": "a number"}


def default_responses(log: Log) -> Responses:
    """skip=0, click=1, buy=5, less those that the log never has; used where no rewards are given."""
    seen: set[str] = set()
    for table, frame in log.frames():
        seen |= set(collect(table, frame.select(pl.col("response").unique()))["response"].drop_nulls())
    rewards = {name: reward for name, reward in DIGINETICA.rewards.items() if name == "skip" or name in seen}
    return Responses(rewards=rewards) if len(rewards) > 1 else DIGINETICA
