"""Risk measures: by plain loops, and the same in torch, in NumPy and in the exported model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bcd4rec.agents.agent import AGENTS
from bcd4rec.errors import InputError
from bcd4rec.policies import bundle
from bcd4rec.policies.evidence_policy import EvidencePolicy
from bcd4rec.policies.quantile_policy import QuantilePolicy
from bcd4rec.policies.risk import MEAN, Risk
from bcd4rec.serving.loading import load
from serving_help import ITEMS, quantile_policy, saved
from test_evidence_policy import MODEL, STATES, plain_quantiles, some_behaviour, some_returns
from test_serving_models import assert_same_scores, random_states

RISKS = [Risk(measure=measure, level=level) for measure in ("cvar", "optimistic") for level in (0.3, 0.04, 1.0)]
every_risk = pytest.mark.parametrize("risk", [MEAN, *RISKS], ids=lambda risk: f"{risk.measure} {risk.level}")


def plain(quantiles: list[float], risk: Risk) -> float:
    """The mean over the worst (or best) share of the cases, each of 10,000 cases taken on its own."""
    cases = 100_000
    each = [quantiles[int(case * len(quantiles) / cases)] for case in range(cases)]
    count = cases if risk.measure == "mean" else round(risk.level * cases)
    chosen = each[cases - count :] if risk.measure == "optimistic" else each[:count]
    return sum(chosen) / count


@every_risk
@pytest.mark.parametrize("count", [1, 4, 7, 32])
def test_by_plain_loops(risk, count):
    quantiles = np.random.default_rng(count).normal(size=(count, 3)).astype(np.float32)
    found = risk.fold(quantiles)
    for column in range(3):
        assert found[column] == pytest.approx(plain(quantiles[:, column].tolist(), risk), abs=2e-3)


@given(st.integers(1, 40), st.floats(0.01, 1.0), st.sampled_from(["cvar", "optimistic"]))
def test_weights_are_those_of_a_mean(count, level, measure):
    weights = Risk(measure=measure, level=level).weights(count)
    if weights is None:
        assert level == 1
        return
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1.0, abs=1e-5)
    ordered = np.arange(count, dtype=np.float32)[:, None]
    worst, mean, best = (Risk(measure=one, level=level).fold(ordered)[0] for one in ("cvar", "mean", "optimistic"))
    assert worst <= mean + 1e-5
    assert mean <= best + 1e-5


@every_risk
def test_in_numpy(risk, tmp_path: Path):
    policy = EvidencePolicy(MODEL, some_returns(7), some_behaviour(0.0), risk)
    scores = policy.scores(STATES)
    for b in range(len(STATES)):
        for item in (0, 3):
            wanted = plain(plain_quantiles(policy, STATES, b, item), risk)
            assert scores[b, item] == pytest.approx(wanted, rel=2e-3, abs=5e-3)
    again = EvidencePolicy.restore(policy.settings(), policy.arrays())
    assert again.risk == risk
    np.testing.assert_array_equal(again.scores(STATES), scores)


@every_risk
@pytest.mark.parametrize("head", ["fixed", "implicit", "expected"])
def test_in_torch_and_exported(risk, head, tmp_path: Path):
    mean = quantile_policy("meanpool", head)
    policy = QuantilePolicy(mean.network, 0.7, mean.behaviour, risk=risk)
    rng = np.random.default_rng(1)
    states = random_states(rng, 5, 8)
    scores, network = policy.scores(states), policy.network
    count = network.head.folded
    taus = ((torch.arange(count) + 0.5) / count).expand(len(states), -1)
    for item in (0, ITEMS - 1):
        with torch.no_grad():
            actions = network.actions(torch.full((len(states),), item))
            known = network.head.quantiles(network.encode_states(states), actions, taus)
        for b in range(len(states)):
            assert scores[b, item] == pytest.approx(plain(known[b].tolist(), risk) + 0.7, abs=5e-3)
    folder = saved(policy, tmp_path)
    assert bundle.load(folder).scorer.risk == risk
    assert_same_scores(policy, load(folder).policy.scorer, states, rng)
    if risk == MEAN:
        np.testing.assert_array_equal(scores, mean.scores(states))


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("dqn", {"risk": "cvar"}, "risk=cvar needs quantiles, and the head is expected"),
        ("iqn", {"level": 0.1}, "level is for risk=cvar and risk=optimistic"),
        ("iqn", {"risk": "cvar", "level": 0}, "level: found 0"),
        ("iqn", {"risk": "bold"}, "risk: found 'bold'"),
        ("crr", {"risk": "cvar"}, "crr ranks by preferences"),
    ],
)
def test_settings_that_make_no_sense(name, settings, words):
    with pytest.raises(InputError, match=words):
        AGENTS[name].parse(settings, f"{name} --set")
    assert AGENTS["iqn"].parse({"risk": "cvar", "level": "0.2"}, "x").risk_measure() == Risk(measure="cvar", level=0.2)
