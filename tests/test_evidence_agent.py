"""Agents over evidence: whole updates against plain loops, where they start, and that they look ahead."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from scipy.special import expit
from torch import Tensor

from bcd4rec.agents import next_actions
from bcd4rec.agents.evidence_agent import EvidenceAgent, LearningMaterial, fit_behaviour_weights
from bcd4rec.agents.next_actions import NextActions
from bcd4rec.agents.q_learning import QLearningConfig
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig
from bcd4rec.data.responses import Responses
from bcd4rec.data.states import PAD, States
from bcd4rec.models.evidence import summary
from bcd4rec.models.evidence_kernels import COLUMNS, LIKED
from bcd4rec.models.evidence_network import EvidenceNetwork
from bcd4rec.models.response_regression import ResponseModel, Sample, fit_response
from bcd4rec.policies.evidence_policy import BehaviourWeights
from bcd4rec.seeding import generator
from bcd4rec.training import Trainer, take

HEADS = ("expected", "fixed", "implicit")
REWARDS = {"skip": 0.0, "click": 1.0, "buy": 5.0, "complain": -2.0}
SEED, N_ITEMS = 7, 10
INPUTS = 1 + COLUMNS


def frame_of(rows: list[tuple[int, int, int, int, str]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["session_id", "step", "position", "item_id", "response"], orient="row")


def dataset_of(frame: pl.DataFrame, rewards: dict[str, float], gamma: float = 0.9, length: int = 5) -> Dataset:
    config = {"split": {"validation": 0.1}, "transitions": {"length": length, "skips": 6, "gamma": gamma}}
    return Dataset.from_frame(frame, rewards, PrepareConfig.parse(config, "test"))


def small_log() -> Dataset:
    """Items that were liked come again; some are better than others, and some are shown more often."""
    rng = np.random.default_rng(0)
    rows = []
    for session in range(50):
        for step in range(int(rng.integers(1, 5))):
            for place, item in enumerate(rng.choice(N_ITEMS, 3, False, np.arange(1, N_ITEMS + 1) / 55)):
                chances = [0.55 - 0.04 * item, 0.25 + 0.04 * item, 0.1, 0.1]
                rows.append((session, step, place, int(item), str(rng.choice(list(REWARDS), p=chances))))
    return dataset_of(frame_of(rows), REWARDS)


DATASET = small_log()
MODEL, SAMPLE = fit_response(DATASET, SEED)


def config_of(head: str, **changes: object) -> QLearningConfig:
    values = {
        "head": head,
        "quantiles": 5,
        "cosines": 6,
        "beta": 0.8,
        "next_actions": 7,
        "learning_rate": 0.3,
        "decay": 0.7,
        "weight_decay": 0.02,
        "clip": 0.6,
        "kappa": 0.8,
        "polyak": 0.1,
        "shrink": 0.05,
        "batch_size": 8,
        "updates": 4,
        "target_every": 2,
    }
    return QLearningConfig.parse(values | changes, "test")


def material_of(config: QLearningConfig, dataset: Dataset = DATASET) -> LearningMaterial:
    return LearningMaterial(config, dataset, MODEL, SAMPLE, SEED)


# A plain agent, one transition, fraction and entry at a time

Weights = dict[str, Tensor]
Moments = dict[str, tuple[Tensor, Tensor]]


class Plain:
    """Algorithm 1 over evidence by loops over batch, fractions and actions, in double precision."""

    def __init__(self, config: QLearningConfig, network: EvidenceNetwork, dataset: Dataset, model: ResponseModel):
        self.config, self.dataset, self.model = config, dataset, model
        self.online, self.moments = parameters(network)
        self.target = {name: one.detach().clone() for name, one in self.online.items()}
        self.unit = 7.0  # from −2 to 5
        self.mean = float(SAMPLE.transitions.reward.astype(np.float64).mean()) if config.centre_rewards else 0.0
        self.sizes = np.sqrt((SAMPLE.rows.astype(np.float64) ** 2).mean(axis=0))

    def count(self) -> int:
        return 1 if self.config.head == "expected" else self.config.quantiles

    def taus(self, name: str, size: int, step: int) -> list[list[float]]:
        if self.config.head == "implicit":
            drawn = generator(SEED, "taus", name, step).random((size, self.count()), dtype=np.float32)
            return [[float(one) for one in row] for row in drawn]
        return [[(n + 0.5) / self.count() for n in range(self.count())]] * size

    def factors(self, weights: Weights, tau: float) -> tuple[Tensor, Tensor]:
        """What the entries of a state are multiplied by at a fraction, and what is added."""
        nothing = torch.zeros(INPUTS + 1, dtype=torch.float64)
        if self.config.head == "expected":
            return nothing + 1, nothing
        if self.config.head == "fixed":
            number = round(tau * self.count() - 0.5)
            return weights["head.scale"][number], weights["head.bias"][number]
        cosines = torch.tensor([math.cos(math.pi * i * tau) for i in range(self.config.cosines)], dtype=torch.float64)
        entries = [
            torch.relu((cosines * weights["head.linear.weight"][j]).sum() + weights["head.linear.bias"][j])
            for j in range(INPUTS + 1)
        ]
        return torch.stack(entries), nothing

    def value(self, weights: Weights, told: np.ndarray, inputs: np.ndarray, tau: float) -> Tensor:
        """Q^τ(s, a) of a summary and the inputs of an item."""
        hidden = torch.relu(weights["value.first.weight"] @ torch.tensor(told) + weights["value.first.bias"])
        own = (weights["value.second.weight"][0] * hidden).sum() + weights["value.second.bias"][0]
        state = torch.cat((weights["weights"], own[None]))
        scale, added = self.factors(weights, tau)
        return ((state * scale + added) * torch.tensor([*inputs, 1.0])).sum()

    def fractions(self) -> list[float]:
        """Over which the mean of an action is taken."""
        count = 32 if self.config.head == "implicit" else self.count()
        return [(n + 0.5) / count for n in range(count)]

    def inputs(self, row: np.ndarray, told: np.ndarray) -> tuple[np.ndarray, list[float]]:
        """The expected reward in units, and the evidence; and the chances of at least each response."""
        chances = [
            float(expit(row.astype(np.float64) @ evidence + told @ session))
            for evidence, session in zip(self.model.weights.evidence, self.model.weights.session, strict=True)
        ]
        reward = -2.0 + 2.0 * chances[0] + 1.0 * chances[1] + 4.0 * chances[2]
        scaled = [x / size if size > 1e-3 else 0.0 for x, size in zip(row, self.sizes, strict=True)]
        return np.array([(reward - self.mean) / self.unit, *scaled]), chances

    def next_actions(self, fold: int, state: int, behaviour: np.ndarray | None) -> list[np.ndarray]:
        """The inputs of the best items by the response model among those that are likely enough."""
        states, evidence = self.dataset.states[[state]], SAMPLE.evidence[fold]
        rows = evidence.rows(states, np.arange(N_ITEMS, dtype=np.int32)[None])[0]
        found = [self.inputs(rows[item], summary(states)[0].astype(np.float64))[0] for item in range(N_ITEMS)]
        items = list(range(N_ITEMS))
        if behaviour is not None:
            logits = rows @ behaviour
            items = [item for item in items if logits[item] >= logits.max() + math.log(self.config.beta)]
        items = sorted(items, key=lambda item: -found[item][0])[: self.config.next_actions]
        return [found[item] for item in items]

    def loss(self, rows: np.ndarray, step: int, behaviour: np.ndarray | None) -> Tensor:
        shown, config = SAMPLE.transitions, self.config
        draws = generator(SEED, "rewards", step).random(len(rows), dtype=np.float32)
        predicted_taus, target_taus = (self.taus(name, len(rows), step) for name in ("predicted", "target"))
        until = config.warm_up * config.updates
        total = torch.zeros((), dtype=torch.float64)
        for b, row in enumerate(rows):
            told = summary(self.dataset.states[shown.state[[row]]])[0].astype(np.float64)
            inputs, chances = self.inputs(SAMPLE.rows[row], told)
            reward = -2.0 + sum(gain * (draws[b] < p) for gain, p in zip((2.0, 1.0, 4.0), chances, strict=True))
            if config.rewards == "logged":
                reward = float(shown.reward[row])
            target = [(reward - self.mean) / self.unit] * self.count()
            if shown.discount[row] > 0:
                after = summary(self.dataset.states[shown.next_state[[row]]])[0].astype(np.float64)
                actions = self.next_actions(int(SAMPLE.fold[row]), int(shown.next_state[row]), behaviour)
                with torch.no_grad():
                    best = self.follow(after, actions, b, int(row), step)
                    share = 0.9 * (min(1.0, step / until) if until else 1.0)
                    for m, tau in enumerate(target_taus[b]):
                        target[m] += share * float(self.value(self.target, after, best, tau))
            for tau in predicted_taus[b]:
                predicted = self.value(self.online, told, inputs, tau)
                for one in target:
                    error = one - predicted
                    weight = abs(tau - float(error.item() < 0))
                    size = error.abs()
                    kappa = config.kappa
                    huber = 0.5 * error**2 if size.item() <= kappa else kappa * (size - 0.5 * kappa)
                    total = total + weight * huber / kappa / len(target) / len(rows)
        ranking = [self.factors(self.online, tau) for tau in self.fractions()]
        scale = sum(one for one, _ in ranking) / len(ranking)
        added = sum(one for _, one in ranking) / len(ranking)
        preferences = self.online["weights"] * scale[:INPUTS] + added[:INPUTS]
        return total + config.shrink * self.count() / 4 * (preferences[1:] ** 2).sum()

    def follow(self, after: np.ndarray, actions: list[np.ndarray], b: int, row: int, step: int) -> np.ndarray:
        """The next action: the best by the online network."""
        means = [sum(float(self.value(self.online, after, one, tau)) for tau in self.fractions()) for one in actions]
        return actions[means.index(max(means))]

    def update(self, rows: np.ndarray, step: int, behaviour: np.ndarray | None) -> float:
        config = self.config
        norm = descend(self.online, self.moments, self.loss(rows, step, behaviour), config, step)
        if config.target == "polyak":
            with torch.no_grad():
                for name, one in self.online.items():
                    self.target[name] += config.polyak * (one - self.target[name])
        return norm

    def copy(self) -> None:
        self.target = {name: one.detach().clone() for name, one in self.online.items()}


def descend(weights: Weights, moments: Moments, loss: Tensor, config: QLearningConfig, step: int) -> float:
    """One step of AdamW on a clipped gradient, whose norm it was."""
    slopes = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
    norm = math.sqrt(sum(float((one**2).sum()) for one in slopes.values()))
    rate = config.learning_rate * (1 - config.decay * step / config.updates)
    with torch.no_grad():
        for name, slope in slopes.items():
            slope = slope * min(1.0, config.clip / (norm + 1e-6))
            first, second = moments[name]
            first.mul_(0.9).add_(0.1 * slope)
            second.mul_(0.999).add_(0.001 * slope**2)
            weights[name] *= 1 - rate * config.weight_decay
            steps = step + 1
            weights[name] -= rate * (first / (1 - 0.9**steps)) / ((second / (1 - 0.999**steps)).sqrt() + 1e-8)
    return norm


def parameters(network: torch.nn.Module) -> tuple[Weights, Moments]:
    """In double precision, and Adam's moments of them."""
    found = {name: one.detach().double().requires_grad_() for name, one in network.named_parameters()}
    return found, {name: (torch.zeros_like(one), torch.zeros_like(one)) for name, one in found.items()}


