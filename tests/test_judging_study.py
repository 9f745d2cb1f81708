"""The known-truth study in small: truths are those of the users, logs are independent, and traps do not ship."""

import numpy as np
import pytest

from bcd4rec.errors import InputError
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig
from bcd4rec.workflows import judging_study
from bcd4rec.workflows.comparison import random_policy
from bcd4rec.workflows.fitting import fit
from bcd4rec.workflows.judging_study import (
    Case,
    Settings,
    cases,
    click_chances,
    dataset_of,
    one_step_truth,
    run,
    session_rates,
    share,
    with_epsilon,
)

SMALL = InterestEvolutionConfig(items=24, categories=6, slate_size=2, horizon=4)
FEW = Settings(logs=3, sessions=300, truth=400, learn=200)


def test_chances_are_those_of_the_users():
    environment = InterestEvolution(SMALL)
    environment.reset(30_000, 0)
    slates = np.tile(np.array([[1, 8]], np.int32), (30_000, 1))
    chances = click_chances(environment, slates)
    assert environment.step(slates).responses.any(axis=1).mean() == pytest.approx(chances.mean(), abs=0.01)


@pytest.fixture(scope="module")
def case() -> Case:
    environment = InterestEvolution(SMALL)
    log = dataset_of(environment, random_policy(environment), 400, 1)
    ranking = fit("markov", log).whole(log)
    others = {"less": with_epsilon(ranking, 0.35), "itself": with_epsilon(ranking, 0.5)}
    return Case("small", environment, with_epsilon(ranking, 0.5), others)


def test_truths_agree_with_sessions(case):
    logger, itself = one_step_truth(case.environment, case.logger, case.candidates["itself"], 20_000, 3)
    rates = session_rates(case.environment, case.logger, 20_000, 4)
    assert logger.mean() == pytest.approx(rates.mean(), abs=0.01)
    assert itself.mean() == pytest.approx(logger.mean(), abs=0.005)


def test_estimates_are_near_the_truth_and_the_logger_is_no_better_than_itself(case):
    settings = Settings(logs=10, sessions=600, truth=8000)
    *_, (less, itself) = run(case, settings)
    assert itself.words["ship"] == itself.accepting["ship"] == itself.words["reject"] == 0
    for target in ("one step", "session"):
        assert less.answered[target] == 10
        assert less.total[target] / 10 == pytest.approx(less.truth[target].value, abs=0.02)
        assert less.covered[target] >= 7
        assert itself.covered[target] == 10


def test_logs_are_independent_and_the_same_for_the_same_seed(case):
    one = Case("small", case.environment, case.logger, {"less": case.candidates["less"]})
    *_, (first,) = run(one, FEW)
    *_, (again,) = run(one, FEW)
    assert repr(first.to_json()) == repr(again.to_json())
    found = [tallies[0].total["one step"] for tallies in run(one, FEW)]
    assert len(set(np.round(np.diff([0.0, *found]), 6))) == 3


def test_users_to_whom_all_is_alike():
    (null,) = cases(["null single"], FEW)
    rates = [session_rates(null.environment, one, 4000, 1).mean() for one in (null.logger, *null.candidates.values())]
    assert rates[0] == pytest.approx(rates[1], abs=0.01)
    (only,) = next(run(null, FEW))
    assert only.truth["session"] == (0.0, 0.0)


def test_the_candidate_of_every_case_is_as_it_says():
    (popular,) = cases(["popular"], FEW)
    assert popular.with_model
    with pytest.raises(InputError, match="Unknown case 'nul'"):
        next(cases(["nul"], FEW))


def test_shares_have_intervals():
    found = share(3, 200)
    assert found.low < found.value == 1.5 < found.high
    assert np.isnan(share(0, 0).value)
    assert judging_study.CASES[0] == "null"
