"""The contracts that every registered agent keeps, on tiny data sets made in memory."""

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from scipy.stats import wasserstein_distance

from bcd4rec.agents import quantile_agent
from bcd4rec.agents.agent import AGENTS
from bcd4rec.agents.q_learning import QLearningConfig
from bcd4rec.agents.quantile_agent import QuantileAgent
from bcd4rec.artifacts import MANIFEST, read_json, write_json
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.states import PAD, States
from bcd4rec.errors import CheckpointError, InputError
from bcd4rec.models.behaviour import BehaviourModel
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.ranking import exclude, top
from bcd4rec.training import DivergenceError, Trainer, check, take

NAMES = AGENTS.names()
VARIANTS = [name for name, module in AGENTS.declared().items() if module == "variants"]
VALUING = [name for name in NAMES if AGENTS[name].scores_are_returns]
CONSTRAINED = {"bcq": "dqn", "qrbcq": "qrdqn", "bcd4rec": "iqn"}
STRONG = {"cql": {"alpha": 0.01}, "crr": {"temperature": 0.3}}  # few items, all of them logged often
Row = tuple[int, int, int, float, int, float]  # session, state, action, reward, next state, discount


def make_dataset(rows: list[Row], sessions: list[list[int]], n_items: int, gamma: float = 0.9) -> Dataset:
    """A data set of `rows` over the states `sessions`; a reward above 0 is a click."""
    session, state, action, reward, following, discount = (np.array(column) for column in zip(*rows, strict=True))
    step = np.concatenate([np.arange(count) for count in np.unique(session, return_counts=True)[1]])
    frame = pl.DataFrame(
        {
            "session": session.astype(np.uint32),
            "step": step.astype(np.uint32),
            "state": state.astype(np.int32),
            "action": action.astype(np.int32),
            "response": (reward > 0).astype(np.uint8),
            "reward": reward.astype(np.float32),
            "next_state": following.astype(np.int32),
            "discount": discount.astype(np.float32),
            "propensity": pl.Series([None] * len(rows), dtype=pl.Float32),
            "position": np.full(len(rows), -1, np.int32),
            "organic": np.zeros(len(rows), np.bool_),
        }
    )
    count = int(session.max()) + 1
    manifest = {
        "responses": {"rewards": {"skip": 0.0, "click": max(float(reward.max()), 1.0)}},
        "config": {"gamma": gamma},
        "content_hash": "tiny",
    }
    items = pl.DataFrame({"item_id": np.arange(n_items), "category": [None] * n_items})
    split = ["validation" if one % 5 == 4 else "train" for one in range(count)]
    return Dataset(
        manifest, items, pl.DataFrame({"session_id": np.arange(count), "split": split}), frame, States.of(sessions)
    )


def bandit(count: int = 800) -> Dataset:
    """One state, six items; item 2 is clicked nine times in ten, the others once in five."""
    rng = np.random.default_rng(0)
    actions = rng.integers(6, size=count)
    clicks = rng.random(count) < np.where(actions == 2, 0.9, 0.2)
    return make_dataset(
        [(j, 0, int(a), 4.0 * c, 0, 0.0) for j, (a, c) in enumerate(zip(actions, clicks, strict=True))], [[]], 6
    )


def patience(count: int = 600) -> Dataset:
    """Item 0 pays 1 and ends the session; item 1 pays 0.1 and leads to where item 2 pays 4. All others pay nothing."""
    rng = np.random.default_rng(1)
    rows: list[Row] = []
    for session in range(count):
        first, second = int(rng.integers(4)), int(rng.choice(4, p=[0.4, 0.2, 0.2, 0.2]))
        if first == 1:
            rows += [(session, 0, 1, 0.1, 1, 0.9), (session, 1, second, 4.0 * (second == 2), 2, 0.0)]
        else:
            rows += [(session, 0, first, float(first == 0), 2, 0.0)]
    return make_dataset(rows, [[], [1], [1, 2]], 4)


