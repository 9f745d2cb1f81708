"""The files of a log as lazy tables: found, opened, and named with the place where they break."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from bcd4rec.data.files import (
    MOST_COLUMNS,
    PARQUET_MAGIC,
    WANTED,
    Kind,
    first_line,
    header_of,
    is_array,
    kind_of,
    open_plain,
    reason,
    separator_of,
    tail_of,
    too_many_columns,
    unreadable_line,
    unreadable_row,
)
from bcd4rec.data.nesting import flattened
from bcd4rec.data.places import StoredPath
from bcd4rec.errors import InputError

IDS = ("session_id", "item_id")
OPTIONAL = ("request_id", "position", "category", "propensity", "organic", "user_id", "request_category")
COLUMNS = (*IDS, "timestamp", "step", "response", *OPTIONAL)
ROW = "#row"  # name of the row number while a file is scanned; a log may have a column `row` of its own
LONGEST_SHOWN = 60  # characters of a bad value that a message repeats


@dataclass(frozen=True)
class RawTable:
    """One file. Of a log: `frame` has `row` (data rows from 1), the canonical columns that exist, and nothing else."""

    path: Path
    frame: pl.LazyFrame
    columns: tuple[str, ...]
    text: bool  # CSV: every column is still a string
    separator: str = ","
    own_names: Mapping[str, str] = field(default_factory=dict)  # what the file calls its columns, where it differs
    numbered: bool = True  # `row` counts the rows of the file that messages name

    def name(self, column: str) -> str:
        """A column as the file calls it, for messages."""
        own = self.own_names.get(column, column)
        return own if own == column else f"{own} ({column})"

    def place(self, column: str, row: int) -> str:
        """Where something is wrong, for messages."""
        at = f", row {row}" if self.numbered else ""
        return f"{self.path}{at}, column {self.name(column)}"


def open_table(path: Path, told: Mapping[str, str | None] | None = None) -> RawTable:
    """Look at the head of a canonical log and scan it lazily; `told` are values of all its rows, by column."""
    return pick_columns(with_values(scan(path), told or {}), {name: name for name in COLUMNS})


def with_values(table: RawTable, told: Mapping[str, str | None]) -> RawTable:
    """The table with columns of one value each, such as a partition's day; a column of its own counts before them."""
    more = {name: value for name, value in told.items() if name not in table.columns}
    if not more:
        return table
    frame = table.frame.with_columns(pl.lit(value, pl.String).alias(name) for name, value in more.items())
    return replace(table, frame=frame, columns=(*table.columns, *more))


def pick_columns(table: RawTable, own_names: Mapping[str, str]) -> RawTable:
    """A table of any columns as one of a log: `own_names` says what the file calls each canonical column."""
    _refuse_objects(table, own_names)
    columns = tuple(name for name in COLUMNS if own_names.get(name) in table.columns)
    refuse_twice(table, [own_names[name] for name in columns])
    missing = [name for name in (*IDS, "response") if name not in columns]
    if "timestamp" not in columns and "step" not in columns:
        missing.append("timestamp (or step)")
    if missing:
        own = [table.own_names[name] for name in table.columns if name in table.own_names]  # of lists: none made here
        found = ", ".join(own or table.columns) or "none"
        role = missing[0].removesuffix("_id").replace("timestamp (or step)", "time")
        hint = f"name yours with --map {role}=COLUMN" + (_OF_RESPONSES if role == "response" else "")
        raise InputError(f"{table.path}: column {missing[0]} is missing; the columns found are {found}; {hint}.")
    renamed = table.frame.select(pl.col(ROW).alias("row"), *(pl.col(own_names[name]).alias(name) for name in columns))
    picked = replace(table, frame=renamed, columns=columns, own_names={name: own_names[name] for name in columns})
    read_through(table)
    if not table.text:
        _refuse_types(picked)
    return picked


_OF_RESPONSES = " (lists of items: clicked=COLUMN, bought=COLUMN), or say --set every=click"


def scan(path: Path, kind: Kind | None = None, separator: str | None = None, names: tuple[str, ...] = ()) -> RawTable:
    """All columns of a file under their own names, and `ROW`; without a kind or a separator the file itself tells.

    `names` are those of the columns of a CSV file that has no header.
    """
    if isinstance(path, StoredPath):
        return RawTable(path, *_scan_columns(path), text=False)
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty (0 bytes); expected {WANTED}.")
    kind = kind or kind_of(path)
    if kind == "csv":
        separator = separator or separator_of(path)
        return RawTable(path, *_scan_csv(path, separator, names), text=True, separator=separator)
    table = RawTable(path, *(_scan_jsonl(path) if kind == "jsonl" else _scan_parquet(path)), text=False)
    if len(table.columns) > MOST_COLUMNS:
        raise too_many_columns(path)
    return table


def read_through(table: RawTable) -> None:
    """Rows of a text file that are too long are only noticed when all of it is read."""
    if table.text:
        collect(table, table.frame.select(pl.all().count()))


