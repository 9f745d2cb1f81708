"""How sure a number is: the bootstrap over sessions, paired where policies met the same sessions.

Requests of one session are not independent, sessions are: so whole sessions are drawn with replacement, and a
ratio keeps the numerator and the denominator of a session together.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from bcd4rec.data.states import Doubles
from bcd4rec.errors import InputError
from bcd4rec.evaluation.metrics import coverage, gap_closed, in_first
from bcd4rec.seeding import generator

RESAMPLES = 2000
LEVEL = 0.95
CHUNK = 1 << 19  # draws held in memory at once: 4 MiB of indices and as much of values
Z = 1.959963984540054  # the normal distribution has 95 % of its mass within ± Z


class Interval(NamedTuple):
    """A value with its 95 % interval; low ≤ value ≤ high."""

    value: float
    low: float
    high: float

    def text(self, decimals: int = 1) -> str:
        return f"{self.value:.{decimals}f} [{self.low:.{decimals}f}, {self.high:.{decimals}f}]"


class Ratio(NamedTuple):
    """scale · Σ numerator / Σ denominator over the sessions of a table; without a denominator a mean over sessions."""

    numerator: str
    denominator: str | None = None
    scale: float = 1.0

    def columns(self, sessions: pl.DataFrame) -> Doubles:
        """(2, sessions) numerator and denominator of each session, ordered by `session_id`."""
        if sessions.is_empty():
            raise InputError("There are no sessions to measure; expected at least one.")
        table = sessions.sort("session_id")
        bottom = np.ones(len(table)) if self.denominator is None else table[self.denominator].to_numpy()
        return np.stack([table[self.numerator].to_numpy(), bottom]).astype(np.float64)

    def of(self, sums: Doubles) -> Doubles:
        """The ratio of (2, …) sums."""
        ratio: Doubles = self.scale * sums[0] / sums[1]
        return ratio

    def value(self, sessions: pl.DataFrame) -> float:
        return float(self.of(self.columns(sessions).sum(axis=1)))


RATE = Ratio("targets", "steps", 100.0)
RETURN = Ratio("return")
DISCOUNTED_RETURN = Ratio("discounted_return")
OUTSIDE = Ratio("outside", "shown", 100.0)


def resampled_sums(columns: Doubles, rng: np.random.Generator, resamples: int = RESAMPLES) -> Doubles:
    """(C, resamples) sums of (C, n) columns over n draws with replacement; all columns share the draws."""
    count = columns.shape[1]
    rows = max(1, CHUNK // count)
    sums: Doubles = count * np.repeat(columns[:, :1], resamples, axis=1)  # right already where a column is constant
    varying = [(column, total) for column, total in zip(columns, sums, strict=True) if np.ptp(column) > 0]
    for start in range(0, resamples, rows):
        drawn = rng.integers(count, size=(min(rows, resamples - start), count))
        for column, total in varying:
            total[start : start + rows] = column[drawn].sum(axis=1)
    return sums


def percentile(value: float, replicates: Doubles, level: float) -> Interval:
    """The percentile interval, widened to the value where rounding or a skewed resample leaves it just outside."""
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, min(float(low), value), max(float(high), value))


def _streams(tables: Sequence[pl.DataFrame], paired: bool | None) -> list[int]:
    """A stream for each table. Tables of the same sessions share one, and with it every draw: that is the pairing."""
    ids = [table["session_id"].sort() for table in tables]
    same = [[a.dtype == b.dtype and a.equals(b) for b in ids] for a in ids]
    if paired and not all(same[0]):
        other = same[0].index(False)
        raise InputError(
            f"A paired comparison needs the same sessions on both sides, but found {len(ids[0])} and {len(ids[other])} "
            "sessions with different ids; evaluate both on the same users or compare unpaired."
        )
    return list(range(len(tables))) if paired is False else [row.index(True) for row in same]


def _replicates(
    tables: Sequence[pl.DataFrame], ratio: Ratio, seed: int, resamples: int, paired: bool | None
) -> list[Doubles]:
    streams = _streams(tables, paired)
    return [
        ratio.of(resampled_sums(ratio.columns(table), generator(seed, "bootstrap", stream), resamples))
        for table, stream in zip(tables, streams, strict=True)
    ]


def interval(
    sessions: pl.DataFrame, ratio: Ratio = RATE, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> Interval:
    """A ratio over the sessions of a `per_session` table."""
    (replicates,) = _replicates([sessions], ratio, seed, resamples, None)
    return percentile(ratio.value(sessions), replicates, level)


def difference(
    first: pl.DataFrame,
    second: pl.DataFrame,
    ratio: Ratio = RATE,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    paired: bool | None = None,
) -> Interval:
    """first − second. By default paired when both tables have the same session ids; True insists on it."""
    one, other = _replicates([first, second], ratio, seed, resamples, paired)
    return percentile(ratio.value(first) - ratio.value(second), one - other, level)


def gap_interval(
    method: pl.DataFrame,
    behaviour: pl.DataFrame,
    online: pl.DataFrame,
    ratio: Ratio = RATE,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    paired: bool | None = None,
) -> Interval | None:
    """The share of the gap closed, in percent; tables of the same sessions are resampled together.

    None where the gap itself is not surely above 0, because a share of it would mean nothing. The few resamples
    without a gap are left out.
    """
    tables = [method, behaviour, online]
    share = gap_closed(*(ratio.value(table) for table in tables))
    one, low, high = _replicates(tables, ratio, seed, resamples, paired)
    gap = high - low
    if share is None or np.quantile(gap, (1 - level) / 2) <= 0:
        return None
    return percentile(share, 100 * ((one - low)[gap > 0] / gap[gap > 0]), level)


def coverage_interval(log: pl.DataFrame, n_items: int, x: int = 3) -> Interval:
    """C@x of as many sessions again, by the jackknife: what leaving out each session in turn would change.

    Not by the bootstrap: a resample repeats sessions and never meets an unseen item, so its interval for a count
    of distinct items is too narrow. The jackknife's is rather too wide.
    """
    value = coverage(log, n_items, x)
    session = pl.col("session_id")
    sessions = in_first(log, x).group_by("item_id").agg(first=session.min(), last=session.max())
    only = sessions.filter(pl.col("first") == pl.col("last"))  # items that one session alone has shown
    count = log["session_id"].n_unique()
    lost = only.group_by("first").len()["len"].cast(pl.Int64)  # what the coverage loses without that session
    squares = int((lost**2).sum()) - int(lost.sum()) ** 2 / count  # Σ (lost − mean)² over all sessions
    half = Z * 100 / n_items * float(np.sqrt((count - 1) / count * squares))
    return Interval(value, max(0.0, value - half), min(100.0, value + half))


def wilson(successes: Doubles, trials: Doubles) -> tuple[Doubles, Doubles]:
    """95 % limits, in percent, of a share of independent trials (Wilson's score interval)."""
    centre = (successes + Z**2 / 2) / (trials + Z**2)
    half = Z / (trials + Z**2) * np.sqrt(successes * (trials - successes) / trials + Z**2 / 4)
    return 100 * np.clip(centre - half, 0, 1), 100 * np.clip(centre + half, 0, 1)