def tiny(name: str, **changes: object) -> QLearningConfig:
    values = {
        "evidence": False,
        "dimension": 8,
        "quantiles": 5,
        "cosines": 16,
        "pretraining": "none",
        "freeze_embeddings": False,
        "behaviour_epochs": 40,
        "learning_rate": 1e-2,
        "batch_size": 64,
        "updates": 300,
        "target_every": 20,
        "polyak": 0.05,
        "target": "hard",
        "encoder": "meanpool",
    }
    own = {"beta": 0.1 if name in CONSTRAINED else 0.0} | STRONG.get(name, {})
    return AGENTS[name].parse(values | own | changes, "test")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"encoder": "bigru"}, "iqn --set: encoder is for evidence=false; add --set evidence=false."),
        ({"evidence": True, "pretraining": "svd", "layers": 3}, "layers, pretraining are for evidence=false; add"),
        ({"constraint": "literal"}, "constraint is for evidence=false"),
        ({"evidence": False, "shrink": 1}, "shrink is for evidence=true; add --set evidence=true."),
    ],
)
def test_settings_that_would_change_nothing_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        AGENTS["iqn"].parse(settings, "iqn --set")


def trained(config: QLearningConfig, dataset: Dataset, seed: int = 0) -> QuantileAgent:
    trainer = Trainer(config, dataset, seed)
    for _ in trainer.run():
        pass
    return trainer.agent


def weights(agent: QuantileAgent) -> list[torch.Tensor]:
    modules = [part for part in agent.parts().values() if isinstance(part, torch.nn.Module)]
    return [one for module in modules for one in module.state_dict().values()]


def same(left: QuantileAgent, right: QuantileAgent) -> bool:
    return all(torch.equal(*pair) for pair in zip(weights(left), weights(right), strict=True))


def test_the_six_agents_differ_in_two_switches_only():
    assert set(VARIANTS) == {"dqn", "bcq", "qrdqn", "qrbcq", "iqn", "bcd4rec"}
    switched = {
        field for name in VARIANTS for field, value in AGENTS[name]() if value != getattr(AGENTS["dqn"](), field)
    }
    assert switched == {"head", "beta"}
    for constrained, twin in CONSTRAINED.items():
        assert AGENTS[constrained]().head == AGENTS[twin]().head
        assert AGENTS[constrained]().beta > 0 == AGENTS[twin]().beta


@pytest.mark.parametrize("name", NAMES)
def test_finds_the_best_item_of_a_bandit(name):
    policy = trained(tiny(name), bandit()).policy()
    scores = policy.scores(States.empty(1))
    assert scores.argmax() == 2
    if name in VALUING:
        assert scores[0, 2] == pytest.approx(3.6, abs=0.8)


@pytest.mark.parametrize("target", ["hard", "polyak"])
@pytest.mark.parametrize("name", NAMES)
def test_waits_where_waiting_pays(name, target):
    scores = trained(tiny(name, target=target), patience()).policy().scores(States.of([[], [1]]))
    assert scores[0].argmax() == 1  # a myopic policy would take item 0
    assert scores[1].argmax() == 2
    if name in VALUING:
        assert scores[0, 1] == pytest.approx(0.1 + 0.9 * 4, abs=0.5)


@pytest.mark.parametrize("name", VALUING)
def test_quantiles_approach_the_return_of_a_two_outcome_bandit(name):
    rng = np.random.default_rng(2)
    outcomes = 4.0 * (rng.random(500) < 0.75)
    dataset = make_dataset([(j, 0, j % 2, r if j % 2 else 1.0, 0, 0.0) for j, r in enumerate(outcomes)], [[]], 2)
    distances = []
    for updates in (1, 40, 300):
        policy = trained(tiny(name, updates=updates), dataset).policy()
        quantiles = policy.quantiles(States.empty(1), np.array([1], np.int32))[0]
        assert (np.diff(quantiles) >= 0).all()
        distances.append(wasserstein_distance(quantiles, [0.0, 4.0], None, [0.25, 0.75]))
    assert distances[0] > distances[1] > distances[2]
    if AGENTS[name]().head != "expected":  # a single value cannot stand for two outcomes
        assert distances[2] < 0.7


@pytest.mark.parametrize("mode", ["frozen", "joint"])
@pytest.mark.parametrize("name", CONSTRAINED)
def test_beta_one_leaves_only_the_mode(name, mode):
    agent = Trainer(tiny(name, beta=1.0, behaviour=mode), patience()).agent
    modes = agent.behaviour.log_probabilities(torch.from_numpy(agent.states.positives)).argmax(dim=1)
    best, share = agent._best_actions(np.arange(3), torch.randn(3, 8))
    assert best.tolist() == modes.tolist()
    assert share == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("warm_up", "shares"), [(0.5, [0.0, 0.14, 1.0, 1.0]), (0.0, [1.0] * 4), (1.0, [0.0, 0.07, 0.5, 1.0])]
)
def test_the_discount_rises_while_it_warms_up(warm_up, shares):
    changes = {"warm_up": warm_up, "updates": 100, "centre_rewards": False, "target": "polyak"}
    trainer = Trainer(tiny("qrdqn", **changes), patience())
    agent, batch = trainer.agent, take(trainer.transitions, np.arange(40))
    values = []
    for step in (0, 7, 50, 100):
        target, _ = agent.targets(batch, agent.look(batch), step)
        values.append(target - torch.from_numpy(batch.reward)[:, None])
    assert (values[-1].abs().amax(dim=1) > 0).tolist() == (batch.discount > 0).tolist()
    for value, share in zip(values, shares, strict=True):
        torch.testing.assert_close(value, share * values[-1])