def same_parameters(network: torch.nn.Module, wanted: Weights, name: str) -> None:
    for part, found in network.named_parameters():
        expected = wanted[part].detach().numpy()
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=2e-3, atol=1e-3, err_msg=f"{name} {part}")


@pytest.mark.parametrize(
    ("head", "changes"),
    [
        ("expected", {}),
        ("fixed", {}),
        ("implicit", {}),
        ("implicit", {"rewards": "logged", "centre_rewards": False}),
        ("fixed", {"target": "hard", "beta": 0.0, "warm_up": 0.0}),
        ("expected", {"target": "hard", "clip": 1e3, "shrink": 0.0, "next_actions": 50}),
    ],
)
def test_updates_by_plain_loops(head, changes):
    config = config_of(head, **changes)
    material = material_of(config)
    agent = EvidenceAgent(config, material, SEED)
    plain = Plain(config, agent.network, DATASET, MODEL)
    behaviour = None if material.behaviour is None else material.behaviour.evidence
    rng = np.random.default_rng(3)
    norms = []
    for step in range(3):
        rows = rng.choice(len(SAMPLE.transitions), config.batch_size)
        if step % config.target_every == 0:
            agent.begin_period(SAMPLE.transitions.next_state[rows], copy_target=True)
            if config.target == "hard":
                plain.copy()
        told = agent.update(take(SAMPLE.transitions, rows), step)
        norms.append(plain.update(rows, step, behaviour))
        assert math.isfinite(told.loss)
        same_parameters(agent.network, plain.online, "online")
        same_parameters(agent.target, plain.target, "target")
    assert (max(norms) > config.clip) == ("clip" not in changes)


