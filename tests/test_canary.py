"""The confidence sequence and the canary's rule: a plain reference, error rates under constant looking, same bits."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd4rec.errors import InputError
from bcd4rec.evaluation import confidence_sequence
from bcd4rec.evaluation.canary import Canary, CanaryConfig
from bcd4rec.evaluation.confidence_sequence import BOLDEST, DIFFERENCES, GRID, ConfidenceSequence, grid_around


def rates(rng: np.random.Generator, mean: float, size: int, steps: int = 20, heads: float = 30.0) -> np.ndarray:
    """Sessions of 20 steps by users who differ: standard deviation 0.12 to 0.13 around 0.75."""
    users = rng.beta(mean * heads, (1 - mean) * heads, size)
    return rng.binomial(steps, users) / steps


def plain_wealth(sessions, delta: float, sign: int) -> float:
    """The wealth of one gambler, by loops over stakes and sessions."""
    total = 0.0
    for best in DIFFERENCES:
        wealth, rewards, squares = 1.0, 0.0, 0.0
        for number, (in_new, y, p) in enumerate(sessions):
            guess = (2 * 0.5 + rewards) / (2 + number)
            variance = (2 * 0.05 + squares) / (2 + number) / (p * (1 - p))
            x = (y - guess) / p if in_new else -(y - guess) / (1 - p)
            ends = [-guess / p, (1 - guess) / p, -(1 - guess) / (1 - p), guess / (1 - p)]
            most = delta - min(ends) if sign > 0 else max(ends) - delta
            stake = min(best / (variance + best**2), BOLDEST / max(most, 1e-9))
            wealth *= 1 + sign * stake * (x - delta)
            rewards, squares = rewards + y, squares + (y - guess) ** 2
        total += wealth
    return total / len(DIFFERENCES)


def test_wealth_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    shares = rng.choice([0.1, 0.3, 0.5], 23)
    sessions = [(bool(rng.random() < p), float(rng.random()), float(p)) for p in shares]
    sequence = ConfidenceSequence(margin=0.02)
    for session in sessions:
        sequence.add(*session)
    for place in (0, 17, GRID, GRID + 9, 2 * GRID):
        delta = sequence.grid[place]
        above, below = np.exp(sequence.above[place]).mean(), np.exp(sequence.below[place]).mean()
        assert above == pytest.approx(plain_wealth(sessions, delta, 1))
        assert below == pytest.approx(plain_wealth(sessions, delta, -1))


@pytest.mark.parametrize("margin", [0.0, 0.02, -0.3])
def test_the_grid_spans_everything_and_holds_the_margin(margin):
    grid = grid_around(margin)
    assert len(grid) == 2 * GRID + 1
    assert (grid[0], grid[GRID], grid[-1]) == (-1.0, margin, 1.0)
    assert (np.diff(grid) > 0).all()
    assert grid[GRID + 1] - margin == pytest.approx(confidence_sequence.FINEST)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.sampled_from([0.05, 0.5, 0.9])), max_size=60))
@settings(max_examples=25, deadline=None)
def test_no_reward_can_break_it_and_intervals_only_shrink(sessions):
    sequence = ConfidenceSequence()
    before = sequence.interval
    for session in sessions:
        sequence.add(*session)
        assert np.isfinite(sequence.above).all()
        assert np.isfinite(sequence.below).all()
        now = sequence.interval
        assert before.low <= now.low
        assert now.high <= before.high
        before = now


def decided(new: np.ndarray, old: np.ndarray, rng: np.random.Generator, runs: int, most: int, share: float = 0.5):
    """What runs decide at margin 0 and after how many sessions, all at once; checked against the class itself."""
    arms = rng.random((runs, most)) < share
    rewards = np.where(arms, rng.choice(new, arms.shape), rng.choice(old, arms.shape))
    total, squares = np.zeros(runs), np.zeros(runs)
    wealth = np.zeros((2, runs, len(DIFFERENCES)))
    found, when = np.zeros(runs, int), np.full(runs, most)
    for number in range(most):
        guess, spread = (1 + total) / (2 + number), (0.1 + squares) / (2 + number)
        off = rewards[:, number] - guess
        x = np.where(arms[:, number], off / share, -off / (1 - share))
        lost = np.maximum(guess / share, (1 - guess) / (1 - share))
        won = np.maximum((1 - guess) / share, guess / (1 - share))
        stake = DIFFERENCES / (spread[:, None] / (share * (1 - share)) + DIFFERENCES**2)
        wealth[0] += np.log1p(np.minimum(stake, BOLDEST / lost[:, None]) * x[:, None])
        wealth[1] += np.log1p(-np.minimum(stake, BOLDEST / won[:, None]) * x[:, None])
        total, squares = total + rewards[:, number], squares + off**2
        rich = np.exp(wealth).mean(axis=2) >= 20
        fresh = (found == 0) & rich.any(axis=0)
        found[fresh], when[fresh] = np.where(rich[1], -1, 1)[fresh], number + 1
    return found, when, arms, rewards


def test_error_rate_and_speed():
    """400 runs at the null, looked at after each of 3,000 sessions; ±3 points within 350 an arm in the median."""
    rng = np.random.default_rng(7)
    same = rates(rng, 0.75, 50_000)
    assert 0.11 < same.std() < 0.14
    found, when, arms, rewards = decided(same, same, rng, 400, 3000)
    assert (found == 1).mean() <= 0.05
    assert (found == -1).mean() <= 0.05
    run = int(np.flatnonzero(found)[0]) if found.any() else 0
    canary = Canary(CanaryConfig(most=3000))
    for number in range(when[run]):
        canary.add(bool(arms[run, number]), float(rewards[run, number]), 0.5)
    assert canary.decision == {1: "promote", -1: "roll back", 0: "stop"}[int(found[run])]
    assert canary.sequence.sessions == when[run]
    for change, sign in ((0.03, 1), (-0.03, -1)):
        found, when, _, _ = decided(rates(rng, 0.75 + change, 50_000), same, rng, 200, 2000)
        assert np.median(when) / 2 <= 350
        assert (found == sign).mean() > 0.85
        assert (found == -sign).mean() <= 0.02


def test_unequal_shares_and_drift_in_both_arms():
    """Rewards that rise and fall over the day in both arms are no difference."""
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(20):
        canary = Canary()
        for number in range(400):
            y = float(np.clip(rng.normal(0.5 + 0.4 * math.sin(number / 30), 0.05), 0, 1))
            canary.add(bool(rng.random() < 0.1), y, 0.1)
        wrong += canary.decision is not None
    assert wrong <= 3


def test_the_interval_holds_the_truth_and_agrees_with_the_decision():
    rng = np.random.default_rng(4)
    canary = Canary(CanaryConfig(most=2000, lowest=0.0, highest=20.0))
    while canary.decision is None:
        new = bool(rng.random() < 0.3)
        canary.add(new, float(rng.binomial(20, 0.8 if new else 0.7)), 0.3)
    assert canary.decision == "promote"
    low, high = canary.interval
    assert 0.0 <= low <= 2.0 <= high
    old, new_mean = canary.means
    assert old is not None
    assert new_mean is not None
    assert old < new_mean
    assert canary.sentence().startswith("Promoted: the new policy is better; after ")


def test_resumed_to_the_same_bits():
    rng = np.random.default_rng(5)
    sessions = [(bool(rng.random() < 0.2), float(rng.random()), 0.2) for _ in range(90)]
    straight, resumed = Canary(), Canary()
    for session in sessions:
        straight.add(*session)
        resumed.add(*session)
        resumed = Canary.from_json(json.loads(json.dumps(resumed.to_json())))
    assert straight.to_json() == resumed.to_json()


def test_it_stops_at_most_and_stays_decided():
    canary = Canary(CanaryConfig(most=3))
    assert [canary.add(number % 2 == 0, 0.5, 0.5) for number in range(5)] == [None, None, "stop", "stop", "stop"]
    assert canary.sequence.sessions == 3


def test_a_margin_asks_for_more():
    rng = np.random.default_rng(6)
    sessions = [(new, float(rng.binomial(20, 0.78 if new else 0.75)) / 20) for new in rng.random(4000) < 0.5]
    found = {}
    for margin in (0.0, 0.06):
        canary = Canary(CanaryConfig(margin=margin))
        for new, reward in sessions:
            canary.add(bool(new), reward, 0.5)
        found[margin] = canary.decision
    assert found == {0.0: "promote", 0.06: "roll back"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"reward": 1.5}, "The reward of a session is 1.5"),
        ({"reward": math.nan}, "The reward of a session is nan"),
        ({"share": 1.0}, "share is 1.0"),
    ],
)
def test_bad_sessions(change, says):
    with pytest.raises(InputError, match=says):
        Canary().add(**({"in_new": True, "reward": 0.5, "share": 0.5} | change))


def test_bad_settings():
    with pytest.raises(InputError, match="expected the first to be smaller"):
        Canary(CanaryConfig(lowest=2.0, highest=1.0))
    with pytest.raises(InputError, match="margin is 3"):
        Canary(CanaryConfig(margin=3.0))
    with pytest.raises(InputError, match="error rate is 1"):
        ConfidenceSequence(error=1.0)
