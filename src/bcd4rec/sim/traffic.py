"""Days of traffic: a policy meets new users every day, and every impression gets a time."""

from collections.abc import Iterator
from datetime import date, timedelta
from typing import NamedTuple

import numpy as np
import polars as pl
from pydantic import Field

from bcd4rec.config import Config
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.policies.policy import Policy
from bcd4rec.seeding import generator, stream_seed
from bcd4rec.sim.environment import Environment
from bcd4rec.sim.rollout import RolloutConfig, rollout, with_ids, with_openings

BATCH = 2000  # users played at once, whatever the scale, so that memory does not grow with it
SHORTEST_DWELL, LONGEST_DWELL = 1_000, 1_200_000  # milliseconds; no two views of the data are further apart
GLANCE = 300, 2_500  # milliseconds spent on an item that is skipped (chosen)
FIRST_QUERY = 500, 20_000  # milliseconds from the beginning of a session to its first query (chosen)


class TrafficConfig(Config):
    """How many sessions there are on which day, and how fast users are. Fitted by `scripts/fit_shop.py`."""

    days: int = Field(default=150, ge=1, le=3650, description="How many days.")
    scale: float = Field(default=1.0, gt=0, le=1000, description="How many times the sessions of the paper's data.")
    sessions_per_day: float = Field(
        default=4843 / 30, gt=0, description="Mean sessions per day at scale 1: the paper's 4,843 in 30 days."
    )
    first_day: date = Field(default=date(2016, 1, 1), description="The first calendar day.")
    week: tuple[float, ...] = Field(
        default=(1.099, 1.166, 1.181, 0.943, 0.84, 0.74, 1.032),
        min_length=7,
        max_length=7,
        description="How busy Monday to Sunday are, the mean being 1 (fitted).",
    )
    dwell_log_mean: float = Field(
        default=10.35,
        description="Mean log of the milliseconds spent on an item that pleases (calibrated: 10.82 between two views).",
    )
    dwell_log_deviation: float = Field(default=1.22, ge=0, description="Standard deviation of the same (fitted).")


class Day(NamedTuple):
    """The canonical log of one day with `timestamp`, and for each row the milliseconds since its session began.

    `log` has the columns `asked` (when its slate was shown) and `answered` (when the user was done with the item) and
    no `step`: in a log with a clock the time is the order.
    """

    number: int
    date: date
    log: pl.DataFrame
    sessions: int


def traffic(
    environment: Environment,
    policy: Policy,
    rules: RolloutConfig,
    config: TrafficConfig,
    seed: int,
    tick: Tick = no_tick,
) -> Iterator[Day]:
    """Day after day, in streaming. Sessions are numbered from 1 over all days; every day has its own luck."""
    first = 1
    for number in range(config.days):
        tick("simulating", number / config.days)
        today = config.first_day + timedelta(days=number)
        rng = generator(seed, "traffic", number)
        busy = config.sessions_per_day * config.scale * config.week[today.weekday()]
        sessions = int(rng.poisson(busy))
        parts = []
        for done in range(0, sessions, BATCH):
            users = min(BATCH, sessions - done)
            log = rollout(environment, policy, users, stream_seed(seed, "traffic", number, done), rules)
            log = with_ids(with_openings(log, environment), environment)
            parts.append(log.with_columns(pl.col("session_id") + (first + done)))
        if parts:
            yield Day(number, today, clocked(pl.concat(parts), today, config, rng), sessions)
        first += sessions


def clocked(log: pl.DataFrame, today: date, config: TrafficConfig, rng: np.random.Generator) -> pl.DataFrame:
    """The log of one day, sorted by session, step and position, with times.

    A user looks at the items of a page one after the other: briefly at a skipped one, longer at one that pleases.
    """
    dwells = np.exp(config.dwell_log_mean + config.dwell_log_deviation * rng.standard_normal(len(log)))
    dwells = np.clip(dwells, SHORTEST_DWELL, LONGEST_DWELL)
    glances = rng.uniform(*GLANCE, len(log))
    begins = rng.uniform(*FIRST_QUERY, len(log))  # one for each session is used
    spent = np.where((log["response"] != "skip").to_numpy(), dwells, glances).astype(np.int64)
    timed = log.with_columns(spent=spent, begin=begins.astype(np.int64)).with_columns(
        answered=pl.col("begin").first().over("session_id") + pl.col("spent").cum_sum().over("session_id"),
    )
    timed = timed.with_columns(asked=(pl.col("answered") - pl.col("spent")).first().over("session_id", "step"))
    midnight = pl.lit(today).cast(pl.Datetime("ms"))
    timestamp = (midnight + pl.duration(milliseconds="asked")).alias("timestamp")
    requests = pl.format("{}-{}", "session_id", "step").alias("request_id")
    optional = ("position", "item_id", "response", "category", "propensity", "organic")
    rest = [name for name in optional if name in timed.columns]
    return timed.select("session_id", timestamp, requests, *rest, "asked", "answered")
