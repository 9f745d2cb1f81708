"""Tables with one row per impression or per slate and columns of any name: a mapping makes them the canonical log."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import polars as pl
from pydantic import Field, field_validator

from bcd4rec.data import tags
from bcd4rec.data.files import Kind, log_files
from bcd4rec.data.nesting import inside, unnested, with_joined, with_lists
from bcd4rec.data.places import partition_values
from bcd4rec.data.readers._answers import ORGANIC, TableAnswers
from bcd4rec.data.readers._rows import whole_ids, with_same_columns, without_item
from bcd4rec.data.readers._shaping import attribute, count_kept, cut_sessions, cut_slates, drop_rare, merge_repeats
from bcd4rec.data.readers._slates import LISTS, TOUCHES, SlateColumns
from bcd4rec.data.readers.reader import Reader, Reading
from bcd4rec.data.schema import BadLog, Log, LogOptions, row_problems
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.tables import (
    COLUMNS,
    IDS,
    ROW,
    RawTable,
    collect,
    pick_columns,
    refuse_cut_short,
    scan,
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
OWN_SESSION, OWN_STEP = "#session", "#step"
ROWS_OF_A_FILE = 1 << 40


class ColumnsReader(Reader):
    """Options of formats with one row per impression, or per slate where `map` names lists of items."""

    kind: ClassVar[Kind]

    map: dict[str, str] = Field(default_factory=dict)
    """What the file calls session, item, response, time or step, and slate, position, category, propensity, organic,
    user, request_category, where it has them; a column that already has its canonical name needs no entry. In place of
    response: clicked and bought, columns of yes and no. With one row per slate: items in place of item, clicked and
    bought are lists of them, history what was clicked before."""
    responses: dict[str, str] = Field(default_factory=dict)
    """Which response each value of the response column is, `organic:click` for one that nobody recommended, or `drop`
    to leave its rows out; empty: as they are."""
    every: str = ""
    """The response of every row of a file that has no column of responses, e.g. click for a log of clicks."""
    files: dict[str, str] = Field(default_factory=dict)
    """The response of all rows of a file, by a part of its name, in a folder of `impressions.csv` and `clicks.csv`:
    {impressions = "skip", clicks = "click"}. Files of clicks need no position."""
    attribution: bool = False
    """Clicks and purchases are rows of their own, behind those of what was shown: each answers the impression of its
    item in its slate, or the last one in its session. Those without any are organic: nobody recommended them."""
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
    places_from: int | None = Field(default=None, ge=0, le=1)
    """clicked and bought are places in the list of items, counted from 0 or 1, in place of items; other numbers are
    none."""
    category_separator: str = ""
    """What stands between several categories of an item, the main one first; lists need none."""
    row_sessions: bool = False
    """Each row is a session of its own, as where single decisions are logged and nobody knows whose."""
    nested: str = ""
    """A list of objects in each row of JSON lines or Parquet, each of which is a row: `events` where a line is a
    session and holds `"events": [{"item": 5, "time": 1650000000}]`; `map` then names events.item and events.time."""
    row_order: bool = False
    """The rows of a session stand in the order in which things happened, and no column tells it."""
    session_gap: float = Field(default=0.0, ge=0)
    """Minutes without a row that end a session, where users or devices take its place; 0: sessions are as told."""
    whole_ids: bool = False
    """Ids that were written as 17.0, as tables do in which some are missing, are read as 17."""
    drop_without_item: bool = False
    """Leave out rows that have no item, such as views of other pages, and count them; otherwise they are refused."""
    slates_by_position: bool = False
    """A slate of a session ends where the position of the next row is no larger; no column tells slates."""
    repeats: Literal["refuse", "merge"] = "refuse"
    """Rows that stand several times, with the same session, time, slate, place and item: refuse the log, or take each
    for one row with the strongest of their responses, and count them."""
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
        if "items" not in canonical and "history" in canonical:
            raise ValueError("map: history is a list beside a list of items; name the items that were shown, too")
        if "response" in canonical and (touched := [name for name in TOUCHES if name in canonical]):
            raise ValueError(f"map: {touched[0]} stands in place of response; keep one of them")
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
        tables = with_same_columns(tables) if self.files else tables
        options = LogOptions(time_unit=self.time_unit, string_ids=self.string_ids, time_format=self.time_format)
        log = Log(raw, options, tables)
        if self.slates_by_position and (log.has("request_id") or not log.has("position")):
            raise InputError(f"{raw}: slates_by_position needs a position and no slate; map position=COLUMN alone.")
        if self.session_gap and not log.clock:
            raise InputError(f"{raw}: session_gap = {self.session_gap:g} needs a time in each row; map time=COLUMN.")
        written = spool / "rows.parquet"
        write_canonical(log, written, reading, tick)
        if not self._lists:
            kept = reading.kept["impressions"] + reading.kept.get("organic", 0)
            reading.read["rows"] = kept + sum(reading.dropped.values())
        for shaped, work in self._shaping(reading):
            work(written, spool / shaped)
            written.unlink(missing_ok=True)  # where nothing was to be done, the file itself is the result
            written = spool / shaped
        written.rename(out)
        return reading

    def _shaping(self, reading: Reading) -> Iterator[tuple[str, Callable[[Path, Path], None]]]:
        """What is done to the whole log once its rows are canonical, and how the file is called that comes of it."""
        if self.session_gap:
            yield "cut.parquet", lambda first, out: cut_sessions(first, out, self.session_gap, reading)
        if self.slates_by_position:
            yield "slates.parquet", lambda first, out: cut_slates(first, out, reading)
        if self.attribution:
            yield "answered.parquet", lambda first, out: attribute(first, out, reading)
        if self.repeats == "merge":
            yield "merged.parquet", lambda first, out: merge_repeats(first, out, reading)
        if self.min_support > 1:
            yield "frequent.parquet", lambda first, out: drop_rare(first, out, self.min_support, reading)

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
        frame, joined = with_joined(frame, table.columns, self.map.values())
        table = replace(table, frame=frame, columns=(*table.columns, *lists, *joined))
        needed = self._needed(file)
        for name, own in self.map.items():
            if own not in table.columns and name in needed:
                found = ", ".join(table.columns) or "none"
                how = f", separated by {table.separator!r}," if table.text else ""
                other = "; if it is no part of the log, move it (--items takes one about items)" if number else ""
                raise InputError(
                    f"{file} has no column {own!r}, which the mapping names for {name}; the columns found{how} are "
                    f"{found}{other}."
                )
        if not whole:
            reading.remarks.append(f"{file.name} ends without a line end; if it was cut short there, copy it again")
        taken = {*self.map.values(), *self.ignore}  # a column that is mapped is not also taken by its own name
        own_names = {name: name for name in COLUMNS if name in table.columns and name not in taken} | self.map
        if self.row_sessions:
            table, own_names = _row_sessions(table, number, own_names)
        if self.row_order:
            table, own_names = _row_order(table, number, own_names)
        if self.whole_ids:
            table = whole_ids(table, own_names)
        if self.drop_without_item:
            table = without_item(table, own_names, reading)
        answers = TableAnswers(self.responses, self.every, self.file_response(file), self.attribution)
        table, own_names = answers.told(table, own_names, self._lists, bool(self.mark))
        if self._lists:
            words = frozenset(self.responses)
            slates = SlateColumns(own_names, self.list_separator, self.mark, words, self.places_from)
            table = slates.unrolled(table, number, seen, reading)
        given = {name: name for name in table.columns} if self._lists else own_names
        picked = pick_columns(_one_step(table, own_names), {"step": "step"} | given)
        table = self._all_categories(replace(picked, own_names={**picked.own_names, **table.own_names}))
        return answers.translated(table, "history" in self.map, reading)

    def file_response(self, file: Path) -> str:
        """The response of all rows of a file, where `files` tells it; empty where there is no such table."""
        found = next((response for part, response in self.files.items() if part in file.name), "")
        if self.files and not found:
            raise InputError(
                f"{file}: no entry of [files] is a part of its name, so nobody knows what its rows are; add one, or "
                "move the file elsewhere."
            )
        return found

    def _needed(self, file: Path) -> set[str]:
        """What of the mapping every file must have; those of clicks and purchases say nothing of where things stood."""
        own = self.file_response(file)
        return set(self.map) if own in ("", "skip") else set(self.map) & {*IDS, "items", "timestamp", "step"}

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


def _row_sessions(table: RawTable, number: int, own_names: dict[str, str]) -> tuple[RawTable, dict[str, str]]:
    """The table with a column that tells all rows apart, and that column as session and slate."""
    told = pl.format("{}-{}", pl.lit(number), pl.col(ROW)).alias(OWN_SESSION)
    table = replace(table, frame=table.frame.with_columns(told), columns=(*table.columns, OWN_SESSION))
    return table, own_names | {"session_id": OWN_SESSION, "request_id": OWN_SESSION}


def _row_order(table: RawTable, number: int, own_names: dict[str, str]) -> tuple[RawTable, dict[str, str]]:
    """The table with the place of each row in the log as its step; a slate that is told stays one."""
    place = (pl.lit(number, pl.Int64) * ROWS_OF_A_FILE + pl.col(ROW).cast(pl.Int64)).alias(OWN_STEP)
    table = replace(table, frame=table.frame.with_columns(place), columns=(*table.columns, OWN_STEP))
    return table, own_names | {"step": OWN_STEP}


def _one_step(table: RawTable, own_names: dict[str, str]) -> RawTable:
    """Where each slate is a session of its own, nothing comes before or after it, and no time is needed."""
    if {"timestamp", "step"} & set(own_names) or own_names.get("session_id") != own_names.get("request_id"):
        return table
    frame = table.frame.with_columns(pl.lit("0" if table.text else 0).alias("step"))
    return replace(table, frame=frame, columns=(*table.columns, "step"))


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
    reading.kept = count_kept(out)
