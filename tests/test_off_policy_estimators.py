"""Estimators against plain loops, over sessions of unequal length; intervals against the bootstrap and known truths."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd4rec.data.responses import Responses
from bcd4rec.errors import InputError
from bcd4rec.evaluation.off_policy import estimators, sums
from bcd4rec.evaluation.off_policy.decisions import Decisions, outcomes_of
from bcd4rec.evaluation.off_policy.estimators import Estimate, estimates
from bcd4rec.evaluation.off_policy.sums import SessionSums

K, OUTCOMES = 3, 2
NAMES = ("click", "reward")


def decisions(sessions: int = 7, seed: int = 0, longest: int = 5) -> Decisions:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, sessions)
    lengths[0] = longest
    n = int(lengths.sum())
    return Decisions(
        session=np.repeat(np.arange(sessions) * 3, lengths),
        logged=rng.uniform(0.2, 1.0, (n, K)),
        candidate=rng.uniform(0.0, 1.0, (n, K)),
        outcomes=rng.uniform(0.0, 2.0, (n, OUTCOMES)),
        model_logged=rng.uniform(0.0, 2.0, (n, OUTCOMES)),
        model_candidate=rng.uniform(0.0, 2.0, (n, OUTCOMES)),
        by_items=rng.uniform(-1.0, 3.0, n),
        by_categories=rng.uniform(-1.0, 3.0, n),
    )


def part(whole: Decisions, sessions: list[int]) -> Decisions:
    """These sessions, in this order, each with a number of its own."""
    rows = [np.flatnonzero(whole.session == one) for one in sessions]
    number = np.repeat(np.arange(len(rows)), [len(some) for some in rows])
    chosen = np.concatenate(rows)
    names = [name for name in Decisions.__dataclass_fields__ if name != "session"]
    return Decisions(number, *(getattr(whole, name)[chosen] for name in names))


def summed(whole: Decisions, longest: int = 5) -> SessionSums:
    found = SessionSums(NAMES, longest)
    found.add(whole)
    return found


def by_name(found: list[Estimate]) -> dict[tuple[str, str], Estimate]:
    return {(one.method, one.outcome): one for one in found}


def plain(whole: Decisions, outcome: int, longest: int = 5) -> dict[str, float]:
    """Every estimate by loops over steps."""
    n = len(whole)
    w = [math.prod(whole.candidate[i, j] / whole.logged[i, j] for j in range(K)) for i in range(n)]
    y = [whole.outcomes[i, outcome] for i in range(n)]
    q = [whole.model_logged[i, outcome] for i in range(n)]
    model = sum(whole.model_candidate[i, outcome] for i in range(n)) / n
    left = [y[i] - q[i] for i in range(n)]
    sessions = sorted(set(whole.session.tolist()))
    total = 0.0
    for t in range(longest):
        top = bottom = 0.0
        for session in sessions:
            steps = [i for i in range(n) if whole.session[i] == session]
            rho = math.prod(w[i] for i in steps[: t + 1])
            bottom += rho
            top += rho * y[steps[t]] if t < len(steps) else 0.0
        total += top / bottom
    kept = sum(min(longest, sum(whole.session == session)) for session in sessions)
    return {
        "SNIPS": sum(w[i] * y[i] for i in range(n)) / sum(w),
        "doubly robust": model + sum(w[i] * left[i] for i in range(n)) / sum(w),
        "DR + items": model + sum(whole.by_items[i] * left[i] for i in range(n)) / n,
        "DR + categories": model + sum(whole.by_categories[i] * left[i] for i in range(n)) / n,
        "direct": model,
        "per decision": total / (kept / len(sessions)),
    }


def test_every_estimate_is_that_of_a_plain_loop():
    whole = decisions()
    found = by_name(estimates(summed(whole)))
    for outcome, name in enumerate(NAMES):
        for method, value in plain(whole, outcome).items():
            one = found[method, name]
            assert one.value.value == pytest.approx(value)
            assert one.logger == pytest.approx(whole.outcomes[:, outcome].mean())
            assert one.difference.value == pytest.approx(value - whole.outcomes[:, outcome].mean())


def test_longer_sessions_than_the_session_target_has_steps(monkeypatch):
    monkeypatch.setattr(sums, "MOST_STEPS", 3)
    whole = decisions()
    found = by_name(estimates(summed(whole)))["per decision", "click"]
    assert found.value.value == pytest.approx(plain(whole, 0, longest=3)["per decision"])
    first = np.concatenate([np.flatnonzero(whole.session == one)[:3] for one in np.unique(whole.session)])
    assert found.logger == pytest.approx(whole.outcomes[first, 0].mean())


@pytest.mark.parametrize("cuts", [[2, 5], [1, 2, 3, 4, 5, 6]])
def test_chunks_and_merged_parts_give_the_same(cuts, monkeypatch):
    monkeypatch.setattr(sums, "AT_ONCE", 64)
    whole = decisions()
    streamed, merged = SessionSums(NAMES, 5), SessionSums(NAMES, 5)
    for some in np.split(np.unique(whole.session), cuts):
        chunk = part(whole, some.tolist())
        streamed.add(chunk)
        alone = SessionSums(NAMES, 5)
        alone.add(chunk)
        merged.merge(alone)
    at_once = by_name(estimates(summed(whole)))
    for several in (streamed, merged):
        for key, one in by_name(estimates(several)).items():
            assert one.difference == pytest.approx(at_once[key].difference)


def test_intervals_cluster_by_session():
    """The standard errors of the delta method are those of a jackknife over sessions, not over steps."""
    whole = decisions(sessions=80, seed=1)
    whole = replace(whole, candidate=0.5 * whole.logged + 0.5 * whole.candidate)
    numbers = np.unique(whole.session)
    found = estimates(summed(whole))
    left_out = [
        [one.difference.value for one in estimates(summed(part(whole, np.delete(numbers, row).tolist())))]
        for row in range(len(numbers))
    ]
    spread = np.sqrt(79 / 80 * ((np.array(left_out) - np.mean(left_out, axis=0)) ** 2).sum(axis=0))
    for one, error in zip(found, spread, strict=True):
        assert one.error == pytest.approx(error, rel=0.1)


def test_doubled_steps_make_nothing_surer():
    """A session in which everything happens twice says no more than one in which it happens once."""
    whole = decisions(sessions=50)
    twice = np.repeat(np.arange(len(whole)), 2)
    double = Decisions(*(getattr(whole, name)[twice] for name in Decisions.__dataclass_fields__))
    once, again = by_name(estimates(summed(whole))), by_name(estimates(summed(double, 10)))
    for method in ("SNIPS", "doubly robust", "DR + items", "DR + categories", "direct"):
        assert again[method, "reward"].error == pytest.approx(once[method, "reward"].error)


def test_the_logger_itself_has_no_difference():
    whole = decisions()
    same = Decisions(whole.session, whole.logged, whole.logged, whole.outcomes)
    for one in estimates(summed(same)):
        assert one.difference == pytest.approx((0.0, 0.0, 0.0), abs=1e-5)


def test_nothing_in_common_is_no_error():
    whole = decisions()
    strange = Decisions(whole.session, whole.logged, np.zeros_like(whole.candidate), whole.outcomes)
    assert all(np.isfinite(one.difference).all() for one in estimates(summed(strange)))


def test_without_a_model_there_are_two_estimates():
    whole = decisions()
    bare = Decisions(whole.session, whole.logged, whole.candidate, whole.outcomes)
    assert [one.method for one in estimates(summed(bare))] == 2 * ["SNIPS", "per decision"]


def test_no_sessions():
    with pytest.raises(InputError, match="no sessions"):
        estimates(SessionSums(NAMES, 5))


def simulate(rng: np.random.Generator, sessions: int, steps: int) -> tuple[Decisions, float]:
    """A bandit of two arms with users who differ, logged at 0.5; the candidate plays the better arm with 0.7."""
    taste = rng.normal(0.0, 0.15, (sessions, 1))
    arm = rng.random((sessions, steps)) < 0.5
    chance = np.clip(0.4 + 0.2 * arm + taste, 0, 1)
    y = (rng.random((sessions, steps)) < chance).astype(float)
    candidate = np.where(arm, 0.7, 0.3)
    number = np.repeat(np.arange(sessions), steps)
    model = np.where(arm, 0.6, 0.4).ravel()[:, None]
    shape = (sessions * steps, 1)
    return Decisions(
        number, np.full(shape, 0.5), candidate.reshape(shape), y.reshape(shape), model, np.full(shape, 0.54)
    ), 0.04


def test_intervals_cover_the_truth():
    """200 logs of 300 sessions: 95 % intervals hold the truth in 91 to 99 % of them."""
    rng = np.random.default_rng(5)
    held: dict[str, list[bool]] = {}
    for _ in range(200):
        log, truth = simulate(rng, 300, 4)
        found = SessionSums(("reward",), 4)
        found.add(log)
        for one in estimates(found):
            held.setdefault(one.method, []).append(one.difference.low <= truth <= one.difference.high)
    for method in ("SNIPS", "doubly robust", "per decision"):
        assert 0.91 <= np.mean(held[method]) <= 0.99, method


@given(st.integers(0, 10_000), st.floats(0.0, 1.0))
@settings(max_examples=30, deadline=None)
def test_mixtures_are_mixed_place_by_place(seed, alpha):
    rng = np.random.default_rng(seed)
    logged, candidate = rng.uniform(0.1, 1.0, (4, K)), rng.uniform(0.0, 1.0, (4, K)) * (rng.random((4, K)) > 0.2)
    found = Decisions(np.arange(4), logged, candidate, np.zeros((4, 1))).mixed(alpha)
    for row in range(4):
        ratios = [candidate[row, place] / logged[row, place] for place in range(K)]
        assert found.weights[row] == pytest.approx(math.prod(1 - alpha + alpha * one for one in ratios))


def test_a_mixture_knows_no_models():
    mixed = decisions().mixed(0.3)
    assert mixed.model_candidate is mixed.by_categories is None
    with pytest.raises(InputError, match=r"1\.5, expected 0 to 1"):
        decisions().mixed(1.5)


def test_outcomes_count_responses_and_add_rewards():
    responses = Responses(rewards={"skip": 0.0, "click": 1.0, "buy": 5.0})
    names, found = outcomes_of(np.array([[0, 1, 1], [2, 1, -1], [-1, -1, -1]]), responses)
    assert names == ("click", "buy", "reward")
    assert found.tolist() == [[2, 0, 2], [1, 1, 6], [0, 0, 0]]


def test_shapes_that_do_not_fit_are_refused():
    whole = decisions()
    with pytest.raises(ValueError, match="candidate has the shape"):
        Decisions(whole.session, whole.logged, whole.candidate[:, :2], whole.outcomes)


def test_every_method_has_a_plain_reference():
    assert set(plain(decisions(), 0)) == set(estimators.Method.__args__)


def test_the_logger_is_never_surely_better_than_itself():
    for seed in range(20):
        whole = decisions(sessions=200, seed=seed)
        again = whole.logged * (1 + 1e-16)
        for one in estimates(summed(Decisions(whole.session, whole.logged, again, whole.outcomes))):
            assert one.difference.low < 0 < one.difference.high
