"""A bidirectional GRU layer in few operations: both directions advance together, and the backward pass is written out.

`torch.nn.GRU` spends most of its time on a CPU in starting small operations, one direction after the other. Here a
step is six operations forward and four backward. Sessions are sorted by length, so a step sees only those that last.
"""

from typing import Any

import torch
from torch import Tensor, nn

Gradients = tuple[Tensor, Tensor, Tensor, None, None]


class Recurrence(torch.autograd.Function):
    """From the inputs' part of the gates (T, B, 2, 3H) to the hidden vectors (T, B, 2, H) of both directions.

    Gates come in torch's order r, z, n. `weight` (2, 3H, H) and `bias` (2, 1, 3H) are the hidden vectors' part.
    `turned` (T · B,) leads the second direction through each session from its end, and is its own inverse.
    `counts[t]` sessions, the first ones, have more than t items; what lies behind a session's end is 0.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, turned: Tensor, counts: list[int]) -> Tensor:
        units = weight.shape[2]
        gates = _directions(inputs, turned)  # (T, 2, B, 3H)
        hidden = gates.new_zeros(len(counts) + 1, 2, gates.shape[2], units)
        kept = torch.ones_like(gates)  # r, z and n; ones behind the end let no gradient through
        candidate = gates.new_zeros(hidden[1:].shape)  # the hidden vectors' part of n
        transposed = weight.transpose(1, 2)
        for step, count in enumerate(counts):
            before, given = hidden[step, :, :count], gates[step, :, :count]
            own = torch.baddbmm(bias, before, transposed)
            both, new = kept[step, :, :count, : 2 * units], kept[step, :, :count, 2 * units :]
            torch.add(given[..., : 2 * units], own[..., : 2 * units], out=both).sigmoid_()
            candidate[step, :, :count] = own[..., 2 * units :]
            torch.addcmul(given[..., 2 * units :], both[..., :units], own[..., 2 * units :], out=new).tanh_()
            torch.lerp(new, before, both[..., units:], out=hidden[step + 1, :, :count])
        ctx.save_for_backward(hidden, kept, candidate, weight, turned)
        ctx.counts = counts
        return _positions(hidden[1:], turned)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        hidden, kept, candidate, weight, turned = ctx.saved_tensors
        given = _directions(gradients[0], turned)
        units = weight.shape[2]
        r, z, n = kept.split(units, dim=3)
        # All gradients of step t are that of its hidden vector times factors known beforehand.
        inner = (1 - z) * (1 - n * n)
        parts = [inner * candidate * r * (1 - r), (hidden[:-1] - n) * z * (1 - z), inner * r, inner]
        factors = torch.stack(parts, dim=3)  # (T, 2, B, 4, H)
        flat = factors.flatten(3)
        carried = torch.zeros_like(hidden[0])
        for step in range(len(ctx.counts) - 1, -1, -1):
            count = ctx.counts[step]
            total = given[step, :, :count] + carried[:, :count]
            factors[step, :, :count] *= total.unsqueeze(2)
            own = flat[step, :, :count, : 3 * units]
            carried[:, :count] = torch.baddbmm(total * z[step, :, :count], own, weight)
        own = flat[..., : 3 * units].transpose(0, 1).flatten(1, 2)  # (2, T · B, 3H)
        before = hidden[:-1].transpose(0, 1).flatten(1, 2)
        inputs = torch.cat([flat[..., : 2 * units], flat[..., 3 * units :]], dim=3)
        return _positions(inputs, turned), own.transpose(1, 2) @ before, own.sum(dim=1, keepdim=True), None, None


def _directions(values: Tensor, turned: Tensor) -> Tensor:
    """(T, B, 2, n) by position to (T, 2, B, n) by step."""
    second = values[:, :, 1].flatten(0, 1).index_select(0, turned).view_as(values[:, :, 1])
    return torch.stack([values[:, :, 0], second], dim=1)


def _positions(values: Tensor, turned: Tensor) -> Tensor:
    """(T, 2, B, n) by step to (T, B, 2, n) by position."""
    second = values[:, 1].flatten(0, 1).index_select(0, turned).view_as(values[:, 1])
    return torch.stack([values[:, 0], second], dim=2)


def final_states(gru: nn.GRU, vectors: Tensor, lengths: Tensor) -> Tensor:
    """(B, 2H) the final hidden vectors of both directions of a bidirectional `gru` over `vectors` (B, T, D).

    Session b has `lengths[b]` ≥ 1 vectors; what stands behind them is not looked at. Equal to what `gru` gives for
    packed sequences, up to rounding.
    """
    order = lengths.argsort(descending=True, stable=True)
    size, steps, lengths = len(order), int(lengths.max()), lengths[order]
    time, column = torch.arange(steps).unsqueeze(1), torch.arange(size)
    turned = (torch.where(time < lengths, lengths - 1 - time, time) * size + column).flatten()
    counts = (lengths > time).sum(dim=1).tolist()
    values = vectors[:, :steps].transpose(0, 1).index_select(1, order)  # (T, B, D)
    for layer in range(gru.num_layers):
        names = (f"l{layer}", f"l{layer}_reverse")
        weight, bias, own_weight, own_bias = (
            torch.stack([getattr(gru, f"{kind}_{name}") for name in names])
            for kind in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
        )
        inputs = nn.functional.linear(values, weight.flatten(0, 1), bias.flatten()).view(steps, size, 2, -1)
        values = Recurrence.apply(inputs, own_weight, own_bias.unsqueeze(1), turned, counts).flatten(2)  # type: ignore[no-untyped-call]
    last = values.flatten(0, 1).index_select(0, (lengths - 1) * size + column)
    units = gru.hidden_size
    found = torch.cat([last[:, :units], values[0, :, units:]], dim=1)
    return found.index_select(0, order.argsort())
