"""Raw tables of others: opened with their faults named, typed with the first wrong row named."""

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from bcd4rec.data.readers.reader import Reading
from bcd4rec.data.tables import ROW, RawTable, collect, read_through, refuse_cut_short, refuse_twice, scan, shown
from bcd4rec.errors import InputError

NA = "NA"
NO_ID = -1  # stands for NA
DAYS = (pl.date(2000, 1, 1), pl.date(2099, 12, 31))
LONGEST_SESSION = 10 * 365 * 86_400_000  # milliseconds; more is another unit
KINDS = {
    "id": "an integer",
    "id or NA": "an integer or NA",
    "milliseconds": "milliseconds since the session began, an integer from 0 on",
    "seconds": "seconds since 1970",
    "day": "a day such as 2016-05-09, from 2000 to 2099",
    "flag": "TRUE or FALSE",
    "text": "a value in every row",
}


def open_raw(path: Path, columns: Iterable[str], reading: Reading, separator: str = ",") -> RawTable:
    """A raw file that has the columns it needs and is whole, as far as one can see."""
    if not path.is_file():
        raise InputError(f"{path} is missing; expected a table with {', '.join(columns)}.")
    table = scan(path, None if path.suffix == ".parquet" else "csv", separator)
    missing = [name for name in columns if name not in table.columns]
    if missing:
        how = f", separated by {separator!r}," if table.text else ""
        found = ", ".join(table.columns) or "none"
        raise InputError(f"{path}: column {missing[0]} is missing; the columns found{how} are {found}.")
    refuse_twice(table, list(columns))
    if table.text and not refuse_cut_short(table):
        reading.remarks.append(f"{path.name} ends without a line end; if it was cut short there, download it again")
    read_through(table)
    return table


def typed(name: str, kind: str) -> pl.Expr:
    """A column as numbers, days or truth values; what is none becomes null."""
    column = pl.col(name).cast(pl.String).str.strip_chars()
    if kind == "text":
        return pl.col(name).cast(pl.String)
    if kind == "day":
        day = column.str.to_date("%Y-%m-%d", strict=False)
        return pl.when(day.is_between(*DAYS)).then(day).alias(name)
    if kind == "flag":
        return column.str.to_uppercase().replace_strict({"TRUE": True, "FALSE": False}, default=None).alias(name)
    number = column.cast(pl.Int64, strict=False)
    if kind == "id or NA":
        return pl.when(column == NA).then(NO_ID).otherwise(number).alias(name)
    if kind == "milliseconds":
        return pl.when(number.is_between(0, LONGEST_SESSION)).then(number).alias(name)
    if kind == "seconds":
        return pl.when(number.is_between(0, 4_102_444_800)).then(number).alias(name)  # until 2100
    return number.alias(name)


def read_typed(table: RawTable, kinds: dict[str, str], *more: pl.Expr) -> pl.DataFrame:
    """The columns of `kinds` and `more` in memory; the first value that cannot be typed is refused with its row."""
    frame = collect(table, table.frame.select(ROW, *(typed(name, kind) for name, kind in kinds.items()), *more))
    for name, kind in kinds.items():
        if bad := frame[name].null_count():
            row = frame.filter(pl.col(name).is_null())[ROW][0]
            value = collect(table, table.frame.filter(pl.col(ROW) == row).select(name)).item()
            many = f" ({bad:,} such rows)" if bad > 1 else ""
            raise InputError(
                f"{table.path}, row {row}, column {name}: found {shown(value)}, expected {KINDS[kind]}{many}."
            )
    return frame