def test_the_table_has_fewer_next_actions_than_places():
    """Otherwise the updates above would not notice that some do not exist."""
    table = material_of(config_of("expected")).table
    assert 0.1 < table.next_exists.mean() < 0.9
    assert table.next_exists.any(axis=1).all()
    assert (table.next_allowed > 0).all()
    assert (table.next_place >= 0).sum() == (SAMPLE.transitions.discount > 0).sum()


# Where it starts, and what its policy says


@pytest.mark.parametrize("head", HEADS)
def test_it_starts_as_the_response_model(head):
    policy = EvidenceAgent(config_of(head, beta=0.0), material_of(config_of(head, beta=0.0)), SEED).policy()
    scores, expected = policy.scores(DATASET.states), MODEL.expected_rewards(DATASET.states)
    order = np.argsort(scores, axis=1)
    assert (np.diff(np.take_along_axis(expected, order, axis=1), axis=1) > -1e-5).all()
    np.testing.assert_array_equal(scores.argmax(axis=1), expected.argmax(axis=1))
    if head == "expected":
        shift = scores - expected
        np.testing.assert_allclose(shift, shift[:, :1].repeat(N_ITEMS, axis=1), atol=1e-5)


def shaken(head: str, **changes: object) -> EvidenceAgent:
    """An agent whose parameters are arbitrary."""
    config = config_of(head, **changes)
    agent = EvidenceAgent(config, material_of(config), SEED, offset=3.25)
    torch.manual_seed(0)
    with torch.no_grad():
        for network in (agent.network, agent.target):
            for one in network.parameters():
                one += 0.3 * torch.randn_like(one)
    return agent


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("serve", ["online", "target"])
@torch.no_grad()
def test_the_policy_says_what_the_network_says(head, serve):
    agent = shaken(head, serve=serve)
    network = agent.network if serve == "online" else agent.target
    policy, states, material = agent.policy(), DATASET.states[3:14], agent.material
    every = np.tile(np.arange(N_ITEMS, dtype=np.int32), (len(states), 1))
    told = summary(states)
    rows = MODEL.evidence.rows(states, every)
    inputs = torch.from_numpy(material._inputs(rows, told[:, None]))
    vectors = network.states(torch.from_numpy(told))
    actions = network.actions(inputs)
    values = torch.einsum("bd,bad->ba", network.head.mean_vector(vectors), actions).numpy() * 7.0 + 3.25
    np.testing.assert_allclose(policy.scores(states), values, rtol=1e-3, atol=5e-3)
    count = {"expected": 1, "fixed": 5, "implicit": 32}[head]
    taus = ((torch.arange(count) + 0.5) / count).expand(len(states), -1)
    wanted = network.head.quantiles(vectors, actions[:, 4], taus).numpy() * 7.0 + 3.25
    found = policy.quantiles(states, np.full(len(states), 4, np.int32))
    np.testing.assert_allclose(found, np.sort(wanted, axis=1), rtol=1e-3, atol=5e-3)
    ids = np.arange(3, 14)
    assert agent.mean_value(ids) == pytest.approx(float(policy.scores(states).max(axis=1).mean()), rel=1e-5)


