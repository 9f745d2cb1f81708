"""What learning agents share: quantile fractions, the schedule, and steps down the gradient."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bcd4rec.agents.agent import AgentConfig
from bcd4rec.data.states import FloatArray, IntArray
from bcd4rec.models.heads import Head, midpoints
from bcd4rec.seeding import generator, stream_seed


@dataclass(frozen=True)
class Batch:
    """B transitions; states are rows of the agent's table of states."""

    state: IntArray
    action: IntArray
    reward: FloatArray
    next_state: IntArray
    discount: FloatArray
    row: IntArray  # which transitions they are


@dataclass(frozen=True)
class Update:
    """What one update saw."""

    loss: float
    target: float  # mean of the target values, in the unit of the (centred) rewards
    allowed: float  # share of the catalogue that was allowed as a next action


class Learner:
    """The schedule of an agent. All randomness comes from the seed and the step."""

    def __init__(self, config: AgentConfig, seed: int):
        self.config, self.seed = config, seed

    def _taus(self, head: Head, size: int, step: int, name: str) -> Tensor:
        """(size, K) fractions: drawn anew, or the midpoints where the head knows no others."""
        if not head.samples_taus:
            return midpoints(head.count).expand(size, -1)
        draw = generator(self.seed, "taus", name, step).random((size, head.count), dtype=np.float32)
        return torch.from_numpy(draw)

    def _foresight(self, step: int) -> float:
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
        torch.nn.utils.clip_grad_norm_(optimiser.param_groups[0]["params"], self.config.clip)
        optimiser.step()


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
