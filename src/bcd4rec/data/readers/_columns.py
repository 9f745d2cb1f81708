"""Tables with one row per impression or per slate and columns of any name: a mapping makes them the canonical log."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import polars as pl
from pydantic import Field, field_validator

from bcd4rec.data import tags
from bcd4rec.data.files import Kind, log_files
from bcd4rec.data.nesting import inside, unnested, with_lists
from bcd4rec.data.places import partition_values
from bcd4rec.data.readers._slates import LISTS, TOUCHES, SlateColumns
from bcd4rec.data.readers.reader import Reader, Reading
from bcd4rec.data.schema import BadLog, Log, LogOptions, row_problems
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.tables import (
    COLUMNS,
    ROW,
    RawTable,
    collect,
    pick_columns,
    refuse_cut_short,
    scan,
    shown,
    with_values,
)
from bcd4rec.errors import InputError

SHORT = {
    "session": "session_id",
    "item": "item_id",
    "time": "timestamp",
    "slate": "request_id",
    "user": "user_id",
}
SHARED = {"session_id", "request_id", "user_id"}  # which one column may be at once: a slate that is its own session
MOMENT = {"timestamp", "request_id"}  # rows of a session with the same time were shown together
DROP = "drop"
ORGANIC = "organic"  # `organic:click` is a click on what nobody recommended
HISTORY = "#history"
OWN_SESSION = "#session"
MOST_LISTED = 8  # response values without a rule that a message lists


class ColumnsReader(Reader):
    """Options of formats with one row per impression, or per slate where `map` names lists of items."""

    kind: ClassVar[Kind]

    map: dict[str, str] = Field(default_factory=dict)
    """What the file calls session, item, response, time or step, and slate, position, category, propensity, organic,
    user, request_category, where it has them; a column that already has its canonical name needs no entry. With one row
    per slate: items in place of item, clicked and bought in place of response, history for what was clicked before."""
    responses: dict[str, str] = Field(default_factory=dict)
    """Which response each value of the response column is, `organic:click` for one that nobody recommended, or `drop`
    to leave its rows out; empty: as they are."""
    every: str = ""
    """The response of every row of a file that has no column of responses, e.g. click for a log of clicks."""
    time_unit: Literal["s", "ms", "us"] = "s"
    """Unit of a numeric time, counted from 1970."""
    time_format: str = ""
    """How a time is written where it is no ISO date, e.g. %m/%d/%Y %I:%M:%S %p for 11/15/2019 8:55:22 AM."""
    string_ids: bool = False
    """Read all ids as strings, also where some of them look like numbers."""
    min_support: int = Field(default=1, ge=1)
    """Drop items with fewer impressions than this, and sessions that have no others."""
    list_separator: str = ""
    """What stands between two items of a list that is text; by default blanks, commas, semicolons or bars."""
    mark: str = ""
    """What stands between an item and its response in a list of items such as N1-0 N2-1."""
    category_separator: str = ""
    """What stands between several categories of an item, the main one first; lists need none."""
    row_sessions: bool = False
    """Each row is a session of its own, as where single decisions are logged and nobody knows whose."""
    nested: str = ""
    """A list of objects in each row of JSON lines or Parquet, each of which is a row: `events` where a line is a
    session and holds `"events": [{"item": 5, "time": 1650000000}]`; `map` then names events.item and events.time."""
    ignore: tuple[str, ...] = ()
    """Columns that are not what their canonical names say."""

    @field_validator("ignore", mode="before")
    @classmethod
    def _several(cls, names: Any) -> Any:
        return [name.strip() for name in names.split(",")] if isinstance(names, str) else names

    @field_validator("map")
    @classmethod
    def _canonical(cls, names: dict[str, str]) -> dict[str, str]:
        canonical: dict[str, str] = {}
        for ours, theirs in names.items():
            name = SHORT.get(ours, ours)
            if name not in COLUMNS and name not in LISTS:
                known = ", ".join([*SHORT, *(name for name in COLUMNS if name not in SHORT.values()), *LISTS])
                raise ValueError(f"map: unknown column {ours!r}; known are {known}")
            if name in canonical:
                raise ValueError(f"map: {name} is mapped twice, to {canonical[name]!r} and {theirs!r}; keep one")
            taken = next((other for other, column in canonical.items() if column == theirs), None)
            if taken is not None and not ({taken, name} <= SHARED or {taken, name} == MOMENT):
                raise ValueError(f"map: column {theirs!r} is named twice, for {taken} and {name}; keep one")
            canonical[name] = theirs
        if {"item_id", "items"} <= set(canonical):
            raise ValueError("map: item is for one row per shown item, items for one row per slate; keep one")
        if "items" not in canonical and (lists := [name for name in LISTS if name in canonical]):
            raise ValueError(f"map: {lists[0]} is a list beside a list of items; name the items that were shown, too")
        return canonical

    @field_validator("responses")
    @classmethod
    def _named(cls, rules: dict[str, str]) -> dict[str, str]:
        for value, rule in rules.items():
            if rule == ORGANIC or rule.partition(":")[::2] == (ORGANIC, ""):
                raise ValueError(f"responses: {value}={rule} names no response; write {value}={ORGANIC}:click")
        return rules

    @property
    def scanning(self) -> dict[str, Any]:
        """More for `scan`."""
        return {}

    def read(self, raw: Path, out: Path, spool: Path, tick: Tick = no_tick) -> Reading:
        reading, seen = Reading(), set[object]()
        tick("reading columns", 0.0)
        tables = [
            self._open(file, partition_values(raw, file), number, seen, reading)
            for number, file in enumerate(log_files(raw))
        ]
        options = LogOptions(time_unit=self.time_unit, string_ids=self.string_ids, time_format=self.time_format)
        log = Log(raw, options, tables)
        write_canonical(log, out if self.min_support == 1 else spool / "all-items.parquet", reading, tick)
        if not self._lists:
            kept = reading.kept["impressions"] + reading.kept.get("organic", 0)
            reading.read["rows"] = kept + sum(reading.dropped.values())
        if self.min_support > 1:
            drop_rare(spool / "all-items.parquet", out, self.min_support, reading)
        return reading

    @property
    def _lists(self) -> bool:
        return "items" in self.map

    def _open(
        self, file: Path, told: Mapping[str, str | None], number: int, seen: set[object], reading: Reading
    ) -> RawTable:
        scanned = scan(file, self.kind, **self.scanning)
        whole = not scanned.text or refuse_cut_short(scanned)
        table = with_values(self._unnested(scanned, reading), told)
        frame, lists = with_lists(table.frame, table.columns, self.map.values())
        table = replace(table, frame=frame, columns=(*table.columns, *lists))
        for name, own in self.map.items():
            if own not in table.columns:
                found = ", ".join(table.columns) or "none"
                how = f", separated by {table.separator!r}," if table.text else ""
                raise InputError(
                    f"{file} has no column {own!r}, which the mapping names for {name}; the columns found{how} are "
                    f"{found}."
                )
        if not whole:
            reading.remarks.append(f"{file.name} ends without a line end; if it was cut short there, copy it again")
        taken = {*self.map.values(), *self.ignore}  # a column that is mapped is not also taken by its own name
        own_names = {name: name for name in COLUMNS if name in table.columns and name not in taken} | self.map
        if self.row_sessions:
            table, own_names = _row_sessions(table, number, own_names)
        if self._lists:
            table = SlateColumns(own_names, self.list_separator, self.mark).unrolled(table, number, seen, reading)
        given = {name: name for name in table.columns} if self._lists else own_names
        if self.every and not ({"response", *TOUCHES} & set(own_names) or self.mark):
            answer = {"response": pl.lit(self.every)}
            table = replace(table, frame=table.frame.with_columns(**answer), columns=(*table.columns, "response"))
            given = given | {"response": "response"}
        picked = pick_columns(_one_step(table, own_names), {"step": "step"} | given)
        table = self._all_categories(replace(picked, own_names={**picked.own_names, **table.own_names}))
        return self._answered(table, reading) if self.responses else table

    def _unnested(self, table: RawTable, reading: Reading) -> RawTable:
        if not self.nested:
            return table
        schema, own = table.frame.collect_schema(), inside(table.columns, self.nested)
        if not own or any(schema[name] != pl.List for name in own):
            raise InputError(
                f"{table.path} has no list of objects {self.nested!r} (nested); the columns found are "
                f"{', '.join(table.columns)}."
            )
        empty = collect(table, table.frame.select((pl.col(own[0]).list.len().fill_null(0) == 0).sum())).item()
        reading.drop(f"rows without {self.nested}", int(empty))
        return replace(table, frame=unnested(table.frame, table.columns, self.nested))

    def _all_categories(self, table: RawTable) -> RawTable:
        """The table with a list in place of several categories that are one text."""
        if not self.category_separator or "category" not in table.columns:
            return table
        if table.frame.collect_schema()["category"] == pl.List:
            raise InputError(
                f"{table.path}: column {table.name('category')} holds lists, which need no category_separator "
                f"({self.category_separator!r}); leave it out."
            )
        lists = tags.parted(pl.col("category"), self.category_separator)
        return replace(table, frame=table.frame.with_columns(lists.alias("category")))

    def _answered(self, table: RawTable, reading: Reading) -> RawTable:
        """The table with its response values translated, without those that a rule drops, organic ones marked."""
        value = pl.col("response").cast(pl.String)
        counts = collect(table, table.frame.group_by(value).len()).drop_nulls().sort("len", "response")[::-1]
        unruled = counts.filter(~pl.col("response").is_in(list(self.responses)))
        if not unruled.is_empty():
            listed = [f"{shown(found)} ({rows:,} rows)" for found, rows in unruled.head(MOST_LISTED).iter_rows()]
            more = f" and {unruled.height - MOST_LISTED:,} more" if unruled.height > MOST_LISTED else ""
            example = f"{unruled['response'][0]}={DROP}"
            raise InputError(
                f"{table.path}, column {table.name('response')}: no rule covers {', '.join(listed)}{more}; add them "
                f"to --responses, e.g. {example} to leave these rows out."
            )
        dropped = [found for found, response in self.responses.items() if response == DROP]
        for found, rows in counts.filter(pl.col("response").is_in(dropped)).iter_rows():
            reading.drop(f"rows with the response {found}", rows)
        kept = table.frame.filter(value.is_null() | ~value.is_in(dropped))
        names = {found: response.removeprefix(f"{ORGANIC}:") for found, response in self.responses.items()}
        organic = [found for found, response in self.responses.items() if response.startswith(f"{ORGANIC}:")]
        if "history" in self.map:  # which says nothing but that it was clicked
            kept = kept.with_columns(
                pl.when(pl.col("organic") & value.is_null()).then(pl.lit(HISTORY)).otherwise(value).alias("response")
            )
            names[HISTORY] = "click"
        translated = [value.replace(names).alias("response")]
        if organic:
            told = pl.col("organic").cast(pl.String) if "organic" in table.columns else pl.lit("false")
            translated.append(pl.when(value.is_in(organic)).then(pl.lit("true")).otherwise(told).alias("organic"))
        columns = tuple(dict.fromkeys((*table.columns, *(["organic"] if organic else []))))
        return replace(table, frame=kept.with_columns(translated), columns=columns)


def _row_sessions(table: RawTable, number: int, own_names: dict[str, str]) -> tuple[RawTable, dict[str, str]]:
    """The table with a column that tells all rows apart, and that column as session and slate."""
    told = pl.format("{}-{}", pl.lit(number), pl.col(ROW)).alias(OWN_SESSION)
    table = replace(table, frame=table.frame.with_columns(told), columns=(*table.columns, OWN_SESSION))
    return table, own_names | {"session_id": OWN_SESSION, "request_id": OWN_SESSION}


def _one_step(table: RawTable, own_names: dict[str, str]) -> RawTable:
    """Where each slate is a session of its own, nothing comes before or after it, and no time is needed."""
    if {"timestamp", "step"} & set(own_names) or own_names.get("session_id") != own_names.get("request_id"):
        return table
    frame = table.frame.with_columns(pl.lit("0" if table.text else 0).alias("step"))
    return replace(table, frame=frame, columns=(*table.columns, "step"))


def drop_rare(first: Path, out: Path, min_support: int, reading: Reading) -> None:
    """Write the log without items of few impressions, and without sessions of which nothing was recommended then."""
    rows = pl.scan_parquet(first, glob=False)
    shown_rows = ~pl.col("organic") if "organic" in rows.collect_schema() else pl.col("item_id").is_not_null()
    items = rows.group_by("item_id").agg(shown_rows.sum().alias("len")).filter(pl.col("len") >= min_support)
    kept = rows.join(items.collect(engine="streaming").lazy(), on="item_id", how="semi", maintain_order="left")
    sessions = kept.filter(shown_rows).select("session_id").unique().collect(engine="streaming")
    if sessions.is_empty():
        raise InputError(f"No item has {min_support:,} impressions (min_support); choose a smaller number.")
    kept.join(sessions.lazy(), on="session_id", how="semi", maintain_order="left").sink_parquet(out, engine="streaming")
    before = reading.kept
    reading.kept = _kept(out)
    reading.drop(f"items with fewer than {min_support:,} impressions", before["items"] - reading.kept["items"])
    for what in ("impressions", "organic", "sessions"):
        reading.drop(f"{what} of such items alone", before.get(what, 0) - reading.kept.get(what, 0))


def _kept(log: Path) -> dict[str, int]:
    rows = pl.scan_parquet(log, glob=False)
    marked = "organic" in rows.collect_schema()
    organic = pl.col("organic").sum() if marked else pl.lit(0)
    columns = [pl.len(), organic.alias("organic"), *(pl.col(name).n_unique() for name in ("session_id", "item_id"))]
    count, found, sessions, items = rows.select(columns).collect(engine="streaming").row(0)
    return (
        {"impressions": count - found} | ({"organic": found} if marked else {}) | {"sessions": sessions, "items": items}
    )


def write_canonical(log: Log, out: Path, reading: Reading, tick: Tick = no_tick) -> None:
    """Check every row of a log and write it, typed, as one Parquet file; the order of rows stays."""
    tick("checking rows", 0.0)
    if problems := row_problems(log, None):
        raise BadLog(problems)
    time = pl.col("time").cast(pl.Datetime("us")).alias("timestamp") if log.clock else None
    others = [pl.col(name) for name in log.columns if name != "timestamp"]
    tick("writing the log", 0.0)
    frames = [frame.select(others if time is None else [*others, time]) for _, frame in log.frames()]
    pl.concat(frames).sink_parquet(out, engine="streaming")
    reading.kept = _kept(out)
