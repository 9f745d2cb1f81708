"""Propensities that the log does not have: believed where they can be estimated, refused with the reason elsewhere."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from bcd4rec.data.dataset import Dataset
from bcd4rec.evaluation.off_policy.estimated import estimate_logger
from bcd4rec.evaluation.off_policy.replay import logged_slates
from bcd4rec.evaluation.off_policy.sums import SessionSums
from bcd4rec.policies.policy import Policy
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig
from bcd4rec.sim.rollout import rollout
from bcd4rec.workflows.comparison import random_policy
from bcd4rec.workflows.fitting import fit
from bcd4rec.workflows.judging_study import WHOLE, dataset_of, served, with_epsilon
from bcd4rec.workflows.log_verdict import judge_log

USERS = InterestEvolution(InterestEvolutionConfig(items=24, categories=6, slate_size=2, horizon=4))


def bare(policy: Policy, sessions: int = 900) -> Dataset:
    log = rollout(USERS, policy, sessions, 5).with_columns(propensity=pl.lit(None, pl.Float64))
    return Dataset.from_frame(log, USERS.responses, WHOLE)


@pytest.fixture(scope="module")
def ranking() -> Policy:
    first = dataset_of(USERS, random_policy(USERS), 300, 1)
    return served(fit("markov", first).whole(first), USERS)


def test_a_random_log_needs_no_propensities(ranking):
    dataset = bare(random_policy(USERS))
    verdict = judge_log(with_epsilon(ranking, 0.8), dataset, accept_one_step=True, with_model=False)
    assert verdict.propensities == "estimated"
    assert verdict.reason.startswith("By estimated propensities: ")
    assert any("passed, or failed, a test" in note for note in verdict.notes)
    known = judge_log(with_epsilon(ranking, 0.8), dataset, random_policy(USERS), with_model=False)
    assert known.propensities == "logger"
    for one, other in zip(verdict.rows, known.rows, strict=True):
        assert abs(one.estimate.difference.value - other.estimate.difference.value) < 2 * other.estimate.error


def test_a_logger_that_ranks_is_not_known_well_enough(ranking):
    verdict = judge_log(with_epsilon(ranking, 0.15), bare(with_epsilon(ranking, 0.3)), with_model=False)
    assert verdict.word == "cannot tell"
    assert verdict.reason.startswith("The log has no propensities, and estimates of them are not to be believed: the ")
    assert "or name the policy that wrote the log with --logger" in verdict.reason


@pytest.mark.parametrize("number", [0, 1, 2])
def test_no_session_is_judged_by_a_model_that_it_has_taught(number):
    dataset = bare(random_policy(USERS), 120)
    estimated = estimate_logger(dataset, 0)
    (slates,) = logged_slates(dataset)
    before = estimated.fill(slates).propensities
    checked = estimated.own.mean
    models = list(estimated.models)
    models[number] = models[number].with_rule(exploration={"kind": "epsilon", "epsilon": 0.5})
    fold = estimated.fold[slates.sessions[slates.session]]
    changed = replace(estimated, models=models, own=SessionSums(estimated.own.names, 1))
    after = changed.fill(slates).propensities
    np.testing.assert_array_equal(after[fold == number], before[fold == number])
    assert (after[fold == (number + 2) % 3] != before[fold == (number + 2) % 3]).any()
    assert (changed.own.mean != checked).any()
    assert ((before > 0) & (before <= 1)).all()
