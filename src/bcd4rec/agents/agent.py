"""What an agent is: settings that know how to build a learner, and a learner that the trainer drives.

A new agent is one file in this folder: a class of settings, registered under a name. Nothing here needs torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bcd4rec.config import Config
from bcd4rec.data.dataset import Dataset, Transitions
from bcd4rec.data.states import FloatArray, IntArray
from bcd4rec.policies.scorer import SavedScorer
from bcd4rec.registry import Registry

if TYPE_CHECKING:
    import torch

    Trained = torch.nn.Module | torch.optim.Optimizer

Notify = Callable[[str, float], None]  # what is being trained, and the loss of its last epoch, if it has one


def silent(stage: str, loss: float) -> None:
    """For callers that show no progress."""


@dataclass(frozen=True)
class Batch:
    """B transitions; states are rows of the data set's table of states."""

    state: IntArray
    action: IntArray
    reward: FloatArray
    next_state: IntArray
    discount: FloatArray
    row: IntArray  # which of the material's transitions they are
    # Where this is one worker's part: the batch of all of them, and which of its rows these are.
    whole: "Batch | None" = field(default=None, kw_only=True)
    rows: slice = field(default_factory=lambda: slice(None), kw_only=True)


@dataclass(frozen=True)
class Update:
    """What one update saw."""

    loss: float
    target: float  # mean of the target values, in the unit of the (centred) rewards
    allowed: float  # share of the catalogue that was allowed as a next action


@dataclass(frozen=True)
class Begun:
    """A policy that training goes on from."""

    scorer: SavedScorer
    places: IntArray  # (A,) where each item of the data set stands in the policy, −1 for items that are new


class Material(Protocol):
    """What an agent learns from, made once for all agents that differ in training alone."""

    @property
    def transitions(self) -> Transitions: ...

    @property
    def usable(self) -> NDArray[np.int64]:
        """The rows of `transitions` that batches are drawn from."""
        ...

    @property
    def start(self) -> SavedScorer | None:
        """The policy that training starts at and its strength is judged against; None where it starts at nothing."""
        ...

    @property
    def nothing_to_learn(self) -> str | None:
        """Why the log can teach nothing beyond `start`; None where it can."""
        ...


class Agent(Protocol):
    """A learner. All randomness comes from its seed and the step, so that a checkpoint resumes to the same bits."""

    offset: float  # what centred rewards took off the returns
    sets: dict[str, Any] | None  # where allowed actions were not sought exactly: the recall of the search, and of what

    def begin_period(self, next_states: IntArray, copy_target: bool) -> None:
        """The next `target_every` updates will ask for these states; `copy_target`: this is where a period begins."""
        ...

    def update(self, batch: Batch, step: int) -> Update: ...

    def mean_value(self, ids: NDArray[np.int64]) -> float:
        """Q̄: the mean over states of the value of the best action, in the unit of the rewards."""
        ...

    def policy(self) -> SavedScorer:
        """What has been learned, on a copy of the weights."""
        ...

    def parts(self) -> "dict[str, Trained]":
        """All that changes in training, by name: what a checkpoint holds."""
        ...


class AgentConfig(Config):
    """What the trainer asks of the settings of any agent. γ and L come with the data set.

    `presets` are settings by name for `--preset`; `paper` is the form that the paper prints, where there is one.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    scores_are_returns: ClassVar[bool] = True  # or preferences, which say what is better and not what it is worth
    goes_on: ClassVar[bool] = False  # whether training can go on from a policy: its `material` and `go_on` take `Begun`

    batch_size: int = Field(default=512, ge=1, description="Transitions in an update.")
    updates: int = Field(default=500, ge=1, description="How many updates.")
    target_every: int = Field(default=100, ge=1, description="Updates between copies of a hard target.")

    @property
    def strength(self) -> str | None:
        """The setting that the search chooses by validation slates; None where there is nothing to choose."""
        return None

    @property
    def report_every(self) -> int:
        """Updates between reports: a report asks for the values of many states."""
        return 100

    def material(
        self,
        dataset: Dataset,
        seed: int,
        notify: Notify = silent,
        shared: Path | None = None,
        resumed: bool = False,
        begun: Begun | None = None,
    ) -> Material:
        """What it learns from. Runs with the same folder `shared` do alike pre-training once; what is `resumed` needs
        no pre-training, since the checkpoint holds what it gave. `begun` is given where `goes_on` says so alone."""
        raise NotImplementedError

    def build(self, material: Any, dataset: Dataset, seed: int, device: str = "cpu") -> Agent:
        """The learner, before its first update; `material` is what `material` gave."""
        raise NotImplementedError

    def network_settings(self) -> dict[str, Any]:
        """Settings in which a policy must agree with them to be gone on from."""
        return {}

    def go_on(self, agent: Any, begun: Begun) -> None:
        """Give an agent that was just built the weights of a policy."""
        raise NotImplementedError

    def advice(self) -> str:
        """What to try when training diverges."""
        return "try smaller steps"


AGENTS: Registry[type[AgentConfig]] = Registry("agent", "bcd4rec.agents", constant="AGENTS")
