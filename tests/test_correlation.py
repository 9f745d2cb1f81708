"""Correlations against SciPy, and their intervals against a plain loop over resamples."""

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from bcd4rec.errors import InputError
from bcd4rec.evaluation.correlation import correlate
from bcd4rec.evaluation.statistics import RESAMPLES
from bcd4rec.seeding import generator


def grid(runs: int, seed: int = 0) -> tuple[list[float], list[float]]:
    """Related metrics with ties on both sides."""
    rng = np.random.default_rng(seed)
    online = rng.normal(70, 3, runs).round()
    return online.tolist(), (0.3 * online + rng.normal(0, 1, runs)).round(1).tolist()


@pytest.mark.parametrize("runs", [3, 4, 11, 60])
def test_the_values_are_those_of_scipy(runs: int) -> None:
    online, offline = grid(runs, seed=runs)
    found = correlate(online, offline)
    assert found.values is not None
    assert found.ranks is not None
    assert found.values.value == pytest.approx(pearsonr(online, offline).statistic)
    assert found.ranks.value == pytest.approx(spearmanr(online, offline).statistic)
    assert found.runs == runs


def test_the_intervals_are_a_plain_loop_over_resamples() -> None:
    online, offline = grid(5)
    assert len(set(online)) < 5  # ties, and resamples that do not vary
    drawn = generator(7, "correlation").integers(5, size=(RESAMPLES, 5))
    values, ranks = [], []
    for rows in drawn:
        one, other = [online[row] for row in rows], [offline[row] for row in rows]
        if len(set(one)) > 1 and len(set(other)) > 1:
            values.append(pearsonr(one, other).statistic)
            ranks.append(spearmanr(one, other).statistic)
    assert len(values) < RESAMPLES
    found = correlate(online, offline, seed=7)
    assert found.values is not None
    assert found.ranks is not None
    assert found.values[1:] == pytest.approx(np.quantile(values, [0.025, 0.975]).tolist())
    assert found.ranks[1:] == pytest.approx(np.quantile(ranks, [0.025, 0.975]).tolist())


def test_the_same_seed_gives_the_same_interval() -> None:
    assert correlate(*grid(30), seed=7) == correlate(*grid(30), seed=7) != correlate(*grid(30), seed=8)


def test_more_runs_are_surer() -> None:
    few, many = (correlate(*grid(runs)).values for runs in (8, 300))
    assert few is not None
    assert many is not None
    assert many.high - many.low < 0.5 * (few.high - few.low)
    assert many.low > 0


def test_a_perfect_order_and_its_opposite() -> None:
    up = correlate([1.0, 2.0, 3.0, 4.0], [1.0, 8.0, 27.0, 64.0])
    down = correlate([1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0])
    assert up.ranks == (1.0, 1.0, 1.0)
    assert up.values is not None
    assert up.values.value == pytest.approx(0.9514, abs=1e-4)
    assert down.values is not None
    assert down.values == pytest.approx((-1.0, -1.0, -1.0))


@pytest.mark.parametrize(
    ("online", "offline"),
    [([1.0, 2.0], [2.0, 1.0]), ([1.0, 2.0, 3.0], [5.0, 5.0, 5.0]), ([], []), ([1.0] * 4, [2.0] * 4)],
)
def test_nothing_is_said_of_too_little(online: list[float], offline: list[float]) -> None:
    assert correlate(online, offline) == (None, None, len(online))


@pytest.mark.parametrize("offline", [[1.0, 2.0], [1.0, 2.0, float("nan")], [1.0, float("inf"), 2.0]])
def test_a_missing_number_is_refused(offline: list[float]) -> None:
    with pytest.raises(InputError, match=f"3 online and {len(offline)} offline"):
        correlate([1.0, 2.0, 3.0], offline)
