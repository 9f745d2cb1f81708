"""The best items of scores: exclusions and the tie rule."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.states import PAD, FloatArray, IntArray

Doubles = NDArray[np.float64]
Scores = NDArray[np.floating[Any]]

LARGE = 2000  # from more columns the largest are found by blocks
SMALL = 16  # unless a block would have no more columns than this
WIDE = 50_000  # up to so many columns a single row is searched without cutting it into blocks
FEW = 16  # up to so many items of a ranking are found one after the other


def exclude(scores: Scores, items: IntArray) -> None:
    """Set the scores (B, A) of `items` (B, E), padded with `PAD`, to −inf in place."""
    rows, columns = np.nonzero(items != PAD)
    scores[rows, items[rows, columns]] = -np.inf


def top(scores: Scores, k: int) -> IntArray:
    """(B, K) the columns of the K largest scores, best first; ties to the lower column. −inf and NaN never win.

    K = min(k, A), and rows with fewer usable scores than that end with `PAD`.
    """
    k = min(k, scores.shape[1])
    if len(scores) == 1 and k <= FEW and scores.shape[1] <= WIDE:
        return _largest_of_one(scores[0], k)[None]
    size = 2 * math.isqrt(scores.shape[1] // max(k, 1))
    if scores.shape[1] > LARGE and size > SMALL:
        return _largest_in_blocks(scores, k, size)
    usable = without_nan(scores)
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


def without_nan(scores: Scores) -> Scores:
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


def _largest_of_one(scores: Scores, k: int) -> IntArray:
    """The same for a single row, as servers ask: several times faster, because nothing is made for many rows."""
    left = np.where(np.isnan(scores), np.float32(-np.inf), scores) if np.isnan(scores.min()) else scores.copy()
    found = np.full(k, PAD, np.int32)
    for place in range(k):
        best = int(left.argmax())
        if left[best] == -np.inf:
            break
        found[place] = best
        left[best] = -np.inf
    return found


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
