"""Quantile Q-learning with a batch constraint: the settings, and what its two forms share.

Values are over evidence (`evidence_agent`), or over item embeddings like the paper's (`quantile_agent`). An agent that
adds something overrides `penalty` or `learn_beside`, or chooses next actions otherwise.
"""

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from bcd4rec.agents.agent import AGENTS, Agent, AgentConfig, Batch, Begun, Material, Notify, Update, silent
from bcd4rec.agents.presets import PRESETS
from bcd4rec.constraint import Form
from bcd4rec.data.dataset import Dataset, Transitions
from bcd4rec.data.states import IntArray
from bcd4rec.errors import InputError
from bcd4rec.losses import quantile_huber
from bcd4rec.models.evidence_network import EvidenceNetwork
from bcd4rec.models.heads import midpoints
from bcd4rec.models.pretraining import Pretraining
from bcd4rec.models.q_network import QNetwork, QNetworkConfig
from bcd4rec.models.table_rows import RowAdamW, by_rows, clip_gradients
from bcd4rec.policies.risk import Measure, Risk
from bcd4rec.seeding import generator, stream_seed

if TYPE_CHECKING:
    from bcd4rec.agents.agent import Trained
    from bcd4rec.agents.together import Together

# What only one of the two networks asks for; the other would ignore it.
EVIDENCE_ONLY = frozenset({"shrink", "rewards", "next_actions"})
EMBEDDINGS_ONLY = frozenset(
    {
        *(set(QNetworkConfig.model_fields) - {"head", "quantiles", "cosines"}),
        *("constraint", "behaviour", "behaviour_epochs", "allowed_limit", "negatives"),
        *("dimension", "pretraining", "pretraining_epochs", "embedding_scale"),
    }
)


