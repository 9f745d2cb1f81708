"""Policies over evidence: one formula, whether asked for some items or for all."""

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.states import PAD, States
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.models.evidence import SUMMARY, summary
from bcd4rec.models.evidence_kernels import COLUMNS
from bcd4rec.models.response_regression import ResponseModel, fit_response
from bcd4rec.policies import bundle
from bcd4rec.policies.evidence_policy import BehaviourWeights, EvidencePolicy, ReturnWeights
from bcd4rec.policies.policy import Policy

N_ITEMS, HIDDEN = 14, 5
REWARDS = {"skip": 0.0, "click": 1.0, "buy": 5.0, "complain": -2.0}


def small_model() -> tuple[Dataset, ResponseModel]:
    rng = np.random.default_rng(0)
    rows = [
        (session, step, place, int(item), str(rng.choice(list(REWARDS), p=[0.5, 0.3, 0.1, 0.1])), f"c{item % 3}")
        for session in range(60)
        for step in range(3)
        for place, item in enumerate(rng.permutation(N_ITEMS)[:4])
    ]
    columns = ["session_id", "step", "position", "item_id", "response", "category"]
    dataset = Dataset.from_frame(pl.DataFrame(rows, schema=columns, orient="row"), REWARDS)
    return dataset, fit_response(dataset, 0)[0]


DATASET, MODEL = small_model()
STATES = DATASET.states[np.linspace(0, len(DATASET.states) - 1, 9).astype(int)]


def some_returns(count: int) -> ReturnWeights:
    rng = np.random.default_rng(count)

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    return ReturnWeights(
        draw(count), draw(count, COLUMNS), draw(count), draw(count), draw(HIDDEN, SUMMARY + 1), draw(HIDDEN + 1)
    )


def some_behaviour(beta: float) -> BehaviourWeights:
    return BehaviourWeights(np.random.default_rng(1).normal(size=COLUMNS).astype(np.float32), beta)


POLICIES = {
    "response": EvidencePolicy(MODEL),
    "one value": EvidencePolicy(MODEL, some_returns(1)),
    "quantiles": EvidencePolicy(MODEL, some_returns(32), some_behaviour(0.0)),
    "constrained": EvidencePolicy(MODEL, some_returns(7), some_behaviour(0.05)),
    "constrained response": EvidencePolicy(MODEL, None, some_behaviour(0.3)),
}


def plain_quantiles(policy: EvidencePolicy, states: States, b: int, item: int) -> list[float]:
    """By plain loops, in the order of the fractions."""
    returns = policy.returns
    assert returns is not None
    row = policy.model.evidence.rows(states[[b]], np.array([[item]], np.int32))[0, 0].astype(float)
    told = summary(states[[b]])[0].astype(float)
    reward = float(policy.model.expected_rewards(states[[b]], np.array([[item]], np.int32))[0, 0])
    value = float(returns.output[-1])
    for unit in range(HIDDEN):
        hidden = float(returns.hidden[unit, -1]) + sum(told[j] * returns.hidden[unit, j] for j in range(SUMMARY))
        value += max(hidden, 0.0) * float(returns.output[unit])
    return [
        float(returns.reward[n]) * reward
        + sum(row[j] * float(returns.evidence[n, j]) for j in range(COLUMNS))
        + float(returns.session[n]) * value
        + float(returns.constant[n])
        for n in range(len(returns.reward))
    ]


@pytest.mark.parametrize("name", POLICIES)
def test_scores_of_candidates_are_those_of_all_items(name):
    policy, rng = POLICIES[name], np.random.default_rng(2)
    candidates = rng.integers(N_ITEMS, size=(len(STATES), 11)).astype(np.int32)
    candidates[rng.random(candidates.shape) < 0.2] = PAD
    every, some = policy.scores(STATES), policy.scores(STATES, candidates)
    assert every.shape == (len(STATES), N_ITEMS)
    assert every.dtype == some.dtype == np.float32
    wanted = np.where(candidates == PAD, -np.inf, np.take_along_axis(every, candidates, axis=1))
    np.testing.assert_allclose(some, wanted, rtol=1e-3, atol=1e-3)
    assert policy.n_items == N_ITEMS


@pytest.mark.parametrize("name", ["one value", "quantiles", "constrained"])
def test_scores_and_quantiles_by_plain_loops(name):
    policy = POLICIES[name]
    items = np.arange(len(STATES), dtype=np.int32)
    scores, quantiles = policy.scores(STATES), policy.quantiles(STATES, items)
    for b in range(len(STATES)):
        wanted = plain_quantiles(policy, STATES, b, int(items[b]))
        np.testing.assert_allclose(quantiles[b], sorted(wanted), rtol=1e-3, atol=1e-3)
        if np.isfinite(scores[b, items[b]]):
            assert scores[b, items[b]] == pytest.approx(sum(wanted) / len(wanted), rel=1e-3, abs=2e-3)
    assert policy.knows_quantiles == (name != "one value")


