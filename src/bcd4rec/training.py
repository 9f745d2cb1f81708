"""Training as a generator: an agent and batches of a data set give reports, step by step."""

import hashlib
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bcd4rec.agents.agent import Agent, AgentConfig, Batch, Begun, Material, Notify, Update, silent
from bcd4rec.agents.q_learning import QLearner
from bcd4rec.agents.together import Together
from bcd4rec.artifacts import MANIFEST, atomic_directory, read_json, write_json
from bcd4rec.data.dataset import Dataset, Transitions
from bcd4rec.errors import CheckpointError, InputError
from bcd4rec.models.table_rows import RowAdamW
from bcd4rec.seeding import generator

SLACK = 1.5  # how far beyond the largest feasible return values may go before training is given up
VALUE_STATES = 2000  # validation states that Q̄ is taken over …
VALUE_PAIRS = 2**27  # … or fewer, so that a report does not take long where the catalogue is large


def device_of(name: str) -> str:
    """`auto`, `cpu` or `cuda` as a device that is there."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device: found {name!r}, expected auto, cpu or cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"--device cuda: torch {torch.__version__} finds no GPU; use --device cpu, or install a build of torch "
            "and a driver that fit the GPU."
        )
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


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

    A trainer made from a checkpoint continues as if it had never stopped, bit for bit, and knows its `reports`. Leave
    `run` between reports: then the agent is whole. Trainers with the same folder `shared` do alike pre-training once;
    those that differ in training alone can share the `material`. With `begun` the weights start from a policy's; the
    material must know it.
    """

    def __init__(
        self,
        config: AgentConfig,
        dataset: Dataset,
        seed: int = 0,
        checkpoint: Path | None = None,
        notify: Notify = silent,
        shared: Path | None = None,
        material: Material | None = None,
        device: str = "cpu",
        together: Together | None = None,
        begun: Begun | None = None,
    ):
        self.config, self.seed, self.step, self.together = config, seed, 0, together
        self.reports: list[Report] = []  # since the first update
        self.data_hash = str(dataset.manifest.get("content_hash", ""))
        self.validation = _validation_states(dataset, seed)
        self.bounds = _return_bounds(dataset)
        self.material = material or config.material(dataset, seed, notify, shared, resumed=checkpoint is not None)
        self.transitions, self.usable = self.material.transitions, self.material.usable
        self.agent: Agent = config.build(self.material, dataset, seed, device)
        if begun is not None:
            config.go_on(self.agent, begun)
        if checkpoint:
            self._resume(checkpoint)
        if together is not None:
            self._join(together)

    def _join(self, together: Together) -> None:
        if not isinstance(self.agent, QLearner) or not self.agent.shareable:
            raise InputError(f"{type(self.config).__name__} is trained by one worker; leave --workers out.")
        if isinstance(self.agent.optimiser, RowAdamW):
            raise InputError(
                "Embeddings of so many items are updated by rows, which is done by one worker; leave --workers out, or "
                "pass --set freeze_embeddings=true."
            )
        together.agree(self.agent)
        self.agent.together = together

    def run(self, report_every: int = 100) -> Iterator[Report]:
        """Train from where it stands to the last update; a report after every `report_every` updates and at the end."""
        seen: list[Update] = []
        began = time.perf_counter()
        plan = self._plan(copy_target=False) if self.step % self.config.target_every else np.empty((0, 0), np.int64)
        while self.step < self.config.updates:
            if self.step % self.config.target_every == 0:
                plan = self._plan(copy_target=True)
            rows = plan[self.step % self.config.target_every]
            batch = take(self.transitions, rows)
            batch = batch if self.together is None else self.together.part(batch)
            seen.append(self.agent.update(batch, self.step))
            self.step += 1
            if self.step % report_every == 0 or self.step == self.config.updates:
                self.reports.append(self._report(seen, time.perf_counter() - began))
                yield self.reports[-1]
                seen, began = [], time.perf_counter()

    def _plan(self, copy_target: bool) -> NDArray[np.int64]:
        """(target_every, B) the rows of the period that `step` lies in: a function of the seed and the period."""
        period = self.step // self.config.target_every
        shape = (self.config.target_every, self.config.batch_size)
        plan = self.usable[generator(self.seed, "batches", period).integers(len(self.usable), size=shape)]
        asked = plan if self.together is None else plan[:, self.together.rows]
        self.agent.begin_period(self.transitions.next_state[asked.ravel()], copy_target)
        return plan

    def _report(self, seen: list[Update], seconds: float) -> Report:
        means = np.array([np.mean([getattr(one, name) for one in seen]) for name in ("loss", "target", "allowed")])
        loss, target, allowed = (means if self.together is None else self.together.mean(means)).tolist()
        report = Report(
            step=self.step,
            updates=self.config.updates,
            loss=loss,
            target_value=target + self.agent.offset,
            q_bar=self.agent.mean_value(self.validation),
            feasible=self.bounds[1],
            allowed=allowed,
            per_second=len(seen) * self.config.batch_size / max(seconds, 1e-9),
        )
        check(report, self.bounds, self.config)
        return report

    def save(self, folder: Path) -> None:
        """A checkpoint, replaced as a whole: weights, optimiser moments, the step and what was reported. Batches follow
        from the seed."""
        about = {"kind": "checkpoint", "step": self.step, "seed": self.seed, "data": self.data_hash}
        about |= {"reports": [asdict(one) for one in self.reports]}
        with atomic_directory(folder, force=True) as partial:
            save_file(_tensors(self.agent), partial / "state.safetensors")
            write_json(partial / MANIFEST, about | {"config": self.config.model_dump()})

    def _resume(self, folder: Path) -> None:
        """Continue where `save` left off: the same bits come out as without the interruption."""
        try:
            manifest, state = read_json(folder / MANIFEST), load_file(folder / "state.safetensors")
        except (InputError, OSError, SafetensorError) as error:
            raise CheckpointError(f"{folder} is a checkpoint cut short ({error}); train without --resume.") from None
        expected = {"seed": self.seed, "data": self.data_hash, "config": self.config.model_dump()}
        for key, value in expected.items():
            if manifest.get(key) != value:
                raise CheckpointError(
                    f"{folder} is a checkpoint of another run: its {key} differs; train without --resume."
                )
        _restore(self.agent, state)
        self.step, self.reports = int(manifest["step"]), [Report(**one) for one in manifest["reports"]]


