"""A bidirectional GRU for training on a processor: the recurrence and its gradient as compiled loops.

`torch.nn.GRU` starts some thirty small operations for every step of every direction, and as many backward; most of an
agent's update would go there. Here one call walks through all steps, over sessions sorted by length, so that a step
sees only those which have not ended. The products over all steps at once stay with torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bcd4rec.data.states import Rows

Floats = NDArray[np.floating[Any]]
Function = TypeVar("Function", bound=Callable[..., Any])
KINDS = ("weight_ih", "bias_ih", "weight_hh", "bias_hh")  # torch's names of a layer's parameters
ONE, TWO = np.float32(1), np.float32(2)  # Python's numbers would turn everything to doubles


def kernel(function: Function) -> Function:
    """Compile, and keep the machine code on disk unless no folder can be written to."""
    options: dict[str, Any] = {"fastmath": {"contract"}, "error_model": "numpy"}  # NaN stays NaN, divergence shows
    try:
        return cast(Function, njit(function, cache=True, **options))
    except RuntimeError:
        return cast(Function, njit(function, **options))


@dataclass(frozen=True)
class Packing:
    """Where the P items of B sessions stand, step after step: the rows of step t are `starts[t]:starts[t + 1]`.

    The sessions are sorted by length, longest first, so those that reach step t are the first of them.
    """

    order: Tensor  # (B,) the sorting
    starts: Tensor  # (T + 1,)
    before: Tensor  # (P − B,) the rows that precede those of all steps but the first
    last: Tensor  # (B,) the rows at which sessions end
    places: Tensor  # (2, P) the rows in the order of each direction: forwards as they are, backwards from the ends
    step: Tensor  # (P,) the place of a row in its session
    session: Tensor  # (P,) which of the sorted sessions a row belongs to

    @classmethod
    def of(cls, lengths: Tensor) -> "Packing":
        lengths, order = lengths.sort(descending=True, stable=True)
        device = lengths.device
        step, session = (torch.arange(int(lengths[0]), device=device).unsqueeze(1) < lengths).nonzero(as_tuple=True)
        starts = torch.cat([step.new_zeros(1), step.bincount().cumsum(0)])
        return cls(
            order,
            starts,
            before=(starts[step - 1] + session)[len(lengths) :],
            last=starts[lengths - 1] + torch.arange(len(lengths), device=device),
            places=torch.stack([torch.arange(len(step), device=device), starts[lengths[session] - 1 - step] + session]),
            step=step,
            session=session,
        )


@kernel
def _add_product(out: Floats, vector: Floats, matrix: Floats) -> None:
    """out += vector · matrix, four rows at a time, which spares `out` three of four ways to memory."""
    whole = len(vector) // 4 * 4
    for k in range(0, whole, 4):
        a, b, c, d = vector[k], vector[k + 1], vector[k + 2], vector[k + 3]
        for j in range(len(out)):
            out[j] += a * matrix[k, j] + b * matrix[k + 1, j] + c * matrix[k + 2, j] + d * matrix[k + 3, j]
    for k in range(whole, len(vector)):
        for j in range(len(out)):
            out[j] += vector[k] * matrix[k, j]


@kernel
def _forward(
    inputs: Floats, weight: Floats, bias: Floats, starts: Rows, places: Rows, own: Floats, gates: Floats, hidden: Floats
) -> None:
    """Fills `own` (P, 6H), the hidden vectors' part of the gates, `gates` (P, 6H) and `hidden` (P, 2H)."""
    units = weight.shape[1]
    nothing = np.zeros(units, hidden.dtype)  # before the first step
    for way in range(2):
        first, size = way * units, 3 * way * units
        for t in range(len(starts) - 1):
            earlier = starts[t - 1] - starts[t]  # from a row to the one before it in its session
            for row in range(starts[t], starts[t + 1]):
                here = places[way, row]
                part, gate = own[here, size : size + 3 * units], gates[here, size : size + 3 * units]
                given, now = inputs[here, size : size + 3 * units], hidden[here, first : first + units]
                before = hidden[places[way, row + earlier], first : first + units] if t > 0 else nothing
                part[:] = bias[way]
                if t > 0:
                    _add_product(part, before, weight[way])
                for j in range(2 * units):
                    gate[j] = ONE / (ONE + np.exp(-(given[j] + part[j])))
                for j in range(units):
                    new = given[2 * units + j] + gate[j] * part[2 * units + j]
                    gate[2 * units + j] = TWO / (ONE + np.exp(-TWO * new)) - ONE  # tanh, in half the time of np.tanh
                    new = gate[2 * units + j]
                    now[j] = new + gate[units + j] * (before[j] - new)


