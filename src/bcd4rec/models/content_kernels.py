"""Compiled inner loops of `content_evidence`: how alike items are to what a session liked, liked last and skipped.

All kernels stay in this file, because the cache of compiled code notices changes file by file.
"""

from bcd4rec.data.states import FloatArray, IntArray, Rows
from bcd4rec.models.knn_kernels import kernel

LIKED, LAST, SKIPPED = range(3)
PARTS = 3  # of a session; each feature has a column for each


@kernel
def _tally(
    b: int,
    positives: IntArray,
    skips: IntArray,
    codes: IntArray,
    shares: FloatArray,
    board: FloatArray,
    sign: float,
) -> None:
    """Add (or take away, by `sign`) what state `b` says of each value to the board (PARTS, V)."""
    likes, skipped = 0, 0
    while likes < positives.shape[1] and positives[b, likes] >= 0:
        likes += 1
    while skipped < skips.shape[1] and skips[b, skipped] >= 0:
        skipped += 1
    for row in range(len(codes)):
        for place in range(likes):
            item = positives[b, place]
            value, share = codes[row, item], shares[row, item]
            if value >= 0:
                board[LIKED, value] = board[LIKED, value] + share / likes if sign > 0 else 0.0
                if place == likes - 1:
                    board[LAST, value] = share if sign > 0 else 0.0
        for place in range(skipped):
            item = skips[b, place]
            value, share = codes[row, item], shares[row, item]
            if value >= 0:
                board[SKIPPED, value] = board[SKIPPED, value] + share / skipped if sign > 0 else 0.0


@kernel
def profiles(positives: IntArray, skips: IntArray, axes: FloatArray, out: FloatArray) -> None:
    """(B, PARTS, D) the mean axes of what was liked, of what was liked last, and of what was skipped, into zeros."""
    for b in range(len(positives)):
        likes, skipped = 0, 0
        for item in positives[b]:
            if item < 0:
                break
            out[b, LIKED] += axes[item]
            out[b, LAST] = axes[item]
            likes += 1
        for item in skips[b]:
            if item < 0:
                break
            out[b, SKIPPED] += axes[item]
            skipped += 1
        out[b, LIKED] /= max(likes, 1)
        out[b, SKIPPED] /= max(skipped, 1)


@kernel
def likeness_rows(
    positives: IntArray,
    skips: IntArray,
    candidates: IntArray,
    profile: FloatArray,
    axes: FloatArray,
    blocks: Rows,
    codes: IntArray,
    rows: Rows,
    shares: FloatArray,
    board: FloatArray,
    out: FloatArray,
) -> None:
    """(B, C, PARTS · features) into `out`, which is zero; `board` (PARTS, V) is zero before and after."""
    dense = len(blocks) - 1
    for b in range(len(candidates)):
        _tally(b, positives, skips, codes, shares, board, 1.0)
        for c in range(candidates.shape[1]):
            item = candidates[b, c]
            if item < 0:
                continue
            for feature in range(dense):
                for part in range(PARTS):
                    total = 0.0
                    for axis in range(blocks[feature], blocks[feature + 1]):
                        total += profile[b, part, axis] * axes[item, axis]
                    out[b, c, PARTS * feature + part] = total
            for feature in range(len(rows) - 1):
                for row in range(rows[feature], rows[feature + 1]):
                    value = codes[row, item]
                    if value >= 0:
                        for part in range(PARTS):
                            out[b, c, PARTS * (dense + feature) + part] += shares[row, item] * board[part, value]
        _tally(b, positives, skips, codes, shares, board, -1.0)


@kernel
def add_values(
    positives: IntArray,
    skips: IntArray,
    weights: FloatArray,
    codes: IntArray,
    rows: Rows,
    shares: FloatArray,
    wanted: IntArray,
    wanted_shares: FloatArray,
    board: FloatArray,
    out: FloatArray,
) -> None:
    """(R, B, C) add what values in common are worth to items with the codes `wanted` (K, C), by weights (R, G, PARTS).

    `board` (PARTS, V) is zero before and after.
    """
    for b in range(len(positives)):
        _tally(b, positives, skips, codes, shares, board, 1.0)
        for r in range(len(weights)):
            for feature in range(len(rows) - 1):
                for row in range(rows[feature], rows[feature + 1]):
                    for c in range(wanted.shape[1]):
                        value = wanted[row, c]
                        if value >= 0:
                            for part in range(PARTS):
                                alike = board[part, value] * wanted_shares[row, c]
                                out[r, b, c] += weights[r, feature, part] * alike
        _tally(b, positives, skips, codes, shares, board, -1.0)
