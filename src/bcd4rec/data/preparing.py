"""`prepare`: a log becomes a data set, in streaming; the same log and seed give the same bytes."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from bcd4rec.artifacts import atomic_directory, refuse_existing
from bcd4rec.config import Config
from bcd4rec.data.dataset import FORMAT, write_manifest
from bcd4rec.data.earlier import with_earlier
from bcd4rec.data.features import ItemFeatures
from bcd4rec.data.origin import origin_of_log
from bcd4rec.data.responses import Responses
from bcd4rec.data.schema import BadLog, Log, row_problems
from bcd4rec.data.sessions import SessionIndex, Tick, no_tick
from bcd4rec.data.splits import SplitConfig, assign_splits
from bcd4rec.data.state_table import StateTable, state_files
from bcd4rec.data.transitions import TransitionConfig, chunk_transitions
from bcd4rec.data.warnings import Warned, unknown_items
from bcd4rec.seeding import generator

ROW_GROUP = 1_000_000  # transitions; fixed, so that the bytes of a data set do not depend on how it was cut into chunks


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
) -> dict[str, Any]:
    """Write the data set of `log` to the folder `out` and return its manifest.

    `reading` is what a reader of a raw format did to make the log; the manifest keeps it, and the log's origin.
    """
    refuse_existing(out, force)
    tick("checking rows", 0.0)
    if problems := row_problems(log, responses):
        raise BadLog(problems)
    index = with_earlier(SessionIndex.build(log, responses, tick), config.earlier)
    logged = index.items
    if features is not None:
        index = replace(index, items=features.catalogue(logged))
    sessions, dropped = assign_splits(index.sessions, config.split, seed, log.clock)
    length, skips = config.transitions.sizes(sessions["positives"], sessions["skips"])
    with atomic_directory(out, force) as folder:
        with state_files(folder, length, skips) as write:
            table = StateTable(length, skips, write)
            counts = _write_transitions(folder, index, sessions, config.transitions, table, seed, tick)
        tick("writing", 0.0)
        users = ["user_id"] if log.has("user_id") else []
        columns = ("session_id", "split", "start", "end", "rows", "organic", *users)
        sessions.select(columns).write_parquet(folder / "sessions.parquet")
        items = index.items.select("item_id", "category").with_columns(
            pl.Series("impressions", counts["impressions"]), pl.Series("positives", counts["positives"])
        )
        if features is not None:
            items = features.of(items)
        items.write_parquet(folder / "items.parquet")
        told = {"reading": reading, "origin": origin_of_log(log)}
        told |= {"features": features.told(items, logged) if features is not None else None}
        manifest = {
            "kind": "dataset",
            "format": FORMAT,
            "config": config.transitions.model_dump()
            | {"length": length, "skips": skips, "automatic": _automatic(config.transitions)}
            | {"split": config.split.model_dump(), "seed": seed}
            | ({"earlier": config.earlier} if config.earlier else {}),
            "responses": responses.model_dump(mode="json"),
            "counts": _counts(sessions, index, counts, len(table)),
            "availability": counts["availability"],
            "dropped": dropped,
            "warnings": [warned.to_json() for warned in _warnings(counts)],
            "clock": log.clock,
        } | {name: value for name, value in told.items() if value is not None}
        return write_manifest(folder, manifest)


def _warnings(counts: dict[str, Any]) -> list[Warned]:
    held_out = counts["held_out"]
    warned = unknown_items(int(held_out.sum()), int(held_out[counts["impressions"] == 0].sum()))
    return [] if warned is None else [warned]


def _automatic(config: TransitionConfig) -> list[str]:
    """Which sizes were taken from the log."""
    sizes = {"length": config.length} | ({"skips": config.skips} if config.history == "all" else {})
    return [name for name, size in sizes.items() if size is None]


def _write_transitions(
    folder: Path,
    index: SessionIndex,
    sessions: pl.DataFrame,
    config: TransitionConfig,
    table: StateTable,
    seed: int,
    tick: Tick,
) -> dict[str, Any]:
    """Append chunk after chunk to one Parquet file, and count what each item and response got."""
    rng = generator(seed, "chosen")
    train = (sessions["split"] == "train").to_numpy()
    held_out = sessions["split"].is_in(["validation", "test"]).to_numpy()
    positive = [index.responses.code(name) for name in index.responses.positive]
    impressions, later = np.zeros(len(index.items), np.int64), np.zeros(len(index.items), np.int64)
    positives = np.zeros(len(index.items), np.int64)
    by_response = np.zeros(len(index.responses.names), np.int64)
    availability: Counter[str] = Counter()
    requested: set[str] = set()
    writer = _TransitionWriter(folder / "transitions.parquet")
    try:
        for rows in index.chunks(folder, sessions, tick):
            shown = rows.filter(~pl.col("organic"))
            seen = shown.filter(pl.Series(train[shown["session"].to_numpy()]))
            impressions += np.bincount(seen["item"], minlength=len(impressions))
            tested = shown.filter(pl.Series(held_out[shown["session"].to_numpy()]))
            later += np.bincount(tested["item"], minlength=len(later))
            positives += np.bincount(seen.filter(pl.col("response").is_in(positive))["item"], minlength=len(positives))
            by_response += np.bincount(shown["response"], minlength=len(by_response))
            availability.update(shown_again(rows, positive))
            if "request_category" in rows.columns:
                requested |= set(shown["request_category"].drop_nulls())
            writer.write(chunk_transitions(rows, config, index.responses, table, rng).to_arrow())
        writer.finish()
    finally:
        writer.close()
    return {
        "impressions": impressions,
        "held_out": later,
        "positives": positives,
        "by_response": by_response,
        "rows": writer.total,
        "availability": dict(availability),
        "requested": len(requested) if index.log.has("request_category") else None,
    }


def shown_again(rows: pl.DataFrame, positive: list[int]) -> dict[str, int]:
    """Of the impressions after a positive response of their session: how many are of an item that was liked before.

    Where none is, a liked item was not available any more; where people come back to what they liked, it is.
    """
    liked = pl.col("response").is_in(positive)
    after = pl.when(liked).then(pl.col("step") + (~pl.col("organic")).cast(pl.UInt32))  # the first slate that knows it
    marked = rows.select(
        "organic",
        liked=liked,
        later=(pl.col("step") >= after.min().over("session")).fill_null(False),
        again=(pl.col("step") >= after.min().over("session", "item")).fill_null(False),
    ).filter(~pl.col("organic"))
    return {
        "impressions_after_a_like": int(marked["later"].sum()),
        "of_items_liked_before": int(marked["again"].sum()),
        "liked_again": int((marked["again"] & marked["liked"]).sum()),
    }


class _TransitionWriter:
    """Tables of any length become one Parquet file with row groups of one length."""

    def __init__(self, path: Path):
        self.total = 0
        self._path = path
        self._writer: pq.ParquetWriter | None = None
        self._waiting: pa.Table | None = None

    def write(self, table: pa.Table) -> None:
        self.total += len(table)
        waiting = table if self._waiting is None else pa.concat_tables([self._waiting, table])
        while len(waiting) >= ROW_GROUP:
            self._write_group(waiting[:ROW_GROUP])
            waiting = waiting[ROW_GROUP:]
        self._waiting = waiting

    def _write_group(self, table: pa.Table) -> None:
        self._writer = self._writer or pq.ParquetWriter(self._path, table.schema, compression="zstd")
        self._writer.write_table(table.combine_chunks())

    def finish(self) -> None:
        if self._waiting is not None and (len(self._waiting) or self._writer is None):
            self._write_group(self._waiting)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _counts(sessions: pl.DataFrame, index: SessionIndex, counts: dict[str, Any], states: int) -> dict[str, Any]:
    impressions = pl.col("rows") - pl.col("organic")
    by_split = (
        sessions.group_by("split").agg(pl.len().alias("sessions"), impressions.sum().alias("shown")).sort("split")
    )
    organic = int(sessions["organic"].sum())
    more = {"users": sessions["user_id"].n_unique()} if "user_id" in sessions.columns else {}
    more |= {"request_categories": counts["requested"]} if counts["requested"] is not None else {}
    return {
        "sessions": len(sessions),
        "sessions_by_split": dict(by_split.select("split", "sessions").iter_rows()),
        "sessions_without_impressions": sessions.filter(impressions == 0).height,
        "impressions": int(by_split["shown"].sum()),
        "impressions_by_split": dict(by_split.select("split", "shown").iter_rows()),
        "organic": organic,
        "responses": dict(zip(index.responses.names, counts["by_response"].tolist(), strict=True)),
        "transitions": counts["rows"] - organic,
        "states": states,
        "items": len(index.items),
        "categories": index.items["category"].drop_nulls().n_unique(),
    } | more
