"""Diagnostics and verdicts: plain references, traps that must be refused, words and exit codes."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from bcd4rec.evaluation.off_policy.decisions import Decisions
from bcd4rec.evaluation.off_policy.diagnostics import (
    LoggedSupport,
    PropensityCheck,
    self_test,
    session_variance,
    weights_of,
)
from bcd4rec.evaluation.off_policy.sums import SessionSums
from bcd4rec.evaluation.off_policy.verdict import EXIT_CODES, STEPS, StepSizes, canary_sizes, verdict_of

NAMES = ("click", "reward")


def arms(
    sessions: int, steps: int, plays: float, gain: float = 0.2, logs: float = 0.5, seed: int = 0, veto: float = 1.0
) -> Decisions:
    """Two items, the second one better by `gain`, logged with probability `logs` and played with `plays`."""
    rng = np.random.default_rng(seed)
    second = rng.random(sessions * steps) < logs
    click = (rng.random(len(second)) < 0.4 + gain * second).astype(float)
    model = 0.4 + gain * second
    candidate = np.full(len(second), 0.4 + gain * plays)
    outcomes = np.stack([click, 2 * click], axis=1)
    return Decisions(
        session=np.repeat(np.arange(sessions), steps),
        logged=np.where(second, logs, 1 - logs)[:, None],
        candidate=np.where(second, plays, 1 - plays)[:, None],
        outcomes=outcomes,
        model_logged=np.stack([model, 2 * model], axis=1),
        model_candidate=np.stack([candidate, 2 * candidate], axis=1),
        by_categories=veto * np.where(second, plays / logs, (1 - plays) / (1 - logs)),
    )


def summed(log: Decisions, longest: int = 5) -> SessionSums:
    found = SessionSums(NAMES, longest)
    found.add(log)
    return found


def test_weights_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    lengths = [2, 4, 1, 3]
    session = np.repeat(np.arange(4), lengths)
    log = Decisions(session, rng.uniform(0.3, 1, (10, 2)), rng.uniform(0, 1, (10, 2)), rng.random((10, 2)))
    sums = summed(log, 4)
    w = [math.prod(log.candidate[i] / log.logged[i]) for i in range(10)]
    per_session = [sum(w[i] for i in range(10) if session[i] == s) for s in range(4)]
    found = weights_of(sums, "one step")
    assert found.mean == pytest.approx(sum(w) / 10)
    assert found.steps == pytest.approx(sum(w) ** 2 / sum(x * x for x in w))
    assert found.sessions == pytest.approx(sum(w) ** 2 / sum(x * x for x in per_session))
    rho = [[math.prod([w[i] for i in range(10) if session[i] == s][: t + 1]) for s in range(4)] for t in range(4)]
    found = weights_of(sums, "session")
    assert found.mean == pytest.approx(max((sum(r) / 4 for r in rho), key=lambda mean: abs(mean - 1)))
    assert found.sessions == pytest.approx(min(sum(r) ** 2 / sum(x * x for x in r) for r in rho))


def test_many_effective_steps_with_a_small_mean_weight_are_refused():
    """A candidate that agrees with the logger in the first step and shows what was never shown in all others."""
    log = arms(1000, 10, plays=0.5)
    first = np.arange(len(log)) % 10 == 0
    found = weights_of(summed(replace(log, candidate=log.candidate * first[:, None]), 10), "one step")
    assert found.steps == pytest.approx(1000)
    assert found.problem == "the mean weight is 0.10 and should be within 0.1 of 1"


def test_few_effective_sessions_are_refused():
    assert "only 60 effective sessions" in str(weights_of(summed(arms(60, 3, plays=0.5)), "session").problem)


@pytest.mark.parametrize(
    ("plays", "accept", "steps", "word", "says"),
    [
        (0.7, False, 3, "ship", "Better over whole sessions"),
        (0.3, False, 3, "reject", "Worse over whole sessions"),
        (0.5, False, 3, "cannot tell", "over whole sessions it may be better or worse"),
        (0.9, False, 40, "cannot tell", "one step is not the session"),
        (0.9, True, 40, "ship", "Better at the log's states, which was accepted"),
        (0.1, False, 40, "reject", "Worse at the log's states, even at best"),
        (0.5, True, 3, "cannot tell", "At the log's states, which were to decide, it may be"),
    ],
)
def test_verdicts(plays, accept, steps, word, says):
    verdict = verdict_of(summed(arms(1500, steps, plays), steps), "click", accept)
    assert (verdict.word, verdict.exit_code) == (word, EXIT_CODES[word])
    assert says in verdict.reason
    assert verdict.reason.endswith(".")
    assert ("a canary of" in verdict.reason) == (word == "cannot tell")
    assert json.loads(json.dumps(verdict.to_json()))["verdict"] == word


def test_exit_codes():
    assert EXIT_CODES == {"ship": 0, "cannot tell": 3, "reject": 4}


def test_no_overlap_never_ships():
    """Doubly robust without overlap is the model alone, and models flatter."""
    log = arms(1500, 3, plays=0.5)
    strange = replace(log, candidate=np.zeros_like(log.candidate), model_candidate=log.model_candidate + 0.3)
    verdict = verdict_of(summed(strange), "click", accept_one_step=True)
    assert verdict.word == "cannot tell"


def test_refused_propensities_decide_nothing():
    verdict = verdict_of(summed(arms(1500, 3, 0.7)), "click", refused="12 of 90 impressions have no propensity")
    assert verdict.word == "cannot tell"
    assert verdict.reason.startswith("12 of 90 impressions have no propensity; a canary of")


def test_canary_sizes_by_hand():
    sums = summed(arms(800, 4, 0.5))
    clicks = arms(800, 4, 0.5).outcomes[:, 0].reshape(800, 4).sum(axis=1)
    variance = clicks.var(ddof=1) / 16
    assert session_variance(sums, 0) == pytest.approx(variance)
    expected = [math.ceil(2 * variance * (1.6448536 + 0.8416212) ** 2 / (points / 100) ** 2) for points in (1, 3, 10)]
    assert [size.sessions for size in canary_sizes(sums, 0)] == pytest.approx(expected, abs=1)


def test_the_largest_step_is_the_last_with_sound_weights():
    log = arms(1000, 20, plays=1.0)
    steps = StepSizes(NAMES, 20, alphas=(0.3, 0.1, 0.6, 1.0))
    steps.add(log)
    largest = steps.largest("session")
    sound = [
        alpha for alpha in (0.1, 0.3, 0.6, 1.0) if weights_of(summed(log.mixed(alpha), 20), "session").problem is None
    ]
    assert largest == max(sound) < 1.0
    assert steps.largest("one step") == 1.0
    nothing = StepSizes(NAMES, 20, alphas=(0.5,))
    nothing.add(arms(20, 20, plays=1.0))
    assert nothing.largest() is None


def steps_of(log: Decisions, alphas: tuple[float, ...]) -> StepSizes:
    steps = StepSizes(NAMES, 20, alphas)
    steps.add(log)
    return steps


def test_the_approved_step_is_the_last_of_those_that_all_ship():
    """A new policy that cannot be judged, and steps toward it that can: the smaller, the surer."""
    alphas = (0.02, 0.1, 0.2, 0.3, 1.0)
    log = arms(2000, 20, plays=1.0, gain=0.2)
    assert verdict_of(summed(log, 20), "click").word == "cannot tell"
    step = steps_of(log, alphas).approved("click")
    words = {alpha: verdict_of(summed(log.mixed(alpha), 20), "click").word for alpha in alphas}
    shipped = list(itertools.takewhile(lambda alpha: words[alpha] == "ship", alphas))
    assert (step.share, step.word) == (shipped[-1], "ship")
    assert step.share < 1.0
    worse = steps_of(arms(2000, 20, plays=1.0, gain=-0.2), alphas).approved("click")
    assert (worse.word, worse.share) == ("reject", 0.3)
    assert steps_of(arms(20, 20, plays=1.0), alphas).approved("click") is None


def test_a_step_beyond_one_that_did_not_ship_is_not_shipped():
    steps = steps_of(arms(2000, 20, plays=1.0), (0.02, 0.1, 0.2))
    steps.sums[0.02] = summed(arms(2000, 20, plays=0.5), 20)  # nothing to tell
    step = steps.approved("click")
    assert (step.share, step.word) == (0.2, "cannot tell")
    assert "A smaller step does not ship" in step.reason


def explored(sessions: int, epsilon: float, bored: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(sessions, 20, 7) which places were explored, and (sessions, 20) clicks of users who like the ranking better.

    Bored ones also stop clicking once a session has shown them far less variety than the log ever does.
    """
    rng = np.random.default_rng(seed)
    places = rng.random((sessions, 20, 7)) < epsilon
    shown = 7.0 * np.arange(1, 21)
    lively = places.sum(axis=2).cumsum(axis=1) >= 0.6 * shown - 5.5 * np.sqrt(0.24 * shown)
    chance = 0.75 - 0.1 * places.mean(axis=2)
    return places, rng.random((sessions, 20)) < chance * (np.minimum.accumulate(lively, axis=1) if bored else 1.0)


