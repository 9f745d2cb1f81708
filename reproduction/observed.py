"""The paper's online agent of RecSim: it may try things on users, and it sees into them.

Rounds of users go as in `workflows.online`, but a state is the user's interest vector and not a session, and an
action is the category of the item, as in the simulator. The oracle bounds what there is to have with that knowledge,
this agent what can be learned.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from bcd4rec.agents.agent import Batch
from bcd4rec.agents.q_learning import QLearningConfig, parse_q_learning, seeded
from bcd4rec.agents.quantile_agent import QuantileAgent
from bcd4rec.data.states import FloatArray, IntArray, States
from bcd4rec.evaluation.metrics import per_session, target_rate
from bcd4rec.models.encoder import Encoder
from bcd4rec.models.q_network import QNetwork
from bcd4rec.policies.slates import Exploration, SlateRule
from bcd4rec.seeding import generator, stream_seed
from bcd4rec.sim.interest_evolution import InterestEvolution
from bcd4rec.sim.rollout import Oracle, policy_of, rollout
from bcd4rec.workflows.online import OnlineConfig

HIDDEN = 64
COLUMNS = [one.name for one in fields(Batch) if not one.kw_only]


class Observed(Encoder):
    """The state of an observed vector. What stands for a session is the number of a row of `seen` (n, C)."""

    def __init__(self, seen: FloatArray, outputs: int):
        super().__init__(outputs)
        self.seen = torch.from_numpy(seen)
        self.net = nn.Sequential(nn.Linear(seen.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))

    def forward(self, items: Tensor, embeddings: Tensor) -> Tensor:
        states: Tensor = self.net(self.seen[items[:, 0]])
        return states

    def encode(self, items: Tensor, lengths: Tensor, embeddings: Tensor) -> Tensor:
        return self.forward(items, embeddings)


class ObservingNetwork(QNetwork):
    """Values of the items' categories (A, C) in the states of the vectors `seen` (n, C)."""

    encoder: Observed

    def __init__(self, categories: FloatArray, seen: FloatArray, config: QLearningConfig):
        super().__init__(categories, config.shape())
        self.encoder = Observed(seen, categories.shape[1] + int(config.state_value))


class Observing(Oracle):
    """Ranks items by what a network makes of the users' interests now, and keeps these.

    Without a network all items are equal.
    """

    def __init__(self, environment: InterestEvolution, network: ObservingNetwork | None = None):
        super().__init__(environment)
        self._users, self.network = environment, network
        self.seen: list[FloatArray] = []  # (B, C) at each step

    @torch.no_grad()
    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        interests = self._users.interests.astype(np.float32)
        self.seen.append(interests)
        if self.network is None:
            return np.zeros((len(interests), self.n_items), np.float32)
        vectors = self.network.encoder.net(torch.from_numpy(interests))
        return np.asarray(self.network.mean_values(vectors).numpy(), np.float32)


@dataclass(frozen=True)
class ObservedRound:
    """What one round of users said, and the policy that was learned by its end."""

    number: int
    epsilon: float
    rate: float  # percent of the round's steps with a click, exploration included
    scorer: Observing


def learn_observed(
    environment: InterestEvolution,
    config: OnlineConfig,
    settings: dict[str, Any],
    rule: SlateRule,
    seed: int,
    gamma: float = 0.9,
) -> Iterator[ObservedRound]:
    """Round by round; the agent learns anew from all rounds so far."""
    network: ObservingNetwork | None = None
    seen, parts = list[FloatArray](), list[Batch]()
    for number in range(config.rounds):
        epsilon = config.epsilon(number)
        exploring = rule.model_copy(update={"exploration": Exploration(kind="epsilon", epsilon=epsilon)})
        player = Observing(environment, network)  # one of its own: what others play is not to be learned from
        policy = policy_of(player, environment, "online", exploring)
        log = rollout(environment, policy, config.users, stream_seed(seed, "observed", number))
        parts.append(_transitions(log, environment, sum(map(len, seen)), config.users, gamma))
        seen += player.seen
        network = _learn(environment, config, settings, np.concatenate(seen), _joined(parts), seed)
        rate = target_rate(per_session(log, environment.responses))
        yield ObservedRound(number, epsilon, rate, Observing(environment, network))


def _transitions(log: pl.DataFrame, environment: InterestEvolution, first: int, users: int, gamma: float) -> Batch:
    """A transition for each shown item. Rows of observations stand step by step, from `first` on, user by user."""
    columns = log.select("session_id", "step", "item_id", "response")
    reward = columns["response"].replace_strict(environment.responses.rewards, return_dtype=pl.Float32)
    step = columns["step"].to_numpy().astype(np.int64)
    state = first + step * users + columns["session_id"].to_numpy()
    last = step == environment.horizon - 1
    return Batch(
        state.astype(np.int32),
        columns["item_id"].to_numpy().astype(np.int32),
        reward.to_numpy(),
        np.where(last, state, state + users).astype(np.int32),
        np.where(last, 0.0, gamma).astype(np.float32),
        np.arange(len(state), dtype=np.int32),
    )


def _joined(parts: list[Batch]) -> Batch:
    return Batch(*(np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS))


def _learn(
    environment: InterestEvolution,
    online: OnlineConfig,
    settings: dict[str, Any],
    seen: FloatArray,
    rows: Batch,
    seed: int,
) -> ObservingNetwork:
    # What it sees of a user is no session that evidence could be counted in.
    config = parse_q_learning(online.method, {"evidence": False} | settings, f"{online.method} --set")
    categories = np.eye(environment.config.categories, dtype=np.float32)[environment.categories]
    with seeded(seed, "network"):
        network = ObservingNetwork(categories, seen, config)
    numbers = States(np.arange(len(seen), dtype=np.int32)[:, None], np.empty((len(seen), 0), np.int32))
    agent = QuantileAgent(config, numbers, categories, None, seed, float(rows.reward.mean()), network=network)
    rng = generator(seed, "observed", "batches", len(seen))
    for step in range(config.updates):
        drawn = rng.integers(len(rows.state), size=config.batch_size)
        agent.update(Batch(*(getattr(rows, name)[drawn] for name in COLUMNS)), step)
    return network
