"""Quantile Q-learning over evidence: the response model, and what a session is worth beyond the next response."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from bcd4rec.agents.agent import Batch, Begun
from bcd4rec.agents.next_actions import (
    MEASURED,
    POOLED_AT_ONCE,
    NextActions,
    SearchRecall,
    most_states,
    states_at_once,
)
from bcd4rec.agents.q_learning import QLearner, QLearningConfig, discounted_steps, seeded
from bcd4rec.constraint import mask_values
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.states import PAD, FloatArray, IntArray, Rows
from bcd4rec.errors import InputError
from bcd4rec.models.evidence import Evidence, summary
from bcd4rec.models.evidence_kernels import LIKED
from bcd4rec.models.evidence_network import EvidenceNetwork
from bcd4rec.models.heads import midpoints
from bcd4rec.models.large import is_large
from bcd4rec.models.response_regression import FOLDS, PRIORS, ResponseModel, Sample, logistic
from bcd4rec.policies.evidence_policy import BehaviourWeights, EvidencePolicy, ReturnWeights
from bcd4rec.seeding import generator

if TYPE_CHECKING:
    from bcd4rec.agents.evidence_material import EvidenceMaterial

CONTRAST = 10  # random items to each state that the behaviour model is told apart from
CONTRAST_STATES = 20_000
FRACTIONS = 32  # quantiles that a policy keeps of a head that knows any


Found = tuple[Rows, IntArray, FloatArray]


@dataclass(frozen=True)
class EvidenceTable:
    """All that updates look at, computed once."""

    inputs: FloatArray  # (n, inputs) of each transition
    session: FloatArray  # (n, SUMMARY) of its state
    chances: FloatArray  # (R, n) of at least each response, by the response model
    next_place: IntArray  # (n,) row of the arrays below, −1 where the session ended
    next_inputs: FloatArray  # (m, C, inputs) of the best allowed next actions by the response model
    next_exists: NDArray[np.bool_]  # (m, C) sets may be smaller than C
    next_session: FloatArray  # (m, SUMMARY)
    next_allowed: FloatArray  # (m,) share of the catalogue that is allowed


class LearningMaterial:
    """The response model, the behaviour model and the table: what agents that differ in training alone can share."""

    def __init__(self, config: QLearningConfig, dataset: Dataset, model: ResponseModel, sample: Sample, seed: int):
        self.model, self.states, self.transitions = model, dataset.states, sample.transitions
        self.seed, self.next_actions = seed, config.next_actions
        rewards = dataset.responses.rewards.values()
        self.unit = (max(rewards) - min(rewards)) or 1.0  # all alike teach nothing, but are no error
        self.reward_mean = float(sample.transitions.reward.mean(dtype=np.float64)) if config.centre_rewards else 0.0
        self.sizes = _sizes(sample.rows)
        behaviour = fit_behaviour_weights(sample, dataset, seed) if config.beta > 0 else None
        self.behaviour = None if behaviour is None else BehaviourWeights(behaviour, config.beta)
        self.sets: dict[str, Any] | None = None  # how next actions were found, where the search was not exact
        self.table = self._table(sample, dataset)
        self.tensors = {name: torch.from_numpy(getattr(self.table, name)) for name in self.table.__dataclass_fields__}

    def _inputs(self, rows: FloatArray, sessions: FloatArray) -> FloatArray:
        """(…, inputs): the expected reward in the unit of the values, and the evidence at unit size."""
        rewards = (self.model.weights.of_rows(rows, sessions) - self.reward_mean) / self.unit
        return np.concatenate([rewards[..., None], rows / self.sizes], axis=-1).astype(np.float32)

    def _table(self, sample: Sample, dataset: Dataset) -> EvidenceTable:
        shown, states = sample.transitions, dataset.states
        distinct, inverse = np.unique(shown.state, return_inverse=True)
        session = summary(states[distinct])[inverse]
        goes_on = shown.discount > 0
        keys = sample.fold.astype(np.int64) * len(states) + shown.next_state
        wanted = np.unique(keys[goes_on])
        most = most_states(dataset.n_items)
        if len(wanted) > most:
            wanted = np.sort(generator(self.seed, "next states").choice(wanted, most, replace=False))
        place = np.minimum(np.searchsorted(wanted, keys), max(len(wanted) - 1, 0))
        found = goes_on & (wanted[place] == keys) if len(wanted) else np.zeros(len(keys), np.bool_)
        width = min(self.next_actions, dataset.n_items)
        inputs = np.zeros((len(wanted), width, 1 + sample.rows.shape[1]), np.float32)
        exists = np.zeros((len(wanted), width), np.bool_)
        allowed = np.ones(len(wanted), np.float32)
        again = bool((sample.rows[:, LIKED] > 0).any())  # whether the log shows items again that were liked
        asking = NextActions(self.model.weights, self.behaviour, width, again)
        recall = SearchRecall()
        for number, evidence in enumerate(sample.evidence):
            mine = np.flatnonzero(wanted // len(states) == number)
            for some, items, shares in self._found(asking, evidence, mine, wanted % len(states)):
                asked = states[wanted[some] % len(states)]
                allowed[some] = shares
                exists[some] = items != PAD
                inputs[some] = self._inputs(evidence.rows(asked, items), summary(asked)[:, None])
            if is_large(dataset.n_items) and len(mine):
                part = mine[np.linspace(0, len(mine) - 1, min(MEASURED // FOLDS, len(mine))).astype(np.int64)]
                recall.compare(asking, evidence, states[wanted[part] % len(states)])
        if is_large(dataset.n_items):
            allowed[:], self.sets = recall.allowed, recall.told(len(wanted))
        following = summary(states[wanted % len(states)])
        where = np.where(found, place, -1).astype(np.int32)
        # A transition whose next state was not sampled is not learned from; it looks like none that ends a session.
        self.usable = np.flatnonzero(found | ~goes_on)
        chances = expit(self.model.weights.logits(sample.rows, session)).astype(np.float32)
        inputs_of_rows = self._inputs(sample.rows, session)
        return EvidenceTable(inputs_of_rows, session, chances, where, inputs, exists, following, allowed)

    def _found(self, asking: NextActions, evidence: Evidence, mine: Rows, wanted: Rows) -> Iterator[Found]:
        """Rows of `mine`, some at a time, with the next actions of their states `wanted`, and the share allowed."""
        exact = not is_large(evidence.n_items)
        at_once = states_at_once(evidence.n_items) if exact else POOLED_AT_ONCE
        searches = [] if exact else asking.searches(evidence)
        for first in range(0, len(mine), at_once):
            some = mine[first : first + at_once]
            states = self.states[wanted[some]]
            if exact:
                yield some, *asking.exact(evidence, states)
            else:
                yield some, asking.among(evidence, searches, states), np.ones(len(some), np.float32)


class EvidenceAgent(QLearner[EvidenceNetwork]):
    """The network, its target and the optimiser over a table of evidence. What it keeps of a batch are its rows."""

    def __init__(
        self, config: QLearningConfig, material: "EvidenceMaterial", seed: int, offset: float = 0.0, device: str = "cpu"
    ):
        super().__init__(config, seed, device)
        self.material, self.offset, self.unit = material, offset, material.unit
        with seeded(seed, "network"):
            self.network = EvidenceNetwork(config.head, config.quantiles, config.cosines, self.columns).to(device)
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.optimiser = self.adam(self.network)
        self.table = {name: tensor.to(device) for name, tensor in material.tensors.items()}
        self.sets = material.sets

    @property
    def columns(self) -> int:
        """How many numbers a row of evidence has."""
        return self.material.model.evidence.columns

    @classmethod
    def of(
        cls, config: QLearningConfig, material: "EvidenceMaterial", dataset: Dataset, seed: int, device: str
    ) -> Self:
        offset = material.reward_mean * discounted_steps(material.transitions, dataset.gamma)
        return cls(config, material, seed, offset, device)

    def go_on(self, begun: Begun) -> None:
        """The policy's weights, for columns of the size that they have in this log; what was never seen starts anew."""
        learned = {
            name.removeprefix("learned."): np.array(array)
            for name, array in begun.scorer.arrays().items()
            if name.startswith("learned.")
        }
        old, new = learned.pop("sizes"), self.material.sizes
        if len(old) != len(new):
            raise InputError("--from names a policy that knows other features of items than this data set; train anew.")
        seen, inputs = np.isfinite(old) & np.isfinite(new), self.network.inputs
        ratio = np.ones(inputs + 1, np.float32)  # of the reward, the columns, and the session's own value
        ratio[1:inputs] = np.where(seen, new / np.where(seen, old, 1.0), 0.0)
        learned["weights"] *= ratio[:inputs]
        if "head.bias" in learned:
            learned["head.bias"] *= ratio
        self.network.load_state_dict({name: torch.from_numpy(array) for name, array in learned.items()})
        self.target.load_state_dict(self.network.state_dict())

    def begin_period(self, next_states: IntArray, copy_target: bool) -> None:
        if self.config.target == "hard" and copy_target:
            self.target.load_state_dict(self.network.state_dict())

    def look(self, batch: Batch) -> Tensor:
        return self.tensor(batch.row.astype(np.int64))

    def predicted(self, batch: Batch, rows: Tensor, taus: Tensor) -> Tensor:
        states = self.network.states(self.table["session"][rows])
        return self.network.head.quantiles(states, self.network.actions(self.table["inputs"][rows]), taus)

    def pull(self, network: EvidenceNetwork) -> Tensor:
        return network.surplus()

    @torch.no_grad()
    def targets(self, batch: Batch, rows: Tensor, step: int) -> tuple[Tensor, float]:
        """(B, M) r + discount · Z_target(s′, a′), where a′ is the online network's best allowed action."""
        place = self.table["next_place"][rows].long()
        known = place.clamp(min=0)
        centred = (self._rewards(batch, step) - self.material.reward_mean) / self.material.unit
        reward = self.tensor(centred).float().unsqueeze(1)
        if not len(self.material.table.next_inputs):  # every session ends at once
            return reward, 1.0
        inputs = self.table["next_inputs"][known]  # (B, C, inputs)
        values = mask_values(inputs @ self.chooser.preferences(), self.table["next_exists"][known])
        best = inputs[torch.arange(len(rows), device=self.device), self.choose(values, step)]
        taus = self.taus(len((batch.whole or batch).row), step, "target")[batch.rows]
        states = self.target.states(self.table["next_session"][known])
        returns = self.target.head.quantiles(states, self.target.actions(best), taus)
        follows = self.tensor(batch.discount * np.float32(self.foresight(step)))  # 0 where the session ended
        shares = self.table["next_allowed"][place[place >= 0]]
        return reward + follows.unsqueeze(1) * returns, float(shares.mean()) if len(shares) else 1.0

    @property
    def chooser(self) -> EvidenceNetwork:
        """The network whose values decide on the next action."""
        return self.network

    def _rewards(self, batch: Batch, step: int) -> FloatArray:
        """(B,) the logged rewards, or rewards drawn from the response model, which knows nothing of places and luck.

        A logged reward is one draw, seen again and again, and a place of the slate is in it; the model has averaged
        over both. Drawn anew in every update, rewards keep their spread, and their mean is the model's.
        """
        if self.config.rewards == "logged":
            return batch.reward
        weights = self.material.model.weights
        count = len((batch.whole or batch).row)
        luck = generator(self.seed, "rewards", step).random(count, dtype=np.float32)[batch.rows]
        reached = luck < self.material.table.chances[:, batch.row]
        return (weights.least + weights.gains @ reached).astype(np.float32)

    @cached_property
    def possible(self) -> dict[str, Tensor]:
        """The actions that each state has; only agents that look at more than the logged one need them."""
        found = self.material.possible
        return {name: torch.from_numpy(array).to(self.device) for name, array in vars(found).items()}

    def action_values(
        self, network: EvidenceNetwork, batch: Batch, seen: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The logged action comes first, then others of the catalogue, drawn once."""
        rows = self.look(batch) if seen is None else seen
        weights, possible = network.preferences(), self.possible
        place = possible["place"][rows]
        others = possible["inputs"][place.clamp(min=0)] @ weights
        logged = self.tensor(batch.action.astype(np.int64)).unsqueeze(1)
        items = possible["items"][place.clamp(min=0)]
        exists = (items != PAD) & (items != logged) & (place >= 0).unsqueeze(1)
        values = torch.cat((self.table["inputs"][rows] @ weights[:, None], mask_values(others, exists)), dim=1)
        return values, torch.zeros_like(rows)

    def fresh(self, seed_name: str) -> EvidenceNetwork:
        """As the response model ranks; of the session itself it says nothing."""
        with seeded(self.seed, seed_name):
            network = EvidenceNetwork("expected", 1, 1, self.columns).to(self.device)
        for one in network.value.second.parameters():
            torch.nn.init.zeros_(one)
        return network

    def mean_value(self, ids: NDArray[np.int64]) -> float:
        """Q̄: the mean over states of the value of the greedy action, in the unit of the rewards."""
        policy, states = self.policy_of(self.served), self.material.states
        short = is_large(policy.n_items) and not policy.constrained
        at_once = POOLED_AT_ONCE if short else states_at_once(policy.n_items)
        parts = (states[ids[at : at + at_once]] for at in range(0, len(ids), at_once))
        best = [policy.best_of_shortlist(part) if short else policy.scores(part).max(axis=1) for part in parts]
        return float(np.concatenate(best).mean())

    @torch.no_grad()
    def policy_of(self, network: EvidenceNetwork) -> EvidencePolicy:
        network = copy.deepcopy(network).cpu()
        head, inputs = network.head, network.inputs
        count = FRACTIONS if head.samples_taus else head.count
        taus = midpoints(count).unsqueeze(0)
        # Quantiles are linear in the entries of state and action, so those of each single entry tell all of them.
        entries = torch.eye(inputs + 1)
        state = torch.cat((network.weights, torch.ones(1))).expand(inputs + 1, -1)
        rows = head.quantiles(state, entries, taus.expand(inputs + 1, -1)).T.numpy()  # (N, inputs + 1)
        nothing = head.quantiles(torch.zeros_like(state), entries, taus.expand(inputs + 1, -1)).T.numpy()[:, inputs]
        first, second = network.value.first, network.value.second
        unit = np.float32(self.material.unit)
        returns = ReturnWeights(
            rows[:, 0].copy(),
            # In the order in which a bundle holds it, so that sums over it are the same bits.
            np.ascontiguousarray(rows[:, 1:inputs] * unit / self.material.sizes, np.float32),
            rows[:, inputs] - nothing,
            (nothing * unit - rows[:, 0] * self.material.reward_mean + self.offset).astype(np.float32),
            torch.cat((first.weight, first.bias[:, None]), dim=1).numpy(),
            torch.cat((second.weight[0], second.bias)).numpy() * unit,
        )
        behaviour = self.material.behaviour
        if behaviour is not None and not self.config.constrain_serving:
            behaviour = BehaviourWeights(behaviour.evidence)  # it only explains
        learned = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
        learned["sizes"] = self.material.sizes
        return EvidencePolicy(self.material.model, returns, behaviour, self.config.risk_measure(), learned)


def _sizes(rows: FloatArray) -> FloatArray:
    """(columns,) root mean squares; a column that is always 0 stays so."""
    size = np.sqrt(np.mean(rows.astype(np.float64) ** 2, axis=0))
    return np.where(size > 1e-3, size, np.inf).astype(np.float32)


def fit_behaviour_weights(sample: Sample, dataset: Dataset, seed: int) -> FloatArray:
    """(columns,) M: log p(a | s) = weights · evidence + constant, by telling logged actions from random items.

    With uniformly drawn contrasts the odds of having been logged are proportional to p(a | s).
    """
    shown, rng = sample.transitions, generator(seed, "behaviour")
    some = rng.permutation(len(shown))[:CONTRAST_STATES]
    parts, answers = [sample.rows[some]], [np.ones(len(some))]
    for number, evidence in enumerate(sample.evidence):
        mine = some[sample.fold[some] == number]
        items = rng.integers(dataset.n_items, size=(len(mine), CONTRAST), dtype=np.int32)
        parts.append(evidence.rows(dataset.states[shown.state[mine]], items).reshape(-1, evidence.columns))
        answers.append(np.zeros(items.size))
    rows = np.concatenate(parts)
    sizes = _sizes(rows)
    inputs = np.concatenate([np.ones((len(rows), 1), np.float32), rows / sizes], axis=1)
    weights = logistic(inputs, np.concatenate(answers), np.append(1e-3, np.full(rows.shape[1], PRIORS[-1])))
    return (weights[1:] / sizes).astype(np.float32)
