"""Quantile Q-learning over item embeddings, like the paper's network: double Q and a batch constraint."""

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bcd4rec.agents.agent import Batch, Begun
from bcd4rec.agents.allowed_search import AllowedSearch
from bcd4rec.agents.embedding_material import EmbeddingMaterial
from bcd4rec.agents.q_learning import QLearner, QLearningConfig, discounted_steps, seeded
from bcd4rec.constraint import AllowedSets, allowed_mask, behaviour_sets, mask_values
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.states import FloatArray, IntArray, States
from bcd4rec.models.behaviour import BehaviourModel
from bcd4rec.models.large import is_large
from bcd4rec.models.q_network import QNetwork, as_tensor
from bcd4rec.policies.quantile_policy import QuantilePolicy

if TYPE_CHECKING:
    from bcd4rec.agents.agent import Trained

ENCODE_ROWS = 1024  # states encoded at once when many are
VALUES_AT_ONCE = 2**24  # values of state and item pairs held at once, so that memory does not grow with A


@dataclass(frozen=True)
class Encoded:
    """The distinct states of a batch, each encoded once."""

    ids: IntArray  # (U,)
    vectors: Tensor  # (U, D)
    inverse: Tensor  # (B,) which of them each transition is in


class QuantileAgent(QLearner[QNetwork]):
    """Networks, optimiser and the constraint over a fixed table of states."""

    def __init__(
        self,
        config: QLearningConfig,
        states: States,
        embeddings: FloatArray,
        behaviour: BehaviourModel | None,
        seed: int,
        reward_mean: float = 0.0,
        offset: float = 0.0,
        network: QNetwork | None = None,
        device: str = "cpu",
    ):
        super().__init__(config, seed, device)
        self.states = states
        self.reward_mean, self.offset = reward_mean, offset
        with seeded(seed, "network"):
            self.network = (network if network is not None else QNetwork(embeddings, config.shape())).to(device)
        self.target = _twin(self.network)
        self.behaviour = behaviour.to(device) if behaviour is not None and config.beta > 0 else None
        self.optimiser = self.adam(self.network)
        joint = self.behaviour is not None and config.behaviour == "joint"
        self.behaviour_optimiser = (
            torch.optim.Adam(self.behaviour.parameters(), 1e-3) if joint and self.behaviour else None
        )
        self._period: tuple[NDArray[np.int64], AllowedSets] | None = None  # states of a period, and their allowed sets
        self._cached_ids: NDArray[np.int64] | None = None
        self._cached_states = torch.empty(0)

    @classmethod
    def of(cls, config: QLearningConfig, material: EmbeddingMaterial, dataset: Dataset, seed: int, device: str) -> Self:
        # What is frozen can be shared.
        behaviour = copy.deepcopy(material.behaviour) if config.behaviour == "joint" else material.behaviour
        transitions = material.transitions
        mean = float(transitions.reward.mean(dtype=np.float64)) if config.centre_rewards else 0.0
        offset = mean * discounted_steps(transitions, dataset.gamma)
        return cls(config, material.states, material.embeddings, behaviour, seed, mean, offset, device=device)

    def go_on(self, begun: Begun) -> None:
        """All but the embeddings, which the material has put in the order of the data set's items."""
        learned = {
            name.removeprefix("network."): torch.from_numpy(np.array(array))
            for name, array in begun.scorer.arrays().items()
            if name.startswith("network.")
        }
        self.network.load_state_dict(learned | {"embeddings": self.network.embeddings.detach().clone()})
        self.target.load_state_dict(self.network.state_dict())

    def parts(self) -> "dict[str, Trained]":
        parts = super().parts()
        if self.behaviour is not None:
            parts["behaviour"] = self.behaviour
        if self.behaviour_optimiser is not None:
            parts["behaviour_optimiser"] = self.behaviour_optimiser
        return parts

    @cached_property
    def allowed(self) -> AllowedSets | None:
        """The allowed sets of all states, computed once where the behaviour model is frozen and the catalogue small."""
        if self.behaviour is None or self.behaviour_optimiser is not None or self.large:
            return None
        config = self.config
        return behaviour_sets(
            self.behaviour, self.states.positives, config.beta, config.constraint, config.allowed_limit
        )

    @property
    def large(self) -> bool:
        """Whether the catalogue is too large for the allowed sets of all states."""
        return is_large(len(self.network.embeddings))

    @cached_property
    def _search(self) -> AllowedSearch | None:
        """For large catalogues, where the behaviour model is frozen."""
        if self.behaviour is None or self.behaviour_optimiser is not None or not self.large:
            return None
        config = self.config
        found = AllowedSearch(
            self.behaviour, self.states.positives, config.beta, config.constraint, config.allowed_limit, self.seed
        )
        self.sets = found.told
        return found

    def begin_period(self, next_states: IntArray, copy_target: bool) -> None:
        """What a period will ask for is prepared once: in large catalogues the allowed sets of its states, and with a
        hard target, which stays as it is for a period, the encoded states."""
        ids: NDArray[np.int64] = np.unique(next_states).astype(np.int64)
        if self._search is not None:
            self._period = ids, self._search.sets(self.states.positives[ids])
        if self.config.target == "polyak":
            return
        if copy_target:
            self.target.load_state_dict(self.network.state_dict())
        self._cached_ids = ids
        self._cached_states = self._encode(self.target, self._cached_ids)

    def look(self, batch: Batch) -> Encoded:
        return self._look(self.network, batch)

    def _look(self, network: QNetwork, batch: Batch) -> Encoded:
        distinct, inverse = np.unique(batch.state, return_inverse=True)
        return Encoded(distinct, network.encode_states(self.states[distinct]), self.tensor(inverse))

    def predicted(self, batch: Batch, seen: Encoded, taus: Tensor) -> Tensor:
        states = seen.vectors.index_select(0, seen.inverse)  # its gradient is quicker than that of []
        actions = self.network.actions(self.tensor(batch.action.astype(np.int64)))
        return self.network.head.quantiles(states, actions, taus)

    @torch.no_grad()
    def targets(self, batch: Batch, seen: Encoded, step: int) -> tuple[Tensor, float]:
        """(B, M) r + discount · Z_target(s′, a′), where a′ is the online network's best allowed action."""
        ids, back = np.unique(batch.next_state, return_inverse=True)
        best, allowed = self.next_actions(ids, seen, step)
        every = ids if batch.whole is None else np.unique(batch.whole.next_state)
        taus = self.taus(len(every), step, "target")[self.tensor(np.searchsorted(every, ids))]
        values = self.target.head.quantiles(self._target_states(ids), self.target.actions(best), taus)
        reward = self.tensor(batch.reward - np.float32(self.reward_mean)).unsqueeze(1)
        discount = self.tensor(batch.discount * np.float32(self.foresight(step))).unsqueeze(1)
        return reward + discount * values[self.tensor(back)], allowed

    def action_values(self, network: QNetwork, batch: Batch, seen: Encoded | None = None) -> tuple[Tensor, Tensor]:
        """Of the whole catalogue."""
        seen = seen or self._look(network, batch)
        values = network.preferences(seen.vectors) @ network.embeddings.T  # (U, A)
        return values.index_select(0, seen.inverse), self.tensor(batch.action.astype(np.int64))

    def fresh(self, seed_name: str) -> QNetwork:
        shape = self.config.shape().model_copy(update={"head": "expected", "quantiles": 1})
        with seeded(self.seed, seed_name):
            return QNetwork(self.network.embeddings.detach().cpu().numpy(), shape).to(self.device)

    def pull(self, network: QNetwork) -> float:
        return 0.0

    def next_actions(self, ids: IntArray, seen: Encoded, step: int) -> tuple[Tensor, float]:
        """For distinct states the action that follows, and the mean share of the catalogue that is allowed."""
        return self._best_actions(ids, self.network.preferences(self._complete(ids, seen.ids, seen.vectors.detach())))

    def _complete(self, ids: IntArray, known: IntArray, encoded: Tensor) -> Tensor:
        """The encoded states `ids`; those that are not among the `known` ones need no gradient, so they come here."""
        new = np.setdiff1d(ids, known, assume_unique=True)
        every = np.concatenate([known, new])
        order = np.argsort(every)
        rows = order[np.searchsorted(every, ids, sorter=order)]
        return torch.cat([encoded, self.network.encode_states(self.states[new])])[self.tensor(rows)]

    def _best_actions(self, ids: IntArray, vectors: Tensor) -> tuple[Tensor, float]:
        """For distinct states the best allowed action; among equals the one with the lowest index."""
        matrix = self.network.embeddings
        if self._period is not None:
            known, allowed = self._period
            rows = self.tensor(np.searchsorted(known, ids))
        elif self.allowed is not None:
            allowed, rows = self.allowed, self.tensor(ids.astype(np.int64))
        else:
            values, share = self.allowed_values(ids, vectors @ matrix.T)
            return values.argmax(dim=1), share
        sizes = allowed.offsets[rows + 1] - allowed.offsets[rows]
        return allowed.argmax(rows, vectors, matrix), float(sizes.float().mean()) / len(matrix)

    def allowed_values(self, ids: IntArray, values: Tensor) -> tuple[Tensor, float]:
        """Values (B, A) with −inf for what the behaviour model does not allow, and the share that it allows."""
        if self.behaviour is None:
            return values, 1.0
        likely = self.behaviour.log_probabilities(as_tensor(self.states.positives[ids]).to(self.device))
        mask = allowed_mask(likely, self.config.beta, self.config.constraint)
        return mask_values(values, mask), float(mask.float().mean())

    def _target_states(self, ids: IntArray) -> Tensor:
        if self._cached_ids is None:
            return self.target.encode_states(self.states[ids])
        return self._cached_states[self.tensor(np.searchsorted(self._cached_ids, ids))]

    def learn_beside(self, batch: Batch, step: int) -> None:
        """A behaviour model that is not frozen."""
        if self.behaviour is None or self.behaviour_optimiser is None:
            return
        distinct, owner = np.unique(batch.state, return_inverse=True)
        items = self.tensor(batch.action.astype(np.int64))
        sessions = as_tensor(self.states.positives[distinct]).to(self.device)
        loss = self.behaviour.loss(sessions, items, self.tensor(owner))
        self._descend(loss / len(batch.state), self.behaviour_optimiser)

    @torch.no_grad()
    def _encode(self, network: QNetwork, ids: NDArray[np.int64]) -> Tensor:
        parts = [
            network.encode_states(self.states[ids[at : at + ENCODE_ROWS]]) for at in range(0, len(ids), ENCODE_ROWS)
        ]
        return torch.cat(parts) if parts else torch.empty(0, self.network.width, device=self.device)

    @torch.no_grad()
    def mean_value(self, ids: NDArray[np.int64]) -> float:
        """Q̄: the mean over states of the value of the greedy action, in the unit of the rewards."""
        vectors = self._encode(self.served, ids)
        rows = min(ENCODE_ROWS, max(1, VALUES_AT_ONCE // len(self.served.embeddings)))
        best = [self.served.mean_values(part).max(dim=1).values for part in torch.split(vectors, rows)]
        return float(torch.cat(best).mean()) + self.offset

    def policy_of(self, network: QNetwork) -> QuantilePolicy:
        """On a copy of the weights."""
        config = self.config
        beta = config.beta if config.constrain_serving else 0.0  # the behaviour model may only explain
        behaviour = None if self.behaviour is None else copy.deepcopy(self.behaviour).cpu()
        network = copy.deepcopy(network).cpu()
        return QuantilePolicy(network, self.offset, behaviour, beta, config.constraint, config.risk_measure())


def _twin(network: QNetwork) -> QNetwork:
    """A copy without gradients; frozen embeddings are shared, since they never differ."""
    shared = {id(network.embeddings): network.embeddings} if network.config.freeze_embeddings else {}
    return copy.deepcopy(network, shared).requires_grad_(False)
