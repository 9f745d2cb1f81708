"""`prepare`: a log becomes a data set, in streaming; the same log and seed give the same bytes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import Field

from bcd4rec.artifacts import atomic_directory, refuse_existing
from bcd4rec.config import Config
from bcd4rec.data import tags
from bcd4rec.data.content import MOST_TAGS, tags_beyond
from bcd4rec.data.dataset import FORMAT, write_manifest
from bcd4rec.data.earlier import with_earlier
from bcd4rec.data.features import ItemFeatures
from bcd4rec.data.log_counts import Warned
from bcd4rec.data.ordering import ChunkFile
from bcd4rec.data.origin import origin_of_log
from bcd4rec.data.responses import Responses
from bcd4rec.data.row_counts import RowCounts, Splits, shown_again
from bcd4rec.data.schema import BadLog, Log, row_problems
from bcd4rec.data.sessions import SessionIndex, Tick, no_tick
from bcd4rec.data.splits import SplitConfig, assign_splits, first_day, refuse_no_train
from bcd4rec.data.state_table import Distinct, StateTable, state_files
from bcd4rec.data.transition_file import TransitionFile
from bcd4rec.data.transitions import Chunk, TransitionConfig, chunk_transitions, visited_states
from bcd4rec.data.warnings import many_tags, unknown_items
from bcd4rec.errors import InputError
from bcd4rec.runner.mapping import ALONE, Helpers
from bcd4rec.seeding import generator


class PrepareConfig(Config):
    """How a log becomes a data set."""

    transitions: TransitionConfig = Field(default_factory=TransitionConfig)
    """States and transitions."""
    split: SplitConfig = Field(default_factory=SplitConfig)
    """Train, validation, test."""
    earlier: int = Field(default=0, ge=0, le=1000)
    """How many of the items that a user liked before open each of her later sessions, as organic events."""


def prepare(
    log: Log,
    responses: Responses,
    config: PrepareConfig,
    out: Path,
    seed: int = 0,
    force: bool = False,
    tick: Tick = no_tick,
    reading: dict[str, Any] | None = None,
    features: ItemFeatures | None = None,
    side_by_side: Helpers = ALONE,
) -> dict[str, Any]:
    """Write the data set of `log` to the folder `out` and return its manifest.

    `reading` is what a reader of a raw format did to make the log; the manifest keeps it, and the log's origin. Whoever
    prepares chunks `side_by_side`, the bytes are the same.
    """
    refuse_existing(out, force)
    index = with_earlier(index_of(log, responses, tick), config.earlier)
    logged = index.items
    if features is not None:
        index = replace(index, items=features.catalogue(logged))
    sessions, dropped = assign_splits(index.sessions, config.split, seed, log.clock)
    refuse_no_train(sessions)
    length, skips = config.transitions.sizes(sessions["positives"], sessions["skips"])
    with atomic_directory(out, force) as folder:
        tally = RowCounts(len(index.items), responses, log.has("request_category"))
        with (
            state_files(folder, length, skips) as write,
            TransitionFile(folder / "transitions.parquet") as transitions,
        ):
            table = StateTable(length, skips, write)
            made = Draft(folder, table, transitions, tally, Splits(sessions), own_categories(log, features))
            made.add(index, sessions, config.transitions, seed, tick, side_by_side)
        tick("writing", 0.0)
        about = {
            "config": config.transitions.model_dump()
            | {"length": length, "skips": skips, "automatic": _automatic(config.transitions)}
            | {"split": config.split.model_dump(), "seed": seed}
            | ({"begin": first_day(index.sessions)} if config.split.by == "time" else {})
            | ({"earlier": config.earlier} if config.earlier else {}),
            "responses": responses.model_dump(mode="json"),
            "dropped": dropped,
            "clock": log.clock,
        }
        told = {"reading": reading, "origin": origin_of_log(log)}
        told |= {"features": features.told(index.items, logged) if features is not None else None}
        return made.finish(sessions.select(session_columns(log)), index.items, about, told, features)


def index_of(log: Log, responses: Responses, tick: Tick) -> SessionIndex:
    """The sessions and items of a log, each of whose rows is checked."""
    tick("checking rows", 0.0)
    if problems := row_problems(log, responses):
        raise BadLog(problems)
    return SessionIndex.build(log, responses, tick)


def own_categories(log: Log, features: ItemFeatures | None) -> str | None:
    """What the log calls the categories of its items; None where a file of items tells some, too."""
    joined = features is not None and {"category", "categories"} & set(features.kinds)
    return None if joined or not log.has("category") else log.tables[0].name("category")


def session_columns(log: Log) -> list[str]:
    """Of `sessions.parquet`."""
    return ["session_id", "split", "start", "end", "rows", "organic", *(["user_id"] if log.has("user_id") else [])]


def _automatic(config: TransitionConfig) -> list[str]:
    """Which sizes were taken from the log."""
    sizes = {"length": config.length} | ({"skips": config.skips} if config.history == "all" else {})
    return [name for name, size in sizes.items() if size is None]


@dataclass(frozen=True)
class ChunkWork:
    """What can be done with the rows of some sessions alone, in any process."""

    file: ChunkFile
    config: TransitionConfig
    responses: Responses
    length: int
    skips: int


@dataclass(frozen=True)
class Digested:
    """Rows in order, the distinct states that they come through, and what is shown again."""

    rows: pl.DataFrame
    distinct: Distinct
    again: dict[str, int]

    @classmethod
    def of(cls, work: ChunkWork) -> "Digested":
        rows = work.file.rows()
        visited = visited_states(Chunk(rows, work.responses), work.config, work.length, work.skips)
        return cls(rows, visited.distinct(), shown_again(rows, work.responses))

    @classmethod
    def of_file(cls, work: ChunkWork, again: dict[str, int]) -> "Digested":
        """What `into_file` has left."""
        rows = pl.scan_ipc(work.file.path, glob=False).collect()
        with np.load(_beside(work), allow_pickle=False) as arrays:
            distinct = Distinct(**{name: arrays[name] for name in arrays.files})
        _beside(work).unlink()
        return cls(rows, distinct, again)


def into_file(work: ChunkWork) -> dict[str, int]:
    """For other processes, which have only files in common with this one: what was found takes the rows' place."""
    found = Digested.of(work)
    found.rows.write_ipc(work.file.path, compression="lz4")
    np.savez(_beside(work), **vars(found.distinct))
    return found.again


