"""From scores to slates: exclusions, the tie rule, exploration and its exact propensities."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bcd4rec.config import Config
from bcd4rec.data.states import PAD, FloatArray, IntArray


class Slates(NamedTuple):
    """B slates of K items, best first.

    `propensities[b, j]` is the probability with which the policy puts this item in place j, given the items it has
    put above; the product over a slate is the probability of the slate. Places left empty hold `PAD` and 1.
    """

    items: IntArray  # (B, K)
    propensities: FloatArray  # (B, K)


class Exploration(Config):
    """How a slate departs from the ranking, place by place, among the items that are still available."""

    kind: Literal["none", "epsilon", "softmax"] = "none"
    """`none`: the ranking. `epsilon`: with probability ε a uniformly random item. `softmax`: by exp(score / t)."""
    epsilon: float = Field(default=0.1, ge=0.0, le=1.0)
    """ε of `epsilon`."""
    temperature: float = Field(default=1.0, gt=0.0)
    """t of `softmax`, in units of the policy's scores."""


def exclude(scores: FloatArray, items: IntArray) -> None:
    """Set the scores (B, A) of `items` (B, E), padded with `PAD`, to −inf in place."""
    rows, columns = np.nonzero(items != PAD)
    scores[rows, items[rows, columns]] = -np.inf


def top(scores: FloatArray, k: int) -> IntArray:
    """(B, K) the columns of the K largest scores, best first; ties to the lower column. −inf and NaN never win."""
    usable = np.where(np.isnan(scores), -np.inf, scores)
    k = min(k, usable.shape[1])
    # argpartition breaks ties as it likes, so it only finds the k-th value; equal scores are then taken in order.
    threshold = np.partition(usable, usable.shape[1] - k, axis=1)[:, -k][:, None]  # (B, 1)
    above = usable > threshold
    equal = usable == threshold
    room = k - above.sum(axis=1, keepdims=True)
    chosen = above | (equal & (np.cumsum(equal, axis=1) <= room))
    columns = np.nonzero(chosen)[1].reshape(len(usable), k)  # ascending, so that a stable sort keeps the tie rule
    values = np.take_along_axis(usable, columns, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    ranked = np.take_along_axis(columns, order, axis=1).astype(np.int32)
    ranked[np.take_along_axis(values, order, axis=1) == -np.inf] = PAD
    return ranked


def make_slates(scores: FloatArray, k: int, exploration: Exploration, luck: np.random.Generator) -> Slates:
    """Slates of `k` items from scores (B, A) in which unavailable items are −inf. `scores` is used up."""
    if exploration.kind == "none":
        items = top(scores, k)
        return _padded(items, np.ones(items.shape, np.float32), k)
    places = min(k, scores.shape[1])
    items = np.full((len(scores), places), PAD, np.int32)
    propensities = np.ones(items.shape, np.float32)
    rows = np.arange(len(scores))
    for place in range(places):
        probabilities = _probabilities(scores, exploration)  # (B, A)
        drawn = _draw(probabilities, luck.random(len(scores)))
        left = np.isfinite(scores).any(axis=1)
        items[left, place] = drawn[left]
        propensities[left, place] = probabilities[rows, drawn][left]
        scores[rows[left], drawn[left]] = -np.inf
    return _padded(items, propensities, k)


def _padded(items: IntArray, propensities: FloatArray, k: int) -> Slates:
    missing = ((0, 0), (0, k - items.shape[1]))
    return Slates(np.pad(items, missing, constant_values=PAD), np.pad(propensities, missing, constant_values=1.0))


def _probabilities(scores: FloatArray, exploration: Exploration) -> NDArray[np.float64]:
    """(B, A) the probability of each item for the next place; 0 where the score is −inf."""
    available = np.isfinite(scores)
    best = np.where(available, scores, -np.inf).argmax(axis=1)
    if exploration.kind == "epsilon":
        count = np.maximum(available.sum(axis=1, keepdims=True), 1)
        probabilities = available * (exploration.epsilon / count)
        probabilities[np.arange(len(scores)), best] += (1.0 - exploration.epsilon) * available.any(axis=1)
        return probabilities
    highest = scores[np.arange(len(scores)), best][:, None]
    with np.errstate(invalid="ignore"):
        weights = np.where(available, np.exp((scores.astype(np.float64) - highest) / exploration.temperature), 0.0)
    normalised: NDArray[np.float64] = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    return normalised


def _draw(probabilities: NDArray[np.float64], uniforms: NDArray[np.float64]) -> IntArray:
    """(B,) a column of each row, by the inverse of the cumulative distribution; never one of probability 0."""
    upper = np.cumsum(probabilities, axis=1)
    drawn = (upper <= (uniforms * upper[:, -1])[:, None]).sum(axis=1)
    return np.minimum(drawn, probabilities.shape[1] - 1).astype(np.int32)
