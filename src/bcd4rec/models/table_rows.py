"""Rows of a large table of item embeddings: gradients and Adam that touch those that were looked up and no others."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bcd4rec.models.large import is_large


def by_rows(table: Tensor) -> bool:
    """Whether the gradient of a table has the rows that were looked up alone."""
    return is_large(len(table)) and table.requires_grad and table.is_leaf


def rows_of(items: Tensor, table: Tensor) -> Tensor:
    """The rows of `table` (A, D), with one more axis of D entries behind those of `items`."""
    if by_rows(table):
        return nn.functional.embedding(items.long(), table, sparse=True)
    return nn.functional.embedding(items, table)


class RowAdamW(torch.optim.AdamW):
    """AdamW whose step, for a gradient of some rows of a table, touches their weights and moments and no others.

    What is not touched keeps its moments as they are, as with torch's SparseAdam, and is not decayed.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None and table.grad.is_sparse:
                    self._step_rows(group, table)
                    table.grad = None  # the rest is the usual AdamW
        super().step(closure)

    def _step_rows(self, group: dict[str, Any], table: Tensor) -> None:
        gradient = table.grad.coalesce()  # type: ignore[union-attr]
        rows, values = gradient.indices()[0], gradient.values()
        state = self.state[table]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")  # read at each step
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(table), torch.zeros_like(table)
        state["step"] += 1
        (first, second), steps, rate = group["betas"], float(state["step"]), group["lr"]
        mean = state["exp_avg"].index_select(0, rows).lerp_(values, 1 - first)
        square = state["exp_avg_sq"].index_select(0, rows).mul_(second).addcmul_(values, values, value=1 - second)
        state["exp_avg"].index_copy_(0, rows, mean)
        state["exp_avg_sq"].index_copy_(0, rows, square)
        size = (square.sqrt() / math.sqrt(1 - second**steps)).add_(group["eps"])
        moved = table.index_select(0, rows).mul_(1 - rate * group["weight_decay"])
        table.index_copy_(0, rows, moved.addcdiv_(mean, size, value=-rate / (1 - first**steps)))


def clip_gradients(parameters: Iterable[Tensor], largest: float) -> None:
    """As torch's `clip_grad_norm_`, which knows no gradients of rows."""
    given = [one for one in parameters if one.grad is not None]
    if not any(one.grad.is_sparse for one in given if one.grad is not None):
        torch.nn.utils.clip_grad_norm_(given, largest)
        return
    gradients = []
    for one in given:
        if one.grad is not None and one.grad.is_sparse:
            one.grad = one.grad.coalesce()
            gradients.append(one.grad.values())
        elif one.grad is not None:
            gradients.append(one.grad)
    norm = torch.nn.utils.get_total_norm(gradients)
    share = (largest / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(share)
