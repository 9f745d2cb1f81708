"""What a second file tells about items: numbers, categories and vectors, each checked and typed, for items.parquet."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from bcd4rec.data.tables import ROW, RawTable, collect, is_text, scan, shown
from bcd4rec.errors import InputError

TAKEN = ("impressions", "positives")  # which items.parquet has of its own


@dataclass(frozen=True)
class ItemFeatures:
    """Columns of items by id: numbers, truth values, strings (categorical), and lists of numbers (vectors)."""

    path: Path
    table: pl.DataFrame  # item_id and the features; `category`, where it has one, is the item's category
    kinds: dict[str, str] = field(default_factory=dict)  # number, category or vector of n, by name

    @classmethod
    def read(cls, path: Path, own_id: str, id_type: Any) -> "ItemFeatures":
        """`own_id` is what the file calls the item's id, which has the type of the log's ids."""
        if not path.is_file():
            raise InputError(f"--items: {path} is not a file; expected a table with a column {own_id}.")
        table = scan(path)
        if own_id not in table.columns:
            found = ", ".join(table.columns) or "none"
            raise InputError(
                f"{path} has no column {own_id} with the ids of items; the columns found are {found}; name it with "
                "--items-id."
            )
        for name in table.columns:
            if name in TAKEN:
                raise InputError(f"{path}: column {name} has a name that the data set uses itself; rename it.")
        rows = collect(table, table.frame)
        ids = rows[own_id].cast(id_type, strict=False).alias("item_id")
        for wrong, what in (
            (ids.is_null(), "an id of the type that the log has"),
            (ids.is_duplicated(), "each item once"),
        ):
            if wrong.any():
                first = rows.filter(wrong).row(0, named=True)
                where = f"{path}, row {first[ROW]}, column {own_id}"
                raise InputError(f"{where}: found {shown(first[own_id])}, expected {what}.")
        columns, kinds = [ids], {}
        for name in table.columns:
            if name != own_id:
                column, kinds[name] = _typed(table, rows, name)
                columns.append(column)
        return cls(path, pl.DataFrame(columns), kinds)

    def of(self, items: pl.DataFrame) -> pl.DataFrame:
        """`items` (item_id, category, …) with the features; a category of the log counts before that of the file."""
        joined = items.join(self.table, on="item_id", how="left", maintain_order="left")
        if "category_right" in joined.columns:
            category = pl.coalesce("category", pl.col("category_right").cast(pl.String))
            joined = joined.with_columns(category.alias("category")).drop("category_right")
        return joined

    def told(self, items: pl.DataFrame) -> dict[str, Any]:
        """For the manifest: the kind of each column, and how many items have them, have none, or are not in the log."""
        known = items.join(self.table, on="item_id", how="semi").height
        counts = {"items": known, "items_without": items.height - known, "left_out": self.table.height - known}
        return {"columns": self.kinds} | counts


def _typed(table: RawTable, rows: pl.DataFrame, name: str) -> tuple[pl.Series, str]:
    column = rows[name]
    if name == "category":
        return (column.list.first() if column.dtype == pl.List else column).cast(pl.String), "category"
    if column.dtype == pl.List:
        return _vectors(table, rows, name)
    numbers = column.cast(pl.Float64, strict=False) if is_text(column.dtype) else column
    if is_text(column.dtype) and numbers.null_count() > column.null_count():
        return column.cast(pl.String), "category"
    if column.dtype == pl.Boolean:
        return column, "number"
    if not numbers.dtype.is_numeric():
        raise InputError(f"{table.path}: column {name} has type {column.dtype}, expected numbers, text or vectors.")
    _refuse(table, rows, name, ~numbers.cast(pl.Float64).is_finite(), "a finite number or nothing")
    return numbers.cast(pl.Float64), "number"


def _vectors(table: RawTable, rows: pl.DataFrame, name: str) -> tuple[pl.Series, str]:
    inner = rows[name].dtype.inner  # type: ignore[attr-defined]
    if not inner.is_numeric():
        raise InputError(f"{table.path}: column {name} holds lists of {inner}, expected numbers; write one text each.")
    vectors = rows[name].cast(pl.List(pl.Float32))
    width = vectors.list.len().drop_nulls().mode()
    size = int(width[0]) if len(width) else 0
    whole = vectors.list.eval(pl.element().is_finite().fill_null(False)).list.all() & (vectors.list.len() == size)
    _refuse(table, rows, name, ~whole, f"{size:,} finite numbers as in other rows, or nothing")
    return vectors, f"vector of {size:,}"


def _refuse(table: RawTable, rows: pl.DataFrame, name: str, wrong: pl.Series, expected: str) -> None:
    bad = rows.filter(wrong.fill_null(False))
    if not bad.is_empty():
        first = bad.row(0, named=True)
        raise InputError(
            f"{table.path}, row {first[ROW]}, column {name}: found {shown(first[name])}, expected {expected}."
        )
