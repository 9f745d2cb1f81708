"""Compiled inner loops of `evidence`: what a session says about items, for some items or for all of them.

A session says something about the items it holds, their neighbours, their categories and their tastes. `_gather` puts
that on boards, once for a session; `_clear` wipes them. All kernels stay in this file, because the cache of compiled
code notices changes file by file.
"""

from typing import NamedTuple

import numpy as np

from bcd4rec.data.states import FloatArray, IntArray, Mask, Rows
from bcd4rec.models.knn_kernels import Votes, kernel

# The columns of a row of evidence. Those of the item alone, in the order of `Items.own`, come first.
POSITIVE, TARGET, POPULARITY, SHOWN = range(4)
SIMILAR_LIKED, SIMILAR_LAST, FOLLOWS, SIMILAR_SKIPPED = range(4, 8)
TASTE_LIKED, TASTE_LAST, TASTE_SKIPPED = range(8, 11)
LIKED, LAST, SKIPPED = range(11, 14)
CATEGORY_SHARE, CATEGORY_FIRST, CATEGORY_LAST, CATEGORY_LIKES, CATEGORY_SKIPS, CATEGORY_POSITIVE = range(14, 20)
VOTES, VOTED = range(20, 22)
COLUMNS = 22
OWN = 4

# Similarities, shares and votes are small, and their differences matter near 0: logarithms are taken of multiples.
SIMILARITY_SCALE, FOLLOWING_SCALE, VOTES_SCALE = 10.0, 100.0, 100.0

CATEGORY_SHARES = 1_000  # items of a pool that a session's categories share


class Items(NamedTuple):
    """What is known of the items, as the kernels take it."""

    own: FloatArray  # (A, OWN)
    categories: IntArray  # (A,)
    category_offsets: Rows  # (C + 1,) the items of category c are category_items[offsets[c]:offsets[c + 1]]
    category_items: IntArray
    similar_offsets: Rows
    similar_items: IntArray
    similar_weights: FloatArray
    follower_offsets: Rows
    follower_items: IntArray
    follower_weights: FloatArray
    tastes: FloatArray  # (A, D)


class Boards(NamedTuple):
    """Space for one session, used again by the next. All but the lists are zero between sessions."""

    similar_liked: FloatArray  # (A,)
    similar_last: FloatArray
    follows: FloatArray
    similar_skipped: FloatArray
    liked: FloatArray
    skipped: FloatArray
    votes: FloatArray
    touched: Mask  # (A,)
    items: IntArray  # (A,) the touched items
    category_likes: FloatArray  # (C,)
    category_skips: FloatArray
    categories: IntArray  # (C,) the touched categories
    tastes: FloatArray  # (3, D) sums over what was liked, liked last, skipped


class Session(NamedTuple):
    """What `_gather` found."""

    touched: int
    categories: int
    likes: int
    categorised: int  # likes that have a category
    first_category: int
    last_category: int
    last: int


def make_boards(items: Items) -> Boards:
    n_items, categories = len(items.categories), len(items.category_offsets) - 1

    def board(size: int) -> FloatArray:
        return np.zeros(size, np.float32)

    return Boards(
        board(n_items),
        board(n_items),
        board(n_items),
        board(n_items),
        board(n_items),
        board(n_items),
        board(n_items),
        np.zeros(n_items, np.bool_),
        np.empty(n_items, np.int32),
        board(categories),
        board(categories),
        np.empty(categories, np.int32),
        np.zeros((3, items.tastes.shape[1]), np.float32),
    )


@kernel
def _touch(item: int, count: int, boards: Boards) -> int:
    if boards.touched[item]:
        return count
    boards.touched[item] = True
    boards.items[count] = item
    return count + 1


@kernel
def _touch_category(category: int, count: int, boards: Boards) -> int:
    if boards.category_likes[category] > 0.0 or boards.category_skips[category] > 0.0:
        return count
    boards.categories[count] = category
    return count + 1


