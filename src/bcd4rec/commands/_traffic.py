"""`bcd4rec simulate --days`: days of traffic, written as they come."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from bcd4rec.artifacts import MANIFEST, atomic_directory, atomic_file, write_json
from bcd4rec.config import OPTIONS
from bcd4rec.console import emit_json, pairs_table, progress, say, show
from bcd4rec.errors import InputError
from bcd4rec.policies.policy import Policy
from bcd4rec.sim.environment import Environment, origin_of
from bcd4rec.sim.shop import Shop
from bcd4rec.sim.shop_raw import RawWriter
from bcd4rec.sim.traffic import Day, TrafficConfig, traffic

Write = Callable[[Day], None]


def simulate_days(
    environment: Environment,
    player: Policy,
    days: int,
    scale: float,
    seed: int,
    logs: Path | None,
    raw: Path | None,
    force: bool,
    json: bool,
) -> None:
    config = TrafficConfig.parse({"days": days, "scale": scale}, OPTIONS)
    counts: Counter[str] = Counter()
    began = time.perf_counter()
    about = {"policy": player.name, "seed": seed, "days": days, "scale": scale}
    with progress() as tick, contextlib.ExitStack() as outputs:
        writers = [outputs.enter_context(one) for one in _outputs(environment, about, counts, logs, raw, force)]
        for day in traffic(environment, player, config, seed, tick):
            _count(day, counts)
            for write in writers:
                write(day)
        if not counts["sessions"]:
            raise InputError(f"No session came within {days} days at --scale {scale:g}; make one of them larger.")
    seconds = time.perf_counter() - began
    found = about | _found(counts) | {"sessions_per_second": counts["sessions"] / seconds}
    _tell(found, json)
    for path in (logs, raw):
        if path is not None:
            say(f"Written: {path}.")


def _outputs(
    environment: Environment,
    about: dict[str, Any],
    counts: Counter[str],
    logs: Path | None,
    raw: Path | None,
    force: bool,
) -> Iterator[contextlib.AbstractContextManager[Write]]:
    if logs is not None:
        yield _log_writer(logs, environment, force)
    if raw is not None and isinstance(environment, Shop):
        yield _raw_writer(raw, environment, about, counts, force)


@contextlib.contextmanager
def _log_writer(path: Path, environment: Environment, force: bool) -> Iterator[Write]:
    """The canonical log, appended to day by day."""
    with atomic_file(path, force) as partial, contextlib.ExitStack() as open_files:
        parquet: list[pq.ParquetWriter] = []
        origin = origin_of(environment)
        text = open_files.enter_context(partial.open("wb")) if path.suffix == ".csv" else None

        def write(day: Day) -> None:
            rows = day.log.drop("asked", "answered")
            if text is not None:
                rows.write_csv(text, include_header=text.tell() == 0, datetime_format="%Y-%m-%dT%H:%M:%S%.3f")
                return
            table = rows.to_arrow()
            if not parquet:
                schema = table.schema if origin is None else table.schema.with_metadata(origin.metadata())
                parquet.append(open_files.enter_context(pq.ParquetWriter(partial, schema, compression="zstd")))
            parquet[0].write_table(table)

        yield write


@contextlib.contextmanager
def _raw_writer(
    path: Path, environment: Shop, about: dict[str, Any], counts: Counter[str], force: bool
) -> Iterator[Write]:
    with atomic_directory(path, force) as partial:
        with RawWriter(partial, environment.catalogue, about["seed"], origin=environment.origin) as writer:
            yield writer.write
        write_json(partial / MANIFEST, {"kind": "raw"} | about | {"rows": writer.counts} | _found(counts))


def _count(day: Day, counts: Counter[str]) -> None:
    recommended = day.log.filter(~pl.col("organic")) if "organic" in day.log.columns else day.log
    counts["sessions"] += day.sessions
    counts["impressions"] += len(recommended)
    counts["organic"] += len(day.log) - len(recommended)
    for response, count in recommended["response"].value_counts().rows():
        counts[f"response {response}"] += count


def _found(counts: Counter[str]) -> dict[str, Any]:
    """Rates are per impression, in percent; the items that open sessions were not recommended."""
    shown = max(counts["impressions"], 1)
    rates = {
        f"{name.removeprefix('response ')}_percent": 100 * count / shown
        for name, count in sorted(counts.items())
        if name.startswith("response ")
    }
    return {name: counts[name] for name in ("sessions", "impressions", "organic")} | rates


def _tell(found: dict[str, Any], json: bool) -> None:
    if json:
        emit_json(found)
        return
    rows = [
        (
            name.replace("_percent", " %").replace("_", " "),
            f"{value:,.1f}" if isinstance(value, float) else f"{value:,}",
        )
        for name, value in found.items()
        if name != "policy"
    ]
    show(pairs_table(f"{found['policy']}, {found['days']:,} days", rows))