def test_no_log_of_much_exploration_tells_about_sessions_with_little():
    """Two kinds of users, one log: ε 0.6 → 0.3 is 3 points better for the one and far worse for the other."""
    values = {bored: [explored(4000, e, bored, 1)[1].mean() for e in (0.6, 0.3)] for bored in (False, True)}
    assert values[False][1] - values[False][0] == pytest.approx(0.03, abs=0.01)
    assert values[True][1] - values[True][0] < -0.2
    (places, clicks), again = (explored(2000, 0.6, bored, 2) for bored in (False, True))
    np.testing.assert_array_equal(clicks, again[1])
    chances = [np.where(places, e, 1 - e).reshape(-1, 7) for e in (0.6, 0.3)]
    log = Decisions(np.repeat(np.arange(2000), 20), *chances, np.repeat(clicks.reshape(-1, 1), 2, axis=1).astype(float))
    assert verdict_of(summed(log, 20), "click").word == "cannot tell"
    assert verdict_of(summed(log, 20), "click", accept_one_step=True).word == "ship"
    step = steps_of(log, STEPS[:10]).approved("click")
    assert 0.6 - 0.3 * step.share > 0.5


def test_support_counts_places():
    support = LoggedSupport()
    support.add(np.array([[3, 1, -1], [2, 0, 4]], np.int32), np.array([[0.5, 0.05, 1.0], [0.0, 0.09, 0.3]]))
    assert (support.exploration_only, support.outside) == (0.4, 0.2)


