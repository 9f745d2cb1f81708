"""Several workers that train one agent: each computes a part of every batch, and gradients are averaged.

Every worker draws the same batch from the same seed and takes its own rows. What is random within an update is drawn
for the whole batch, too, and cut alike. So the update is that of one worker up to rounding, whatever their number, and
all hold the same weights after it.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as group
from numpy.typing import NDArray
from torch import Tensor

from bcd4rec.agents.agent import Batch
from bcd4rec.errors import InputError

if TYPE_CHECKING:
    from bcd4rec.agents.agent import Agent


class Together:
    """This worker among those of torch's process group, which is there already."""

    def __init__(self, batch_size: int, device: str = "cpu"):
        self.rank, self.size = group.get_rank(), group.get_world_size()
        if batch_size < self.size:
            raise InputError(f"A batch of {batch_size} has no row for each of {self.size} workers; use fewer.")
        ends = [batch_size * number // self.size for number in range(self.size + 1)]
        self.rows = slice(ends[self.rank], ends[self.rank + 1])
        self.weight = (self.rows.stop - self.rows.start) / batch_size
        self.device = device
        self.seconds = 0.0  # spent on what others have to say

    def part(self, batch: Batch) -> Batch:
        """Our rows."""
        rows = self.rows
        return Batch(
            batch.state[rows],
            batch.action[rows],
            batch.reward[rows],
            batch.next_state[rows],
            batch.discount[rows],
            batch.row[rows],
            whole=batch,
            rows=rows,
        )

    def average(self, parameters: Iterable[Tensor]) -> None:
        """Every gradient becomes that of the whole batch: the mean of all workers' by their share of it.

        A parameter that only some states use (that of an empty session) may have a gradient on some workers alone; one
        that none of them used keeps none, and the optimiser passes it over, as with one worker.
        """
        every = list(parameters)
        grown = [torch.zeros_like(one) if one.grad is None else one.grad for one in every]
        used = torch.tensor([float(one.grad is not None) for one in every], device=grown[0].device)
        flat = torch.cat([*(one.reshape(-1).mul(self.weight) for one in grown), used])
        self._sum(flat)
        *means, used = torch.split(flat, [*(one.numel() for one in every), len(every)])
        for one, mean, by in zip(every, means, used.tolist(), strict=True):
            one.grad = mean.view_as(one) if by else None

    def mean(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of the whole batch, where each worker has the mean of its part."""
        found = torch.tensor(numbers * self.weight, dtype=torch.float64, device=self.device)
        self._sum(found)
        return np.asarray(found.cpu().numpy())

    def agree(self, agent: "Agent") -> None:
        """All begin where the first begins: machines may differ in the last bits of what led here."""
        for value in agent.parts().values():
            state: dict[Any, Any] = value.state_dict()
            moments = state.get("state", {}).values() if "param_groups" in state else [state]
            for tensor in (one for each in moments for one in each.values()):
                group.broadcast(tensor, 0)

    def _sum(self, flat: Tensor) -> None:
        import time

        began = time.perf_counter()
        group.all_reduce(flat)
        self.seconds += time.perf_counter() - began