@kernel
def _gather(b: int, positives: IntArray, skips: IntArray, votes: Votes, items: Items, boards: Boards) -> Session:
    """Put on the boards what state `b` says."""
    touched, categories, likes, categorised, last = 0, 0, 0, 0, -1
    first_category, last_category = -1, -1
    boards.tastes[:] = 0.0
    for item in positives[b]:
        if item < 0:
            break
        category = items.categories[item]
        if likes == 0:
            first_category = category
        likes, last, last_category = likes + 1, item, category
        touched = _touch(item, touched, boards)
        boards.liked[item] += 1.0
        if category >= 0:
            categorised += 1
            categories = _touch_category(category, categories, boards)
            boards.category_likes[category] += 1.0
        for at in range(items.similar_offsets[item], items.similar_offsets[item + 1]):
            touched = _touch(items.similar_items[at], touched, boards)
            boards.similar_liked[items.similar_items[at]] += items.similar_weights[at]
        boards.tastes[0] += items.tastes[item]
    if last >= 0:
        for at in range(items.similar_offsets[last], items.similar_offsets[last + 1]):
            boards.similar_last[items.similar_items[at]] = items.similar_weights[at]
        for at in range(items.follower_offsets[last], items.follower_offsets[last + 1]):
            touched = _touch(items.follower_items[at], touched, boards)
            boards.follows[items.follower_items[at]] = items.follower_weights[at]
        boards.tastes[1] = items.tastes[last]
    for item in skips[b]:
        if item < 0:
            break
        category = items.categories[item]
        touched = _touch(item, touched, boards)
        boards.skipped[item] += 1.0
        if category >= 0:
            categories = _touch_category(category, categories, boards)
            boards.category_skips[category] += 1.0
        for at in range(items.similar_offsets[item], items.similar_offsets[item + 1]):
            touched = _touch(items.similar_items[at], touched, boards)
            boards.similar_skipped[items.similar_items[at]] += items.similar_weights[at]
        boards.tastes[2] += items.tastes[item]
    for at in range(votes.offsets[b], votes.offsets[b + 1]):
        touched = _touch(votes.items[at], touched, boards)
        boards.votes[votes.items[at]] = votes.scores[at]
    return Session(touched, categories, likes, categorised, first_category, last_category, last)


@kernel
def _clear(session: Session, boards: Boards) -> None:
    for place in range(session.touched):
        item = boards.items[place]
        boards.similar_liked[item] = boards.similar_last[item] = boards.follows[item] = 0.0
        boards.similar_skipped[item] = boards.liked[item] = boards.skipped[item] = boards.votes[item] = 0.0
        boards.touched[item] = False
    for place in range(session.categories):
        boards.category_likes[boards.categories[place]] = boards.category_skips[boards.categories[place]] = 0.0


@kernel
def _log(value: float) -> float:
    """log(1 + value), at once for the many that are 0."""
    return float(np.log1p(value)) if value != 0.0 else 0.0


@kernel
def _touched_row(item: int, session: Session, boards: Boards, row: FloatArray) -> None:
    """The columns that are 0 for items which the session has nothing to do with."""
    row[SIMILAR_LIKED] = _log(SIMILARITY_SCALE * boards.similar_liked[item])
    row[SIMILAR_LAST] = boards.similar_last[item]
    row[FOLLOWS] = _log(FOLLOWING_SCALE * boards.follows[item])
    row[SIMILAR_SKIPPED] = _log(SIMILARITY_SCALE * boards.similar_skipped[item])
    row[LIKED] = _log(boards.liked[item])
    row[LAST] = 1.0 if item == session.last else 0.0
    row[SKIPPED] = _log(boards.skipped[item])
    row[VOTES] = _log(VOTES_SCALE * boards.votes[item])
    row[VOTED] = 1.0 if boards.votes[item] > 0.0 else 0.0


@kernel
def _category_row(category: int, session: Session, boards: Boards, row: FloatArray) -> None:
    """The columns that the items of a category share."""
    if session.categorised > 0:
        row[CATEGORY_SHARE] = boards.category_likes[category] / session.categorised
    row[CATEGORY_FIRST] = 1.0 if category == session.first_category else 0.0
    row[CATEGORY_LAST] = 1.0 if category == session.last_category else 0.0
    row[CATEGORY_LIKES] = _log(boards.category_likes[category])
    row[CATEGORY_SKIPS] = _log(boards.category_skips[category])


@kernel
def rows_of(
    positives: IntArray,
    skips: IntArray,
    votes: Votes,
    candidates: IntArray,
    items: Items,
    boards: Boards,
    out: FloatArray,
) -> None:
    """(B, C, COLUMNS) the evidence about `candidates` (B, C) into `out`, which is zero; nothing where there is none."""
    for b in range(len(candidates)):
        session = _gather(b, positives, skips, votes, items, boards)
        for c in range(candidates.shape[1]):
            item = candidates[b, c]
            if item < 0:
                continue
            row = out[b, c]
            row[:OWN] = items.own[item]
            if boards.touched[item]:
                _touched_row(item, session, boards, row)
            for axis in range(items.tastes.shape[1]):
                taste = items.tastes[item, axis]
                row[TASTE_LIKED] += taste * boards.tastes[0, axis]
                row[TASTE_LAST] += taste * boards.tastes[1, axis]
                row[TASTE_SKIPPED] += taste * boards.tastes[2, axis]
            category = items.categories[item]
            if category >= 0:
                _category_row(category, session, boards, row)
                row[CATEGORY_POSITIVE] = row[CATEGORY_SHARE] * row[POSITIVE]
        _clear(session, boards)


