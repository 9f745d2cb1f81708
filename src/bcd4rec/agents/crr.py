"""Critic-regularised regression (Wang et al., Critic Regularized Regression, 2020)."""

from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from bcd4rec.agents.agent import AGENTS, Batch
from bcd4rec.agents.evidence_agent import EvidenceAgent
from bcd4rec.agents.q_learning import QLearner, QLearningConfig
from bcd4rec.agents.quantile_agent import Encoded, QuantileAgent
from bcd4rec.data.states import PAD, IntArray
from bcd4rec.losses import advantage_weighted
from bcd4rec.models.heads import HeadName
from bcd4rec.seeding import generator

if TYPE_CHECKING:
    from bcd4rec.agents.agent import Trained


@AGENTS.register("crr")
class CRR(QLearningConfig):
    """Critic-regularised regression: imitate the log where its actions were better than expected (Wang et al., 2020).

    An actor π over the same inputs as the critic Q maximises E[min(exp(A / β), w) · log π(a_logged | s)], where
    A = Q(s, a_logged) − Σ_a π(a | s) Q(s, a) in units of its spread. The critic's next actions are drawn from π, and π
    is what is served: its scores are preferences, not returns.
    """

    scores_are_returns: ClassVar[bool] = False
    goes_on: ClassVar[bool] = False  # a policy is the actor alone, and the critic is not kept

    head: HeadName = "fixed"
    temperature: float = Field(default=0.3, gt=0, description="β: how little a large advantage counts.")
    most: float = Field(default=20.0, gt=0, description="Largest weight of a logged action.")

    @model_validator(mode="after")
    def _scores_are_no_returns(self) -> Self:
        if self.risk != "mean":
            raise ValueError(f"crr ranks by preferences, which have no quantiles; found risk={self.risk}, leave it out")
        return self

    def learners(self) -> tuple[type[QLearner[Any]], type[QLearner[Any]]]:
        return ActorOverEvidence, ActorOverEmbeddings


class Actor(QLearner[Any]):
    """A critic as in Q-learning, and the actor that it weighs the log for."""

    config: CRR
    shareable = False  # advantages are in units of their spread in the batch

    def __init__(self, config: CRR, *args: Any, **options: Any):
        super().__init__(config, *args, **options)
        self.actor = self.fresh("actor")
        self.actor_optimiser = self.adam(self.actor)
        self.softness = self.spread()

    def spread(self) -> float:
        """What the actor's scores are divided by to be logits."""
        return 1.0

    def learn_beside(self, batch: Batch, step: int) -> None:
        super().learn_beside(batch, step)
        scores, logged = self.action_values(self.actor, batch)
        with torch.no_grad():
            values, _ = self.action_values(self.network, batch)
        config = self.config
        loss = advantage_weighted(scores / self.softness, values, logged, config.temperature, config.most)
        self._set_rate(self.actor_optimiser, step)
        self._descend(loss + self.held_back(), self.actor_optimiser)

    def held_back(self) -> Tensor | float:
        """What draws the actor to where it starts."""
        return 0.0

    def choose(self, values: Tensor, step: int) -> Tensor:
        """Drawn from π, by the Gumbel trick."""
        drawn = generator(self.seed, "next actions", step).gumbel(size=values.shape).astype(np.float32)
        return (values / self.softness + self.tensor(drawn)).argmax(dim=1)

    def parts(self) -> "dict[str, Trained]":
        return super().parts() | {"actor": self.actor, "actor_optimiser": self.actor_optimiser}

    def policy(self) -> Any:
        return self.policy_of(self.actor)


class ActorOverEvidence(Actor, EvidenceAgent):
    """The actor starts as the response model, with logits of unit spread within a state."""

    @property
    def chooser(self) -> Any:
        return self.actor

    def held_back(self) -> Tensor:
        """Shrinking, in units of logits."""
        held: Tensor = self.config.shrink / 4 * self.actor.distance() / self.softness**2
        return held

    def spread(self) -> float:
        possible = self.material.possible
        exists = possible.items != PAD
        rewards = np.where(exists, possible.inputs[..., 0], np.nan)[exists.sum(axis=1) > 1]
        found = float(np.sqrt(np.nanvar(rewards, axis=1).mean())) if len(rewards) else 0.0
        return max(found, 1e-3)


class ActorOverEmbeddings(Actor, QuantileAgent):
    def next_actions(self, ids: IntArray, seen: Encoded, step: int) -> tuple[Tensor, float]:
        vectors = self.actor.preferences(self.actor.encode_states(self.states[ids]))
        values, share = self.allowed_values(ids, vectors @ self.actor.embeddings.T)
        return self.choose(values, step), share