class QLearningConfig(AgentConfig, QNetworkConfig):
    """Batch-constrained (distributional) Q-learning on logged transitions.

    The paper's variants override `head` and `beta` and nothing else. A setting that the chosen network would ignore is
    an error: `EVIDENCE_ONLY` and `EMBEDDINGS_ONLY` list them.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS
    goes_on: ClassVar[bool] = True

    evidence: bool = Field(
        default=True,
        description="Values over what log and session say about an item, starting at the response model's; "
        "false: a network like the paper's, over item embeddings alone.",
    )
    shrink: float = Field(
        default=10.0, ge=0, description="How strongly values are drawn to the response model's; evidence=true only."
    )
    rewards: Literal["model", "logged"] = Field(
        default="model",
        description="Rewards drawn from the response model, free of the place in the slate, or those of the log; "
        "evidence=true only.",
    )
    next_actions: int = Field(
        default=32,
        ge=1,
        description="The best next action is sought among so many allowed ones, the best by the response model, "
        "and so many others stand for the catalogue where an agent weighs them; evidence=true only.",
    )
    beta: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="β: how likely, to the behaviour model, a next action must be; 0 is no constraint.",
    )
    constraint: Form = Field(
        default="relative",
        description="relative: p ≥ β · max p; literal: p > β, else the mode; evidence=false only.",
    )
    behaviour: Literal["frozen", "joint"] = Field(
        default="frozen",
        description="Train the behaviour model first and freeze it, or along with the agent; evidence=false only.",
    )
    behaviour_epochs: int = Field(
        default=1,
        ge=0,
        description="Passes over the log when the behaviour model is trained first; evidence=false only.",
    )
    allowed_limit: int = Field(
        default=0,
        ge=0,
        description="At most so many allowed actions for a state, the likeliest; 0 is no limit, or 1,000 in "
        "catalogues of more than 50,000 items; evidence=false only.",
    )
    constrain_serving: bool = Field(
        default=False, description="Recommend allowed items only, too; the paper constrains the target alone."
    )
    risk: Measure = Field(
        default="mean",
        description="What of an item's return is ranked by: mean, cvar (the mean of its worst cases) or optimistic "
        "(of its best); heads with quantiles only.",
    )
    level: float = Field(
        default=0.2, gt=0, le=1, description="The share of cases that cvar and optimistic take the mean of."
    )
    dimension: int = Field(default=100, ge=2, description="d: entries of an item embedding; evidence=false only.")
    pretraining: Pretraining = Field(
        default="srgnn",
        description="How item embeddings start: srgnn, item2vec, svd (of co-clicks), none; evidence=false only.",
    )
    pretraining_epochs: int = Field(
        default=10, ge=0, description="Passes over the positive responses in pre-training; evidence=false only."
    )
    embedding_scale: float = Field(
        default=0.3,
        gt=0,
        description="Root mean square of the entries of pre-trained embeddings; evidence=false only.",
    )
    negatives: int = Field(
        default=0,
        ge=0,
        description="Sampled-softmax negatives in pre-training and behaviour model; 0 is the full softmax, or 1,000 in "
        "catalogues of more than 50,000 items; evidence=false only.",
    )
    centre_rewards: bool = Field(
        default=True, description="Learn from rewards minus their mean; reported values have it added again."
    )
    kappa: float = Field(default=1.0, gt=0, description="κ: where the Huber loss turns from square to linear.")
    target: Literal["hard", "polyak"] = Field(
        default="polyak",
        description="Copy the network to the target every `target_every` updates, or move it a little at each.",
    )
    polyak: float = Field(default=0.005, gt=0, le=1, description="How far a Polyak target moves at each update.")
    serve: Literal["online", "target"] = Field(
        default="online",
        description="Which network becomes the policy; a Polyak target is an average over the last updates.",
    )
    warm_up: float = Field(
        default=0.5, ge=0, le=1, description="Over which share of the updates the discount rises from 0 to γ, linearly."
    )
    learning_rate: float = Field(default=1e-3, gt=0, description="Adam's learning rate at the first update.")
    decay: float = Field(
        default=1.0, ge=0, le=1, description="Which share of the learning rate is gone by the last update, linearly."
    )
    weight_decay: float = Field(default=0.0, ge=0, description="Decoupled weight decay.")
    clip: float = Field(default=10.0, gt=0, description="Largest norm of a gradient.")

    @model_validator(mode="after")
    def _given_settings_count(self) -> Self:
        """Nobody is to believe that a setting has changed anything when it could not."""
        ignored, other = (EMBEDDINGS_ONLY, "false") if self.evidence else (EVIDENCE_ONLY, "true")
        if given := sorted(ignored & self.model_fields_set):
            verb = "is" if len(given) == 1 else "are"
            raise ValueError(f"{', '.join(given)} {verb} for evidence={other}; add --set evidence={other}")
        if self.risk != "mean" and self.head == "expected":
            raise ValueError(f"risk={self.risk} needs quantiles, and the head is expected; add --set head=fixed")
        if self.risk == "mean" and "level" in self.model_fields_set:
            raise ValueError("level is for risk=cvar and risk=optimistic; add --set risk=cvar")
        return self

    @property
    def strength(self) -> str | None:
        return "shrink" if self.evidence else None

    @property
    def report_every(self) -> int:
        """Of short runs, two reports are enough for people and for Ctrl-C."""
        return max(100, self.updates // 2) if self.evidence else 100

    def shape(self) -> QNetworkConfig:
        """The part that the Q-network, and so the saved policy, needs."""
        return QNetworkConfig(**{name: getattr(self, name) for name in QNetworkConfig.model_fields})

    def risk_measure(self) -> Risk:
        return Risk(measure=self.risk, level=self.level)

    def network_settings(self) -> dict[str, Any]:
        names: tuple[str, ...] = ("evidence", "head", "quantiles", "cosines")
        names += () if self.evidence else (*QNetworkConfig.model_fields, "dimension")
        return {name: getattr(self, name) for name in names}

    def go_on(self, agent: Any, begun: Begun) -> None:
        agent.go_on(begun)

    def material(
        self,
        dataset: Dataset,
        seed: int,
        notify: Notify = silent,
        shared: Path | None = None,
        resumed: bool = False,
        begun: Begun | None = None,
    ) -> Material:
        if self.evidence:
            from bcd4rec.agents.evidence_material import evidence_material

            return evidence_material(self, dataset, seed, notify)
        from bcd4rec.agents.embedding_material import EmbeddingMaterial

        return EmbeddingMaterial.prepare(self, dataset, seed, notify, shared, resumed, begun)

    def build(self, material: Any, dataset: Dataset, seed: int, device: str = "cpu") -> Agent:
        over_evidence, over_embeddings = self.learners()
        return (over_evidence if self.evidence else over_embeddings).of(self, material, dataset, seed, device)

    def learners(self) -> "tuple[type[QLearner[Any]], type[QLearner[Any]]]":
        """The learner over evidence, and the one over embeddings."""
        from bcd4rec.agents.evidence_agent import EvidenceAgent
        from bcd4rec.agents.quantile_agent import QuantileAgent

        return EvidenceAgent, QuantileAgent

    def advice(self) -> str:
        return (
            f"try a smaller learning_rate (now {self.learning_rate:g}), a larger beta (now {self.beta:g}) "
            f"or a slower target (target={self.target})"
        )


def parse_q_learning(agent: str, settings: dict[str, Any], source: str) -> QLearningConfig:
    """The settings of an agent that is Q-learning, for those who ask for its heads and networks."""
    config = AGENTS[agent].parse(settings, source)
    if not isinstance(config, QLearningConfig):
        raise InputError(f"{source}: {agent} is no Q-learning, and this is made for agents that are.")
    return config


Network = TypeVar("Network", EvidenceNetwork, QNetwork)


class QLearner(Generic[Network]):
    """Networks, optimiser and schedule of one form; `Seen` is what a form keeps of a batch through an update."""

    network: Network
    target: Network
    optimiser: torch.optim.Optimizer
    offset: float
    unit = 1.0  # of the values
    sets: dict[str, Any] | None = None
    shareable: ClassVar[bool] = True  # whether several workers can compute parts of a batch
    together: "Together | None" = None  # the workers, where there are several

    def __init__(self, config: QLearningConfig, seed: int, device: str = "cpu"):
        self.config, self.seed, self.device = config, seed, device

    @classmethod
    @abstractmethod
    def of(cls, config: QLearningConfig, material: Any, dataset: Dataset, seed: int, device: str) -> Self:
        """The learner of this material."""

    def update(self, batch: Batch, step: int) -> Update:
        """One step of Algorithm 1. All randomness comes from the seed and `step`."""
        seen = self.look(batch)
        target, allowed = self.targets(batch, seen, step)
        taus = self.taus(len((batch.whole or batch).state), step, "predicted")[batch.rows]
        loss = quantile_huber(self.predicted(batch, seen, taus), target, taus, self.config.kappa)
        self._set_rate(self.optimiser, step)
        self._descend(loss + self.penalty(batch, seen, taus.shape[1]), self.optimiser)
        if self.config.target == "polyak":
            move(self.target, self.network, self.config.polyak)
        self.learn_beside(batch, step)
        return Update(loss.item(), float(target.mean()) * self.unit, allowed)

    @abstractmethod
    def begin_period(self, next_states: IntArray, copy_target: bool) -> None:
        """Where a period begins, a hard target becomes the network."""

    @abstractmethod
    def mean_value(self, ids: NDArray[np.int64]) -> float:
        """Q̄: the mean over states of the value of the greedy action, in the unit of the rewards."""

    @abstractmethod
    def look(self, batch: Batch) -> Any:
        """What the rest of an update needs of the batch, computed once."""

    @abstractmethod
    def targets(self, batch: Batch, seen: Any, step: int) -> tuple[Tensor, float]:
        """(B, M) r + discount · Z_target(s′, a′), and the share of the catalogue that a′ was chosen from."""

    @abstractmethod
    def predicted(self, batch: Batch, seen: Any, taus: Tensor) -> Tensor:
        """(B, N) Q^τ(s, a) of the logged actions."""

    @abstractmethod
    def action_values(self, network: Network, batch: Batch, seen: Any = None) -> tuple[Tensor, Tensor]:
        """(B, C) mean values of the actions that each state has, −inf where there are fewer than C, up to a number for
        each state; and (B,) the place of the logged action among them. With `seen`, of the online network."""

    @abstractmethod
    def go_on(self, begun: Begun) -> None:
        """The weights of a policy in place of those that the networks started with."""

    @abstractmethod
    def fresh(self, seed_name: str) -> Network:
        """A network of the same inputs with one value for an action, e.g. for an actor."""

    @abstractmethod
    def policy_of(self, network: Network) -> Any:
        """Greedy over what `network` values."""

    @abstractmethod
    def pull(self, network: Network) -> Tensor | float:
        """How far the ranking of `network` is from where training starts; 0 where it starts at nothing."""

    def penalty(self, batch: Batch, seen: Any, count: int) -> Tensor | float:
        """Added to the loss of `count` quantiles.

        A squared error of each quantile weighs a quarter on average: shrinking is in units of one of it.
        """
        if not self.config.evidence:
            return 0.0
        return self.config.shrink * count / 4 * self.pull(self.network)

    def learn_beside(self, batch: Batch, step: int) -> None:
        """What else learns from the batch."""

    def parts(self) -> "dict[str, Trained]":
        return {"network": self.network, "target": self.target, "optimiser": self.optimiser}

    def policy(self) -> Any:
        return self.policy_of(self.served)

    @property
    def served(self) -> Network:
        """The network of the policy."""
        return self.network if self.config.serve == "online" else self.target

    def choose(self, values: Tensor, step: int) -> Tensor:
        """(B,) which of the next actions with these values (B, C) is taken; among equals the first."""
        return values.argmax(dim=1)

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """On the device of the networks; on the CPU over the same memory."""
        return torch.from_numpy(array).to(self.device)

    def adam(self, network: nn.Module) -> torch.optim.Optimizer:
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        config = self.config
        kind = RowAdamW if any(map(by_rows, trained)) else torch.optim.AdamW
        return kind(trained, config.learning_rate, weight_decay=config.weight_decay, fused=True)

    def taus(self, size: int, step: int, name: str) -> Tensor:
        """(size, K) fractions: drawn anew, or the midpoints where the head knows no others."""
        head = self.network.head
        if not head.samples_taus:
            return midpoints(head.count, self.device).expand(size, -1)
        return self.tensor(generator(self.seed, "taus", name, step).random((size, head.count), dtype=np.float32))

    def foresight(self, step: int) -> float:
        """The share of the discount that counts: next values say nothing before rewards have shaped them.

        Where a log hardly explores, values that bootstrap from the first update on may settle on a network that holds
        all items alike.
        """
        until = self.config.warm_up * self.config.updates
        return min(1.0, step / until) if until else 1.0

    def _set_rate(self, optimiser: torch.optim.Optimizer, step: int) -> None:
        """Values chase their own targets and never settle at a constant rate, so the rate falls."""
        left = 1.0 - self.config.decay * step / self.config.updates
        for group in optimiser.param_groups:
            group["lr"] = self.config.learning_rate * left

    def _descend(self, loss: Tensor, optimiser: torch.optim.Optimizer) -> None:
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.together is not None:
            self.together.average(optimiser.param_groups[0]["params"])
        clip_gradients(optimiser.param_groups[0]["params"], self.config.clip)
        optimiser.step()


def discounted_steps(transitions: Transitions, gamma: float) -> float:
    """The mean over transitions of Σ γ^t over the steps that were left: what a constant reward of 1 would return."""
    last = np.zeros(int(transitions.session.max()) + 1, np.int64)
    np.maximum.at(last, transitions.session, transitions.step.astype(np.int64))
    left = last[transitions.session] - transitions.step.astype(np.int64) + 1
    return float(np.mean(left if gamma == 1 else (1 - gamma**left) / (1 - gamma)))


@contextlib.contextmanager
def seeded(seed: int, *names: str | int) -> Iterator[None]:
    """Within the block torch draws from the stream called `names`; outside of it nothing has changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, *names) % 2**63)
        yield


@torch.no_grad()
def move(target: nn.Module, network: nn.Module, share: float) -> None:
    """`target` a little nearer to `network`; parameters that they share stay."""
    pairs = [(old, new) for old, new in zip(target.parameters(), network.parameters(), strict=True) if old is not new]
    torch._foreach_lerp_([old for old, _ in pairs], [new for _, new in pairs], share)
