"""Does an offline metric tell which of several trained policies does best online? Correlations over a grid of runs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from bcd4rec.data.states import Doubles
from bcd4rec.errors import InputError
from bcd4rec.evaluation.statistics import LEVEL, RESAMPLES, Interval, percentile
from bcd4rec.seeding import generator

FEWEST = 3  # two runs lie on a line whatever they are


class Correlation(NamedTuple):
    """Pearson's correlation of the values and of their ranks, each −1 to 1, over so many runs.

    None where there are fewer than three runs or one side does not vary.
    """

    values: Interval | None
    ranks: Interval | None
    runs: int


def correlate(online: Sequence[float], offline: Sequence[float], seed: int = 0) -> Correlation:
    """Two metrics of the same runs. Intervals are 95 % percentiles of the bootstrap over runs.

    Equal values share their mean rank, and every resample is ranked anew. Resamples in which a side does not vary
    have no correlation and are left out. The intervals say nothing of the luck within a run.
    """
    pair = np.array([online, offline], np.float64) if len(online) == len(offline) else None
    if pair is None or not np.isfinite(pair).all():
        raise InputError(
            f"A correlation needs a number from every run on both sides, but found {len(online)} online and "
            f"{len(offline)} offline ones, all to be finite; leave out runs that have none."
        )
    runs = len(online)
    if runs < FEWEST or (np.ptp(pair, axis=1) == 0).any():
        return Correlation(None, None, runs)
    drawn = pair[:, generator(seed, "correlation").integers(runs, size=(RESAMPLES, runs))]  # (2, resamples, runs)
    drawn = drawn[:, (np.ptp(drawn, axis=2) > 0).all(axis=0)]
    ranked, drawn_ranks = rankdata(pair, axis=1), rankdata(drawn, axis=2)
    return Correlation(_interval(pair, drawn), _interval(ranked, drawn_ranks), runs)


def _interval(pair: Doubles, drawn: Doubles) -> Interval:
    return percentile(float(_pearson(pair)), _pearson(drawn), LEVEL)


def _pearson(pairs: Doubles) -> Doubles:
    """(…,) the correlation of the two rows of `pairs` (2, …, runs), none of them constant."""
    apart = pairs - pairs.mean(axis=-1, keepdims=True)
    one, other = apart / np.linalg.norm(apart, axis=-1, keepdims=True)
    return np.asarray(np.clip((one * other).sum(axis=-1), -1.0, 1.0))
