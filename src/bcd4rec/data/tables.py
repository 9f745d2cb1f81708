"""The files of a log as lazy tables: found, opened, and named with the place where they break."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from bcd4rec.errors import InputError

IDS = ("session_id", "item_id")
OPTIONAL = ("request_id", "position", "category", "propensity")
COLUMNS = (*IDS, "timestamp", "step", "response", *OPTIONAL)
PARQUET_MAGIC = b"PAR1"
ROW = "#row"  # name of the row number while a file is scanned; a log may have a column `row` of its own
LONGEST_SHOWN = 60  # characters of a bad value that a message repeats


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
    if not path.is_dir():
        raise InputError(f"{path} is neither a file nor a folder; expected a Parquet or CSV file of impressions.")
    files = sorted(file for file in path.iterdir() if file.suffix in (".parquet", ".csv") and file.is_file())
    if not files:
        raise InputError(f"{path} is a folder without .parquet or .csv files; name the file of impressions.")
    return files


def open_table(path: Path) -> Table:
    """Look at the head of a file and scan it lazily."""
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty (0 bytes); expected a Parquet or CSV table with a header.")
    text = path.suffix == ".csv"
    frame, names = _scan_csv(path) if text else _scan_parquet(path)
    columns = tuple(name for name in COLUMNS if name in names)
    missing = [name for name in (*IDS, "response") if name not in columns]
    if "timestamp" not in columns and "step" not in columns:
        missing.append("timestamp (or step)")
    if missing:
        found = ", ".join(names) or "none"
        raise InputError(f"{path}: column {missing[0]} is missing; the columns found are {found}.")
    table = Table(path, frame.select(pl.col(ROW).alias("row"), *columns), columns, text)
    if text:
        collect(table, frame.select(pl.all().count()))  # rows that are too long are only noticed when all is read
    else:
        _refuse_types(table)
    return table


def _scan_parquet(path: Path) -> tuple[pl.LazyFrame, list[str]]:
    with path.open("rb") as file:
        head = file.read(4)
        file.seek(-len(head), 2)
        tail = file.read(4)
    if head != PARQUET_MAGIC:
        raise InputError(f"{path} is not a Parquet file (it starts with {head!r}); a CSV file must be named .csv.")
    if tail != PARQUET_MAGIC:
        raise InputError(f"{path} is cut short: a Parquet file ends with {PARQUET_MAGIC!r}; copy it again.")
    try:
        frame = pl.scan_parquet(path, row_index_name=ROW, row_index_offset=1, glob=False)
        return frame, frame.collect_schema().names()[1:]
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet ({reason(error)}); copy or write it again.") from None


def _scan_csv(path: Path) -> tuple[pl.LazyFrame, list[str]]:
    try:
        with path.open("rb") as file:
            names = next(csv.reader([file.readline().decode("utf-8-sig")]), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: the header cannot be read as UTF-8 CSV ({error}); save the file as UTF-8.") from None
    twice = next((name for name in COLUMNS if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path}: the header names column {twice} twice; rename one of them.")
    return pl.scan_csv(path, infer_schema=False, row_index_name=ROW, row_index_offset=1, glob=False), names


def is_text(dtype: Any) -> bool:
    return dtype in (pl.String, pl.Categorical) or isinstance(dtype, pl.Enum)


def _refuse_types(table: Table) -> None:
    """Parquet columns have types. Text in a column of numbers and nulls are refused later, with their first row."""
    schema = table.frame.collect_schema()
    for name in table.columns:
        if not _usable(name, schema[name]):
            expected = _EXPECTED.get(name, "integers or strings")
            raise InputError(
                f"{table.path}: column {name} has type {schema[name]}, expected {expected}; cast it before."
            )


_EXPECTED = {
    "timestamp": "dates, numbers or ISO strings",
    "step": "integers",
    "position": "integers",
    "propensity": "numbers",
}


def _usable(name: str, dtype: Any) -> bool:
    if dtype in (pl.Null, pl.String):
        return True
    if name in IDS:
        return bool(dtype.is_integer()) or is_text(dtype)
    if name in _EXPECTED:
        return bool(dtype.is_numeric()) or (name == "timestamp" and dtype in (pl.Date, pl.Datetime))
    return bool(dtype.is_numeric()) or dtype == pl.Boolean or is_text(dtype)


def collect(table: Table, query: pl.LazyFrame) -> pl.DataFrame:
    """Run a query over one file in streaming; a file that breaks in the middle is named with the place."""
    try:
        return query.collect(engine="streaming")
    except (pl.exceptions.PolarsError, OSError) as error:
        if table.text:
            place = unreadable_row(table.path) or f"it cannot be read as CSV ({reason(error)})"
            raise InputError(f"{table.path}: {place}.") from None
        raise InputError(f"{table.path} is damaged ({reason(error)}); copy or write it again.") from None


def unreadable_row(path: Path) -> str | None:
    """Where a CSV file stops being a table, for the message of a failed scan."""
    row, width = -1, 0  # the header is row 0
    with path.open("rb") as file:
        lines = csv.reader((line.decode("utf-8-sig") for line in file), strict=True)
        try:
            for row, fields in enumerate(lines):
                width = width or len(fields)
                if len(fields) > width:
                    return f"row {row} has {len(fields)} fields, expected {width}; quote fields that contain commas"
        except UnicodeDecodeError:
            return f"row {row + 1} is not UTF-8; save the file as UTF-8"
        except csv.Error as error:
            return f"row {row + 1} is not CSV ({error}); look for a quote that is never closed"
    return None


def reason(error: Exception) -> str:
    """The first line of somebody else's message."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def shown(value: object) -> str:
    """A value as a message repeats it: on one line, and not without end."""
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
