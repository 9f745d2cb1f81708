"""Rows as other tables left them: ids that became fractions, rows without an item, files with fewer columns."""

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from bcd4rec.data.readers._slates import LISTS
from bcd4rec.data.readers.reader import Reading
from bcd4rec.data.tables import COLUMNS, RawTable, collect

WHOLE = ("session_id", "item_id", "user_id", "request_id", "position", "step", *LISTS)
NOTHING = ("", "null", "na", "nan", "none", "\\n", "n/a")  # how tables write that a cell is empty
FRACTION = r"^(-?\d+)\.0+$"


def whole_ids(table: RawTable, own_names: dict[str, str]) -> RawTable:
    """The table with ids such as 17.0 as 17; what is no whole number stays, and is refused where ids are checked."""
    schema = table.frame.collect_schema()
    names = {own_names[role] for role in WHOLE if role in own_names}
    return replace(table, frame=table.frame.with_columns(_whole(name, schema[name]) for name in sorted(names)))


def _whole(name: str, dtype: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    if dtype == pl.String:
        return column.str.replace(FRACTION, "$1")
    if dtype.is_float():
        return pl.when(column == column.round()).then(column).cast(pl.Int64, strict=False)
    if isinstance(dtype, pl.List) and dtype.inner.is_float():  # type: ignore[union-attr]
        return column.list.eval(pl.element().cast(pl.Int64, strict=False))
    return column


def without_item(table: RawTable, own_names: dict[str, str], reading: Reading) -> RawTable:
    """The table without rows that have no item, which are counted; slates without items are counted elsewhere."""
    own = own_names.get("item_id")
    if own is None or own not in table.columns:
        return table
    empty = pl.col(own).is_null()
    if table.frame.collect_schema()[own] == pl.String:
        empty = empty | pl.col(own).str.strip_chars().str.to_lowercase().is_in(NOTHING)
    reading.drop(f"rows without {own}", int(collect(table, table.frame.select(empty.sum())).item()))
    return replace(table, frame=table.frame.filter(~empty))


def with_same_columns(tables: Sequence[RawTable]) -> list[RawTable]:
    """The tables with all columns that one of them has; cells that a file does not have are empty."""
    every = tuple(name for name in COLUMNS if any(name in table.columns for table in tables))

    def whole(table: RawTable) -> RawTable:
        missing = [pl.lit(None, pl.String).alias(name) for name in every if name not in table.columns]
        return replace(table, frame=table.frame.with_columns(missing).select("row", *every), columns=every)

    return [whole(table) for table in tables]
