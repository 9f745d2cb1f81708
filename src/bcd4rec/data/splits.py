"""Which sessions train, validate and test. A session is never in two splits, and time never flows back."""

from typing import Literal, Self

import polars as pl
from pydantic import Field, model_validator

from bcd4rec.config import Config
from bcd4rec.data.sessions import MICROSECONDS_PER_DAY
from bcd4rec.errors import InputError
from bcd4rec.seeding import generator

LONGEST_PERIOD = 1e12  # days, longer than any calendar, and a number that can still be counted


class SplitConfig(Config):
    """Splits by session (at random) or by time (named periods one after the other)."""

    by: Literal["session", "time"] = "session"
    """Draw the test sessions at random, or take periods of the calendar."""
    test: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the sessions in the split `test`, when splitting by session."""
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
    sessions: pl.DataFrame, config: SplitConfig, seed: int, clock: bool
) -> tuple[pl.DataFrame, dict[str, int]]:
    """`sessions` with a column `split`, and how many sessions were dropped, by reason.

    By time, a session belongs to the period that it lies in from its first to its last row; one that crosses
    into the next period would leak and is dropped.
    """
    if config.by == "time":
        if not clock:
            raise InputError("A split by time needs a column timestamp; this log has only steps: split by session.")
        kept, dropped = _by_time(sessions, config)
    else:
        units = _units(sessions)
        order = generator(seed, "split", "test").permutation(units.n_unique())
        test = pl.Series(order < round(config.test * len(order))).gather(units)
        split = pl.when(test).then(pl.lit("test")).otherwise(pl.lit("train"))
        kept, dropped = sessions.with_columns(split.alias("split")), {}
    units = _units(kept)
    train = units.filter(kept["split"] == "train").unique(maintain_order=True)
    if train.is_empty():
        raise InputError("No session is left to train on; make the train period longer or the test share smaller.")
    chosen = generator(seed, "split", "validation").permutation(len(train))[: round(config.validation * len(train))]
    validation = pl.lit(units.is_in(train.gather(chosen).implode())) & (pl.col("split") == "train")
    return kept.with_columns(
        pl.when(validation).then(pl.lit("validation")).otherwise(pl.col("split")).alias("split")
    ), dropped


def _units(sessions: pl.DataFrame) -> pl.Series:
    """(sessions,) what is drawn as a whole: the number of the user, or of the session where nobody knows the user."""
    if "user_id" not in sessions.columns:
        return pl.Series(range(len(sessions)), dtype=pl.Int64)
    numbered = sessions.select(pl.struct("user_id", pl.when(pl.col("user_id").is_null()).then("session_id")))
    return numbered.to_series().rank("dense").cast(pl.Int64) - 1


def _by_time(sessions: pl.DataFrame, config: SplitConfig) -> tuple[pl.DataFrame, dict[str, int]]:
    begin = int(sessions["start"].min()) // MICROSECONDS_PER_DAY * MICROSECONDS_PER_DAY  # type: ignore[arg-type]
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