def _beside(work: ChunkWork) -> Path:
    return work.file.path.with_suffix(".npz")


def digested(works: list[ChunkWork], side_by_side: Helpers) -> Iterator[Digested]:
    """Of each chunk, in their order."""
    if side_by_side.alone:
        yield from map(Digested.of, works)
        return
    try:
        for work, again in zip(works, side_by_side.map(into_file, works), strict=True):
            yield Digested.of_file(work, again)
    except FileNotFoundError as error:
        raise InputError(
            f"A worker does not see {error.filename or works[0].file.path}; with --ray ADDRESS write the data set to a "
            "folder that all machines share."
        ) from None


@dataclass(frozen=True)
class Draft:
    """A data set that is being written."""

    folder: Path
    table: StateTable
    transitions: TransitionFile
    tally: RowCounts
    splits: Splits  # of all its sessions, also of those that are to come
    categories: str | None  # what the log calls those of its items, where no file of items joins in

    def add(
        self,
        index: SessionIndex,
        sessions: pl.DataFrame,
        config: TransitionConfig,
        seed: int,
        tick: Tick,
        side_by_side: Helpers,
    ) -> None:
        """Append the sessions of a log, chunk after chunk; they stand behind those that are there."""
        rng = generator(seed, "chosen")
        before = len(self.splits.train) - len(sessions)
        files = index.chunk_files(self.folder, sessions, tick)
        works = [ChunkWork(one, config, index.responses, self.table.length, self.table.skips) for one in files]
        with index.worded(sessions):
            for number, (work, found) in enumerate(zip(works, digested(works, side_by_side), strict=True)):
                tick("sessions to transitions", number / len(works))
                rows = found.rows.with_columns(pl.col("session") + pl.lit(before, pl.UInt32)) if before else found.rows
                self.tally.add(rows, self.splits, found.again)
                self.transitions.write(
                    chunk_transitions(rows, config, index.responses, self.table, rng, found.distinct)
                )
                work.file.path.unlink()

    def finish(
        self,
        sessions: pl.DataFrame,
        items: pl.DataFrame,
        about: dict[str, Any],
        told: dict[str, Any],
        features: ItemFeatures | None = None,
        warned: list[Warned] | None = None,
    ) -> dict[str, Any]:
        """Write what is left: sessions, items, and the manifest. `told` is left out where it is nothing."""
        sessions.write_parquet(self.folder / "sessions.parquet")
        counted = items.select("item_id", "category").with_columns(
            pl.Series("impressions", self.tally.impressions),
            pl.Series("positives", self.tally.positives),
            *(items[name] for name in ("categories",) if name in items.columns),
        )
        if features is not None:
            counted = features.of(counted)
        counted.write_parquet(self.folder / "items.parquet")
        manifest = {
            "kind": "dataset",
            "format": FORMAT,
            "config": about["config"],
            "responses": about["responses"],
            "counts": self._counts(sessions, items, list(about["responses"]["rewards"])),
            "availability": dict(self.tally.availability),
            "dropped": about["dropped"],
            "warnings": [one.to_json() for one in [*self._warnings(counted), *(warned or [])]],
            "clock": about["clock"],
        } | {name: value for name, value in told.items() if value is not None}
        return write_manifest(self.folder, manifest)

    def _warnings(self, items: pl.DataFrame) -> list[Warned]:
        held_out = self.tally.held_out
        unknown = unknown_items(int(held_out.sum()), int(held_out[self.tally.impressions == 0].sum()))
        lists = [name for name, dtype in items.schema.items() if dtype == pl.List(pl.String)]
        own = {"categories": self.categories}
        many = [
            many_tags(own.get(name) or f"{name} of items.parquet", MOST_TAGS, *tags_beyond(items[name]))
            for name in lists
        ]
        return [one for one in (unknown, *many) if one is not None]

    def _counts(self, sessions: pl.DataFrame, items: pl.DataFrame, responses: list[str]) -> dict[str, Any]:
        impressions = pl.col("rows") - pl.col("organic")
        by_split = (
            sessions.group_by("split").agg(pl.len().alias("sessions"), impressions.sum().alias("shown")).sort("split")
        )
        organic = int(sessions["organic"].sum())
        known = sessions["user_id"].drop_nulls() if "user_id" in sessions.columns else None
        more = {"users": known.n_unique(), "sessions_of_users": len(known)} if known is not None else {}
        more |= {"request_categories": len(self.tally.requested)} if self.tally.requested is not None else {}
        more |= {"items_of_several_categories": several} if (several := tags.several(items)) else {}
        return {
            "sessions": len(sessions),
            "sessions_by_split": dict(by_split.select("split", "sessions").iter_rows()),
            "sessions_without_impressions": sessions.filter(impressions == 0).height,
            "impressions": int(by_split["shown"].sum()),
            "impressions_by_split": dict(by_split.select("split", "shown").iter_rows()),
            "organic": organic,
            "responses": dict(zip(responses, self.tally.by_response.tolist(), strict=True)),
            "transitions": self.transitions.total - organic,
            "states": len(self.table),
            "items": len(items),
            "categories": items["category"].drop_nulls().n_unique(),
        } | more