def test_quantiles_ascend_and_their_mean_is_the_score():
    policy = POLICIES["quantiles"]
    scores = policy.scores(STATES)
    for item in range(N_ITEMS):
        items = np.full(len(STATES), item, np.int32)
        for count, wanted in ((0, 32), (32, 32), (5, 5), (40, 40)):
            found = policy.quantiles(STATES, items, count)
            assert found.shape == (len(STATES), wanted)
            assert (np.diff(found, axis=1) >= 0).all()
        np.testing.assert_allclose(policy.quantiles(STATES, items).mean(axis=1), scores[:, item], rtol=1e-4, atol=1e-3)
    few = policy.quantiles(STATES, items, 8)  # the middle of four of 32 fractions lies between the second and the third
    full = policy.quantiles(STATES, items).reshape(len(STATES), 8, 4)
    np.testing.assert_allclose(few, (full[:, :, 1] + full[:, :, 2]) / 2, rtol=1e-4, atol=1e-4)


def test_a_policy_without_returns_has_no_quantiles():
    policy = POLICIES["response"]
    assert not policy.knows_quantiles
    with pytest.raises(ValueError, match="no returns"):
        policy.quantiles(STATES, np.zeros(len(STATES), np.int32))
    with pytest.raises(ValueError, match="no behaviour model"):
        policy.log_likelihood(STATES)
    np.testing.assert_array_equal(policy.scores(STATES), MODEL.expected_rewards(STATES))


@pytest.mark.parametrize("name", ["constrained", "constrained response"])
def test_items_that_the_behaviour_model_does_not_allow(name):
    policy = POLICIES[name]
    assert policy.constrained
    assert policy.behaviour is not None
    free = EvidencePolicy(policy.model, policy.returns).scores(STATES)
    likely = policy.log_likelihood(STATES)
    allowed = likely >= likely.max(axis=1, keepdims=True) + math.log(policy.behaviour.beta)
    assert allowed.any(axis=1).all()
    assert 0.1 < allowed.mean() < 0.9
    scores = policy.scores(STATES)
    np.testing.assert_array_equal(np.isfinite(scores), allowed)
    np.testing.assert_allclose(scores[allowed], free[allowed], rtol=1e-3, atol=1e-3)


def test_without_beta_the_behaviour_model_only_explains():
    policy = POLICIES["quantiles"]
    assert not policy.constrained
    assert np.isfinite(policy.scores(STATES)).all()
    mask = BehaviourWeights(np.zeros(COLUMNS, np.float32)).allowed(np.zeros((2, 3), np.float32))
    assert mask.tolist() == [[True] * 3] * 2
    alone = BehaviourWeights(np.zeros(COLUMNS, np.float32), 1.0).allowed(np.array([[0.0, 2.0, 1.0]], np.float32))
    assert alone.tolist() == [[False, True, False]]


def test_log_likelihood_is_normalised():
    policy = POLICIES["quantiles"]
    assert policy.behaviour is not None
    found = policy.log_likelihood(STATES)
    np.testing.assert_allclose(np.exp(found.astype(np.float64)).sum(axis=1), 1.0, rtol=1e-5)
    every = np.tile(np.arange(N_ITEMS, dtype=np.int32), (len(STATES), 1))
    logits = MODEL.evidence.rows(STATES, every) @ policy.behaviour.evidence
    np.testing.assert_allclose(found - found[:, :1], logits - logits[:, :1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", POLICIES)
def test_saved_and_loaded_to_the_same_bits(name, tmp_path: Path):
    policy = POLICIES[name]
    bundle.write(Policy(policy, Vocabulary(DATASET.vocabulary.ids), about={"method": "test"}), tmp_path)
    again = bundle.load(tmp_path).scorer
    assert isinstance(again, EvidencePolicy)
    np.testing.assert_array_equal(again.scores(STATES), policy.scores(STATES))
    some = np.array([[3, PAD, 0]] * len(STATES), np.int32)
    np.testing.assert_array_equal(again.scores(STATES, some), policy.scores(STATES, some))
    assert again.constrained == policy.constrained
    assert again.knows_quantiles == policy.knows_quantiles
    if policy.returns is not None:
        items = np.arange(len(STATES), dtype=np.int32)
        np.testing.assert_array_equal(again.quantiles(STATES, items), policy.quantiles(STATES, items))
    if policy.behaviour is not None:
        np.testing.assert_array_equal(again.log_likelihood(STATES), policy.log_likelihood(STATES))
    assert list(again.arrays()) == list(policy.arrays())


def test_no_states_and_empty_states():
    for policy in POLICIES.values():
        assert policy.scores(States.empty(0, 4, 3)).shape == (0, N_ITEMS)
        alone = policy.scores(States.empty(1, 4, 0))
        np.testing.assert_array_equal(alone, policy.scores(States.empty(3, 2, 5))[1:2])