@kernel
def _backward(
    total: Floats, weight: Floats, starts: Rows, places: Rows, own: Floats, gates: Floats, hidden: Floats,
    to_inputs: Floats, to_own: Floats,
) -> None:  # fmt: skip
    """Fills the last two. `total` (P, 2H), the gradients of the hidden vectors, gathers what flows back to them."""
    units = weight.shape[2]
    nothing = np.zeros(units, hidden.dtype)
    for way in range(2):
        first, size = way * units, 3 * way * units
        for t in range(len(starts) - 2, -1, -1):
            earlier = starts[t - 1] - starts[t]
            for row in range(starts[t], starts[t + 1]):
                here, there = places[way, row], places[way, row + earlier] if t > 0 else 0
                part, gate = own[here, size : size + 3 * units], gates[here, size : size + 3 * units]
                before = hidden[there, first : first + units] if t > 0 else nothing
                out, back = to_inputs[here, size : size + 3 * units], to_own[here, size : size + 3 * units]
                given = total[here, first : first + units]
                for j in range(units):
                    r, z, new = gate[j], gate[units + j], gate[2 * units + j]
                    inner = given[j] * (ONE - z) * (ONE - new * new)
                    out[j] = inner * part[2 * units + j] * r * (ONE - r)
                    out[units + j] = given[j] * (before[j] - new) * z * (ONE - z)
                    out[2 * units + j] = inner
                    back[j], back[units + j], back[2 * units + j] = out[j], out[units + j], inner * r
                if t > 0:
                    flow = total[there, first : first + units]
                    for j in range(units):
                        flow[j] += given[j] * gate[units + j]
                    _add_product(flow, back, weight[way])


class Recurrence(torch.autograd.Function):
    """From the inputs' part of the gates (P, 6H) to hidden vectors (P, 2H), the two directions side by side.

    Gates stand in torch's order r, z, n. `weight` (2, 3H, H) and `bias` (2, 3H) make the hidden vectors' part, and
    n = tanh(inputs + r · own).
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, packing: Packing) -> Tensor:
        own, gates = torch.empty_like(inputs), torch.empty_like(inputs)
        hidden = inputs.new_empty(len(inputs), 2 * weight.shape[2])
        turned = weight.transpose(1, 2).contiguous()
        _forward(*_arrays(inputs, turned, bias, packing.starts, packing.places, own, gates, hidden))
        ctx.save_for_backward(own, gates, hidden, weight)
        ctx.packing = packing
        return hidden

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        own, gates, hidden, weight = ctx.saved_tensors
        packing: Packing = ctx.packing
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        to_inputs, to_own = torch.empty_like(gates), torch.empty_like(gates)
        _backward(*_arrays(total, weight, packing.starts, packing.places, own, gates, hidden, to_inputs, to_own))
        begun = len(packing.order)  # rows of the first step, which has no hidden vector before it
        to_weight = [
            part.index_select(0, place[begun:]).T @ vectors.index_select(0, place[packing.before])
            for part, vectors, place in zip(to_own.chunk(2, 1), hidden.chunk(2, 1), packing.places, strict=True)
        ]
        return to_inputs, torch.stack(to_weight), to_own.sum(dim=0).view(2, -1), None


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.detach().numpy() for tensor in tensors]


def final_states(gru: nn.GRU, vectors: Tensor, lengths: Tensor) -> Tensor:
    """(B, 2H) the final hidden vectors of both directions of a bidirectional `gru` over `vectors` (B, T, D).

    Session b has `lengths[b]` ≥ 1 vectors; what stands behind them is not looked at. This is what `gru` gives for
    packed sequences, up to rounding.
    """
    packing = Packing.of(lengths)
    rows = packing.order[packing.session] * vectors.shape[1] + packing.step
    values = vectors.flatten(0, 1).index_select(0, rows)  # (P, D)
    for layer in range(gru.num_layers):
        ways = [[getattr(gru, f"{kind}_l{layer}{way}") for way in ("", "_reverse")] for kind in KINDS]
        inputs = nn.functional.linear(values, torch.cat(ways[0]), torch.cat(ways[1]))
        values = Recurrence.apply(inputs, torch.stack(ways[2]), torch.stack(ways[3]), packing)  # type: ignore[no-untyped-call]
    # The backward direction ends where the session begins, which is the session's row of the first step.
    ends = [values[:, : gru.hidden_size].index_select(0, packing.last), values[: len(lengths), gru.hidden_size :]]
    return torch.cat(ends, dim=1).index_select(0, packing.order.argsort())
