"""The known-truth study in small: propensities are exact, truths are those of the users, and traps do not ship."""

import numpy as np
import pytest

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.data.dataset import Dataset
from bcd4rec.evaluation.off_policy.sums import SessionSums
from bcd4rec.evaluation.off_policy.verdict import verdict_of
from bcd4rec.experiments.judging_study import OUTCOMES, Player, click_chances, log_of, model_of, play, verdicts
from bcd4rec.policies.ranking import Exploration, make_slates
from bcd4rec.policies.uniform import Uniform
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig

SMALL = InterestEvolutionConfig(items=24, categories=6, slate_size=2, horizon=4)


def test_propensities_are_those_that_slates_are_drawn_with():
    rng = np.random.default_rng(0)
    scores = rng.random((50, 9)).astype(np.float32)
    scores[:, 3] = -np.inf
    drawn = make_slates(scores, 3, Exploration(kind="epsilon", epsilon=0.4), rng)
    assert Player(Uniform(9), 0.4).propensities(scores, drawn.items) == pytest.approx(drawn.propensities, rel=1e-5)


def test_exploration_among_some_items():
    rng = np.random.default_rng(1)
    scores = np.tile(np.array([0.9, 0.1, 0.5, 0.3], np.float32), (40_000, 1))
    player = Player(Uniform(4), 0.5, np.array([False, True, True, True]))
    items = player.slates(scores, 2, rng)
    chances = player.propensities(scores, items).prod(axis=1)
    for slate in np.unique(items, axis=0):
        mine = (items == slate).all(axis=1)
        assert mine.mean() == pytest.approx(chances[mine][0], abs=0.01)


def test_chances_are_those_of_the_users():
    environment = InterestEvolution(SMALL)
    environment.reset(30_000, 0)
    slates = np.tile(np.array([[1, 8]], np.int32), (30_000, 1))
    chances = click_chances(environment, slates)
    assert environment.step(slates).responses.any(axis=1).mean() == pytest.approx(chances.mean(), abs=0.01)


@pytest.fixture(scope="module")
def pool():
    environment = InterestEvolution(SMALL)
    log = log_of(environment, Player(Uniform(24), 1.0), 400, 1)
    stan = BASELINES["stan"]().fit(Dataset.from_frame(log, environment.responses), 0)
    logger = Player(stan, 0.5)
    others = {"less exploration": Player(stan, 0.2), "itself": Player(stan, 0.5), "greedy": Player(stan, 0.0)}
    return play(environment, logger, others, model_of(environment, logger, 400, 2), 1500, 5)


def test_estimates_are_near_the_truth(pool):
    for name in ("less exploration", "itself"):
        sums = SessionSums(OUTCOMES, SMALL.horizon)
        sums.add(pool.sessions[name])
        truth = pool.one_step[name] - pool.rate
        for row in verdict_of(sums, "click").rows:
            if row.estimate.target == "one step" and row.estimate.outcome == "click" and not row.indicative:
                spread = 4 * row.estimate.error + 0.005
                assert row.estimate.difference.value == pytest.approx(truth, abs=spread), row.estimate.method


def test_the_logger_against_itself_is_not_shipped(pool):
    words = [verdict.word for verdict in verdicts(pool.sessions["itself"], 4, 40, 500, 0)]
    assert "ship" not in words
    assert words.count("reject") <= 6  # the veto errs in one of forty logs, and these share their sessions


def test_logs_are_drawn_alike_for_the_same_seed(pool):
    first, again = (verdicts(pool.sessions["greedy"], 4, 3, 200, 5) for _ in range(2))
    assert [one.to_json() for one in first] == [one.to_json() for one in again]