@pytest.mark.parametrize("serve", ["online", "target"])
def test_the_policy_and_its_values_are_those_of_the_network_that_serves(serve):
    agent = trained(tiny("iqn", target="polyak", serve=serve, updates=45), bandit())
    network = agent.network if serve == "online" else agent.target
    assert not torch.equal(agent.target.embeddings, agent.network.embeddings)
    assert torch.equal(agent.policy().network.embeddings, network.embeddings)
    best = network.mean_values(network.encode_states(agent.states)).max().item()
    assert agent.mean_value(np.zeros(3, np.int64)) == pytest.approx(best + agent.offset)


@pytest.mark.parametrize(("name", "twin"), CONSTRAINED.items())
def test_beta_zero_equals_the_unconstrained_agent_bit_for_bit(name, twin):
    dataset = patience()
    free, bound = (trained(tiny(one, beta=0.0, updates=50), dataset) for one in (twin, name))
    assert same(free, bound)
    assert not same(free, trained(tiny(name, beta=1.0, updates=50), dataset))


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_bits_and_checkpoints_resume_to_them(name, tmp_path: Path):
    parts = {
        "behaviour": "joint" if name == "bcq" else "frozen",
        "encoder": "bigru" if name == "bcd4rec" else "meanpool",
    }
    config, dataset = tiny(name, updates=50, pretraining="item2vec", pretraining_epochs=1, **parts), patience()
    whole = trained(config, dataset, seed=3)
    assert same(whole, trained(config, dataset, seed=3))
    assert not same(whole, trained(config, dataset, seed=4))
    first = Trainer(config, dataset, seed=3)
    next(iter(first.run(report_every=27)))  # in the middle of a period of the target
    first.save(tmp_path / "checkpoint")
    second = Trainer(config, dataset, seed=3, checkpoint=tmp_path / "checkpoint")
    assert second.step == 27
    for _ in second.run():
        pass
    assert same(whole, second.agent)
    assert [one.step for one in second.reports] == [27, 50]
    assert second.reports[0] == first.reports[0]
    with pytest.raises(CheckpointError, match="its seed differs"):
        Trainer(config, dataset, seed=4, checkpoint=tmp_path / "checkpoint")


@pytest.mark.parametrize("name", [MANIFEST, "state.safetensors"])
@pytest.mark.parametrize("left", [None, b"", b"{"])
def test_a_checkpoint_that_is_cut_short_is_refused(name: str, left: bytes | None, tmp_path: Path):
    Trainer(tiny("dqn", updates=2), bandit()).save(tmp_path / "checkpoint")
    file = tmp_path / "checkpoint" / name
    file.unlink() if left is None else file.write_bytes(left)
    with pytest.raises(CheckpointError, match="cut short"):
        Trainer(tiny("dqn", updates=2), bandit(), checkpoint=tmp_path / "checkpoint")


