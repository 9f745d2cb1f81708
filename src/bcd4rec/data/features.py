"""What a second file tells about items: numbers, categories, tags, texts and vectors, each checked and typed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from bcd4rec.data import tags
from bcd4rec.data.schema import INTEGER
from bcd4rec.data.tables import ROW, RawTable, collect, is_text, scan, shown
from bcd4rec.errors import InputError

TAKEN = ("impressions", "positives")  # which items.parquet has of its own
KINDS = (
    "number",
    "category",
    "tags",
    "text",
    "ignored",
)  # what a column can be made by its reader's wish; vectors are vectors
SAME_IDS = 0.5  # of the log's items that a column of another file must hold to be their id
MOST = 32  # columns; each is three or more weights
DISTINCT, WORDS = 0.5, 2  # texts differ from item to item more often than not, and have several words


def id_column(path: Path, name: str, ids: pl.Series) -> str | None:
    """The column of a file of items that is `name`, or else holds most of the `ids` (texts) and each value once."""
    if not path.is_file() or ids.is_empty():
        return None
    table = scan(path)
    if name in table.columns:
        return name
    rows = collect(table, table.frame)
    plain = [one for one in table.columns if rows[one].dtype.is_integer() or rows[one].dtype == pl.String]
    found = {one: float(ids.is_in(rows[one].cast(pl.String).implode()).mean() or 0) for one in plain}  # type: ignore[arg-type]
    whole = [one for one in plain if found[one] > SAME_IDS and not rows[one].drop_nulls().is_duplicated().any()]
    return max(whole, key=lambda one: found[one], default=None)


@dataclass(frozen=True)
class ItemFeatures:
    """Columns of items by id: numbers, truth values, strings (categories or texts), lists of strings (tags) and of
    numbers (vectors)."""

    path: Path
    table: pl.DataFrame  # item_id and the features; `category` and `categories`, where it has them, are the item's
    kinds: dict[str, str] = field(default_factory=dict)  # number, category, tags, text, vector of n or ignored, by name
    new_items: bool = True  # whether items that the log never shows join the catalogue

    @classmethod
    def read(
        cls,
        path: Path,
        own_id: str,
        id_type: Any,
        kinds: Mapping[str, str] | None = None,
        new_items: bool = True,
    ) -> "ItemFeatures":
        """`own_id` is what the file calls the item's id, which has the type of the log's ids."""
        if not path.is_file():
            raise InputError(f"--items: {path} is not a file; expected a table with a column {own_id}.")
        return cls.of_table(scan(path), own_id, id_type, kinds, new_items)

    @classmethod
    def of_table(
        cls, table: RawTable, own_id: str, id_type: Any, kinds: Mapping[str, str] | None = None, new_items: bool = True
    ) -> "ItemFeatures":
        """`kinds` are wishes, by column; other columns are what they look like."""
        wished = dict(kinds or {})
        _refuse_names(table, own_id, wished)
        rows = collect(table, table.frame)
        ids = _ids(rows[own_id], id_type).alias("item_id")
        kind = "an integer, as the log's ids are; 007 and 7.0 are no 7" if id_type == pl.Int64 else "an id"
        for wrong, what in ((ids.is_null(), kind), (ids.is_duplicated(), "each item once")):
            if wrong.any():
                first = rows.filter(wrong).row(0, named=True)
                where = f"{table.path}, row {first[ROW]}, column {own_id}"
                raise InputError(f"{where}: found {shown(first[own_id])}, expected {what}.")
        columns, found = [ids], {}
        for name in table.columns:
            if name == own_id:
                continue
            if wished.get(name) == "ignored":
                found[name] = "ignored"
                continue
            column, found[name] = _typed(table, rows, name, wished.get(name))
            if name in wished and found[name] != wished[name]:
                column, found[name] = _wished(table, rows, name, found[name], wished[name])
            columns.append(column)
        if sum(kind != "ignored" for kind in found.values()) > MOST:
            raise InputError(
                f"{table.path} has {len(found)} columns of features, expected at most {MOST}; leave some out with "
                "--item-kinds NAME=ignored."
            )
        return cls(table.path, _with_categories(pl.DataFrame(columns)), found, new_items)

    def catalogue(self, items: pl.DataFrame) -> pl.DataFrame:
        """The log's `items` (item_id, category, impressions), and after them those that it never shows."""
        if self.new_items:
            others = self.table.join(items, on="item_id", how="anti").select("item_id").sort("item_id")
            items = pl.concat([items, others], how="diagonal").with_columns(pl.col("impressions").fill_null(0))
        return self._filled(items)

    def of(self, items: pl.DataFrame) -> pl.DataFrame:
        """`items` (item_id, category, …) with the features; a category of the log counts before that of the file."""
        joined = self._filled(items)
        others = self.table.drop("category", "categories", strict=False)
        return joined.join(others, on="item_id", how="left", maintain_order="left")

    def _filled(self, items: pl.DataFrame) -> pl.DataFrame:
        """Several categories of the file join those of the log; a single one counts where the log has none."""
        if "category" not in self.table.columns:
            return items
        told = [name for name in ("category", "categories") if name in self.table.columns]
        own = self.table.select("item_id", pl.col(told).name.prefix("told_"))
        joined = items.join(own, on="item_id", how="left", maintain_order="left")
        if "categories" in (*items.columns, *told):
            mine = pl.col("categories" if "categories" in items.columns else "category")
            if len(told) > 1:
                each = [pl.concat_list(one).fill_null([]) for one in (mine, pl.col("told_categories"))]
                lists = tags.cleaned(pl.concat_list(each))
            else:
                lists = pl.coalesce(mine, tags.parted(pl.col("told_category"), ""))
            joined = joined.with_columns(lists.alias("categories"))
        joined = joined.with_columns(pl.coalesce("category", "told_category").alias("category"))
        return tags.if_several(joined.drop(f"told_{name}" for name in told))

    def told(self, items: pl.DataFrame, shown: pl.DataFrame) -> dict[str, Any]:
        """For the manifest: the kind of each column, and how many of the log's items (`shown`) have them.

        `items` are all of the data set.
        """
        known = shown.join(self.table, on="item_id", how="semi").height
        joined = items.height - shown.height
        counts = {"items": known, "items_without": shown.height - known, "items_new": joined}
        return {"columns": self.kinds} | counts | {"left_out": self.table.height - known - joined}


