"""One policy's log in a handful of numbers, and the curves behind the plots."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from bcd4rec.data.responses import Responses
from bcd4rec.errors import InputError
from bcd4rec.evaluation.metrics import gini, per_session, popularity_curve, rate_by_step, rate_name
from bcd4rec.evaluation.statistics import (
    DISCOUNTED_RETURN,
    OUTSIDE,
    RATE,
    RETURN,
    Interval,
    coverage_interval,
    gap_interval,
    interval,
    wilson,
)

COVERED = 3  # positions that count for C@3


@dataclass(frozen=True)
class Evaluation:
    """What is reported of one policy. Rates, coverage and gap are in percent, returns in the unit of the rewards."""

    policy: str
    rate_name: str  # ctr, br or <target>_rate
    rate: Interval
    coverage: Interval
    mean_return: Interval
    discounted_return: Interval
    sessions: int
    steps: int
    gap_closed: Interval | None = None  # None: no reference policies, or no gap between them
    outside: Interval | None = None  # share of shown items outside of a learned user's support; None: no such user

    def to_json(self) -> dict[str, str | int | float | None]:
        """A flat dictionary: `ctr`, `ctr_low`, `ctr_high`, `coverage@3` and so on."""
        measured = {
            self.rate_name: self.rate,
            f"coverage@{COVERED}": self.coverage,
            "return": self.mean_return,
            "discounted_return": self.discounted_return,
            "gap_closed": self.gap_closed,
        }
        flat: dict[str, str | int | float | None] = {"policy": self.policy}
        for name, found in measured.items():
            value, low, high = found if found is not None else (None, None, None)
            flat |= {name: value, f"{name}_low": low, f"{name}_high": high}
        if self.outside is not None:
            value, low, high = self.outside
            flat |= {"outside_support": value, "outside_support_low": low, "outside_support_high": high}
        return flat | {"sessions": self.sessions, "steps": self.steps}


class Gap(NamedTuple):
    """The two ends of the gap, as `per_session` tables."""

    behaviour: pl.DataFrame
    online: pl.DataFrame


def summarise(
    name: str,
    log: pl.DataFrame,
    responses: Responses,
    n_items: int,
    seed: int = 0,
    gap: Gap | None = None,
    gamma: float = 0.9,
) -> Evaluation:
    sessions = per_session(log, responses, gamma)
    return Evaluation(
        policy=name,
        rate_name=rate_name(responses),
        rate=interval(sessions, RATE, seed),
        coverage=coverage_interval(log, n_items, COVERED),
        mean_return=interval(sessions, RETURN, seed),
        discounted_return=interval(sessions, DISCOUNTED_RETURN, seed),
        sessions=len(sessions),
        steps=int(sessions["steps"].sum()),
        gap_closed=None if gap is None else gap_interval(sessions, gap.behaviour, gap.online, RATE, seed),
        outside=interval(sessions, OUTSIDE, seed) if "outside" in sessions.columns else None,
    )


def compare(
    logs: Mapping[str, pl.DataFrame],
    responses: Responses,
    n_items: int,
    behaviour: str,
    online: str,
    seed: int = 0,
    gamma: float = 0.9,
) -> list[Evaluation]:
    """All policies, each with the share it closes of the gap between two of them."""
    for name in (behaviour, online):
        if name not in logs:
            raise InputError(f"The gap needs the policy {name!r}, but there are only {', '.join(logs)}.")
    gap = Gap(per_session(logs[behaviour], responses, gamma), per_session(logs[online], responses, gamma))
    return [summarise(name, log, responses, n_items, seed, gap, gamma) for name, log in logs.items()]


class Curves(NamedTuple):
    """What the plots of one policy need; small, so that the log can be let go."""

    by_step: pl.DataFrame  # step, sessions, targets, rate, low, high
    popularity: pl.DataFrame  # rank, item_id, shown, share
    gini: float


def curves(log: pl.DataFrame, responses: Responses, n_items: int) -> Curves:
    by_step = rate_by_step(log, responses)
    low, high = wilson(*(by_step[name].to_numpy().astype(np.float64) for name in ("targets", "sessions")))
    return Curves(by_step.with_columns(low=low, high=high), popularity_curve(log, n_items), gini(log, n_items))
