"""Which sessions train, validate and test. A session is never in two splits, and time never flows back."""

from hashlib import blake2b
from typing import Literal, Self

import numpy as np
import polars as pl
from pydantic import Field, model_validator

from bcd4rec.config import Config
from bcd4rec.data.sessions import MICROSECONDS_PER_DAY
from bcd4rec.errors import InputError
from bcd4rec.seeding import generator

AT_ONCE = 100_000  # ids that are hashed at once
LONGEST_PERIOD = 1e12  # days, longer than any calendar, and a number that can still be counted


class SplitConfig(Config):
    """Splits by session (at random), by a hash of its id, or by time (named periods one after the other)."""

    by: Literal["session", "hash", "time"] = "session"
    """Draw the test sessions at random, or take periods of the calendar. By hash a session's split depends on nothing
    but its user (or its own id) and the seed, so that it stays when days are added; shares are then approximate."""
    test: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the sessions in the split `test`, when splitting by session or by hash."""
    periods: dict[str, float] = Field(default_factory=dict)
    """Days of each named period from the first day of the log on, e.g. user=60, train=30, test=30."""
    validation: float = Field(default=0.2, ge=0.0, lt=1.0)
    """Share of the `train` sessions that become the split `validation`."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.by == "time":
            if "train" not in self.periods:
                raise ValueError("a split by time needs a period called train, e.g. train=30,test=30")
            if self.test:
                raise ValueError("a split by time takes its test sessions from a period, not from a share")
            if any(not 0 < days <= LONGEST_PERIOD for days in self.periods.values()):
                raise ValueError(f"every period needs a number of days above 0 and at most {LONGEST_PERIOD:g}")
            if "validation" in self.periods:
                raise ValueError("validation is a share of train and cannot be a period")
        elif self.periods:
            raise ValueError("periods are for a split by time")
        return self


def assign_splits(
    sessions: pl.DataFrame, config: SplitConfig, seed: int, clock: bool, begin: int | None = None
) -> tuple[pl.DataFrame, dict[str, int]]:
    """`sessions` with a column `split`, and how many sessions were dropped, by reason.

    By time, a session belongs to the period that it lies in from its first to its last row; one that crosses
    into the next period would leak and is dropped. The first period begins at `begin`, or on the day of the first row.
    """
    if config.by == "hash":
        return _by_hash(sessions, config, seed), {}
    if config.by == "time":
        if not clock:
            raise InputError(
                "A split by time needs a column timestamp (--map time=COLUMN); this log has only steps: split by "
                "session."
            )
        kept, dropped = _by_time(sessions, config, first_day(sessions) if begin is None else begin)
    else:
        units = _units(sessions)
        order = generator(seed, "split", "test").permutation(units.n_unique())
        test = pl.Series(order < round(config.test * len(order))).gather(units)
        split = pl.when(test).then(pl.lit("test")).otherwise(pl.lit("train"))
        kept, dropped = sessions.with_columns(split.alias("split")), {}
    units = _units(kept)
    train = units.filter(kept["split"] == "train").unique(maintain_order=True)
    chosen = generator(seed, "split", "validation").permutation(len(train))[: round(config.validation * len(train))]
    validation = pl.lit(units.is_in(train.gather(chosen).implode())) & (pl.col("split") == "train")
    return kept.with_columns(
        pl.when(validation).then(pl.lit("validation")).otherwise(pl.col("split")).alias("split")
    ), dropped


def refuse_no_train(sessions: pl.DataFrame) -> None:
    if not (sessions["split"] == "train").any():
        raise InputError("No session is left to train on; make the train period longer or the test share smaller.")


def refuse_unstable(config: SplitConfig) -> None:
    """Sessions that are added later must not move others from one split to another."""
    if config.by == "session":
        raise InputError(
            "Nothing can be added to a data set whose splits were drawn among all its sessions at once; prepare it "
            "anew with --split hash, which stays as it is."
        )
    if config.by == "time" and config.validation:
        raise InputError(
            "Nothing can be added to a data set whose validation sessions were drawn among all of its train period at "
            "once; prepare it anew with --split hash, or with --validation 0."
        )


def first_day(sessions: pl.DataFrame) -> int:
    """When the day of the first row begins, in microseconds since 1970."""
    return int(sessions["start"].min()) // MICROSECONDS_PER_DAY * MICROSECONDS_PER_DAY  # type: ignore[arg-type]


def _by_hash(sessions: pl.DataFrame, config: SplitConfig, seed: int) -> pl.DataFrame:
    user = pl.col("user_id").cast(pl.String) if "user_id" in sessions.columns else pl.lit(None, pl.String)
    unit = pl.coalesce(pl.lit("user ") + user, pl.lit("session ") + pl.col("session_id").cast(pl.String))
    names = sessions.select(unit.alias("unit"))["unit"]
    drawn = np.empty((len(names), 2), np.uint64)
    key = seed.to_bytes(16, "little")
    for first in range(0, len(names), AT_ONCE):
        part = names[first : first + AT_ONCE]
        digests = (blake2b(name.encode(), digest_size=16, key=key).digest() for name in part)
        drawn[first : first + AT_ONCE] = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
    chances = drawn / np.float64(2**64)
    return sessions.with_columns(
        pl.when(pl.Series(chances[:, 0] < config.test))
        .then(pl.lit("test"))
        .when(pl.Series(chances[:, 1] < config.validation))
        .then(pl.lit("validation"))
        .otherwise(pl.lit("train"))
        .alias("split")
    )


def _units(sessions: pl.DataFrame) -> pl.Series:
    """(sessions,) what is drawn as a whole: the number of the user, or of the session where nobody knows the user."""
    if "user_id" not in sessions.columns:
        return pl.Series(range(len(sessions)), dtype=pl.Int64)
    numbered = sessions.select(pl.struct("user_id", pl.when(pl.col("user_id").is_null()).then("session_id")))
    return numbered.to_series().rank("dense").cast(pl.Int64) - 1


def _by_time(sessions: pl.DataFrame, config: SplitConfig, begin: int) -> tuple[pl.DataFrame, dict[str, int]]:
    split = pl.lit(None, pl.String)
    for name, days in config.periods.items():
        end = begin + round(days * MICROSECONDS_PER_DAY)
        split = pl.when((pl.col("start") >= begin) & (pl.col("end") < end)).then(pl.lit(name)).otherwise(split)
        begin = end
    marked = sessions.with_columns(split.alias("split"))
    kept = marked.filter(pl.col("split").is_not_null())
    after = marked.filter(pl.col("split").is_null() & (pl.col("start") >= begin)).height
    dropped = {
        "sessions across two periods": marked.height - kept.height - after,
        "sessions after the last period": after,
    }
    return kept, {reason: count for reason, count in dropped.items() if count}