def _ids(column: pl.Series, id_type: Any) -> pl.Series:
    """The ids in the type of the log's, as they are written; what is written in another way is null."""
    if column.dtype.is_integer():
        return column.cast(id_type, strict=False)
    if not is_text(column.dtype):  # 7.0 and true are nobody's ids
        return pl.Series([None] * len(column), dtype=id_type)
    text = column.cast(pl.String)
    return text if id_type == pl.String else text.set(~text.str.contains(INTEGER), None).cast(pl.Int64, strict=False)


def _refuse_names(table: RawTable, own_id: str, wished: dict[str, str]) -> None:
    if own_id not in table.columns:
        found = ", ".join(table.columns) or "none"
        raise InputError(
            f"{table.path} has no column {own_id} with the ids of items; the columns found are {found}; name it with "
            "--items-id."
        )
    for name in table.columns:
        if name in TAKEN:
            raise InputError(f"{table.path}: column {name} has a name that the data set uses itself; rename it.")
    for name, kind in wished.items():
        if name not in table.columns or name == own_id:
            found = ", ".join(other for other in table.columns if other != own_id) or "none"
            raise InputError(f"--item-kinds: {table.path} has no feature {name}; its features are {found}.")
        if kind not in KINDS:
            raise InputError(f"--item-kinds: {name}={kind}, expected one of {', '.join(KINDS)}.")


