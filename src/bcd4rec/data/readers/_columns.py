"""Tables with one row per impression and columns of any name: a mapping makes them the canonical log."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import polars as pl
from pydantic import Field, field_validator

from bcd4rec.data.readers.reader import Reader, Reading
from bcd4rec.data.schema import BadLog, Log, LogOptions, row_problems
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.tables import COLUMNS, RawTable, collect, log_files, pick_columns, refuse_cut_short, scan, shown
from bcd4rec.errors import InputError

SHORT = {"session": "session_id", "item": "item_id", "time": "timestamp", "slate": "request_id"}
DROP = "drop"
ORGANIC = "organic"  # `organic:click` is a click on what nobody recommended
MOST_LISTED = 8  # response values without a rule that a message lists


class ColumnsReader(Reader):
    """Options of formats with one row per impression."""

    text: ClassVar[bool]

    map: dict[str, str] = Field(default_factory=dict)
    """What the file calls session, item, response, time or step, and slate, position, category, propensity, organic,
    where it has them; a column that already has its canonical name needs no entry."""
    responses: dict[str, str] = Field(default_factory=dict)
    """Which response each value of the response column is, `organic:click` for one that nobody recommended, or `drop`
    to leave its rows out; empty: as they are."""
    time_unit: Literal["s", "ms", "us"] = "s"
    """Unit of a numeric time, counted from 1970."""
    string_ids: bool = False
    """Read all ids as strings, also where some of them look like numbers."""

    @field_validator("map")
    @classmethod
    def _canonical(cls, names: dict[str, str]) -> dict[str, str]:
        canonical: dict[str, str] = {}
        for ours, theirs in names.items():
            name = SHORT.get(ours, ours)
            if name not in COLUMNS:
                known = ", ".join(list(SHORT) + [name for name in COLUMNS if name not in SHORT.values()])
                raise ValueError(f"map: unknown column {ours!r}; known are {known}")
            if name in canonical:
                raise ValueError(f"map: {name} is mapped twice, to {canonical[name]!r} and {theirs!r}; keep one")
            taken = next((other for other, column in canonical.items() if column == theirs), None)
            if taken is not None:
                raise ValueError(f"map: column {theirs!r} is named twice, for {taken} and {name}; keep one")
            canonical[name] = theirs
        return canonical

    @field_validator("responses")
    @classmethod
    def _named(cls, rules: dict[str, str]) -> dict[str, str]:
        for value, rule in rules.items():
            if rule == ORGANIC or rule.partition(":")[::2] == (ORGANIC, ""):
                raise ValueError(f"responses: {value}={rule} names no response; write {value}={ORGANIC}:click")
        return rules

    @property
    def separator(self) -> str:
        return ","

    def read(self, raw: Path, out: Path, spool: Path, tick: Tick = no_tick) -> Reading:
        reading = Reading()
        tick("reading columns", 0.0)
        tables = [self._open(file, reading) for file in log_files(raw)]
        options = LogOptions(time_unit=self.time_unit, string_ids=self.string_ids)
        write_canonical(Log(raw, options, tables), out, reading, tick)
        kept = reading.kept["impressions"] + reading.kept.get("organic", 0)
        reading.read["rows"] = kept + sum(reading.dropped.values())
        return reading

    def _open(self, file: Path, reading: Reading) -> RawTable:
        table = scan(file, self.text, self.separator)
        for name, own in self.map.items():
            if own not in table.columns:
                found = ", ".join(table.columns) or "none"
                raise InputError(
                    f"{file} has no column {own!r}, which the mapping names for {name}; the columns found, separated "
                    f"by {self.separator!r}, are {found}."
                )
        if table.text and not refuse_cut_short(table):
            reading.remarks.append(f"{file.name} ends without a line end; if it was cut short there, copy it again")
        own_names = {name: self.map.get(name, name) for name in COLUMNS}
        mapped = set(self.map.values())  # a column that is mapped is not also taken by its own name
        table = pick_columns(
            table, {name: own for name, own in own_names.items() if name in self.map or own not in mapped}
        )
        return self._answered(table, reading) if self.responses else table

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
        translated = [value.replace(names).alias("response")]
        if organic:
            told = pl.col("organic").cast(pl.String) if "organic" in table.columns else pl.lit("false")
            translated.append(pl.when(value.is_in(organic)).then(pl.lit("true")).otherwise(told).alias("organic"))
        columns = tuple(dict.fromkeys((*table.columns, *(["organic"] if organic else []))))
        return replace(table, frame=kept.with_columns(translated), columns=columns)


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
    organic = pl.col("organic").sum() if log.has("organic") else pl.lit(0)
    columns = [pl.len(), organic.alias("organic"), *(pl.col(name).n_unique() for name in ("session_id", "item_id"))]
    rows, found, sessions, items = pl.scan_parquet(out, glob=False).select(columns).collect(engine="streaming").row(0)
    reading.kept = {"impressions": rows - found} | ({"organic": found} if log.has("organic") else {})
    reading.kept |= {"sessions": sessions, "items": items}