def test_the_ranking_needs_no_session():
    """Preferences rank the items of a session as their values do."""
    for head in HEADS:
        agent = shaken(head)
        told, inputs = torch.tensor([[1.0, 1.0, 0.7, 1.1]]), torch.randn(6, INPUTS)
        vector = agent.network.head.mean_vector(agent.network.states(told))[0]
        values = (agent.network.actions(inputs) @ vector).detach()
        ranked = (inputs @ agent.network.preferences()).detach()
        torch.testing.assert_close(values - values[0], ranked - ranked[0], rtol=1e-4, atol=1e-4)
        assert agent.network.surplus().item() == pytest.approx(
            agent.network.preferences()[1:].square().sum().item(), rel=1e-6
        )


def test_constrained_serving():
    explains, constrains = (shaken("fixed", constrain_serving=one).policy() for one in (False, True))
    assert not explains.constrained
    assert constrains.constrained
    states = DATASET.states[:9]
    np.testing.assert_allclose(explains.log_likelihood(states), constrains.log_likelihood(states))
    assert np.isinf(constrains.scores(states)).any()
    assert np.isfinite(explains.scores(states)).all()
    assert (
        EvidenceAgent(config_of("fixed", beta=0.0), material_of(config_of("fixed", beta=0.0)), 0).policy().behaviour
        is None
    )


