"""From scores to slates: exclusions, the tie rule, exploration and its exact propensities."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bcd4rec.config import Config
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.errors import InputError

Doubles = NDArray[np.float64]
Scores = NDArray[np.floating[Any]]

LARGE = 2000  # from more columns the largest are found by blocks
SMALL = 16  # unless a block would have no more columns than this
FEW = 16  # up to so many items of a ranking are found one after the other
TRIES = 8  # random items are drawn blindly so many times before the available ones are looked up


class Slates(NamedTuple):
    """B slates of K items, best first.

    `propensities[b, j]` is the probability with which the policy puts this item in place j, given the items it has
    put above; the product over a slate is the probability of the slate. Places left empty hold `PAD` and 1.
    """

    items: IntArray  # (B, K)
    propensities: FloatArray  # (B, K)


@runtime_checkable
class Drawing(Protocol):
    """A policy that is random by nature and draws its slates itself."""

    def slates(self, states: States, gone: IntArray, k: int, luck: np.random.Generator) -> Slates:
        """Slates of `k` items for B states, none of them among `gone` (B, E): no item twice, padded with `PAD`."""
        ...


class Exploration(Config):
    """How a slate departs from the ranking, place by place, among the items that are still available."""

    kind: Literal["none", "epsilon", "softmax", "own"] = "none"
    """`none`: the ranking. `epsilon`: with probability ε a uniformly random item. `softmax`: by exp(score / t).
    `own`: as the policy draws its slates, for policies that do."""
    epsilon: float = Field(default=0.1, ge=0.0, le=1.0)
    """ε of `epsilon`."""
    temperature: float = Field(default=1.0, ge=1e-6)
    """t of `softmax`, in units of the policy's scores."""


def exclude(scores: Scores, items: IntArray) -> None:
    """Set the scores (B, A) of `items` (B, E), padded with `PAD`, to −inf in place."""
    rows, columns = np.nonzero(items != PAD)
    scores[rows, items[rows, columns]] = -np.inf


