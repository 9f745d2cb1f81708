"""Encoders and heads as ONNX graphs, made from the arrays of a bundle.

The graphs are written in ONNX's own text form, one function for each encoder, with the weights beside them; torch is
not needed. Item embeddings are not copied: a graph refers to the bytes of the bundle's `arrays.safetensors`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bcd4rec.data.states import FloatArray

Weights = dict[str, FloatArray]


@dataclass(frozen=True)
class Part:
    """Lines of a graph and the constants they name. What a part computes, its function's docstring says."""

    lines: str
    weights: Weights = field(default_factory=dict)

    def __add__(self, other: "Part") -> "Part":
        return Part(self.lines + other.lines, self.weights | other.weights)


def history(name: str, items: str) -> Part:
    """Of `items` (B, L): {name}_vectors (B, L, D) with zeros in padded places, _mask (B, L) and _count (B, 1)."""
    return Part(f"""
      {name}_known = GreaterOrEqual({items}, zero)
      {name}_mask = Cast<to=1>({name}_known)
      {name}_count = ReduceSum<keepdims=1>({name}_mask, second)
      {name}_safe = Max({items}, zero)
      {name}_raw = Gather(embeddings, {name}_safe)
      {name}_column = Unsqueeze({name}_mask, third)
      {name}_vectors = Mul({name}_raw, {name}_column)
      {name}_sum = ReduceSum<keepdims=0>({name}_vectors, second)
    """)


OPENING = Part("""
      zero = Constant<value_int=0>()
      one = Constant<value_int=1>()
      nought = Constant<value_float=0.0>()
      unity = Constant<value_float=1.0>()
      first = Constant<value_ints=[0]>()
      second = Constant<value_ints=[1]>()
      third = Constant<value_ints=[2]>()
""") + history("liked", "positives")


def _or_empty(weights: Weights) -> Part:
    """`encoded`: `content`, or the vector of the empty session where there is no positive item."""
    lines = """
      begun = Greater(liked_count, nought)
      encoded = Where(begun, content, empty)
    """
    return Part(lines, {"empty": weights["empty"][None]})


def meanpool(weights: Weights) -> Part:
    lines = """
      liked_least = Max(liked_count, unity)
      liked_mean = Div(liked_sum, liked_least)
      content = Gemm<transB=1>(liked_mean, linear_weight, linear_bias)
    """
    return Part(lines, _linear(weights)) + _or_empty(weights)


def _linear(weights: Weights) -> Weights:
    return {"linear_weight": weights["linear.weight"], "linear_bias": weights["linear.bias"]}


def bigru(weights: Weights) -> Part:
    layers = sum(name.startswith("gru.weight_ih_l") for name in weights) // 2
    part = Part(_RECURRENT)
    for layer in range(layers):
        part += _gru(weights, layer, ("", "_reverse"))
        turned = f"""
          turned{layer} = Transpose<perm=[0, 2, 1, 3]>(hidden{layer})
          input{layer + 1} = Reshape(turned{layer}, joined)
        """
        part += Part(turned if layer + 1 < layers else "")
    lines = f"""
      both = Transpose<perm=[1, 0, 2]>(final{layers - 1})
      flat = Reshape(both, rows)
      content = Gemm<transB=1>(flat, linear_weight, linear_bias)
    """
    return part + Part(lines, _linear(weights)) + _or_empty(weights)


def gru(weights: Weights) -> Part:
    part = Part(_RECURRENT) + _gru(weights, 0, ("",))
    return part + Part("content = Squeeze(final0, first)\n") + _or_empty(weights)


_RECURRENT = """
      joined = Constant<value_ints=[0, 0, -1]>()
      rows = Constant<value_ints=[0, -1]>()
      liked_least = Max(liked_count, unity)
      liked_row = Squeeze(liked_least, second)
      lengths = Cast<to=6>(liked_row)
      input0 = Transpose<perm=[1, 0, 2]>(liked_vectors)
"""


def _gru(weights: Weights, layer: int, ways: tuple[str, ...]) -> Part:
    """hidden{layer} (L, ways, B, H) and final{layer} (ways, B, H) of input{layer} (L, B, D)."""

    def stacked(kind: str) -> FloatArray:
        return np.stack([_gates(weights[f"gru.{kind}_l{layer}{way}"]) for way in ways])

    bias = np.concatenate([stacked("bias_ih"), stacked("bias_hh")], axis=1)
    constants = {f"w{layer}": stacked("weight_ih"), f"r{layer}": stacked("weight_hh"), f"b{layer}": bias}
    options = f'hidden_size={bias.shape[1] // 6}, linear_before_reset=1, direction="{_DIRECTIONS[len(ways)]}"'
    lines = f"""
      hidden{layer}, final{layer} = GRU<{options}>(input{layer}, w{layer}, r{layer}, b{layer}, lengths)
    """
    return Part(lines, constants)


_DIRECTIONS = {1: "forward", 2: "bidirectional"}


def _gates(array: FloatArray) -> FloatArray:
    """ONNX's order z, r, h from torch's r, z, n."""
    reset, update, new = np.split(array, 3)
    return np.concatenate([update, reset, new])


def srgnn(weights: Weights) -> Part:
    names = ("from_before", "from_after", "attend_last", "linear")
    constants: Weights = {}
    for name in names:
        constants |= {f"{name}_w": weights[f"{name}.weight"].T, f"{name}_b": weights[f"{name}.bias"]}
    constants |= {"attend_item_w": weights["attend_item.weight"].T, "attention_w": weights["attention.weight"].T}
    for side in ("ih", "hh"):
        for gate, matrix, bias in zip(
            "rzn", np.split(weights[f"gate.weight_{side}"], 3), np.split(weights[f"gate.bias_{side}"], 3), strict=True
        ):
            constants |= {f"{side}_{gate}_w": matrix.T, f"{side}_{gate}_b": bias}
    products = [
        f"{side}_{gate}_m = MatMul({source}, {side}_{gate}_w)\n{side}_{gate} = Add({side}_{gate}_m, {side}_{gate}_b)\n"
        for side, source in (("ih", "messages"), ("hh", "liked_vectors"))
        for gate in "rzn"
    ]
    return Part(_GRAPH + "".join(products) + _ATTENTION, constants) + _or_empty(weights)


_GRAPH = """
      items_row = Unsqueeze(positives, second)
      items_column = Unsqueeze(positives, third)
      same = Equal(items_column, items_row)
      same_number = Cast<to=6>(same)
      place = ArgMax<axis=2, keepdims=0>(same_number)
      width_shape = Shape<start=1, end=2>(positives)
      width = Squeeze(width_shape, first)
      on_off = Constant<value_floats=[0.0, 1.0]>()
      spots = OneHot<axis=-1>(place, width, on_off)
      nodes = Mul(spots, liked_column)
      end = Constant<value_ints=[2147483647]>()
      later = Slice(nodes, second, end, second)
      room = Constant<value_ints=[0, 0, 0, 0, 1, 0]>()
      following = Pad(later, room)
      turned_nodes = Transpose<perm=[0, 2, 1]>(nodes)
      edges = MatMul(turned_nodes, following)
      out_degree = ReduceSum<keepdims=1>(edges, third)
      out_least = Max(out_degree, unity)
      outgoing = Div(edges, out_least)
      in_degree = ReduceSum<keepdims=1>(edges, second)
      in_least = Max(in_degree, unity)
      in_edges = Div(edges, in_least)
      incoming = Transpose<perm=[0, 2, 1]>(in_edges)
      before_m = MatMul(liked_vectors, from_before_w)
      before = Add(before_m, from_before_b)
      after_m = MatMul(liked_vectors, from_after_w)
      after = Add(after_m, from_after_b)
      received = MatMul(incoming, before)
      sent = MatMul(outgoing, after)
      messages = Concat<axis=2>(received, sent)
"""

_ATTENTION = """
      reset_sum = Add(ih_r, hh_r)
      reset = Sigmoid(reset_sum)
      update_sum = Add(ih_z, hh_z)
      update = Sigmoid(update_sum)
      gated = Mul(reset, hh_n)
      new_sum = Add(ih_n, gated)
      new = Tanh(new_sum)
      change = Sub(liked_vectors, new)
      kept = Mul(update, change)
      updated = Add(new, kept)
      place_column = Unsqueeze(place, third)
      vectors_shape = Shape(updated)
      place_wide = Expand(place_column, vectors_shape)
      visits = GatherElements<axis=1>(updated, place_wide)
      liked_order = CumSum(liked_mask, one)
      at_end = Equal(liked_order, liked_count)
      at_end_number = Cast<to=1>(at_end)
      last_mask = Mul(at_end_number, liked_mask)
      last_column = Unsqueeze(last_mask, third)
      last_only = Mul(visits, last_column)
      last = ReduceSum<keepdims=0>(last_only, second)
      asked_m = MatMul(last, attend_last_w)
      asked_flat = Add(asked_m, attend_last_b)
      asked = Unsqueeze(asked_flat, second)
      offered = MatMul(visits, attend_item_w)
      match_sum = Add(asked, offered)
      match = Sigmoid(match_sum)
      attention = MatMul(match, attention_w)
      attended = Mul(attention, visits)
      valid = Mul(attended, liked_column)
      summary = ReduceSum<keepdims=0>(valid, second)
      told = Concat<axis=1>(last, summary)
      content_m = MatMul(told, linear_w)
      content = Add(content_m, linear_b)
"""

ENCODER_GRAPHS: dict[str, Callable[[Weights], Part]] = {
    "bigru": bigru,
    "gru": gru,
    "srgnn": srgnn,
    "meanpool": meanpool,
}


def pooled(gains: FloatArray | None, more: int) -> Part:
    """`state`: `encoded`, and where the network pools, the sums of liked and skipped embeddings times its gains.

    `more` is the number of entries that only `encoded` has.
    """
    if gains is None:
        return Part("state = Identity(encoded)\n")
    lines = f"""
      liked_width = Shape<start=1, end=2>(positives)
      skipped_width = Shape<start=1, end=2>(skips)
      liked_size = Max(liked_width, one)
      skipped_size = Max(skipped_width, one)
      liked_divisor = Cast<to=1>(liked_size)
      skipped_divisor = Cast<to=1>(skipped_size)
      liked_pool = Div(liked_sum, liked_divisor)
      skipped_pool = Div(skipped_sum, skipped_divisor)
      liked_part = Mul(liked_pool, liked_gain)
      skipped_part = Mul(skipped_pool, skipped_gain)
      pool = Add(liked_part, skipped_part)
      pool_room = Constant<value_ints=[0, 0, 0, {more}]>()
      pool_padded = Pad(pool, pool_room)
      encoded_part = Mul(encoded, encoded_gain)
      state = Add(encoded_part, pool_padded)
    """
    constants = {f"{name}_gain": gains[i : i + 1] for i, name in enumerate(("encoded", "liked", "skipped"))}
    return history("skipped", "skips") + Part(lines, constants)
