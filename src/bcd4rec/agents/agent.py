"""What an agent is: one configuration for all, and the registry of the named ones."""

from typing import Literal, Self

from pydantic import Field, model_validator

from bcd4rec.constraint import Form
from bcd4rec.models.pretraining import Pretraining
from bcd4rec.models.q_network import QNetworkConfig
from bcd4rec.registry import Registry

# What only one of the two networks asks for; the other would ignore it.
EVIDENCE_ONLY = frozenset({"shrink", "rewards", "next_actions"})
EMBEDDINGS_ONLY = frozenset(
    {
        *(set(QNetworkConfig.model_fields) - {"head", "quantiles", "cosines"}),
        *("constraint", "behaviour", "behaviour_epochs", "allowed_limit", "negatives"),
        *("dimension", "pretraining", "pretraining_epochs", "embedding_scale"),
    }
)


class AgentConfig(QNetworkConfig):
    """Batch-constrained (distributional) Q-learning on logged transitions.

    The named agents override `head` and `beta` and nothing else. γ and L come with the data set. A setting that the
    chosen network would ignore is an error: `EVIDENCE_ONLY` and `EMBEDDINGS_ONLY` list them.
    """

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
        description="The best next action is sought among so many allowed ones, the best by the response model; "
        "evidence=true only.",
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
        description="At most so many allowed actions for a state, the likeliest; 0 is no limit; evidence=false only.",
    )
    constrain_serving: bool = Field(
        default=False, description="Recommend allowed items only, too; the paper constrains the target alone."
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
        description="Sampled-softmax negatives in pre-training and behaviour model; 0 is the full softmax; "
        "evidence=false only.",
    )
    centre_rewards: bool = Field(
        default=True, description="Learn from rewards minus their mean; reported values have it added again."
    )
    kappa: float = Field(default=1.0, gt=0, description="κ: where the Huber loss turns from square to linear.")
    target: Literal["hard", "polyak"] = Field(
        default="polyak",
        description="Copy the network to the target every `target_every` updates, or move it a little at each.",
    )
    target_every: int = Field(default=100, ge=1, description="Updates between copies of a hard target.")
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
    batch_size: int = Field(default=512, ge=1, description="Transitions in an update.")
    updates: int = Field(default=500, ge=1, description="How many updates.")

    @model_validator(mode="after")
    def _given_settings_count(self) -> Self:
        """Nobody is to believe that a setting has changed anything when it could not."""
        ignored, other = (EMBEDDINGS_ONLY, "false") if self.evidence else (EVIDENCE_ONLY, "true")
        if given := sorted(ignored & self.model_fields_set):
            verb = "is" if len(given) == 1 else "are"
            raise ValueError(f"{', '.join(given)} {verb} for evidence={other}; add --set evidence={other}")
        return self

    def shape(self) -> QNetworkConfig:
        """The part that the Q-network, and so the saved policy, needs."""
        return QNetworkConfig(**{name: getattr(self, name) for name in QNetworkConfig.model_fields})


AGENTS: Registry[type[AgentConfig]] = Registry("agent", "bcd4rec.agents")