def top(scores: Scores, k: int) -> IntArray:
    """(B, K) the columns of the K largest scores, best first; ties to the lower column. −inf and NaN never win.

    K = min(k, A), and rows with fewer usable scores than that end with `PAD`.
    """
    k = min(k, scores.shape[1])
    size = 2 * math.isqrt(scores.shape[1] // max(k, 1))
    if scores.shape[1] > LARGE and size > SMALL:
        return _largest_in_blocks(scores, k, size)
    usable = _without_nan(scores)
    return _largest_one_by_one(usable, k) if k <= FEW else _largest_at_once(usable, k)


def top_scored(scores: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
    """`top`, and the scores (B, K) of these items; −inf beside `PAD`."""
    items = top(scores, k)
    found = np.take_along_axis(scores, np.maximum(items, 0), axis=1)
    return items, np.where(items == PAD, np.float32(-np.inf), found)


def _largest_in_blocks(scores: Scores, k: int, size: int) -> IntArray:
    """For large catalogues: one pass finds the maxima of blocks of columns, then K blocks are looked into.

    The K best items are in the first K blocks by maximum, ties to the lower block: before an item of any other
    block come the best items of these K, by score or, where scores are equal, by column.
    """
    columns = scores.shape[1]
    maxima = np.fmax.reduceat(scores, np.arange(0, columns, size), axis=1)  # NaN only where a block has nothing else
    blocks = np.sort(top(maxima, k), axis=1)  # ascending, so that places in `inside` keep the tie rule
    inside = (blocks[:, :, None] * size + np.arange(size, dtype=np.int32)).reshape(len(scores), -1)
    exists = np.repeat(blocks != PAD, size, axis=1) & (inside < columns)
    values = np.take_along_axis(scores, np.where(exists, inside, 0), axis=1)
    places = top(np.where(exists, values, -np.inf), k)
    return np.where(places == PAD, PAD, np.take_along_axis(inside, np.maximum(places, 0), axis=1)).astype(np.int32)


def _without_nan(scores: Scores) -> Scores:
    """A copy in which −inf stands for NaN."""
    return np.where(np.isnan(scores), np.float32(-np.inf), scores)


def _largest_one_by_one(usable: Scores, k: int) -> IntArray:
    """Several times faster for short slates, because a maximum is cheap. `usable` is used up."""
    ranked = np.empty((len(usable), k), np.int32)
    rows = np.arange(len(usable))
    for place in range(k):
        best = usable.argmax(axis=1)  # the first of equal maxima
        ranked[:, place] = np.where(usable[rows, best] == -np.inf, PAD, best)
        usable[rows, best] = -np.inf
    return ranked


def _largest_at_once(usable: Scores, k: int) -> IntArray:
    # argpartition breaks ties as it likes, so partition only finds the k-th value; equal scores are taken in order.
    threshold = np.partition(usable, usable.shape[1] - k, axis=1)[:, -k][:, None]  # (B, 1)
    above = usable > threshold
    equal = usable == threshold
    room = k - above.sum(axis=1, keepdims=True)
    chosen = above | (equal & (np.cumsum(equal, axis=1) <= room))
    columns = np.nonzero(chosen)[1].reshape(len(usable), k)  # ascending, so that a stable sort keeps the tie rule
    values = np.take_along_axis(usable, columns, axis=1)
    ranked = np.where(values == -np.inf, PAD, columns).astype(np.int32)
    return np.take_along_axis(ranked, np.argsort(-values, axis=1, kind="stable"), axis=1)


Regard = Callable[[Scores, NDArray[np.intp], NDArray[np.int64]], None]


def make_slates(
    scores: FloatArray, k: int, exploration: Exploration, luck: np.random.Generator, regard: Regard | None = None
) -> Slates:
    """Slates of `k` items from scores (B, A) in which unavailable items are −inf.

    `regard(scores, rows, items)` may change the scores of `rows` in place once a place of theirs holds `items`.
    """
    places = min(k, scores.shape[1])
    if exploration.kind == "own":
        raise InputError("Only a policy that draws its slates itself has exploration of its own.")
    if exploration.kind == "epsilon" or (regard is not None and exploration.kind == "none"):
        epsilon = exploration.epsilon if exploration.kind == "epsilon" else 0.0
        slates = _epsilon_slates(_without_nan(scores), places, epsilon, luck, regard)
    elif regard is not None:
        raise InputError("Slates whose places depend on each other can explore by epsilon, not by softmax.")
    elif exploration.kind == "softmax":
        slates = _softmax_slates(_without_nan(scores), places, exploration.temperature, luck)
    else:
        items = top(scores, places)
        slates = Slates(items, np.ones(items.shape, np.float32))
    missing = ((0, 0), (0, k - places))
    return Slates(*(np.pad(part, missing, constant_values=empty) for part, empty in zip(slates, (PAD, 1), strict=True)))


def _epsilon_slates(
    scores: Scores, k: int, epsilon: float, luck: np.random.Generator, regard: Regard | None = None
) -> Slates:
    """Place by place: with probability ε any of the items that are left, else the best of them. `scores` is used up."""
    items = np.full((len(scores), k), PAD, np.int32)
    propensities = np.ones(items.shape, np.float32)
    explores = luck.random(items.shape) < epsilon
    left = (scores > -np.inf).sum(axis=1)  # (B,) how many items are left
    for place in range(k):
        rows = np.flatnonzero(left)
        best = scores.argmax(axis=1)[rows]
        drawn = best.copy()
        bold = explores[rows, place]
        drawn[bold] = _any_items(scores, rows[bold], luck)
        items[rows, place] = drawn
        propensities[rows, place] = epsilon / left[rows] + (1.0 - epsilon) * (drawn == best)
        scores[rows, drawn] = -np.inf
        left[rows] -= 1
        if regard is not None:
            regard(scores, rows, drawn)
    return Slates(items, propensities)


def _any_items(scores: Scores, rows: NDArray[np.intp], luck: np.random.Generator) -> NDArray[np.int64]:
    """For each of `rows` a uniformly random column among those that are not −inf, of which there must be one."""
    drawn = luck.integers(scores.shape[1], size=len(rows))
    for _ in range(TRIES):  # most items are available, so this seldom misses and does not read whole rows
        missed = np.flatnonzero(scores[rows, drawn] == -np.inf)
        if not len(missed):
            return drawn
        drawn[missed] = luck.integers(scores.shape[1], size=len(missed))
    missed = np.flatnonzero(scores[rows, drawn] == -np.inf)
    keys = luck.random((len(missed), scores.shape[1]))
    drawn[missed] = np.where(scores[rows[missed]] > -np.inf, keys, -1.0).argmax(axis=1)
    return drawn


def _softmax_slates(scores: Scores, k: int, temperature: float, luck: np.random.Generator) -> Slates:
    """Draws by weight without replacement: the order of the largest sums of log weight and Gumbel noise."""
    finite = np.minimum(scores, np.finfo(np.float32).max).astype(np.float64)
    weights = (finite - _highest(finite)) / temperature  # (B, A) logarithms
    items = top(weights - np.log(luck.standard_exponential(scores.shape)), k)
    empty = items == PAD
    drawn = np.where(empty, -np.inf, np.take_along_axis(weights, np.maximum(items, 0), axis=1))
    exclude(weights, items)
    # What a place was drawn from: its own item, those of the places below it, and those that were never drawn.
    ascending = np.concatenate([_log_sum(weights), drawn[:, ::-1]], axis=1)
    total = np.logaddexp.accumulate(ascending, axis=1)[:, :0:-1]  # (B, K)
    propensities = np.exp(np.where(empty, 0.0, drawn) - np.where(empty, 0.0, total))
    return Slates(items, propensities.astype(np.float32))


def _highest(weights: Doubles) -> Doubles:
    """(B, 1) the largest entry of each row, 0 where all are −inf."""
    highest = weights.max(axis=1, keepdims=True)
    return np.where(highest == -np.inf, 0.0, highest)


def _log_sum(weights: Doubles) -> Doubles:
    """(B, 1) log Σ exp over each row; SciPy's is ten times slower."""
    highest = _highest(weights)
    with np.errstate(divide="ignore"):
        logs: Doubles = np.log(np.exp(weights - highest).sum(axis=1, keepdims=True))
    return highest + logs
