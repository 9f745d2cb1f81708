"""Which of several policies is better, and whether luck could have done it: paired tests over the same sessions.

Policies were evaluated on the same sessions (or test cases), so a session can be swapped between two of them: if
they were equally good, any swap would have been as likely as what happened. All sums of bootstrap and permutations
are made for all policies and metrics at once, since the drawn sessions are the same for all.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import polars as pl

from bcd4rec.data.states import Doubles
from bcd4rec.errors import InputError
from bcd4rec.evaluation.statistics import CHUNK, LEVEL, RESAMPLES, Interval, Ratio, percentile, resampled_sums
from bcd4rec.seeding import generator

PERMUTATIONS = 10_000
ALPHA = 0.05


class PairedResult(NamedTuple):
    """One metric of two policies."""

    metric: str
    first: str
    second: str
    difference: Interval  # first − second
    p_value: float  # two-sided, of the permutation test
    p_holm: float  # the same, corrected for the number of pairs of this metric

    @property
    def significant(self) -> bool:
        return self.p_holm < ALPHA


class PairedComparison(NamedTuple):
    values: dict[str, dict[str, Interval]]  # metric -> policy -> value
    pairs: list[PairedResult]


def compare_paired(
    tables: Mapping[str, pl.DataFrame], ratios: Mapping[str, Ratio], seed: int = 0, against: str | None = None
) -> PairedComparison:
    """All pairs of policies, or those with `against`; the tables must hold the same sessions."""
    names, pairs = list(tables), _pairs(tables, against)
    columns = np.array([[ratio.columns(table) for table in tables.values()] for ratio in ratios.values()])
    replicates = _resampled(columns, seed)
    p_values = permutation_p_values(columns, pairs, seed)
    values: dict[str, dict[str, Interval]] = {}
    results: list[PairedResult] = []
    for row, (metric, ratio) in enumerate(ratios.items()):
        exact = ratio.of(columns[row].sum(axis=2).T)  # (policies,)
        drawn = ratio.of(replicates[row].swapaxes(0, 1))  # (policies, resamples)
        values[metric] = {name: percentile(float(exact[n]), drawn[n], LEVEL) for n, name in enumerate(names)}
        for (one, other), p_value, p_holm in zip(pairs, p_values[row], holm(p_values[row]), strict=True):
            apart = percentile(float(exact[one] - exact[other]), drawn[one] - drawn[other], LEVEL)
            results.append(PairedResult(metric, names[one], names[other], apart, float(p_value), float(p_holm)))
    return PairedComparison(values, results)


def _pairs(tables: Mapping[str, pl.DataFrame], against: str | None) -> list[tuple[int, int]]:
    """The places of the policies to compare, all of which have the same sessions."""
    names = list(tables)
    if len(names) < 2:
        raise InputError(f"Found one policy, {names[0]}, and nothing to compare it with; give the results of another.")
    if against is not None and against not in names:
        raise InputError(f"There is no policy {against!r} to compare with; there are {', '.join(names)}.")
    ids = [table["session_id"].sort() for table in tables.values()]
    for name, other in zip(names, ids, strict=True):
        if not ids[0].equals(other):
            raise InputError(f"{names[0]} and {name} did not meet the same sessions; evaluate both on the same ones.")
    every = combinations(range(len(names)), 2)
    return [(one, other) for one, other in every if against is None or against in (names[one], names[other])]


def _resampled(columns: Doubles, seed: int) -> Doubles:
    """Bootstrap sums of (metrics, policies, 2, sessions) columns, the last axis becoming the resamples."""
    flat = columns.reshape(-1, columns.shape[-1])
    sums = resampled_sums(flat, generator(seed, "bootstrap", 0), RESAMPLES)  # the stream of `statistics.difference`
    return sums.reshape(*columns.shape[:-1], RESAMPLES)


def permutation_p_values(columns: Doubles, pairs: Sequence[tuple[int, int]], seed: int) -> Doubles:
    """(metrics, pairs) two-sided p-values of no difference, from (metrics, policies, 2, sessions) columns.

    Each session is swapped between the two policies or not, all 2ⁿ ways for few sessions, else at random; the
    p-value is the share of ways in which the ratios differ at least as much as they do.
    """
    first, second = (columns[:, [pair[side] for pair in pairs]] for side in (0, 1))  # (metrics, pairs, 2, n)
    change = second - first
    moving = change.any(axis=(0, 1, 2))  # sessions that are alike for all policies change nothing
    flat = change[..., moving].reshape(math.prod(change.shape[:-1]), -1).T  # (n, metrics · pairs · 2)
    totals = first.sum(axis=-1), second.sum(axis=-1)  # (metrics, pairs, 2)
    observed = np.abs(_apart(*totals))
    slack = 1e-9 * np.abs(totals[0][..., 0] / totals[0][..., 1])  # rounding must not break a tie
    extreme, count = np.zeros(observed.shape), 0
    exact = 2 ** min(len(flat), 60) <= PERMUTATIONS
    for swaps in _every_swap(len(flat)) if exact else _random_swaps(len(flat), seed):
        moved = (swaps @ flat).reshape(len(swaps), *change.shape[:-1])
        apart = np.abs(_apart(totals[0] + moved, totals[1] - moved))
        extreme += (apart >= observed - slack).sum(axis=0)
        count += len(swaps)
    return extreme / count if exact else (extreme + 1) / (count + 1)  # what happened is one of the ways


def _apart(first: Doubles, second: Doubles) -> Doubles:
    """The difference of the ratios of (…, 2) sums; their scale does not matter here."""
    apart: Doubles = first[..., 0] / first[..., 1] - second[..., 0] / second[..., 1]
    return apart


def _every_swap(sessions: int) -> Iterator[Doubles]:
    ways = np.arange(2**sessions)[:, None]
    yield (ways >> np.arange(sessions) & 1).astype(np.float64)


def _random_swaps(sessions: int, seed: int) -> Iterator[Doubles]:
    rng = generator(seed, "permutations")
    rows = max(1, 8 * CHUNK // sessions)  # many at once, for the sake of the product's speed
    for start in range(0, PERMUTATIONS, rows):
        count = min(rows, PERMUTATIONS - start)
        random = np.frombuffer(rng.bytes(count * -(-sessions // 8)), np.uint8).reshape(count, -1)
        yield np.unpackbits(random, axis=1, count=sessions).astype(np.float64)


def holm(p_values: Doubles) -> Doubles:
    """Holm's correction: the smallest of m p-values counts m-fold, the next (m − 1)-fold, and none below another."""
    order = np.argsort(p_values, kind="stable")
    steps = p_values[order] * np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected
