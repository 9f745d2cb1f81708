"""`check`: is this a usable log, and what is in it?"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bcd4rec.data import tags
from bcd4rec.data.counting import Counting
from bcd4rec.data.log_counts import Warned
from bcd4rec.data.responses import Responses
from bcd4rec.data.schema import BadLog, Log, LogProblem, default_responses, row_problems
from bcd4rec.data.sessions import MICROSECONDS_PER_DAY, SessionIndex, Tick, no_tick
from bcd4rec.data.warnings import warnings_of


@dataclass(frozen=True)
class LogReport:
    """What `check` found. `summary` is empty where the problems leave nothing to summarise."""

    path: Path
    problems: list[LogProblem]
    summary: dict[str, Any]
    warnings: list[Warned] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        problems = [problem.to_json() for problem in self.problems]
        warnings = [warned.to_json() for warned in self.warnings]
        return {"log": str(self.path), "ok": not problems, "problems": problems, "warnings": warnings} | self.summary


def check(log: Log, responses: Responses | None = None, tick: Tick = no_tick) -> LogReport:
    """Validate a log and summarise it. Responses default to skip, click and buy."""
    tick("checking rows", 0.0)
    responses = responses or default_responses(log)
    problems = row_problems(log, responses)
    if problems:
        return LogReport(log.path, problems, {})
    try:
        index = SessionIndex.build(log, responses, tick)
        with tempfile.TemporaryDirectory(prefix="bcd4rec-") as spool:
            return LogReport(log.path, [], *_summarise(log, index, Path(spool), tick))
    except BadLog as bad:
        return LogReport(log.path, bad.problems, {})


def _summarise(log: Log, index: SessionIndex, spool: Path, tick: Tick) -> tuple[dict[str, Any], list[Warned]]:
    found = Counting(index)
    for events in index.chunks(spool, tick=tick):
        found.add(events)
    counts, responses = found.counts(), index.responses
    items, sessions, impressions = index.items, index.sessions, counts.impressions
    summary = {
        "sessions": len(sessions),
        "items": len(items),
        "categories": items["category"].drop_nulls().n_unique(),
        "items_of_several_categories": tags.several(items),
        "impressions": impressions,
        "organic": int(sessions["organic"].sum()),
        "sessions_without_impressions": counts.sessions_without_impressions,
        "requests": counts.requests,
        "slate_size": impressions / counts.requests,
        "responses": dict(zip(responses.names, found.by_response.tolist(), strict=True)),
        "rates": {
            name: 100 * int(count) / impressions for name, count in zip(responses.names, found.by_response, strict=True)
        },
        "target": responses.target,
        "target_rate": 100 * found.targets / counts.requests,
        "session_length": _spread(found.steps),
        "days": _days(sessions) if log.clock else None,
        "popularity": {
            "impressions": _skew(found.shown),
            "positives": _skew(found.positives),
        },
        "propensities": 100 * counts.propensities / impressions,
    }
    return summary, warnings_of(counts)


def _spread(values: np.ndarray[Any, Any]) -> dict[str, float]:
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    return {
        "mean": float(values.mean()),
        "p10": float(low),
        "median": float(middle),
        "p90": float(high),
        "max": float(values.max()),
    }


def _days(sessions: pl.DataFrame) -> dict[str, Any]:
    first, last = int(sessions["start"].min()), int(sessions["end"].max())  # type: ignore[arg-type]

    def iso(time: int) -> str:
        return str(np.datetime64(time, "us").astype("datetime64[s]"))

    return {
        "first": iso(first),
        "last": iso(last),
        "days": last // MICROSECONDS_PER_DAY - first // MICROSECONDS_PER_DAY + 1,
    }


def _skew(counts: np.ndarray[Any, Any]) -> dict[str, float]:
    """How unevenly items share: the Gini coefficient, and the share of the most popular tenth (percent)."""
    ordered = np.sort(counts)[::-1].astype(np.float64)
    total, n = ordered.sum(), len(ordered)
    if total == 0:
        return {"gini": 0.0, "top_tenth": 0.0}
    ranks = np.arange(1, n + 1)
    gini = (n + 1 - 2 * (ordered * ranks).sum() / total) / n
    return {"gini": float(gini), "top_tenth": float(100 * ordered[: max(1, n // 10)].sum() / total)}
