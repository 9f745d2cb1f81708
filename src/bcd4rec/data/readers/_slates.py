"""Tables with one row per slate, its items in a list: each becomes one row per shown item."""

import re
from dataclasses import dataclass

import polars as pl

from bcd4rec.data.readers.reader import Reading
from bcd4rec.data.tables import ROW, RawTable, collect, shown
from bcd4rec.errors import InputError

TOUCHES = ("clicked", "bought")
LISTS = ("items", "clicked", "bought", "history")  # what a mapping may name besides the canonical columns
PARALLEL = ("response", "position", "propensity", "category")  # one value for the slate, or a list with one per item
SCALARS = ("session_id", "user_id", "timestamp", "step", "request_id", "request_category")
PIECE = r"[^\s,;|\[\]\"']+"  # of a list that is written as text, in any of the usual ways


@dataclass(frozen=True)
class SlateColumns:
    """How the lists of a file are written: `map` says what it calls them, by canonical names and those of `LISTS`."""

    map: dict[str, str]
    separator: str  # between two pieces of a text; empty for any of the usual ones
    mark: str  # between an item and its response, as in N1-0; empty for none
    words: frozenset[str] = frozenset()  # responses of whole slates, whatever blanks they have
    places_from: int | None = None  # clicked and bought are places in the list, counted from here, and no items

    def unrolled(self, table: RawTable, number: int, seen: set[object], reading: Reading) -> RawTable:
        """One row per shown item, and before the first slate of a session what its history holds, as organic clicks.

        `number` is the place of the file among others; `seen` are the sessions of those before it, and grows.
        """
        frame = self._lists(table, number)
        self._refuse_other_lengths(table, frame)
        self._count(table, frame, reading)
        frame = frame.filter(pl.col("items").list.len() > 0)
        if "history" in self.map:
            frame = self._with_history(table, frame, seen)
        lists = [name for name, dtype in frame.collect_schema().items() if dtype == pl.List and name not in TOUCHES]
        rows = frame.explode(lists).filter(pl.col("new")).rename({"items": "item_id"})
        if "response" not in rows.collect_schema() and set(TOUCHES) & set(self.map):
            rows = rows.with_columns(_response(rows))
        kept = [*SCALARS, "item_id", *PARALLEL, "organic"]
        columns = tuple(name for name in kept if name in rows.collect_schema())
        names = {"item_id": self.map["items"]} | ({"response": self.map["items"]} if self.mark else {})
        own = names | {name: own for name, own in self.map.items() if name not in LISTS}
        return RawTable(
            table.path, rows.select(pl.col("row").alias(ROW), *columns), columns, table.text, table.separator, own
        )

    def _lists(self, table: RawTable, number: int) -> pl.LazyFrame:
        """`row`, the scalars as they are, and lists; `new` is false where an item stands in its slate twice."""
        schema = table.frame.collect_schema()
        columns = [pl.col(ROW).alias("row")]
        columns += [pl.col(self.map[name]).alias(name) for name in SCALARS if name in self.map]
        if "request_id" not in self.map:  # each row is a slate
            columns.append(pl.format("{}-{}", pl.lit(number), pl.col(ROW)).alias("request_id"))
        for name in (*LISTS, *PARALLEL):
            if name in self.map:
                columns.append(self._list(self.map[name], schema[self.map[name]], name).alias(name))
        frame = table.frame.select(columns)
        frame = frame.with_columns(self._touched(name, frame.collect_schema()) for name in TOUCHES if name in self.map)
        if self.mark:
            both, piece = rf"^(.*){re.escape(self.mark)}(.*)$", pl.element().cast(pl.String)
            frame = frame.with_columns(
                pl.col("items").list.eval(piece.str.extract(both, group)).alias(name)
                for group, name in enumerate(("items", "response"), 1)
            )
        count = pl.col("items").list.len()
        given = [name for name in PARALLEL if name in frame.collect_schema()]
        frame = frame.with_columns(
            pl.when((pl.col(name).list.len() == 1) & (count > 1))
            .then(pl.col(name).list.first().repeat_by(count))
            .otherwise(pl.col(name))
            for name in given
        )
        place = [] if "position" in given else [pl.int_ranges(count, dtype=pl.Int64).alias("position")]
        return frame.with_columns(*place, pl.col("items").list.eval(pl.element().is_first_distinct()).alias("new"))

    def _touched(self, name: str, schema: pl.Schema) -> pl.Expr:
        """The items that were clicked or bought, where the list has yes and no for each, or places."""
        given, items = pl.col(name), pl.col("items")
        if schema[name] == pl.List(pl.Boolean):
            yes = given.list.eval(pl.element().fill_null(False).arg_true())
            return items.list.gather(yes, null_on_oob=True).alias(name)
        if self.places_from is None:
            return given
        places = given.cast(pl.List(pl.Int64), strict=False).list.eval(pl.element() - self.places_from)
        inside = places.list.eval(pl.element().filter(pl.element() >= 0))
        return items.list.gather(inside, null_on_oob=True).list.drop_nulls().alias(name)

    def _list(self, own: str, dtype: pl.DataType, name: str) -> pl.Expr:
        column = pl.col(own)
        if dtype == pl.List:
            return column.fill_null([])
        if name in PARALLEL and (name == "category" or dtype != pl.String):
            return pl.concat_list(column)
        if name == "response" and self.words:
            return pl.when(column.is_in(self.words)).then(pl.concat_list(column)).otherwise(self._pieces(column))
        return self._pieces(column)

    def _pieces(self, column: pl.Expr) -> pl.Expr:
        if self.separator:
            pieces = column.cast(pl.String).str.split(self.separator).list.eval(pl.element().str.strip_chars())
            return pieces.list.eval(pl.element().filter(pl.element() != "")).fill_null([])
        return column.cast(pl.String).str.extract_all(PIECE).fill_null([])

    def _refuse_other_lengths(self, table: RawTable, frame: pl.LazyFrame) -> None:
        count = pl.col("items").list.len()
        for name in PARALLEL:
            if name in self.map:
                length = pl.col(name).list.len()
                other = frame.filter((length != count) & (count > 0)).select("row", count, length).head(1)
                for row, items, found in collect(table, other).iter_rows():
                    where = f"{table.path}, row {row}, column {self.map[name]} ({name})"
                    raise InputError(f"{where}: found {found} values for {items} items, expected one each.")
        if self.mark:
            text = pl.col("items").list.eval(pl.element().is_null()).list.any() & (count > 0)
            for row, items in collect(table, frame.filter(text).select("row", "items").head(1)).iter_rows():
                where = f"{table.path}, row {row}, column {self.map['items']} (items)"
                raise InputError(f"{where}: found {shown(items)}, expected items such as N1{self.mark}0.")

    def _count(self, table: RawTable, frame: pl.LazyFrame, reading: Reading) -> None:
        count = pl.col("items").list.len()
        queries = {
            "slates": pl.len(),
            "items": count.sum(),
            "slates without items": (count == 0).sum(),
            "places with an item that the slate has above": (count - pl.col("new").list.sum()).sum(),
        }
        for name in TOUCHES:
            if name in self.map:
                text = pl.List(pl.String)
                outside = pl.col(name).cast(text).list.set_difference(pl.col("items").cast(text))
                queries[f"{name} items that were not in view"] = outside.list.len().sum()
        found = collect(table, frame.select(query.alias(name) for name, query in queries.items())).row(0, named=True)
        for name in ("slates", "items"):
            reading.read[name] = reading.read.get(name, 0) + found.pop(name)
        for why, number in found.items():
            reading.drop(why, number)

    def _with_history(self, table: RawTable, frame: pl.LazyFrame, seen: set[object]) -> pl.LazyFrame:
        """The lists with the history in front of them in the first row of each session, marked as organic."""
        first = collect(table, frame.group_by("session_id").agg(pl.col("row").min()))
        new = first.filter(pl.Series([session not in seen for session in first["session_id"]], dtype=pl.Boolean))
        seen.update(new["session_id"])
        opens = pl.col("row").is_in(new["row"].implode())
        history = pl.when(opens).then(pl.col("history")).otherwise(pl.col("history").list.head(0))
        frame = frame.with_columns(history.alias("history"))
        schema, length = frame.collect_schema(), pl.col("history").list.len()
        inner = schema["items"].inner  # type: ignore[attr-defined]
        before = {
            "items": pl.col("history").cast(pl.List(inner)),
            "position": pl.int_ranges(length, dtype=pl.Int64),
            "new": pl.lit(True).repeat_by(length),
        }
        nothing = pl.lit(None).repeat_by(length)
        lists = [name for name in ("items", "new", *PARALLEL) if name in schema]
        joined = [
            pl.concat_list(before.get(name, nothing).cast(schema[name]), pl.col(name)).alias(name) for name in lists
        ]
        organic = pl.concat_list(pl.lit(True).repeat_by(length), pl.lit(False).repeat_by(pl.col("items").list.len()))
        frame = frame.with_columns(*joined, organic.alias("organic"))
        return frame.drop("history")


def _response(rows: pl.LazyFrame) -> pl.Expr:
    """What the lists of clicked and bought items say; the history was clicked."""
    schema = rows.collect_schema()
    item = pl.col("item_id").cast(pl.String)
    response = pl.lit("skip")
    for name, word in (("clicked", "click"), ("bought", "buy")):
        if name in schema:
            response = pl.when(item.is_in(pl.col(name).cast(pl.List(pl.String)))).then(pl.lit(word)).otherwise(response)
    return (pl.when("organic").then(pl.lit("click")).otherwise(response) if "organic" in schema else response).alias(
        "response"
    )
