"""Data sets that are made from what is in memory and never need a folder: `Dataset.from_frame`, `from_sequences`."""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bcd4rec.data.dataset import FORMAT, Dataset
from bcd4rec.data.features import ItemFeatures
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.responses import Responses
from bcd4rec.data.schema import Log, default_responses
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.sessions import CHUNK_ROWS
from bcd4rec.data.state_table import StateTable
from bcd4rec.data.states import HISTORY, IntArray, Rows, States
from bcd4rec.data.tables import COLUMNS, ROW, RawTable, pick_columns
from bcd4rec.data.transitions import TransitionConfig, chunk_transitions
from bcd4rec.errors import InputError
from bcd4rec.seeding import generator

CLICKS = Responses(rewards={"skip": 0.0, "click": 1.0})


def dataset_of_frame(
    frame: pl.DataFrame,
    rewards: Responses | Mapping[str, float] | None,
    config: PrepareConfig | None,
    seed: int,
    items: pl.DataFrame | ItemFeatures | None = None,
) -> Dataset:
    """What `prepare` makes of the log in `frame`, in memory; messages call the log `frame` and the features `items`."""
    table = _table_of(frame, "frame")
    log = Log(table.path, tables=[pick_columns(table, {column: column for column in COLUMNS})])
    if isinstance(items, pl.DataFrame):
        items = ItemFeatures.of_table(_table_of(items, "items"), "item_id", log.id_types["item_id"])
    if rewards is None:
        rewards = default_responses(log)
    elif not isinstance(rewards, Responses):
        rewards = Responses.parse({"rewards": dict(rewards)}, "rewards")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "dataset"
        prepare(log, rewards, config or PrepareConfig(), out, seed, features=items)
        dataset = Dataset.load(out)
        dataset.states = States(np.array(dataset.states.positives), np.array(dataset.states.skips))  # the files go
    return dataset


def _table_of(frame: pl.DataFrame, name: str) -> RawTable:
    rows = frame.lazy().with_row_index(ROW, offset=1)
    return RawTable(Path(name), rows, tuple(frame.columns), text=False)


def dataset_of_sequences(sequences: Sequences, n_items: int) -> Dataset:
    """Every item a click at a step of its own, all of it `train`; an item's id is its index.

    Sessions without items are left out, as no log would hold them.
    """
    items = np.ascontiguousarray(sequences.items, np.int32)
    lengths = sequences.lengths[sequences.lengths > 0]
    if not len(items):
        raise InputError("The sessions hold no items; expected at least one to learn from.")
    if items.min() < 0 or items.max() >= n_items:
        raise ValueError(f"item indices from {items.min()} to {items.max()} in a catalogue of {n_items} items")
    config, rng = (
        TransitionConfig.parse({"history": "positives", "length": HISTORY}, "history"),
        generator(0, "chosen"),
    )
    distinct: list[IntArray] = []
    table = StateTable(HISTORY, 0, distinct.append)
    transitions = pl.concat([chunk_transitions(rows, config, CLICKS, table, rng) for rows in _rows(items, lengths)])
    positives = np.concatenate(distinct)
    states = States(positives, np.empty((len(positives), 0), np.int32))
    counts = np.bincount(items, minlength=n_items)
    frames = {
        "items": pl.DataFrame({"item_id": np.arange(n_items), "impressions": counts, "positives": counts}).select(
            "item_id", pl.lit(None, pl.String).alias("category"), "impressions", "positives"
        ),
        "sessions": pl.DataFrame({"session_id": np.arange(len(lengths)), "rows": lengths}).select(
            "session_id", split=pl.lit("train"), start=pl.lit(0), end=pl.col("rows") - 1, rows="rows", organic=pl.lit(0)
        ),
    }
    digest = hashlib.sha256(b"%d\0" % n_items + lengths.astype("<i8").tobytes() + items.astype("<i4").tobytes())
    manifest: dict[str, Any] = {
        "kind": "dataset",
        "format": FORMAT,
        "config": config.model_dump(),
        "responses": CLICKS.model_dump(mode="json"),
        "counts": {name: len(part) for name, part in frames.items()}
        | {"impressions": len(items), "organic": 0, "transitions": len(transitions), "states": len(states)},
        "content_hash": digest.hexdigest(),
    }
    return Dataset(manifest, frames["items"], frames["sessions"], transitions, states)


def _rows(items: IntArray, lengths: Rows) -> Iterator[pl.DataFrame]:
    """Rows of whole sessions, about `CHUNK_ROWS` at a time, as `SessionIndex.chunks` yields them."""
    ends = np.cumsum(lengths)
    cuts = np.flatnonzero(np.diff((ends - lengths) // CHUNK_ROWS, prepend=-1, append=-1))
    for first, last in pairwise(cuts.tolist()):
        own = lengths[first:last]
        start, session = ends[first] - lengths[first], np.repeat(np.arange(first, last), own)
        step = np.arange(start, ends[last - 1]) - np.repeat(ends[first:last] - own, own)
        yield pl.DataFrame(
            {
                "session": session.astype(np.uint32),
                "step": step.astype(np.uint32),
                "item": items[start : ends[last - 1]],
                "response": np.full(len(step), CLICKS.code("click"), np.uint8),
            }
        ).with_columns(propensity=pl.lit(None, pl.Float32), position=pl.lit(-1, pl.Int32), organic=pl.lit(False))