# What is laid out for learning


def test_the_behaviour_model_knows_what_the_log_shows():
    """The log shows items by a fixed chance, so the model should find it in any state."""
    chance = np.arange(1, 13) / 78
    rng = np.random.default_rng(4)
    rows = [
        (session, step, 0, int(rng.choice(12, p=chance)), str(rng.choice(["skip", "click"])))
        for session in range(500)
        for step in range(4)
    ]
    dataset = dataset_of(frame_of(rows), {"skip": 0.0, "click": 1.0})
    model, sample = fit_response(dataset, 0)
    weights = fit_behaviour_weights(sample, dataset, 0)
    logits = model.evidence.sums(States.empty(1, 5, 6), weights[None])[0, 0].astype(np.float64)
    found = np.exp(logits - np.log(np.exp(logits).sum()))
    order = np.argsort(dataset.vocabulary.ids.to_numpy())
    slope, _ = np.polyfit(np.log(chance), np.log(found[order]), 1)
    assert slope == pytest.approx(1.0, abs=0.2)
    assert weights.shape == (COLUMNS,)


def once_log(n_items: int, liked: int) -> Dataset:
    """What was liked is never shown again; sessions go on until so many items were liked."""
    rng = np.random.default_rng(5)
    rows = []
    for session in range(40):
        left = rng.permutation(n_items).tolist()
        for step in range(liked + 1):
            item = left.pop() if left else 0
            rows.append((session, step, 0, item, "click" if step < liked else "skip"))
    return dataset_of(frame_of(rows), {"skip": 0.0, "click": 1.0}, length=n_items)


@pytest.mark.parametrize("beta", [0.0, 0.9, 1.0])
def test_next_actions_were_not_liked_before_where_logs_show_no_item_again(beta):
    dataset = once_log(6, 4)
    model, sample = fit_response(dataset, 0)
    config = config_of("expected", beta=beta, next_actions=4)
    material = LearningMaterial(config, dataset, model, sample, 0)
    state = int(sample.transitions.next_state[sample.transitions.step == 2][0])
    states = dataset.states[[state]]
    asking = NextActions(model.weights, material.behaviour, 4, again=False)
    items, share = asking.exact(sample.evidence[0], states)
    assert not set(items[0].tolist()) & set(states.positives[0, :3].tolist())
    assert (items[0] != PAD).any()  # also where the likeliest item was liked
    assert share[0] == pytest.approx((items[0] != PAD).sum() / 6)
    if beta == 0:
        assert sorted(items[0].tolist())[0] == PAD  # three are left for four places
    again, _ = replace(asking, width=6, again=True).exact(sample.evidence[0], states)
    if beta == 0:
        assert sorted(again[0].tolist()) == list(range(6))
    assert material.table.next_exists.any(axis=1).all()


