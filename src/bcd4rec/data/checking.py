"""`check`: is this a usable log, and what is in it?"""

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bcd4rec.data import tags
from bcd4rec.data.responses import Responses
from bcd4rec.data.schema import BadLog, Log, LogProblem, default_responses, row_problems
from bcd4rec.data.sessions import MICROSECONDS_PER_DAY, SessionIndex, Tick, no_tick
from bcd4rec.data.warnings import EARLY, LONG_SLATE, LogCounts, LogPeriod, Warned, warnings_of

LATE = 5  # one of so many sessions is late
MOST_PLACES = 1000  # of a slate that are told apart


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
    responses = index.responses
    by_response = np.zeros(len(responses.names), np.int64)
    positives = np.zeros(len(index.items), np.int64)
    requests = []  # (sessions,) steps of each session
    targets, slates, known_propensities = 0, 0, 0
    several = np.zeros(4, np.int64)  # slates of several items, with a positive, rows without position, of one position
    inverse, certain = 0.0, 0
    begin_late = len(index.sessions) - len(index.sessions) // LATE
    early, late = np.zeros(len(index.items), np.int64), np.zeros(len(index.items), np.int64)
    by_place = np.zeros((2, MOST_PLACES), np.int64)  # impressions and positive ones of long slates
    positive = [responses.code(name) for name in responses.positive]
    for events in index.chunks(spool, tick=tick):
        rows = events.filter(~pl.col("organic"))
        by_response += np.bincount(rows["response"], minlength=len(by_response))
        positives += np.bincount(rows.filter(pl.col("response").is_in(positive))["item"], minlength=len(positives))
        propensity = rows["propensity"].drop_nulls().cast(pl.Float64)
        known_propensities += len(propensity)
        inverse += float((1 / propensity).sum())
        certain += int((propensity == 1).sum())
        by_step = rows.group_by("session", "step").agg(
            (pl.col("response") == responses.code(responses.target)).any(),
            liked=pl.col("response").is_in(positive).any(),
            size=pl.len(),
            unplaced=(pl.col("position") < 0).sum(),
            one_place=(pl.col("position").n_unique() == 1) & (pl.col("position").first() >= 0),
        )
        some = by_step.filter(pl.col("size") > 1)
        several += [len(some), *(int(some[name].sum()) for name in ("liked", "unplaced", "one_place"))]
        by_place += _by_place(rows, positive)
        for counts_of, some_rows in ((early, pl.col("session") < begin_late), (late, pl.col("session") >= begin_late)):
            counts_of += np.bincount(rows.filter(some_rows)["item"], minlength=len(index.items))
        targets += int(by_step["response"].sum())
        slates += len(by_step)
        requests.append(by_step.group_by("session").len()["len"].to_numpy())
    impressions = int(by_response.sum())
    steps = np.concatenate(requests)
    items, sessions = index.items, index.sessions
    organic_skips = int((sessions["rows"] - sessions["positives"] - sessions["skips"]).sum())
    counts = LogCounts(
        sessions=len(sessions),
        sessions_of_one_slate=int((steps == 1).sum()),
        items=int((items["impressions"] > 0).sum()),
        items_shown_once=int((items["impressions"] == 1).sum()),
        impressions=impressions,
        positives=int(positives.sum()),
        propensities=known_propensities,
        slates=int(several[0]),
        slates_with_positive=int(several[1]),
        without_position=int(several[2]),
        shown_by_place=by_place[0],
        liked_by_place=by_place[1],
        organic_skips=organic_skips,
        inverse_propensities=inverse,
        certain=certain,
        slates_of_one_place=int(several[3]),
        late=int(late.sum()),
        late_unknown=int(late[early == 0].sum()),
        clock=_clock(sessions) if log.clock else None,
    )
    summary = {
        "sessions": len(sessions),
        "items": len(items),
        "categories": items["category"].drop_nulls().n_unique(),
        "items_of_several_categories": tags.several(items),
        "impressions": impressions,
        "organic": int(sessions["organic"].sum()),
        "sessions_without_impressions": len(sessions) - len(steps),
        "requests": slates,
        "slate_size": impressions / slates,
        "responses": dict(zip(responses.names, by_response.tolist(), strict=True)),
        "rates": {
            name: 100 * int(count) / impressions for name, count in zip(responses.names, by_response, strict=True)
        },
        "target": responses.target,
        "target_rate": 100 * targets / slates,
        "session_length": _spread(steps),
        "days": _days(sessions) if log.clock else None,
        "popularity": {
            "impressions": _skew(items["impressions"].to_numpy()),
            "positives": _skew(positives),
        },
        "propensities": 100 * known_propensities / impressions,
    }
    return summary, warnings_of(counts)


def _by_place(rows: pl.DataFrame, positive: list[int]) -> np.ndarray[Any, Any]:
    """(2, places) the impressions of long slates by their position, and the positive ones of them."""
    long = rows.filter(
        (pl.len().over("session", "step") >= LONG_SLATE) & pl.col("position").is_between(0, MOST_PLACES - 1)
    )
    liked = long.filter(pl.col("response").is_in(positive))
    return np.stack([np.bincount(part["position"], minlength=MOST_PLACES) for part in (long, liked)])


def _clock(sessions: pl.DataFrame) -> LogPeriod:
    first, last = int(sessions["start"].min()), int(sessions["end"].max())  # type: ignore[arg-type]
    return LogPeriod(first, last, int(time.time() * 1e6), sessions.filter(pl.col("start") < EARLY).height)


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
