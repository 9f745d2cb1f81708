"""Calibration by cases worked out by hand and by plain loops."""

import math

import numpy as np
import pytest

from bcd4rec.evaluation.calibration import (
    Bin,
    auc_interval,
    binary_losses,
    calibration,
    reliability,
    weighted_auc,
)

NAMES = ("skip", "click", "buy")


def ranks(said: list[float]) -> np.ndarray:
    return np.unique(said, return_inverse=True)[1]


@pytest.mark.parametrize(
    ("said", "got", "expected"),
    [
        ([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1], 100.0),
        ([0.9, 0.8, 0.2, 0.1], [0, 0, 1, 1], 0.0),
        ([0.5, 0.5, 0.5, 0.5], [0, 1, 0, 1], 50.0),
        ([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 75.0),
        ([0.3, 0.3, 0.7], [1, 0, 1], 75.0),  # one tie, one win
    ],
)
def test_auc_by_hand(said: list[float], got: list[int], expected: float) -> None:
    assert weighted_auc(ranks(said), np.array(got, bool), np.ones(len(got))) == pytest.approx(expected)


def test_weighted_auc_is_the_auc_of_repeated_answers() -> None:
    rng = np.random.default_rng(0)
    said, got, times = rng.integers(6, size=40) / 6, rng.random(40) < 0.4, rng.integers(0, 4, size=40)
    wins = pairs = 0.0
    for one in np.repeat(np.arange(40), times):
        for other in np.repeat(np.arange(40), times):
            if got[one] and not got[other]:
                pairs += 1
                wins += 1.0 if said[one] > said[other] else 0.5 if said[one] == said[other] else 0.0
    assert weighted_auc(ranks(said.tolist()), got, times.astype(float)) == pytest.approx(100 * wins / pairs)


def test_no_auc_where_nothing_can_be_told_apart() -> None:
    said, row = np.array([0.2, 0.4]), np.array([0, 1])
    assert auc_interval(said, np.array([True, True]), row) is None
    assert auc_interval(said, np.array([False, False]), row) is None


def test_binary_losses_by_hand() -> None:
    found = binary_losses(np.array([0.8, 0.8, 0.0]), np.array([True, False, False]))
    assert found == pytest.approx([-math.log(0.8), -math.log(0.2), 0.0])


def test_reliability_by_hand() -> None:
    said = np.array([0.9, 0.1, 0.2, 0.7])
    first, second = reliability(said, np.array([True, False, True, True]), bins=2)
    assert (first.size, second.size) == (2, 2)
    assert first[1:3] == pytest.approx((15.0, 50.0))
    assert second[1:3] == pytest.approx((80.0, 100.0))
    assert first.low < 50 < first.high
    assert len(reliability(said, np.array([True] * 4), bins=9)) == 4  # no empty bins


def test_the_whole_is_the_plain_loop() -> None:
    rng = np.random.default_rng(1)
    count, base = 400, np.array([0.7, 0.2, 0.1])
    said = rng.dirichlet([4.0, 2.0, 1.0], count)
    responses = np.array([rng.choice(3, p=row) for row in said])
    sessions = rng.integers(1000, 1090, size=count)
    found = calibration(said, responses, sessions, NAMES, base, seed=5)
    assert (found.impressions, found.sessions) == (count, len(set(sessions.tolist())))
    loss = sum(-math.log(said[row, code]) for row, code in enumerate(responses)) / count
    of_base = sum(-math.log(base[code]) for code in responses) / count
    assert found.overall.log_loss.value == pytest.approx(loss)
    assert found.overall.base_log_loss == pytest.approx(of_base)
    assert found.overall.skill.value == pytest.approx(100 * (1 - loss / of_base))
    assert found.overall.log_loss.low < loss < found.overall.log_loss.high
    buy = found.responses["buy"]
    assert buy.rate == pytest.approx(100 * (responses == 2).mean())
    assert buy.error == pytest.approx(sum(one.size * abs(one.predicted - one.observed) for one in buy.bins) / count)
    assert sum(one.size for one in buy.bins) == count
    assert buy.auc is not None
    assert 50 < buy.auc.low < buy.auc.value < buy.auc.high
    assert found == calibration(said, responses, sessions, NAMES, base, seed=5)


def test_true_probabilities_are_calibrated_and_distorted_ones_are_not() -> None:
    rng = np.random.default_rng(2)
    chance = rng.uniform(0.02, 0.6, 20_000)
    got = rng.random(len(chance)) < chance
    inside = [one.low <= one.predicted <= one.high for one in reliability(chance, got)]
    assert sum(inside) >= 8
    wrong = [one.low <= one.predicted <= one.high for one in reliability(chance**2, got)]
    assert sum(wrong) <= 2


def test_json_has_numbers_only() -> None:
    said = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]])
    found = calibration(said, np.array([0, 1]), np.array([4, 4]), NAMES, np.array([0.5, 0.5, 0.0])).to_json()
    assert found["responses"]["buy"]["auc"] is None
    assert set(found["responses"]["click"]["reliability"][0]) == set(Bin._fields)
    assert math.isfinite(found["overall"]["log_loss"])
    assert found["responses"]["buy"]["skill"] == 100 * (1 - 0)  # nothing was lost, and nothing could be
