"""Conservative Q-learning (Kumar et al., Conservative Q-Learning for Offline Reinforcement Learning, 2020)."""

from typing import Any

from pydantic import Field
from torch import Tensor

from bcd4rec.agents.agent import AGENTS, Batch
from bcd4rec.agents.evidence_agent import EvidenceAgent
from bcd4rec.agents.q_learning import QLearner, QLearningConfig
from bcd4rec.agents.quantile_agent import QuantileAgent
from bcd4rec.losses import conservative
from bcd4rec.models.evidence_network import EvidenceNetwork
from bcd4rec.models.heads import HeadName


@AGENTS.register("cql")
class CQL(QLearningConfig):
    """Conservative Q-learning over fixed quantiles: what the log does not show is worth less (Kumar et al., 2020).

    To the loss comes α · (log Σ_a exp Q(s, a) − Q(s, a_logged)), over the actions of a state: over evidence the logged
    one and others drawn from the catalogue, over embeddings the whole catalogue. No next action is forbidden.
    """

    head: HeadName = "fixed"
    alpha: float = Field(default=0.1, ge=0, description="α: how much values above those of logged actions cost.")

    def learners(self) -> tuple[type[QLearner[Any]], type[QLearner[Any]]]:
        return ConservativeOverEvidence, ConservativeOverEmbeddings


class Conservative(QLearner[Any]):
    """Q-learning whose loss has one more term."""

    config: CQL

    def penalty(self, batch: Batch, seen: Any, count: int) -> Tensor | float:
        gap = conservative(*self.action_values(self.network, batch, seen))
        # In units of a squared error, as shrinking is.
        return super().penalty(batch, seen, count) + self.config.alpha * count / 4 * gap


class ConservativeOverEvidence(Conservative, EvidenceAgent):
    def pull(self, network: EvidenceNetwork) -> Tensor:
        return network.distance()


class ConservativeOverEmbeddings(Conservative, QuantileAgent):
    pass