def _with_categories(rows: pl.DataFrame) -> pl.DataFrame:
    """`category` as a text, and `categories` as lists where either column of the file has lists."""
    lists = [name for name in ("category", "categories") if rows.schema.get(name) == pl.List]
    if not lists:
        return rows
    names = [name for name in ("category", "categories") if name in rows.columns]
    each = [pl.col(name) if name in lists else tags.parted(pl.col(name), "") for name in names]
    every = tags.cleaned(pl.concat_list(one.fill_null([]) for one in each))
    return rows.with_columns(every.alias("categories")).with_columns(
        pl.col("categories").list.first().alias("category")
    )


def _typed(table: RawTable, rows: pl.DataFrame, name: str, wish: str | None) -> tuple[pl.Series, str]:
    column = rows[name]
    if wish == "tags" or name == "categories" or _looks_like_tags(column, name):
        return _tags(table, rows, name, wish), "tags"
    if name == "category":
        return column.cast(pl.String), "category"
    if column.dtype == pl.List:
        return _vectors(table, rows, name)
    numbers = column.cast(pl.Float64, strict=False) if is_text(column.dtype) else column
    if is_text(column.dtype) and numbers.null_count() > column.null_count():
        text = column.cast(pl.String)
        return text, "text" if _is_prose(text) else "category"
    if column.dtype == pl.Boolean:
        return column, "number"
    if not numbers.dtype.is_numeric():
        raise InputError(f"{table.path}: column {name} has type {column.dtype}, expected numbers, text or vectors.")
    _refuse(table, rows, name, ~numbers.cast(pl.Float64).is_finite(), "a finite number or nothing")
    return numbers.cast(pl.Float64), "number"


def _looks_like_tags(column: pl.Series, name: str) -> bool:
    """Lists of texts, and texts of which most have a separator in them."""
    if column.dtype == pl.List:
        return name == "category" or is_text(column.dtype.inner)  # type: ignore[attr-defined]
    return is_text(column.dtype) and bool(tags.separator_in(column.cast(pl.String), tags.SURE, tags.MOSTLY))


def _tags(table: RawTable, rows: pl.DataFrame, name: str, wish: str | None) -> pl.Series:
    column, inner = rows[name], getattr(rows[name].dtype, "inner", rows[name].dtype)
    if not (is_text(inner) or inner.is_integer() or inner == pl.Null):
        raise InputError(f"{table.path}: column {name} has type {column.dtype}, expected texts or lists of texts.")
    if column.dtype == pl.List:
        return rows.select(tags.cleaned(pl.col(name)).alias(name))[name]
    among = tags.SEPARATORS if wish or name == "categories" else tags.SURE
    separator = tags.separator_in(column.cast(pl.String), among)
    return rows.select(tags.parted(pl.col(name), separator).alias(name))[name]


def _is_prose(column: pl.Series) -> bool:
    """Whether values are mostly distinct and of several words, as titles are and brands are not."""
    there = column.drop_nulls()
    words = there.str.count_matches(r"\w+").median()
    return bool(there.n_unique() > DISTINCT * len(there)) and words is not None and float(str(words)) >= WORDS


def _wished(table: RawTable, rows: pl.DataFrame, name: str, found: str, kind: str) -> tuple[pl.Series, str]:
    """A number may be a code, and a text a category or the other way round."""
    if name in ("category", "categories") or found.startswith("vector") or kind == "number":
        raise InputError(f"--item-kinds: column {name} of {table.path} is a {found} and cannot be a {kind}.")
    return rows[name].cast(pl.String), kind


def _vectors(table: RawTable, rows: pl.DataFrame, name: str) -> tuple[pl.Series, str]:
    inner = rows[name].dtype.inner  # type: ignore[attr-defined]
    if not inner.is_numeric():
        raise InputError(f"{table.path}: column {name} holds lists of {inner}, expected numbers or texts.")
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