def test_support_by_weights_agrees_with_the_logger():
    """Three items logged with 0.9, 0.06 and 0.04; the candidate shows the first half of the time, else a fourth one."""
    rng = np.random.default_rng(1)
    chances, plays = np.array([0.9, 0.06, 0.04]), np.array([0.5, 0.0, 0.2])
    items = rng.choice(3, 200_000, p=chances)
    log = Decisions(np.arange(len(items)), chances[items, None], plays[items, None], np.zeros((len(items), 1)))
    support = LoggedSupport()
    support.add_logged(log, items[:, None].astype(np.int32))
    assert support.exploration_only == pytest.approx(0.2, abs=0.01)
    assert support.outside == pytest.approx(0.3, abs=0.01)


def shown_by(chances: np.ndarray, n: int = 5000) -> tuple[np.ndarray, np.ndarray]:
    items = np.random.default_rng(2).choice(len(chances), (n, 1), p=chances).astype(np.int32)
    return items, chances[items]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: p, None),
        (lambda p: np.where(np.arange(len(p))[:, None] == 7, np.nan, p), "1 of 5000 impressions have no propensity"),
        (lambda p: np.where(np.arange(len(p))[:, None] < 3, 0.0, p), "3 of 5000 impressions have a propensity of 0"),
        (lambda p: p * 3, "have a propensity above 1"),
        (lambda p: p / 3, "the propensities are too small"),
        (lambda p: np.ones_like(p), "the propensities are too large"),
    ],
)
def test_propensities_that_cannot_be_right(change, says):
    items, chances = shown_by(np.array([0.6, 0.2, 0.1, 0.05, 0.05]))
    check = PropensityCheck(n_items=5)
    for some in np.array_split(np.arange(len(items)), 3):
        check.add(items[some], change(chances)[some], np.ones(len(some), bool))
    if says is None:
        assert check.problem is None
    else:
        assert says in str(check.problem)


def test_empty_places_need_no_propensity():
    check = PropensityCheck(n_items=5)
    check.add(np.array([[2, -1]], np.int32), np.array([[0.5, np.nan]]))
    assert check.problem is None


def test_the_logger_must_get_its_own_rate():
    log = arms(2000, 4, plays=0.5)
    assert self_test(summed(log)) is None
    second = log.candidate[:, 0] * 0 + (log.model_logged[:, 0] > 0.5)
    wrong = replace(log, logged=np.where(second[:, None] > 0, 0.3, 0.7))
    assert "evaluated against itself, the " in str(self_test(summed(wrong)))
    small = replace(log, logged=log.logged * 0.5)
    assert "mean weight is 2.00" in str(self_test(summed(small)))


@pytest.mark.parametrize("wrong", [math.nan, 0.0])
def test_a_log_with_impossible_propensities_still_has_a_table(wrong):
    log = arms(300, 3, plays=0.7)
    logged = np.where(np.arange(len(log))[:, None] % 5 == 0, wrong, log.logged)
    verdict = verdict_of(summed(replace(log, logged=logged)), "click", refused="some are 0")
    assert verdict.word == "cannot tell"
    json.dumps(verdict.to_json(), allow_nan=False)
