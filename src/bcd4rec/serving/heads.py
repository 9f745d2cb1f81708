"""Quantile heads as ONNX graphs: the mean folded into one vector, the quantiles in a graph of their own."""

import numpy as np

from bcd4rec.data.states import FloatArray
from bcd4rec.policies.risk import MEAN, Risk
from bcd4rec.serving.graphs import Part, Weights

FRACTIONS = 32  # of the implicit head's mean, as in models.heads


def midpoints(count: int) -> FloatArray:
    """(count,) the fractions (i + ½) / count."""
    return ((np.arange(count) + 0.5) / count).astype(np.float32)


def mean(head: str, weights: Weights, risk: Risk = MEAN) -> Part:
    """`mean` (B, D) of `state` (B, D): its inner product with an action is the mean over the action's quantiles, or
    what `risk` makes of them."""
    if head == "expected":
        return Part("mean = Identity(state)\n")
    if head == "fixed":
        lines = "scaled = Mul(state, mean_scale)\nmean = Add(scaled, mean_bias)\n"
        return Part(lines, {f"mean_{name}": risk.fold(array) for name, array in weights.items()})
    weight, bias = weights["linear.weight"], weights["linear.bias"]
    angles = midpoints(FRACTIONS)[:, None] * (np.pi * np.arange(weight.shape[1], dtype=np.float32))
    factors = risk.fold(np.maximum(np.cos(angles) @ weight.T + bias, 0))
    return Part("mean = Mul(state, mean_factors)\n", {"mean_factors": factors})


def quantiles(head: str, weights: Weights) -> Part:
    """`vectors` (B, N, D) of `state` (B, D) and `taus` (N,): inner products with an action are its quantiles.

    Heads with fixed fractions take no notice of `taus`.
    """
    opening = Part("""
      second = Constant<value_ints=[1]>()
      state_row = Unsqueeze(state, second)
    """)
    if head == "expected":
        return opening + Part("vectors = Identity(state_row)\n")
    if head == "fixed":
        lines = "scaled = Mul(state_row, head_scale)\nvectors = Add(scaled, head_bias)\n"
        return opening + Part(lines, {f"head_{name}": array for name, array in weights.items()})
    lines = """
      tau_column = Unsqueeze(taus, second)
      angles = Mul(tau_column, frequencies)
      cosines = Cos(angles)
      linear_flat = Gemm<transB=1>(cosines, linear_weight, linear_bias)
      factors = Relu(linear_flat)
      vectors = Mul(state_row, factors)
    """
    frequencies = (np.pi * np.arange(weights["linear.weight"].shape[1])).astype(np.float32)
    constants = {name.replace(".", "_"): array for name, array in weights.items()}
    return opening + Part(lines, constants | {"frequencies": frequencies[None]})