def test_a_next_action_is_left_where_the_likeliest_items_were_liked():
    dataset = once_log(6, 4)
    model, sample = fit_response(dataset, 0)
    weights = np.zeros(COLUMNS, np.float32)
    weights[LIKED] = 9.0
    states = States.of([[3, 0], [5]], 6)
    asking = NextActions(model.weights, BehaviourWeights(weights, 0.5), 4, again=False)
    items, share = asking.exact(sample.evidence[0], states)
    assert sorted(items[0].tolist()) == [1, 2, 4, 5]
    assert PAD not in items[1]
    np.testing.assert_allclose(share, [4 / 6, 5 / 6])


def test_the_share_of_allowed_items_is_that_of_the_next_states():
    config = config_of("fixed")
    material = material_of(config)
    rows = np.arange(40)
    told = EvidenceAgent(config, material, SEED).update(take(SAMPLE.transitions, rows), 0)
    places = material.table.next_place[rows]
    assert (places < 0).any()
    assert told.allowed == pytest.approx(material.table.next_allowed[places[places >= 0]].mean())


def test_next_states_are_sampled_where_there_are_too_many(monkeypatch):
    whole = material_of(config_of("fixed"))
    monkeypatch.setattr(next_actions, "PAIRS", 20 * N_ITEMS)
    monkeypatch.setattr(next_actions, "AT_ONCE", 7)
    monkeypatch.setattr(next_actions, "PAIRS_AT_ONCE", 3 * N_ITEMS)
    some = material_of(config_of("fixed"))
    assert len(whole.usable) == len(SAMPLE.transitions)
    assert len(some.table.next_inputs) == 20 < len(whole.table.next_inputs)
    assert set(np.flatnonzero(SAMPLE.transitions.discount == 0)) < set(some.usable) < set(whole.usable)
    for row in some.usable:
        here, there = some.table.next_place[row], whole.table.next_place[row]
        assert (here < 0) == (there < 0) == (SAMPLE.transitions.discount[row] == 0)
        if here >= 0:
            np.testing.assert_array_equal(some.table.next_inputs[here], whole.table.next_inputs[there])
            np.testing.assert_array_equal(some.table.next_session[here], whole.table.next_session[there])


@pytest.mark.parametrize("head", HEADS)
def test_sessions_that_all_end_at_once(head):
    rng = np.random.default_rng(6)
    rows = [(s, 0, 0, int(rng.integers(5)), str(rng.choice(["skip", "click"]))) for s in range(60)]
    trainer = Trainer(config_of(head, updates=3), dataset_of(frame_of(rows), {"skip": 0.0, "click": 1.0}), 0)
    reports = list(trainer.run())
    assert np.isfinite([reports[-1].loss, reports[-1].q_bar, reports[-1].target_value]).all()
    assert reports[-1].allowed == 1.0


def test_rewards_that_are_all_alike():
    rng = np.random.default_rng(6)
    rows = [(s, t, 0, int(rng.integers(5)), str(rng.choice(["skip", "click"]))) for s in range(60) for t in range(2)]
    responses = Responses(rewards={"skip": 1.0, "click": 1.0}, positive=("click",))
    dataset = Dataset.from_frame(frame_of(rows), responses)
    (report,) = Trainer(config_of("fixed", updates=2), dataset, 0).run()
    assert math.isfinite(report.loss)
    assert math.isfinite(report.q_bar)


# Training