@pytest.mark.parametrize("serving", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded_it_scores_the_same(name, serving, tmp_path: Path):
    dataset = patience()
    policy = trained(tiny(name, updates=5, constrain_serving=serving), dataset).policy()
    bundle.write(Policy(policy, dataset.vocabulary, about={"method": name}), tmp_path)
    loaded = bundle.load(tmp_path).scorer
    states = States.of([[], [1], [3, 2, 1]])
    assert np.array_equal(policy.scores(states), loaded.scores(states))
    items = np.array([0, 1, 3], np.int32)
    assert np.array_equal(policy.quantiles(states, items, 7), loaded.quantiles(states, items, 7))


@pytest.mark.parametrize("name", NAMES)
def test_candidates_score_as_in_the_catalogue_and_what_is_excluded_never_comes_out(name):
    policy = trained(tiny(name, updates=5), patience()).policy()
    states = States.of([[], [1, 2]])
    candidates = np.array([[3, PAD, 0], [2, 1, PAD]], np.int32)
    scores, some = policy.scores(states), policy.scores(states, candidates)
    assert scores.dtype == some.dtype == np.float32
    assert some[0, 1] == some[1, 2] == -np.inf
    np.testing.assert_allclose(some[0, [0, 2]], scores[0, [3, 0]], rtol=1e-5)
    np.testing.assert_allclose(some[1, :2], scores[1, [2, 1]], rtol=1e-5)
    exclude(scores, np.array([[0, 1], [2, PAD]], np.int32))
    slates = top(scores, 4)
    assert not np.isin(slates[0], [0, 1]).any()
    assert 2 not in slates[1]


def test_constrained_serving_recommends_only_what_the_behaviour_model_allows():
    dataset = make_dataset([(j, 0, j % 2, 4.0 * (j % 2), 0, 0.0) for j in range(100)], [[]], 3)
    agent = trained(tiny("bcd4rec", beta=0.5, constrain_serving=True, behaviour_epochs=300, updates=20), dataset)
    scores = agent.policy().scores(States.empty(1))
    assert np.isfinite(scores[0, :2]).all()
    assert scores[0, 2] == -np.inf
    assert agent.policy().scores(States.empty(1), np.array([[2, 1]], np.int32))[0, 0] == -np.inf


def test_a_frozen_behaviour_model_gives_the_sets_that_a_joint_one_computes_anew():
    dataset = patience()
    agent = Trainer(tiny("bcd4rec", beta=0.5), dataset).agent
    assert isinstance(agent.behaviour, BehaviourModel)
    vectors = torch.randn(3, 8)
    frozen = agent._best_actions(np.arange(3), vectors)
    agent.allowed = None
    again = agent._best_actions(np.arange(3), vectors)
    assert frozen[0].tolist() == again[0].tolist()
    assert frozen[1] == pytest.approx(again[1])


def test_each_distinct_state_of_a_batch_is_encoded_once(monkeypatch):
    trainer = Trainer(tiny("iqn", updates=1), patience())
    seen: list[int] = []
    encode = trainer.agent.network.encode
    monkeypatch.setattr(
        trainer.agent.network, "encode", lambda items, skips: (seen.append(len(items)), encode(items, skips))[1]
    )
    next(iter(trainer.run()))
    assert sum(seen[:2]) == 3  # 64 transitions over three states: those acted in, then those that only follow


def test_mean_value_does_not_depend_on_how_many_values_are_held_at_once(monkeypatch):
    agent, ids = Trainer(tiny("iqn"), patience()).agent, np.array([2, 0, 1, 1, 0])
    best = [float(agent.policy().scores(agent.states[np.array([one])]).max()) for one in ids]
    for values in (1, 8, 10**6):
        monkeypatch.setattr(quantile_agent, "VALUES_AT_ONCE", values)
        assert agent.mean_value(ids) == pytest.approx(np.mean(best), rel=1e-5)


def test_reports_say_what_happened():
    reports = list(Trainer(tiny("bcd4rec", updates=25, beta=1.0), patience()).run(report_every=10))
    assert [report.step for report in reports] == [10, 20, 25]
    assert reports[-1].feasible == pytest.approx(40.0)
    assert reports[-1].allowed == pytest.approx(0.25)
    assert all(report.per_second > 0 for report in reports)


def test_divergence_is_reported_with_advice():
    config = tiny("dqn", learning_rate=1e9, updates=100, clip=1e9)
    with pytest.raises(DivergenceError, match=r"diverged at update .* try a smaller learning_rate"):
        trained(config, bandit())
    report = next(iter(Trainer(tiny("dqn", updates=1), bandit()).run()))
    for values, fine in (({"q_bar": 39.0}, True), ({"q_bar": 90.0}, False), ({"target_value": -90.0}, False)):
        changed = type(report)(**(vars(report) | values))
        if fine:
            check(changed, (0.0, 40.0), config)
        else:
            with pytest.raises(DivergenceError, match="no return can exceed 40"):
                check(changed, (0.0, 40.0), config)


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path):
    trainer = Trainer(tiny("dqn", updates=2), bandit())
    trainer.save(tmp_path / "checkpoint")
    manifest = read_json(tmp_path / "checkpoint" / MANIFEST)
    write_json(tmp_path / "checkpoint" / MANIFEST, manifest | {"data": "other"})
    with pytest.raises(InputError, match="its data differs"):
        Trainer(tiny("dqn", updates=2), bandit(), checkpoint=tmp_path / "checkpoint")
