"""The session benchmark: next-item prediction by the baselines on real sessions."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bcd4rec.artifacts import atomic_file, refuse_existing
from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sequences import Sequences, inner_type, refuse_other_than_lists
from bcd4rec.data.states import FloatArray, IntArray
from bcd4rec.errors import InputError
from bcd4rec.evaluation.next_item import MISSED, NextItemResult, ranks_of, top_lists

K = 20
UNKNOWN = -1  # the index of an item that no training session holds


@dataclass(frozen=True)
class SessionData:
    """Training sessions and test cases. Item indices are places in `ids`, which is in ascending order."""

    ids: pl.Series
    train: Sequences
    prefixes: Sequences
    targets: IntArray  # UNKNOWN for an item that was never trained on, which is a miss


def run_sessions_benchmark(
    data: Path,
    method: str,
    settings: dict[str, Any],
    limit: int | None = None,
    lists: Path | None = None,
    seed: int = 0,
    force: bool = False,
) -> dict[str, Any]:
    """Fit `method` on the training sessions and rank the catalogue for each test case, or for the first `limit`.

    `lists` names a Parquet file for the top 20 of each case with their scores and the rank of the target.
    """
    config = BASELINES[method].parse(settings, f"method {method}")
    if lists is not None:
        refuse_existing(lists, force)
    sessions = read_sessions(data, limit)
    dataset = Dataset.from_sequences(sessions.train, len(sessions.ids))
    start = time.perf_counter()
    policy = config.fit(dataset, seed)
    fitted = time.perf_counter()
    top_lists(policy, _first(sessions.prefixes, 1), K)  # compiled code is compiled before the clock starts
    asked = time.perf_counter()
    items, scores = top_lists(policy, sessions.prefixes, K)
    answered = time.perf_counter()
    result = NextItemResult(ranks_of(items, sessions.targets), K)
    if lists is not None:
        with atomic_file(lists, force) as path:
            _lists_frame(sessions, items, scores, result.ranks).write_parquet(path)
    about = {"method": method, "settings": config.model_dump(), "seed": seed}
    counts = {"sessions": len(sessions.train), "items": len(sessions.ids), "cases": len(sessions.targets)}
    speed = {"fit_seconds": fitted - start, "queries_per_second": len(sessions.targets) / (answered - asked)}
    return about | counts | result.summary(seed) | speed


def read_sessions(data: Path, limit: int | None = None) -> SessionData:
    """`train.parquet` with a list column `items`, and `test.parquet` with a list `prefix` and a `target`."""
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}, expected at least 1 test case.")
    train = _read(data / "train.parquet", ["items"], ["items"])
    test = _read(data / "test.parquet", ["prefix", "target"], ["prefix"])
    test = test if limit is None else test.head(limit)
    ids = train["items"].explode().drop_nulls().unique().sort()
    for name, found in {"prefix": inner_type(test["prefix"].dtype), "target": test["target"].dtype}.items():
        if found.is_integer() != ids.dtype.is_integer():
            raise InputError(
                f"{data / 'test.parquet'}: {name} holds {found}, expected {ids.dtype} as in train.parquet."
            )
    train_sequences, prefixes = _sequences(train["items"], ids), _sequences(test["prefix"], ids)
    return SessionData(ids, train_sequences, prefixes, _indices(test["target"], ids))


def _read(path: Path, columns: list[str], lists: list[str]) -> pl.DataFrame:
    expected = f"expected a Parquet file with {' and '.join(columns)}"
    if not path.is_file():
        raise InputError(f"{path} is missing; {expected}.")
    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path} cannot be read ({str(error).splitlines()[0]}); {expected}.") from None
    refuse_other_than_lists(path, frame.schema, columns, lists)
    if frame.is_empty():
        raise InputError(f"{path} holds no rows; {expected} and at least one row.")
    return frame.select(columns)


def _indices(items: pl.Series, ids: pl.Series) -> IntArray:
    places = pl.DataFrame({"id": ids}).with_row_index("place")
    joined = pl.DataFrame({"id": items.cast(ids.dtype)}).join(places, on="id", how="left", maintain_order="left")
    return joined["place"].cast(pl.Int32).fill_null(UNKNOWN).to_numpy().astype(np.int32)


def _sequences(lists: pl.Series, ids: pl.Series) -> Sequences:
    """The known items of each list; what is unknown is left out, for no method could use it."""
    filled = lists.fill_null([])
    flat = _indices(filled.list.drop_nulls().explode(empty_as_null=False), ids)
    lengths = filled.list.drop_nulls().list.len().to_numpy().astype(np.int64)
    known = flat != UNKNOWN
    kept = np.append(0, np.cumsum(known))[np.append(0, np.cumsum(lengths))]
    return Sequences(flat[known], kept.astype(np.int64))


def _first(sequences: Sequences, count: int) -> Sequences:
    return Sequences(sequences.items[: sequences.offsets[count]], sequences.offsets[: count + 1])


def _lists_frame(data: SessionData, items: IntArray, scores: FloatArray, ranks: IntArray) -> pl.DataFrame:
    """One row per case: the target's id and rank (null if missed), and the ids and scores of its list."""
    columns = pl.DataFrame({"case": np.arange(len(ranks), dtype=np.uint32), "index": data.targets, "rank": ranks})
    ids = data.ids.gather(items.ravel()).reshape(items.shape).cast(pl.List(data.ids.dtype))
    return columns.select(
        "case",
        pl.Series("target", data.ids.gather(np.maximum(data.targets, 0))).set(pl.Series(data.targets == UNKNOWN), None),
        pl.when(pl.col("rank") != MISSED).then("rank").alias("rank"),
        ids.alias("items"),
        pl.Series("scores", scores).cast(pl.List(pl.Float32)),
    )