def looking_ahead() -> Dataset:
    """Item 0 is bought six times in ten and ends the session; item 1 is only ever clicked, and then 2 and 3 are bought.

    Items 4 and 5 are skipped, and end the session, too.
    """
    rng = np.random.default_rng(8)
    rows = []
    for session in range(600):
        first = int(rng.choice([0, 1, 4, 5]))
        answer = {0: "buy" if rng.random() < 0.6 else "skip", 1: "click"}.get(first, "skip")
        rows.append((session, 0, 0, first, answer))
        if first == 1:
            for step in (1, 2, 3):
                item = int(rng.choice([0, 2, 3, 4, 5]))
                chance = {0: 0.6, 2: 0.9, 3: 0.9}.get(item, 0.0)
                rows.append((session, step, 0, item, "buy" if rng.random() < chance else "skip"))
    return dataset_of(frame_of(rows), {"skip": 0.0, "click": 1.0, "buy": 5.0})


@pytest.mark.parametrize("head", HEADS)
def test_it_looks_ahead(head):
    dataset = looking_ahead()
    model, sample = fit_response(dataset, 0)
    start = States.empty(1, 5, 6)
    index = [dataset.vocabulary.ids.to_list().index(item) for item in range(6)]
    shown = [index[0], index[1], index[4], index[5]]  # at the beginning
    assert model.expected_rewards(start)[0][shown].argmax() == 0
    values = {"updates": 400, "batch_size": 32, "learning_rate": 0.003, "beta": 0.0, "polyak": 0.03, "clip": 10.0}
    config = config_of(head, **values | {"shrink": 0.0, "weight_decay": 0.0, "kappa": 1.0, "decay": 1.0})
    material = LearningMaterial(config, dataset, model, sample, 0)
    trainer = Trainer(config, dataset, 0, material=material)
    for _ in trainer.run(400):
        pass
    scores = trainer.agent.policy().scores(start)[0]
    assert scores[shown].argmax() == 1
    assert scores[index[0]] > scores[index[4]]
    myopic = Trainer(config.model_copy(update={"shrink": 1e4, "updates": 150}), dataset, 0, material=material)
    for _ in myopic.run(150):
        pass
    assert myopic.agent.policy().scores(start)[0][shown].argmax() == 0


def state_of(trainer: Trainer) -> Iterator[Tensor]:
    agent = trainer.agent
    yield from agent.network.state_dict().values()
    yield from agent.target.state_dict().values()


@pytest.mark.parametrize(("head", "target"), [("expected", "hard"), ("fixed", "polyak"), ("implicit", "polyak")])
def test_a_run_goes_on_to_the_same_bits(head, target, tmp_path: Path):
    config = config_of(head, target=target, updates=9, target_every=4)
    straight = Trainer(config, DATASET, SEED)
    reports = list(straight.run(3))
    stopped = Trainer(config, DATASET, SEED)
    for report in stopped.run(3):
        if report.step == 6:
            stopped.save(tmp_path / "checkpoint")
            break
    resumed = Trainer(config, DATASET, SEED, tmp_path / "checkpoint")
    assert resumed.step == 6
    (last,) = resumed.run(3)
    assert (last.loss, last.q_bar, last.target_value) == (reports[-1].loss, reports[-1].q_bar, reports[-1].target_value)
    assert all(torch.equal(one, other) for one, other in zip(state_of(straight), state_of(resumed), strict=True))
    states = DATASET.states
    np.testing.assert_array_equal(straight.agent.policy().scores(states), resumed.agent.policy().scores(states))


def test_agents_can_share_their_material():
    config = config_of("implicit", updates=4)
    material = material_of(config)
    shared, alone = Trainer(config, DATASET, SEED, material=material), Trainer(config, DATASET, SEED)
    for trainer in (shared, alone):
        for _ in trainer.run():
            pass
    assert all(torch.equal(one, other) for one, other in zip(state_of(shared), state_of(alone), strict=True))


def test_the_sample_of_these_tests_is_not_trivial():
    assert isinstance(SAMPLE, Sample)
    assert (SAMPLE.transitions.discount > 0).mean() > 0.3
    assert len(set(SAMPLE.fold.tolist())) == 4
