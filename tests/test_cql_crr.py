"""Whole updates of cql and crr over evidence, and of every agent over embeddings, against plain loops."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from bcd4rec.agents.agent import AGENTS, Agent, Batch
from bcd4rec.agents.evidence_material import EvidenceMaterial
from bcd4rec.agents.q_learning import QLearningConfig
from bcd4rec.agents.quantile_agent import QuantileAgent
from bcd4rec.data.states import PAD, States
from bcd4rec.losses import advantage_weighted, conservative
from bcd4rec.models.behaviour import BehaviourModel
from bcd4rec.models.evidence import summary
from bcd4rec.models.evidence_kernels import COLUMNS
from bcd4rec.seeding import generator
from bcd4rec.training import take
from test_evidence_agent import (
    DATASET,
    MODEL,
    SAMPLE,
    SEED,
    Moments,
    Plain,
    Weights,
    config_of,
    descend,
    parameters,
    same_parameters,
)

SHARED = config_of("fixed", next_actions=4).model_dump(exclude_unset=True) | {"head": "fixed"}
OWN = {"cql": {"alpha": 0.7}, "crr": {"temperature": 0.6, "most": 1.9}}


def conservative_by_loops(values: list[Tensor], logged: Tensor) -> Tensor:
    return torch.log(sum(torch.exp(one) for one in values)) - logged


def weighted_by_loops(cases: list[tuple[list[Tensor], list[float], int]], temperature: float, most: float) -> Tensor:
    """Of logits, values and the place of the logged action of each state."""
    chances = [[torch.exp(one) / sum(torch.exp(other) for other in logits) for one in logits] for logits, _, _ in cases]
    advantages = [
        values[logged] - sum(p.item() * q for p, q in zip(chances[b], values, strict=True))
        for b, (_, values, logged) in enumerate(cases)
    ]
    size = math.sqrt(sum(one**2 for one in advantages) / len(cases))
    terms = [
        -min(math.exp(advantages[b] / (temperature * size)), most) * torch.log(chances[b][logged])
        for b, (_, _, logged) in enumerate(cases)
    ]
    return sum(terms) / len(cases)


def test_losses_by_loops():
    rng = np.random.default_rng(1)
    logits, values = (torch.from_numpy(rng.normal(size=(5, 4))).requires_grad_() for _ in range(2))
    logged = torch.tensor([3, 0, 2, 1, 0])
    missing = torch.zeros(5, 4, dtype=torch.bool)
    missing[0, 1] = missing[4, 2] = missing[4, 3] = True
    masked = values.masked_fill(missing, -math.inf)
    kept = [[c for c in range(4) if not missing[b, c]] for b in range(5)]
    wanted = [conservative_by_loops([values[b, c] for c in kept[b]], values[b, logged[b]]) for b in range(5)]
    torch.testing.assert_close(conservative(masked, logged), sum(wanted) / 5)
    cases = [
        ([logits[b, c] for c in kept[b]], [values[b, c].item() for c in kept[b]], kept[b].index(int(logged[b])))
        for b in range(5)
    ]
    found = advantage_weighted(logits.masked_fill(missing, -math.inf), masked, logged, 0.8, 1.5)
    expected = weighted_by_loops(cases, 0.8, 1.5)
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad(one, logits, retain_graph=True)[0] for one in (found, expected)]
    torch.testing.assert_close(*slopes)
    assert torch.autograd.grad(found, values, allow_unused=True, retain_graph=True)[0] is None  # weights are given


# Over evidence


class PlainConservative(Plain):
    """Plain Q-learning over evidence, and the actions that the material drew for each state."""

    material: EvidenceMaterial

    def actions(self, row: int) -> list[np.ndarray]:
        """Inputs of the logged action, then of the others that were drawn."""
        shown, fold = SAMPLE.transitions, int(SAMPLE.fold[row])
        states = DATASET.states[shown.state[[row]]]
        told = summary(states)[0].astype(np.float64)
        drawn = self.material.possible.items[self.material.possible.place[row]]
        others = [item for item in drawn.tolist() if item not in (PAD, int(shown.action[row]))]
        rows = SAMPLE.evidence[fold].rows(states, np.array([others], np.int32))[0]
        return [self.inputs(one, told)[0] for one in (SAMPLE.rows[row], *rows)]

    def means(self, weights: Weights, row: int) -> list[Tensor]:
        """What an action is worth, up to what the session itself is."""
        told = summary(DATASET.states[SAMPLE.transitions.state[[row]]])[0].astype(np.float64)
        return [
            sum(self.value(weights, told, one, tau) for tau in self.fractions()) / len(self.fractions())
            for one in self.actions(row)
        ]

    def loss(self, rows: np.ndarray, step: int, behaviour: np.ndarray | None) -> Tensor:
        total = super().loss(rows, step, behaviour)
        factors = [self.factors(self.online, tau) for tau in self.fractions()]
        first = sum(self.online["weights"][0] * scale[0] + added[0] for scale, added in factors) / len(factors)
        total = total + self.config.shrink * self.count() / 4 * (first - 1) ** 2
        for row in rows:
            values = self.means(self.online, row)
            gap = conservative_by_loops(values, values[0])
            total = total + self.config.alpha * self.count() / 4 * gap / len(rows)
        return total


class PlainActor(PlainConservative):
    """Critic-regularised regression: the actor has one weight for each input."""

    actor: Weights
    moments_of_actor: Moments

    def loss(self, rows: np.ndarray, step: int, behaviour: np.ndarray | None) -> Tensor:
        return Plain.loss(self, rows, step, behaviour)

    def spread(self) -> float:
        """The root of the mean variance of the expected reward among the actions of a state."""
        possible, found = self.material.possible, []
        for items, inputs in zip(possible.items, possible.inputs, strict=True):
            rewards = [float(inputs[c, 0]) for c in range(len(items)) if items[c] != PAD]
            middle = sum(rewards) / len(rewards)
            found.append(sum((one - middle) ** 2 for one in rewards) / len(rewards))
        return math.sqrt(sum(found) / len(found))

    def logit(self, inputs: np.ndarray) -> Tensor:
        return (self.actor["weights"] * torch.tensor(inputs)).sum() / self.spread_found

    def follow(self, after: np.ndarray, actions: list[np.ndarray], b: int, row: int, step: int) -> np.ndarray:
        """Drawn by the actor from the places of the table."""
        table = self.material.table
        place = int(table.next_place[row])
        drawn = generator(SEED, "next actions", step).gumbel(size=(len(self.rows), table.next_exists.shape[1]))
        scores = {
            c: float(self.logit(table.next_inputs[place, c].astype(np.float64))) + float(drawn[b, c])
            for c in range(table.next_exists.shape[1])
            if table.next_exists[place, c]
        }
        return table.next_inputs[place, max(scores, key=scores.__getitem__)].astype(np.float64)

    def update(self, rows: np.ndarray, step: int, behaviour: np.ndarray | None) -> float:
        self.rows, self.spread_found = rows, self.spread()
        norm = super().update(rows, step, behaviour)
        cases = [
            ([self.logit(one) for one in self.actions(row)], [one.item() for one in self.means(self.online, row)], 0)
            for row in rows
        ]
        loss = weighted_by_loops(cases, self.config.temperature, self.config.most)
        weights = self.actor["weights"]
        pull = ((weights[1:] ** 2).sum() + (weights[0] - 1) ** 2) / self.spread_found**2
        loss = loss + self.config.shrink / 4 * pull
        mine = {"weights": self.actor["weights"]}
        descend(mine, self.moments_of_actor, loss, self.config, step)
        return norm


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("cql", {}),
        ("cql", {"head": "expected", "target": "hard"}),
        ("crr", {}),
        ("crr", {"head": "expected", "beta": 0.0}),
    ],
)
def test_updates_over_evidence_by_loops(name, changes):
    config = AGENTS[name].parse(SHARED | OWN[name] | {"clip": 0.3} | changes, "test")
    material = EvidenceMaterial(config, DATASET, MODEL, SAMPLE, SEED)
    agent = config.build(material, DATASET, SEED)
    kind = PlainConservative if name == "cql" else PlainActor
    plain = kind(config, agent.network, DATASET, MODEL)
    plain.material = material
    if name == "crr":
        with torch.no_grad():  # what is alike in all items of a session would move by rounding alone
            agent.actor.weights += 0.2 * torch.from_numpy(np.random.default_rng(2).normal(size=1 + COLUMNS)).float()
        plain.actor, plain.moments_of_actor = parameters(agent.actor)
    behaviour = None if material.behaviour is None else material.behaviour.evidence
    rng, norms = np.random.default_rng(3), []
    for step in range(2):
        rows = rng.choice(len(SAMPLE.transitions), config.batch_size)
        if step == 0:
            agent.begin_period(SAMPLE.transitions.next_state[rows], copy_target=True)
        agent.update(take(SAMPLE.transitions, rows), step)
        norms.append(plain.update(rows, step, behaviour))
        same_parameters(agent.network, plain.online, "online")
        same_parameters(agent.target, plain.target, "target")
        if name == "crr":
            found, wanted = (one.detach().numpy() for one in (agent.actor.weights, plain.actor["weights"]))
            np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=1e-3)
    assert max(norms) > config.clip


def test_possible_actions_are_drawn_from_the_catalogue():
    config = AGENTS["cql"].parse(SHARED, "test")
    possible = EvidenceMaterial(config, DATASET, MODEL, SAMPLE, SEED).possible
    assert possible.items.shape[1] == 4 < DATASET.n_items
    assert set(np.unique(possible.items)) == {PAD, *range(DATASET.n_items)}
    for row in possible.items:
        known = row[row != PAD].tolist()
        assert len(set(known)) == len(known) > 0
    keys = {(int(fold), int(state)) for fold, state in zip(SAMPLE.fold, SAMPLE.transitions.state, strict=True)}
    assert len(possible.items) == len(keys)
    assert possible.place.min() == 0
    for row in range(0, len(possible.place), 7):
        states = DATASET.states[SAMPLE.transitions.state[[row]]]
        items = possible.items[possible.place[[row]]]
        told = SAMPLE.evidence[int(SAMPLE.fold[row])].rows(states, items)[0]
        for column in range(told.shape[1]):
            size = math.sqrt((SAMPLE.rows[:, column].astype(np.float64) ** 2).mean())
            found = possible.inputs[possible.place[row]][items[0] != PAD, 1 + column]
            wanted = told[items[0] != PAD, column] / size if size > 1e-3 else np.zeros(len(found))
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


# Over embeddings: B, the states, L, A, D, N and the cosines all differ

ITEMS, WIDTH, SESSIONS = 7, 3, [[], [1], [1, 2], [4, 0, 6], [3], [5, 5, 2, 1], [6, 3], [2, 4], [0]]
TINY = {
    "evidence": False,
    "encoder": "meanpool",
    "dimension": WIDTH,
    "quantiles": 5,
    "cosines": 6,
    "freeze_embeddings": False,
    "pretraining": "none",
    "learning_rate": 0.05,
    "decay": 0.7,
    "weight_decay": 0.02,
    "clip": 0.4,
    "kappa": 0.8,
    "polyak": 0.1,
    "warm_up": 0.5,
    "updates": 4,
    "batch_size": 8,
}
OWN_TINY = {name: {"beta": 0.2} for name in ("bcd4rec", "qrbcq", "bcq")} | OWN


class PlainEmbeddings:
    """Algorithm 1 over item embeddings, one transition, fraction and item at a time."""

    def __init__(self, config: QLearningConfig, agent: QuantileAgent, behaviour: BehaviourModel | None):
        self.config, self.behaviour = config, behaviour
        self.online, self.moments = parameters(agent.network)
        self.target = {name: one.detach().clone() for name, one in self.online.items()}
        if config.scores_are_returns is False:
            self.actor, self.moments_of_actor = parameters(agent.actor)

    def factors(self, weights: Weights, tau: float, head: str) -> tuple[Tensor, Tensor]:
        nothing = torch.zeros(WIDTH + 1, dtype=torch.float64)
        if head == "expected":
            return nothing + 1, nothing
        if head == "fixed":
            number = round(tau * 5 - 0.5)
            return weights["head.scale"][number], weights["head.bias"][number]
        cosines = torch.tensor([math.cos(math.pi * i * tau) for i in range(6)], dtype=torch.float64)
        lines = weights["head.linear.weight"] @ cosines + weights["head.linear.bias"]
        return torch.relu(lines), nothing

    def value(self, weights: Weights, state: int, item: int, tau: float, head: str) -> Tensor:
        vector = weights["encoder.empty"]
        if SESSIONS[state]:
            middle = sum(weights["embeddings"][one] for one in SESSIONS[state]) / len(SESSIONS[state])
            vector = weights["encoder.linear.weight"] @ middle + weights["encoder.linear.bias"]
        scale, added = self.factors(weights, tau, head)
        one = torch.ones(1, dtype=torch.float64)
        return ((vector * scale + added) * torch.cat((weights["embeddings"][item], one))).sum()

    def mean(self, weights: Weights, state: int, item: int, head: str | None = None) -> Tensor:
        head = head or self.config.head
        count = {"expected": 1, "fixed": 5, "implicit": 32}[head]
        return sum(self.value(weights, state, item, (n + 0.5) / count, head) for n in range(count)) / count

    def count(self) -> int:
        return 1 if self.config.head == "expected" else 5

    def taus(self, name: str, size: int, step: int) -> list[list[float]]:
        if self.config.head == "implicit":
            return generator(SEED, "taus", name, step).random((size, 5), dtype=np.float32).tolist()
        return [[(n + 0.5) / self.count() for n in range(self.count())]] * size

    def allowed(self, state: int) -> list[int]:
        if self.behaviour is None:
            return list(range(ITEMS))
        sessions = States.of([SESSIONS[state]]).positives
        chances = self.behaviour.log_probabilities(torch.from_numpy(sessions))[0].exp().tolist()
        return [item for item in range(ITEMS) if chances[item] >= self.config.beta * max(chances)]

    def follow(self, state: int, place: int, places: int, step: int) -> int:
        if self.config.scores_are_returns is False:
            drawn = generator(SEED, "next actions", step).gumbel(size=(places, ITEMS))
            scores = [
                float(self.mean(self.actor, state, item, "expected")) + drawn[place, item] for item in range(ITEMS)
            ]
            return scores.index(max(scores))
        return max(self.allowed(state), key=lambda item: float(self.mean(self.online, state, item)))

    @torch.no_grad()
    def targets(self, batch: Batch, step: int) -> list[list[float]]:
        share = min(1.0, step / (self.config.warm_up * self.config.updates))
        ids = sorted(set(batch.next_state.tolist()))
        taus, found = self.taus("target", len(ids), step), []
        for b, state in enumerate(batch.next_state.tolist()):
            best = self.follow(state, ids.index(state), len(ids), step)
            returns = [
                float(self.value(self.target, state, best, tau, self.config.head)) for tau in taus[ids.index(state)]
            ]
            found.append([float(batch.reward[b]) + float(batch.discount[b]) * share * one for one in returns])
        return found

    def loss(self, batch: Batch, step: int) -> Tensor:
        targets, taus, size, kappa = self.targets(batch, step), self.taus("predicted", 8, step), 8, self.config.kappa
        total = torch.zeros((), dtype=torch.float64)
        for b in range(size):
            state, item = int(batch.state[b]), int(batch.action[b])
            for tau in taus[b]:
                predicted = self.value(self.online, state, item, tau, self.config.head)
                for one in targets[b]:
                    error = one - predicted
                    weight = abs(tau - float(error.item() < 0))
                    far = error.abs()
                    huber = 0.5 * error**2 if far.item() <= kappa else kappa * (far - 0.5 * kappa)
                    total = total + weight * huber / kappa / len(targets[b]) / size
            if hasattr(self.config, "alpha"):
                values = [self.mean(self.online, state, other) for other in range(ITEMS)]
                total = (
                    total + self.config.alpha * self.count() / 4 * conservative_by_loops(values, values[item]) / size
                )
        return total

    def update(self, batch: Batch, step: int) -> float:
        norm = descend(self.online, self.moments, self.loss(batch, step), self.config, step)
        with torch.no_grad():
            for name, one in self.online.items():
                self.target[name] += self.config.polyak * (one - self.target[name])
        if self.config.scores_are_returns is False:
            cases = [
                (
                    [self.mean(self.actor, state, item, "expected") for item in range(ITEMS)],
                    [self.mean(self.online, state, item).item() for item in range(ITEMS)],
                    action,
                )
                for state, action in zip(batch.state.tolist(), batch.action.tolist(), strict=True)
            ]
            loss = weighted_by_loops(cases, self.config.temperature, self.config.most)
            descend(self.actor, self.moments_of_actor, loss, self.config, step)
        return norm


def made_up_batch(step: int) -> Batch:
    rng = np.random.default_rng(step)
    states, actions, following = (rng.integers(size, size=8).astype(np.int32) for size in (9, ITEMS, 9))
    discount = np.where(rng.random(8) < 0.2, 0.0, 0.9).astype(np.float32)
    return Batch(
        states, actions, rng.normal(size=8).astype(np.float32), following, discount, np.arange(8, dtype=np.int32)
    )


def learner(name: str, **changes: object) -> tuple[QuantileAgent, BehaviourModel | None]:
    config = AGENTS[name].parse(TINY | OWN_TINY.get(name, {}) | changes, "test")
    rng = np.random.default_rng(6)
    embeddings = rng.normal(size=(ITEMS, WIDTH)).astype(np.float32)
    torch.manual_seed(4)
    behaviour = BehaviourModel(embeddings) if config.beta > 0 else None
    kind = config.learners()[1]
    agent = kind(config, States.of(SESSIONS), embeddings, behaviour, SEED)
    with torch.no_grad():  # a target that differs, so that it matters which network is asked
        for one in agent.target.parameters():
            one += 0.5 * torch.randn_like(one)
        for one in agent.network.head.parameters():
            one += 0.3 * torch.randn_like(one)
    return agent, behaviour


@pytest.mark.parametrize("name", AGENTS.names())
def test_updates_over_embeddings_by_loops(name):
    agent, behaviour = learner(name)
    plain = PlainEmbeddings(agent.config, agent, behaviour)
    plain.target = {part: one.detach().double().clone() for part, one in agent.target.named_parameters()}
    norms = []
    for step in range(3):
        batch = made_up_batch(step)
        agent.update(batch, step)
        norms.append(plain.update(batch, step))
        same_parameters(agent.network, plain.online, "online")
        same_parameters(agent.target, plain.target, "target")
        if name == "crr":
            agent.actor.requires_grad_()
            same_parameters(agent.actor, plain.actor, "actor")
    assert max(norms) > agent.config.clip
    if behaviour is not None:
        assert {1, ITEMS} < {1, ITEMS, *(len(plain.allowed(state)) for state in range(len(SESSIONS)))}


# By name: what a change of one word would break


def choices(agent: QuantileAgent, batch: Batch) -> tuple[list[int], list[int]]:
    """The best next actions by the online and by the target network."""
    found = []
    for network in (agent.network, agent.target):
        with torch.no_grad():
            values = network.mean_values(network.encode_states(agent.states[batch.next_state]))
        found.append(values.argmax(dim=1).tolist())
    return found[0], found[1]


def test_the_online_network_chooses_and_the_target_network_values():
    agent, _ = learner("dqn", warm_up=0.0)
    batch = made_up_batch(1)
    online, other = choices(agent, batch)
    assert online != other
    target, _ = agent.targets(batch, agent.look(batch), 0)
    with torch.no_grad():
        vectors = agent.target.encode_states(agent.states[batch.next_state])
        valued = agent.target.mean_values(vectors)[torch.arange(8), torch.tensor(online)]
    wanted = torch.from_numpy(batch.reward) + torch.from_numpy(batch.discount) * valued
    torch.testing.assert_close(target[:, 0], wanted)


def test_gradients_are_clipped(monkeypatch):
    agent, _ = learner("dqn", clip=0.01)
    seen = []
    step = agent.optimiser.step

    def watched() -> None:
        slopes = [one.grad for group in agent.optimiser.param_groups for one in group["params"] if one.grad is not None]
        seen.append(math.sqrt(sum(float((one**2).sum()) for one in slopes)))
        step()

    monkeypatch.setattr(agent.optimiser, "step", watched)
    agent.update(made_up_batch(0), 0)
    assert seen == [pytest.approx(0.01, rel=1e-3)]


def protocol(agent: Agent) -> None:
    """For the type checker: a learner is an agent."""
    assert agent.offset == 0.0


def test_learners_keep_the_protocol():
    for name in AGENTS.names():
        protocol(learner(name)[0])