@kernel
def _product(row: FloatArray, weights: FloatArray, first: int, last: int) -> float:
    total = 0.0
    for column in range(first, last):
        total += row[column] * weights[column]
    return total


@kernel
def _touched_product(row: FloatArray, weights: FloatArray) -> float:
    """weights · what `_touched_row` fills in."""
    return (
        _product(row, weights, SIMILAR_LIKED, TASTE_LIKED)
        + _product(row, weights, LIKED, CATEGORY_SHARE)
        + _product(row, weights, VOTES, COLUMNS)
    )


@kernel
def add_sums(
    positives: IntArray,
    skips: IntArray,
    votes: Votes,
    weights: FloatArray,
    items: Items,
    boards: Boards,
    out: FloatArray,
    tastes: FloatArray,
) -> None:
    """(R, B, A) add weights (R, COLUMNS) · evidence about every item to `out`, without the items' own columns.

    Only items that a session has something to do with are looked at. All items have tastes; for these the factors
    that the axes get are put into `tastes` (R, B, D), because one product for all states is faster.
    """
    row = np.zeros(COLUMNS, np.float32)
    for b in range(len(positives)):
        session = _gather(b, positives, skips, votes, items, boards)
        for place in range(session.touched):
            item = boards.items[place]
            _touched_row(item, session, boards, row)
            for r in range(len(weights)):
                out[r, b, item] += _touched_product(row, weights[r])
        for place in range(session.categories):
            category = boards.categories[place]
            row[:] = 0.0
            _category_row(category, session, boards, row)
            for r in range(len(weights)):
                fixed = _product(row, weights[r], CATEGORY_SHARE, CATEGORY_POSITIVE)
                slope = row[CATEGORY_SHARE] * weights[r, CATEGORY_POSITIVE]
                for at in range(items.category_offsets[category], items.category_offsets[category + 1]):
                    item = items.category_items[at]
                    out[r, b, item] += fixed + slope * items.own[item, POSITIVE]
        for r in range(len(weights)):
            tastes[r, b] = (
                weights[r, TASTE_LIKED] * boards.tastes[0]
                + weights[r, TASTE_LAST] * boards.tastes[1]
                + weights[r, TASTE_SKIPPED] * boards.tastes[2]
            )
        _clear(session, boards)


@kernel
def _pool(
    b: int,
    positives: IntArray,
    skips: IntArray,
    votes: Votes,
    more: IntArray,
    category_offsets: Rows,
    category_order: IntArray,
    items: Items,
    boards: Boards,
) -> IntArray:
    session = _gather(b, positives, skips, votes, items, boards)
    touched = session.touched
    share = CATEGORY_SHARES // max(session.categories, 1)
    for place in range(session.categories):
        category = boards.categories[place]
        first, last = category_offsets[category], category_offsets[category + 1]
        for at in range(first, min(last, first + share)):
            touched = _touch(category_order[at], touched, boards)
    for item in more[b]:
        touched = _touch(item, touched, boards)
    found = boards.items[:touched].copy()
    for item in found[session.touched :]:
        boards.touched[item] = False
    _clear(session, boards)
    return found


@kernel
def pools_of(
    positives: IntArray,
    skips: IntArray,
    votes: Votes,
    more: IntArray,
    category_offsets: Rows,
    category_order: IntArray,
    items: Items,
    boards: Boards,
) -> IntArray:
    """(B, C) the items that each state has something to do with, the first of each of its categories, and its `more`
    (B, M); each once, ascending behind the padding.

    The first items of category c are category_order[category_offsets[c]:category_offsets[c + 1]].
    """
    found = np.full((len(more), 1), -1, np.int32)
    for b in range(len(more)):
        one = _pool(b, positives, skips, votes, more, category_offsets, category_order, items, boards)
        one.sort()
        if len(one) > found.shape[1]:
            wider = np.full((len(more), len(one) if b == len(more) - 1 else len(one) + len(one) // 4), -1, np.int32)
            wider[:b, wider.shape[1] - found.shape[1] :] = found[:b]
            found = wider
        found[b, found.shape[1] - len(one) :] = one
    return found