def refuse_twice(table: RawTable, names: list[str]) -> None:
    twice = next((name for name in names if table.columns.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{table.path}: the header names column {twice} twice; rename one of them.")


def _scan_parquet(path: Path) -> tuple[pl.LazyFrame, tuple[str, ...]]:
    with path.open("rb") as file:
        head = file.read(4)
        file.seek(-len(head), 2)
        tail = file.read(4)
    if head != PARQUET_MAGIC:
        raise InputError(f"{path} is not a Parquet file (it starts with {head!r}); name a CSV file .csv.")
    if tail != PARQUET_MAGIC:
        raise InputError(f"{path} is cut short: a Parquet file ends with {PARQUET_MAGIC!r}; copy it again.")
    return _scan_columns(path)


def _scan_columns(path: Path) -> tuple[pl.LazyFrame, tuple[str, ...]]:
    try:
        scanned = pl.scan_parquet(
            str(path), row_index_name=ROW, row_index_offset=1, glob=False, hive_partitioning=False
        )
        frame = flattened(scanned)
        return frame, tuple(frame.collect_schema().names()[1:])
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet ({reason(error)}); copy or write it again.") from None


def _scan_jsonl(path: Path) -> tuple[pl.LazyFrame, tuple[str, ...]]:
    first_line(path)
    if is_array(path):
        return _array(path)
    try:
        frame = flattened(pl.scan_ndjson(path, infer_schema_length=None, row_index_name=ROW, row_index_offset=1))
        return frame, tuple(frame.collect_schema().names()[1:])
    except (pl.exceptions.PolarsError, OSError) as error:
        place = unreadable_line(path) or f"it cannot be read as JSON lines ({reason(error)})"
        raise InputError(f"{path}: {place}.") from None


def _array(path: Path) -> tuple[pl.LazyFrame, tuple[str, ...]]:
    """One JSON array of objects, which is read whole: only JSON lines can be read in pieces."""
    try:
        with open_plain(path) as file:
            rows = pl.read_json(file.read(), infer_schema_length=None)
        frame = flattened(rows.lazy().with_row_index(ROW, 1))
        return frame, tuple(frame.collect_schema().names()[1:])
    except (pl.exceptions.PolarsError, OSError, EOFError) as error:
        raise InputError(f"{path} is no JSON array of objects ({reason(error)}); copy or write it again.") from None


def _scan_csv(path: Path, separator: str, given: tuple[str, ...] = ()) -> tuple[pl.LazyFrame, tuple[str, ...]]:
    names = header_of(path, separator)
    options: dict[str, Any] = {"separator": separator, "infer_schema": False, "glob": False}
    options |= {"row_index_name": ROW, "row_index_offset": 1}
    if given:
        if len(names) != len(given):
            raise InputError(f"{path} has {len(names)} columns, but {len(given)} names were given: {', '.join(given)}.")
        return pl.scan_csv(path, has_header=False, new_columns=list(given), **options), given
    return pl.scan_csv(path, **options), tuple(names)


def refuse_cut_short(table: RawTable) -> bool:
    """Refuse a text file whose last row has too few fields: it was not copied to its end.

    Returns whether a line end closes the last row. Without one it may have lost the end of its last field.
    """
    tail = tail_of(table.path)
    last = tail.rstrip(b"\r\n").rpartition(b"\n")[2].decode("utf-8", "replace")
    fields = len(next(csv.reader([last], delimiter=table.separator), []))
    if fields < len(table.columns):
        found = f"the last row has {fields} of {len(table.columns)} fields"
        raise InputError(f"{table.path} seems cut short ({found}); copy or download it again.")
    return tail.endswith((b"\n", b"\r"))


def is_text(dtype: Any) -> bool:
    return dtype in (pl.String, pl.Categorical) or isinstance(dtype, pl.Enum)


def _refuse_objects(table: RawTable, own_names: Mapping[str, str]) -> None:
    """An object is a column for each of its keys, none of which is what the object was called."""
    for name, own in own_names.items():
        parts = [one for one in table.columns if one.startswith(f"{own}.")]
        if own not in table.columns and parts:
            expected = _EXPECTED.get(name, "integers or strings")
            raise InputError(
                f"{table.path}: column {own} has type Struct (name one of {', '.join(parts)} with --map {name}=…), "
                f"expected {expected}; cast it before."
            )


def _refuse_types(table: RawTable) -> None:
    """Parquet columns have types. Text in a column of numbers and nulls are refused later, with their first row."""
    schema = table.frame.collect_schema()
    for name in table.columns:
        if not _usable(name, schema[name]):
            expected = _EXPECTED.get(name, "integers or strings")
            raise InputError(
                f"{table.path}: column {table.name(name)} has type {schema[name]}, expected {expected}; cast it before."
            )


_EXPECTED = {
    "timestamp": "dates, numbers or ISO strings",
    "step": "integers",
    "position": "integers",
    "propensity": "numbers",
    "organic": "true and false, or 1 and 0",
}


def _usable(name: str, dtype: Any) -> bool:
    if dtype in (pl.Null, pl.String):
        return True
    if name in IDS:
        return bool(dtype.is_integer()) or is_text(dtype)
    if name == "organic":
        return bool(dtype.is_integer()) or dtype == pl.Boolean
    if name in _EXPECTED:
        return bool(dtype.is_numeric()) or (name == "timestamp" and dtype in (pl.Date, pl.Datetime))
    if name == "request_id" and dtype == pl.Datetime:  # rows of one moment
        return True
    if name == "category" and dtype == pl.List:  # of the categories of an item
        dtype = dtype.inner
    return bool(dtype.is_numeric()) or dtype == pl.Boolean or is_text(dtype)


def collect(table: RawTable, query: pl.LazyFrame) -> pl.DataFrame:
    """Run a query over one file in streaming; a file that breaks in the middle is named with the place."""
    try:
        return query.collect(engine="streaming")
    except (pl.exceptions.PolarsError, OSError) as error:
        if table.text:
            place = unreadable_row(table.path, table.separator) or f"it cannot be read as CSV ({reason(error)})"
            raise InputError(f"{table.path}: {place}.") from None
        if kind_of(table.path) == "jsonl" and (broken := unreadable_line(table.path)):
            raise InputError(f"{table.path}: {broken}.") from None
        raise InputError(f"{table.path} is damaged ({reason(error)}); copy or write it again.") from None


def shown(value: object) -> str:
    """A value as a message repeats it: on one line, and not without end."""
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
