"""Quantile heads as ONNX graphs: the mean folded into one vector, the quantiles in a graph of their own."""

import numpy as np

from bcd4rec.data.states import FloatArray
from bcd4rec.serving.graphs import Part, Weights

FRACTIONS = 32  # of the implicit head's mean, as in models.heads


def midpoints(count: int) -> FloatArray:
    """(count,) the fractions (i + ½) / count."""
    return ((np.arange(count) + 0.5) / count).astype(np.float32)


def mean(head: str, weights: Weights, count: int) -> Part:
    """`mean` (B, D) of `state` (B, D): its inner product with an action is the mean over the action's quantiles."""
    if head == "expected":
        return Part("mean = Identity(state)\n")
    if head == "fixed":
        width = weights["linear.weight"].shape[1]
        matrix = weights["linear.weight"].reshape(count, width, width).mean(axis=0)
        bias = weights["linear.bias"].reshape(count, width).mean(axis=0)
        lines = "mean = Gemm<transB=1>(state, mean_weight, mean_bias)\n"
        return Part(lines, {"mean_weight": matrix + np.eye(width, dtype=np.float32), "mean_bias": bias})
    weight, bias = weights["linear.weight"], weights["linear.bias"]
    angles = midpoints(FRACTIONS)[:, None] * (np.pi * np.arange(weight.shape[1], dtype=np.float32))
    factors = np.maximum(np.cos(angles) @ weight.T + bias, 0).mean(axis=0)
    return Part("mean = Mul(state, mean_factors)\n", {"mean_factors": factors.astype(np.float32)})


def quantiles(head: str, weights: Weights, count: int) -> Part:
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
        lines = f"""
          moved_flat = Gemm<transB=1>(state, linear_weight, linear_bias)
          moved_shape = Constant<value_ints=[0, {count}, -1]>()
          moved = Reshape(moved_flat, moved_shape)
          vectors = Add(moved, state_row)
        """
        return opening + Part(lines, {name.replace(".", "_"): array for name, array in weights.items()})
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
