"""What models alone say: fitted Q is that of a plain loop, learned users play, and neither changes a verdict."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bcd4rec.evaluation.off_policy.decisions import Decisions
from bcd4rec.evaluation.off_policy.fitted_q import GROUPS, FittedQ
from bcd4rec.evaluation.off_policy.learned_users import learned_users
from bcd4rec.evaluation.off_policy.verdict import over_refits
from bcd4rec.report.verdict import indicative
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig
from bcd4rec.workflows.comparison import random_policy
from bcd4rec.workflows.fitting import fit
from bcd4rec.workflows.judging_study import dataset_of, served, session_rates, with_epsilon
from bcd4rec.workflows.log_verdict import judge_log

NAMES = ("click", "reward")


def log(sessions: int = 37, seed: int = 0) -> tuple[Decisions, np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 5, sessions)
    n = lengths.sum()
    summaries = np.column_stack([np.ones(n), rng.random((n, 3))]).astype(np.float32)
    parts = [rng.random((n, 2)) for _ in range(3)]
    session = np.repeat(np.arange(sessions), lengths)
    found = Decisions(session, np.full((n, 1), 0.5), np.full((n, 1), 0.4), parts[0], parts[1], parts[2])
    return found, summaries


def plain(decisions: Decisions, summaries: np.ndarray, outcome: int, left_out: int | None = None) -> float:
    """Backwards over steps, session by session."""
    assert decisions.model_logged is not None
    assert decisions.model_candidate is not None
    chosen = [s for s in np.unique(decisions.session) if left_out is None or s % GROUPS != left_out]
    rows = {s: np.flatnonzero(decisions.session == s) for s in chosen}
    weights = np.zeros(5)
    for step in reversed(range(4)):
        inputs, targets = [], []
        for mine in rows.values():
            if len(mine) <= step:
                continue
            row = mine[step]
            target = decisions.outcomes[row, outcome]
            if len(mine) > step + 1:
                after = mine[step + 1]
                target += np.append(summaries[after], decisions.model_candidate[after, outcome]) @ weights
            inputs.append(np.append(summaries[row], decisions.model_logged[row, outcome]))
            targets.append(target)
        x = np.array(inputs)
        weights = np.linalg.solve(x.T @ x + np.eye(5), x.T @ np.array(targets))
    starts = [np.append(summaries[m[0]], decisions.model_candidate[m[0], outcome]) for m in rows.values()]
    return float(np.sum(starts, axis=0) @ weights / sum(len(mine) for mine in rows.values()))


def test_fitted_q_is_that_of_a_plain_loop_whatever_the_chunks():
    decisions, summaries = log()
    found = FittedQ(NAMES, 4)
    edge = int(np.searchsorted(decisions.session, 20))
    for some in (slice(0, edge), slice(edge, None)):
        names = ("session", "logged", "candidate", "outcomes", "model_logged", "model_candidate")
        found.add(replace(decisions, **{name: getattr(decisions, name)[some] for name in names}), summaries[some])
    for outcome, line in enumerate(found.lines()):
        assert line.value.value == pytest.approx(plain(decisions, summaries, outcome), rel=1e-5)
        parts = [plain(decisions, summaries, outcome, number) for number in range(GROUPS)]
        half = 2.262157 * np.sqrt(0.9 * np.sum((np.array(parts) - np.mean(parts)) ** 2))
        assert line.value.high - line.value.value == pytest.approx(half, rel=1e-4)
        assert line.logger == pytest.approx(decisions.outcomes[:, outcome].mean())
        assert line.difference.value == pytest.approx(line.value.value - line.logger)


def test_nothing_is_fitted_without_a_model():
    decisions, summaries = log()
    found = FittedQ(NAMES, 4)
    found.add(replace(decisions, model_logged=None, model_candidate=None), summaries)
    assert found.lines() == []


def test_refits_that_agree_are_sure():
    line = over_refits("fitted Q", "click", (0.5, 0.4), np.tile([0.5, 0.4], (5, 1)))
    assert (line.difference.low, line.difference.high) == pytest.approx((0.1, 0.1))


@pytest.fixture(scope="module")
def world():
    users = InterestEvolution(InterestEvolutionConfig(items=24, categories=6, slate_size=2, horizon=4))
    random = random_policy(users)
    dataset = dataset_of(users, random, 500, 1)
    return users, random, dataset, served(fit("markov", dataset).whole(dataset), users)


def test_users_learned_from_a_log_are_like_those_of_the_log(world):
    users, random, dataset, ranking = world
    (line,) = learned_users(dataset, ranking, random, 0)
    assert line.method == "learned users"
    assert line.logger == pytest.approx(session_rates(users, random, 2000, 3).mean(), abs=0.1)
    assert line.difference.low < line.difference.value < line.difference.high
    (alone,) = learned_users(dataset, ranking, None, 0)
    assert alone.value == line.value


def test_they_decide_nothing(world):
    _, random, dataset, ranking = world
    given = (with_epsilon(ranking, 0.9), dataset, random)
    without, beside = (judge_log(*given, indicative=one) for one in (False, True))
    assert replace(beside, indicative=()) == without
    assert [one.method for one in beside.indicative] == ["learned users", "fitted Q", "fitted Q"]
    told = json.loads(json.dumps(beside.to_json()))["indicative"]
    assert told[0]["refits"] == 5
    reasons = [str(row[-1]) for row in indicative(beside).rows if row[1] in ("learned users", "fitted Q")]
    assert reasons[0] == "a model alone, which no weights correct; intervals over 5 refits"
