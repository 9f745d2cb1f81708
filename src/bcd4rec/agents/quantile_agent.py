"""The one implementation behind all named agents: quantile Q-learning with double Q and a batch constraint."""

import copy
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bcd4rec.agents.agent import AgentConfig
from bcd4rec.agents.learner import Batch, Learner, Update, move, seeded
from bcd4rec.constraint import AllowedSets, allowed_mask, behaviour_sets, constrained_argmax
from bcd4rec.data.states import FloatArray, IntArray, States
from bcd4rec.losses import quantile_huber
from bcd4rec.models.behaviour import BehaviourModel
from bcd4rec.models.q_network import QNetwork, as_tensor
from bcd4rec.policies.quantile_policy import QuantilePolicy

ENCODE_ROWS = 1024  # states encoded at once when many are
VALUES_AT_ONCE = 2**24  # values of state and item pairs held at once, so that memory does not grow with A


class QuantileAgent(Learner):
    """Networks, optimiser and the constraint over a fixed table of states."""

    def __init__(
        self,
        config: AgentConfig,
        states: States,
        embeddings: FloatArray,
        behaviour: BehaviourModel | None,
        seed: int,
        reward_mean: float = 0.0,
        offset: float = 0.0,
        network: QNetwork | None = None,
    ):
        super().__init__(config, seed)
        self.states = states
        self.reward_mean, self.offset = reward_mean, offset
        with seeded(seed, "network"):
            self.network = network if network is not None else QNetwork(embeddings, config.shape())
        self.target = _twin(self.network)
        self.behaviour = behaviour if config.beta > 0 else None
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        self.optimiser = torch.optim.AdamW(trained, config.learning_rate, weight_decay=config.weight_decay, fused=True)
        joint = self.behaviour is not None and config.behaviour == "joint"
        self.behaviour_optimiser = (
            torch.optim.Adam(self.behaviour.parameters(), 1e-3) if joint and self.behaviour else None
        )
        self._cached_ids: NDArray[np.int64] | None = None
        self._cached_states = torch.empty(0)

    @cached_property
    def allowed(self) -> AllowedSets | None:
        """The allowed sets of all states, computed once where the behaviour model is frozen."""
        if self.behaviour is None or self.behaviour_optimiser is not None:
            return None
        config = self.config
        return behaviour_sets(
            self.behaviour, self.states.positives, config.beta, config.constraint, config.allowed_limit
        )

    def begin_period(self, next_states: IntArray, copy_target: bool) -> None:
        """A hard target stays as it is for a period, so the states it will be asked for are encoded once."""
        if self.config.target == "polyak":
            return
        if copy_target:
            self.target.load_state_dict(self.network.state_dict())
        self._cached_ids = np.unique(next_states)
        self._cached_states = self._encode(self.target, self._cached_ids)

    def update(self, batch: Batch, step: int) -> Update:
        """One step of Algorithm 1. All randomness comes from the seed and `step`."""
        size = len(batch.state)
        distinct, inverse = np.unique(batch.state, return_inverse=True)
        encoded = self.network.encode_states(self.states[distinct])  # every distinct state once
        states = encoded.index_select(0, torch.from_numpy(inverse))  # its gradient is quicker than that of []
        target, allowed = self._targets(batch, distinct, encoded.detach(), step)
        taus = self._taus(self.network.head, size, step, "predicted")
        actions = self.network.actions(torch.from_numpy(batch.action.astype(np.int64)))
        predicted = self.network.head.quantiles(states, actions, taus)
        loss = quantile_huber(predicted, target, taus, self.config.kappa)
        self._set_rate(self.optimiser, step)
        self._descend(loss, self.optimiser)
        if self.config.target == "polyak":
            move(self.target, self.network, self.config.polyak)
        if self.behaviour is not None and self.behaviour_optimiser is not None:
            self._update_behaviour(self.behaviour, self.behaviour_optimiser, batch)
        return Update(loss.item(), float(target.mean()), allowed)

    @torch.no_grad()
    def _targets(self, batch: Batch, known: IntArray, encoded: Tensor, step: int) -> tuple[Tensor, float]:
        """(B, M) r + discount · Z_target(s′, a′), where a′ is the online network's best allowed action.

        The states `known` have just been encoded.
        """
        ids, back = np.unique(batch.next_state, return_inverse=True)
        best, allowed = self._best_actions(ids, self.network.preferences(self._complete(ids, known, encoded)))
        taus = self._taus(self.network.head, len(ids), step, "target")
        values = self.target.head.quantiles(self._target_states(ids), self.target.actions(best), taus)
        reward = torch.from_numpy(batch.reward - np.float32(self.reward_mean)).unsqueeze(1)
        discount = torch.from_numpy(batch.discount * np.float32(self._foresight(step))).unsqueeze(1)
        return reward + discount * values[torch.from_numpy(back)], allowed

    def _complete(self, ids: IntArray, known: IntArray, encoded: Tensor) -> Tensor:
        """The encoded states `ids`; those that are not among the `known` ones need no gradient, so they come here."""
        new = np.setdiff1d(ids, known, assume_unique=True)
        every = np.concatenate([known, new])
        order = np.argsort(every)
        rows = order[np.searchsorted(every, ids, sorter=order)]
        return torch.cat([encoded, self.network.encode_states(self.states[new])])[torch.from_numpy(rows)]

    def _best_actions(self, ids: IntArray, vectors: Tensor) -> tuple[Tensor, float]:
        """For distinct states the best allowed action, and the mean share of the catalogue that is allowed."""
        matrix = self.network.embeddings
        if self.behaviour is None:
            return constrained_argmax(vectors @ matrix.T), 1.0
        if self.allowed is not None:
            rows = torch.from_numpy(ids.astype(np.int64))
            sizes = self.allowed.offsets[rows + 1] - self.allowed.offsets[rows]
            return self.allowed.argmax(rows, vectors, matrix), float(sizes.float().mean()) / len(matrix)
        likely = self.behaviour.log_probabilities(as_tensor(self.states.positives[ids]))
        mask = allowed_mask(likely, self.config.beta, self.config.constraint)
        return constrained_argmax(vectors @ matrix.T, mask), float(mask.float().mean())

    def _target_states(self, ids: IntArray) -> Tensor:
        if self._cached_ids is None:
            return self.target.encode_states(self.states[ids])
        return self._cached_states[torch.from_numpy(np.searchsorted(self._cached_ids, ids))]

    def _update_behaviour(self, model: BehaviourModel, optimiser: torch.optim.Optimizer, batch: Batch) -> None:
        distinct, owner = np.unique(batch.state, return_inverse=True)
        items = torch.from_numpy(batch.action.astype(np.int64))
        loss = model.loss(as_tensor(self.states.positives[distinct]), items, torch.from_numpy(owner))
        self._descend(loss / len(batch.state), optimiser)

    @torch.no_grad()
    def _encode(self, network: QNetwork, ids: NDArray[np.int64]) -> Tensor:
        parts = [
            network.encode_states(self.states[ids[at : at + ENCODE_ROWS]]) for at in range(0, len(ids), ENCODE_ROWS)
        ]
        return torch.cat(parts) if parts else torch.empty(0, self.network.width)

    @torch.no_grad()
    def mean_value(self, ids: NDArray[np.int64]) -> float:
        """Q̄: the mean over states of the value of the greedy action, in the unit of the rewards."""
        vectors = self._encode(self.served, ids)
        rows = min(ENCODE_ROWS, max(1, VALUES_AT_ONCE // len(self.served.embeddings)))
        best = [self.served.mean_values(part).max(dim=1).values for part in torch.split(vectors, rows)]
        return float(torch.cat(best).mean()) + self.offset

    @property
    def served(self) -> QNetwork:
        """The network of the policy."""
        return self.network if self.config.serve == "online" else self.target

    def policy(self) -> QuantilePolicy:
        """The greedy policy, on a copy of the weights."""
        network = copy.deepcopy(self.served)
        beta = self.config.beta if self.config.constrain_serving else 0.0  # the behaviour model may only explain
        return QuantilePolicy(network, self.offset, copy.deepcopy(self.behaviour), beta, self.config.constraint)


def _twin(network: QNetwork) -> QNetwork:
    """A copy without gradients; frozen embeddings are shared, since they never differ."""
    shared = {id(network.embeddings): network.embeddings} if network.config.freeze_embeddings else {}
    return copy.deepcopy(network, shared).requires_grad_(False)
