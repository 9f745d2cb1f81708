"""Training as a generator: an agent and batches of a data set give reports, step by step."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from bcd4rec.agents.agent import AgentConfig
from bcd4rec.agents.evidence_agent import EvidenceAgent, LearningMaterial
from bcd4rec.agents.learner import Batch, Update, seeded
from bcd4rec.agents.quantile_agent import QuantileAgent
from bcd4rec.artifacts import MANIFEST, atomic_directory, atomic_file, read_json, write_json
from bcd4rec.data.dataset import Dataset, Transitions
from bcd4rec.data.states import FloatArray
from bcd4rec.errors import InputError
from bcd4rec.models.behaviour import BehaviourModel, fit_behaviour
from bcd4rec.models.pretraining import pretrain, standardise
from bcd4rec.models.response_regression import fit_response
from bcd4rec.seeding import generator

Notify = Callable[[str, float], None]  # what is being trained, and the loss of its last epoch, if it has one
SLACK = 1.5  # how far beyond the largest feasible return values may go before training is given up
VALUE_STATES = 2000  # validation states that Q̄ is taken over …
VALUE_PAIRS = 2**27  # … or fewer, so that a report does not take long where the catalogue is large


def silent(stage: str, loss: float) -> None:
    """For callers that show no progress."""


class DivergenceError(InputError):
    """Values went where no return can be; nothing was written."""


@dataclass(frozen=True)
class Report:
    """Where training stands. Values are returns in the unit of the rewards, means since the last report."""

    step: int
    updates: int
    loss: float
    target_value: float  # mean target value
    q_bar: float  # mean value of the greedy action over validation states
    feasible: float  # the largest return that rewards and γ allow
    allowed: float  # share of the catalogue allowed as next action
    per_second: float  # transitions


class Trainer:
    """An agent with the batches it learns from. `run` yields reports; `save` writes a checkpoint.

    A trainer made from a checkpoint continues as if it had never stopped, bit for bit. Leave `run` between reports:
    then the agent is whole. Trainers with the same folder `shared` do alike pre-training once; those that differ in
    training alone can share the `material` of evidence.
    """

    def __init__(
        self,
        config: AgentConfig,
        dataset: Dataset,
        seed: int = 0,
        checkpoint: Path | None = None,
        notify: Notify = silent,
        shared: Path | None = None,
        material: LearningMaterial | None = None,
    ):
        self.config, self.seed, self.step = config, seed, 0
        self.data_hash = str(dataset.manifest.get("content_hash", ""))
        self.validation = _validation_states(dataset, seed)
        self.bounds = _return_bounds(dataset)
        # A checkpoint holds what pre-training gave, so nothing is trained twice; evidence is only counted, and quickly.
        untrained = {"pretraining": "none", "behaviour_epochs": 0} if checkpoint else {}
        start = config.model_copy(update=untrained)
        self.agent: QuantileAgent | EvidenceAgent
        if config.evidence:
            material = material or learning_material(config, dataset, seed, notify)
            self.transitions, self.usable = material.transitions, material.usable
            offset = material.reward_mean * _discounted_steps(self.transitions, dataset.gamma)
            self.agent = EvidenceAgent(config, material, seed, offset)
        else:
            self.transitions = dataset.transitions("train")
            self.usable = np.arange(len(self.transitions))
            self.agent = build_agent(start, dataset, self.transitions, seed, notify, None if checkpoint else shared)
            self.agent.config = config
        if checkpoint:
            self._resume(checkpoint)

    def run(self, report_every: int = 100) -> Iterator[Report]:
        """Train from where it stands to the last update; a report after every `report_every` updates and at the end."""
        seen: list[Update] = []
        began = time.perf_counter()
        plan = self._plan(copy_target=False) if self.step % self.config.target_every else np.empty((0, 0), np.int64)
        while self.step < self.config.updates:
            if self.step % self.config.target_every == 0:
                plan = self._plan(copy_target=True)
            rows = plan[self.step % self.config.target_every]
            seen.append(self.agent.update(take(self.transitions, rows), self.step))
            self.step += 1
            if self.step % report_every == 0 or self.step == self.config.updates:
                yield self._report(seen, time.perf_counter() - began)
                seen, began = [], time.perf_counter()

    def _plan(self, copy_target: bool) -> NDArray[np.int64]:
        """(target_every, B) the rows of the period that `step` lies in: a function of the seed and the period."""
        period = self.step // self.config.target_every
        shape = (self.config.target_every, self.config.batch_size)
        plan = self.usable[generator(self.seed, "batches", period).integers(len(self.usable), size=shape)]
        self.agent.begin_period(self.transitions.next_state[plan.ravel()], copy_target)
        return plan

    def _report(self, seen: list[Update], seconds: float) -> Report:
        report = Report(
            step=self.step,
            updates=self.config.updates,
            loss=float(np.mean([one.loss for one in seen])),
            target_value=float(np.mean([one.target for one in seen])) + self.agent.offset,
            q_bar=self.agent.mean_value(self.validation),
            feasible=self.bounds[1],
            allowed=float(np.mean([one.allowed for one in seen])),
            per_second=len(seen) * self.config.batch_size / max(seconds, 1e-9),
        )
        check(report, self.bounds, self.config)
        return report

    def save(self, folder: Path) -> None:
        """A checkpoint, replaced as a whole: weights, optimiser moments and the step. Batches follow from the seed."""
        about = {"kind": "checkpoint", "step": self.step, "seed": self.seed, "data": self.data_hash}
        with atomic_directory(folder, force=True) as partial:
            save_file(_tensors(self.agent), partial / "state.safetensors")
            write_json(partial / MANIFEST, about | {"config": self.config.model_dump()})

    def _resume(self, folder: Path) -> None:
        """Continue where `save` left off: the same bits come out as without the interruption."""
        manifest = read_json(folder / MANIFEST)
        expected = {"seed": self.seed, "data": self.data_hash, "config": self.config.model_dump()}
        for key, value in expected.items():
            if manifest.get(key) != value:
                raise InputError(f"{folder} is a checkpoint of another run: its {key} differs; train without --resume.")
        _restore(self.agent, load_file(folder / "state.safetensors"))
        self.step = int(manifest["step"])


def take(transitions: Transitions, rows: NDArray[np.int64]) -> Batch:
    return Batch(
        transitions.state[rows],
        transitions.action[rows],
        transitions.reward[rows],
        transitions.next_state[rows],
        transitions.discount[rows],
        rows.astype(np.int32),
    )


def build_agent(
    config: AgentConfig,
    dataset: Dataset,
    transitions: Transitions,
    seed: int,
    notify: Notify = silent,
    shared: Path | None = None,
) -> QuantileAgent:
    """Pre-train item embeddings, fit the behaviour model, and set up the networks."""
    embeddings = pretrained_embeddings(config, dataset, seed, notify, shared)
    behaviour = _behaviour(config, dataset, transitions, embeddings, seed, notify, shared) if config.beta > 0 else None
    mean = float(transitions.reward.mean(dtype=np.float64)) if config.centre_rewards else 0.0
    offset = mean * _discounted_steps(transitions, dataset.gamma)
    return QuantileAgent(config, dataset.states, embeddings, behaviour, seed, mean, offset)


def learning_material(config: AgentConfig, dataset: Dataset, seed: int, notify: Notify = silent) -> LearningMaterial:
    """Count the evidence, fit the response model, and lay out what agents learn on top of it."""
    model, sample = fit_response(dataset, seed, lambda stage, share: notify(f"response model: {stage}", math.nan))
    notify("next actions", math.nan)
    return LearningMaterial(config, dataset, model, sample, seed)


PRETRAINING = ("pretraining", "pretraining_epochs", "dimension", "negatives", "embedding_scale")  # what it depends on
BEHAVIOUR = (*PRETRAINING, "behaviour", "behaviour_epochs")


def pretrained_embeddings(
    config: AgentConfig, dataset: Dataset, seed: int, notify: Notify = silent, shared: Path | None = None
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


def _behaviour(
    config: AgentConfig,
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
    config: AgentConfig,
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


def _discounted_steps(transitions: Transitions, gamma: float) -> float:
    """The mean over transitions of Σ γ^t over the steps that were left: what a constant reward of 1 would return."""
    last = np.zeros(int(transitions.session.max()) + 1, np.int64)
    np.maximum.at(last, transitions.session, transitions.step.astype(np.int64))
    left = last[transitions.session] - transitions.step.astype(np.int64) + 1
    return float(np.mean(left if gamma == 1 else (1 - gamma**left) / (1 - gamma)))


def _validation_states(dataset: Dataset, seed: int) -> NDArray[np.int64]:
    """States of the validation split (of the train split where there is none), as often as they were visited."""
    states = dataset.transitions(dataset.split_or_train("validation")).state.astype(np.int64)
    count = min(VALUE_STATES, len(states), max(1, VALUE_PAIRS // dataset.n_items))
    return generator(seed, "validation").choice(states, count, replace=False)


def _return_bounds(dataset: Dataset) -> tuple[float, float]:
    """The smallest and the largest return that the rewards and γ allow."""
    rewards, gamma = dataset.responses.rewards.values(), dataset.gamma
    steps = 1 / (1 - gamma) if gamma < 1 else math.inf
    return min(0.0, min(rewards) * steps if min(rewards) else 0.0), max(rewards) * steps


def check(report: Report, bounds: tuple[float, float], config: AgentConfig) -> None:
    """Stop a run whose values no policy could reach."""
    advice = (
        f"try a smaller learning_rate (now {config.learning_rate:g}), a larger beta (now {config.beta:g}) "
        f"or a slower target (target={config.target})"
    )
    values = (report.loss, report.target_value, report.q_bar)
    if not all(map(math.isfinite, values)):
        raise DivergenceError(f"Training diverged at update {report.step}: the loss is not a number; {advice}.")
    reach = SLACK * (bounds[1] - bounds[0])
    middle = (bounds[0] + bounds[1]) / 2
    for name, value in (("mean target value", report.target_value), ("mean value of the greedy action", report.q_bar)):
        if abs(value - middle) > reach - (bounds[1] - bounds[0]) / 2:
            raise DivergenceError(
                f"Training diverged at update {report.step}: the {name} is {value:.1f}, but no return can exceed "
                f"{bounds[1]:.1f}; {advice}."
            )


def _parts(agent: QuantileAgent | EvidenceAgent) -> dict[str, Any]:
    """All that changes in training, by name."""
    parts: dict[str, Any] = {"network": agent.network, "target": agent.target, "optimiser": agent.optimiser}
    if isinstance(agent, EvidenceAgent):
        return parts
    if agent.behaviour is not None:
        parts["behaviour"] = agent.behaviour
    if agent.behaviour_optimiser is not None:
        parts["behaviour_optimiser"] = agent.behaviour_optimiser
    return parts


def _tensors(agent: QuantileAgent | EvidenceAgent) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for part, value in _parts(agent).items():
        if isinstance(value, torch.optim.Optimizer):
            for index, moments in value.state_dict()["state"].items():
                tensors |= {f"{part}.{index}.{name}": moment.clone() for name, moment in moments.items()}
        else:
            tensors |= {f"{part}.{name}": tensor.clone() for name, tensor in value.state_dict().items()}
    return tensors


def _restore(agent: QuantileAgent | EvidenceAgent, tensors: dict[str, Tensor]) -> None:
    for part, value in _parts(agent).items():
        named = {name.removeprefix(f"{part}."): one for name, one in tensors.items() if name.startswith(f"{part}.")}
        if isinstance(value, torch.optim.Optimizer):
            state: dict[int, dict[str, Tensor]] = {}
            for name, moment in named.items():
                index, _, moment_name = name.partition(".")
                state.setdefault(int(index), {})[moment_name] = moment
            value.load_state_dict({"state": state, "param_groups": value.state_dict()["param_groups"]})
        else:
            value.load_state_dict(named)
