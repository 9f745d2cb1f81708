"""What agents over embeddings learn from: pre-trained item embeddings, the behaviour model, the logged transitions."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from bcd4rec.agents.agent import Begun, Notify, silent
from bcd4rec.agents.q_learning import QLearningConfig, seeded
from bcd4rec.artifacts import atomic_file
from bcd4rec.data.dataset import Dataset, Transitions
from bcd4rec.data.states import FloatArray, States
from bcd4rec.models.behaviour import BehaviourModel, fit_behaviour
from bcd4rec.models.pretraining import pretrain, standardise
from bcd4rec.seeding import generator

PRETRAINING = ("pretraining", "pretraining_epochs", "dimension", "negatives", "embedding_scale")  # what it depends on
BEHAVIOUR = (*PRETRAINING, "behaviour", "behaviour_epochs")


@dataclass(frozen=True)
class EmbeddingMaterial:
    """The networks of an agent start from it; nothing of it is a policy already."""

    transitions: Transitions
    states: States
    embeddings: FloatArray  # (A, d)
    behaviour: BehaviourModel | None  # where next actions are constrained
    start: None = None
    nothing_to_learn: None = None

    @property
    def usable(self) -> NDArray[np.int64]:
        return np.arange(len(self.transitions))

    @classmethod
    def prepare(
        cls,
        config: QLearningConfig,
        dataset: Dataset,
        seed: int,
        notify: Notify = silent,
        shared: Path | None = None,
        resumed: bool = False,
        begun: Begun | None = None,
    ) -> Self:
        """Pre-train item embeddings and fit the behaviour model; a checkpoint holds what that gave.

        Items that a policy knows already, from which training goes on, keep its embeddings.
        """
        if resumed:
            config, shared = config.model_copy(update={"pretraining": "none", "behaviour_epochs": 0}), None
        transitions = dataset.transitions("train")
        if begun is not None and (begun.places >= 0).all():
            config = config.model_copy(update={"pretraining": "none"})  # nothing would be left of it
        embeddings = pretrained_embeddings(config, dataset, seed, notify, shared)
        if begun is not None:
            embeddings, shared = kept_embeddings(begun, embeddings), None
        constrained = config.beta > 0
        behaviour = _behaviour(config, dataset, transitions, embeddings, seed, notify, shared) if constrained else None
        return cls(transitions, dataset.states, embeddings, behaviour)


def pretrained_embeddings(
    config: QLearningConfig, dataset: Dataset, seed: int, notify: Notify = silent, shared: Path | None = None
) -> FloatArray:
    """(A, d) from the positive responses of the train split."""

    def pretrained() -> dict[str, Tensor]:
        with seeded(seed, "pretraining"):
            embeddings = pretrain(
                config.pretraining,
                dataset.sequences("train"),
                dataset.n_items,
                config.dimension,
                generator(seed, "pretraining"),
                epochs=config.pretraining_epochs,
                negatives=config.negatives,
                notify=lambda loss: notify("item embeddings", loss),
            )
        return {"embeddings": torch.from_numpy(standardise(embeddings, config.embedding_scale))}

    return _shared(shared, PRETRAINING, config, dataset, seed, pretrained)["embeddings"].numpy()


def kept_embeddings(begun: Begun, found: FloatArray) -> FloatArray:
    """(A, d) the policy's for the items that it knows; for new ones those found, turned into the policy's directions.

    Pre-training finds the same neighbours in other directions each time. The rotation that takes the known items
    closest to where the policy has them (orthogonal Procrustes) takes the new ones to where they belong.
    """
    own: FloatArray = begun.scorer.arrays()["network.embeddings"]
    known = begun.places >= 0
    left, _, right = np.linalg.svd(found[known].T.astype(np.float64) @ own[begun.places[known]])
    kept: FloatArray = (found @ (left @ right)).astype(np.float32)
    kept[known] = own[begun.places[known]]
    return kept


def _behaviour(
    config: QLearningConfig,
    dataset: Dataset,
    transitions: Transitions,
    embeddings: FloatArray,
    seed: int,
    notify: Notify,
    shared: Path | None,
) -> BehaviourModel:
    """M: trained here where it is to be frozen, and only started where it learns along with the agent."""

    def fitted() -> dict[str, Tensor]:
        with seeded(seed, "behaviour"):
            model = fit_behaviour(
                embeddings,
                dataset.states.positives,
                transitions.state,
                transitions.action,
                generator(seed, "behaviour"),
                epochs=config.behaviour_epochs if config.behaviour == "frozen" else 0,
                negatives=config.negatives,
                notify=lambda loss: notify("behaviour model", loss),
            )
        return dict(model.state_dict())

    weights = _shared(shared, BEHAVIOUR, config, dataset, seed, fitted)
    model = BehaviourModel(embeddings)
    model.load_state_dict(weights)
    return model


def _shared(
    folder: Path | None,
    names: tuple[str, ...],
    config: QLearningConfig,
    dataset: Dataset,
    seed: int,
    make: Callable[[], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """What `make` gives, kept in `folder` under a hash of the data, the seed and the settings it depends on."""
    if folder is None:
        return make()
    settings = {name: getattr(config, name) for name in names}
    text = json.dumps([dataset.content_hash, seed, settings], sort_keys=True)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.safetensors"
    if not path.is_file():
        made = {name: tensor.contiguous() for name, tensor in make().items()}
        with atomic_file(path, force=True) as partial:
            save_file(made, partial)
    return load_file(path)