def checkpoint_of(config: AgentConfig, folder: Path) -> Path:
    """Where the checkpoint of a configuration lies: a search tries several, and none may take the place of another."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return folder / hashlib.sha256(text.encode()).hexdigest()[:12]


def take(transitions: Transitions, rows: NDArray[np.int64]) -> Batch:
    return Batch(
        transitions.state[rows],
        transitions.action[rows],
        transitions.reward[rows],
        transitions.next_state[rows],
        transitions.discount[rows],
        rows.astype(np.int32),
    )


def _validation_states(dataset: Dataset, seed: int) -> NDArray[np.int64]:
    """States of the validation split (of the train split where there is none), as often as they were visited."""
    states = dataset.transitions(dataset.split_or_train("validation")).state.astype(np.int64)
    count = min(VALUE_STATES, len(states), max(1, VALUE_PAIRS // dataset.n_items))
    return generator(seed, "validation").choice(states, count, replace=False)


def _return_bounds(dataset: Dataset) -> tuple[float, float]:
    """The smallest and the largest return that the rewards and γ allow; without a discount, in the longest session."""
    rewards, gamma = dataset.responses.rewards.values(), dataset.gamma
    steps = 1 / (1 - gamma) if gamma < 1 else float(dataset.frame["step"].max()) + 1.0  # type: ignore[arg-type]
    return min(0.0, min(rewards) * steps if min(rewards) else 0.0), max(rewards) * steps


def check(report: Report, bounds: tuple[float, float], config: AgentConfig) -> None:
    """Stop a run whose values no policy could reach."""
    advice = config.advice()
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


def _tensors(agent: Agent) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for part, value in agent.parts().items():
        if isinstance(value, torch.optim.Optimizer):
            for index, moments in value.state_dict()["state"].items():
                tensors |= {f"{part}.{index}.{name}": moment.clone() for name, moment in moments.items()}
        else:
            tensors |= {f"{part}.{name}": tensor.clone() for name, tensor in value.state_dict().items()}
    return tensors


def _restore(agent: Agent, tensors: dict[str, Tensor]) -> None:
    for part, value in agent.parts().items():
        named = {name.removeprefix(f"{part}."): one for name, one in tensors.items() if name.startswith(f"{part}.")}
        if isinstance(value, torch.optim.Optimizer):
            state: dict[int, dict[str, Tensor]] = {}
            for name, moment in named.items():
                index, _, moment_name = name.partition(".")
                state.setdefault(int(index), {})[moment_name] = moment
            value.load_state_dict({"state": state, "param_groups": value.state_dict()["param_groups"]})
        else:
            value.load_state_dict(named)
