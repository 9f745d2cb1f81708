"""Compiled inner loops of the nearest-neighbour methods: an inverted index and one walk through it per query.

All kernels stay in this file, because the cache of compiled code notices changes file by file.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit

from bcd4rec.data.states import Doubles, FloatArray, IntArray, Rows

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile, and keep the machine code on disk unless no folder can be written to."""
    try:
        return cast(Function, njit(function, cache=True, nogil=True))
    except RuntimeError:
        return cast(Function, njit(function, nogil=True))


class Index(NamedTuple):
    """Training sessions by session and by item, each item once per session, at its last position (from 1)."""

    session_offsets: Rows  # (S + 1,)
    session_items: IntArray
    session_positions: IntArray
    item_offsets: Rows  # (A + 1,)
    item_sessions: IntArray  # of each item, newest session first
    item_positions: IntArray


class Weights(NamedTuple):
    """What tells the methods apart."""

    session_norm: Doubles  # (S,) divides the similarity to a session
    recency: Doubles  # (S,) multiplies it
    item: Doubles  # (A,) multiplies what a neighbour gives to an item
    gap: Doubles  # by the distance between the item and the last shared item in the neighbour, from 0


class Queries(NamedTuple):
    items: IntArray
    offsets: Rows  # (B + 1,)
    weights: Doubles  # one for each of `items`
    step: Doubles  # multiplies a neighbour's vote, by how many steps ago the newest shared item was seen, from 1
    cosine: bool  # similarity divided by the length of the weights, else by the number of distinct items


class Votes(NamedTuple):
    """The items that got any score from query j, and the scores, stand from offsets[j] to offsets[j + 1]."""

    offsets: Rows  # (B + 1,)
    items: IntArray
    scores: FloatArray


@kernel
def build_index(items: IntArray, offsets: Rows, n_items: int) -> Index:
    sessions = len(offsets) - 1
    seen = np.full(n_items, -1, np.int32)
    keep = np.zeros(len(items), np.bool_)
    session_offsets = np.zeros(sessions + 1, np.int64)
    item_offsets = np.zeros(n_items + 1, np.int64)
    for session in range(sessions):
        session_offsets[session + 1] = session_offsets[session]
        for place in range(offsets[session + 1] - 1, offsets[session] - 1, -1):
            item = items[place]
            if seen[item] != session:
                seen[item] = session
                keep[place] = True
                session_offsets[session + 1] += 1
                item_offsets[item + 1] += 1
    item_offsets = np.cumsum(item_offsets)
    total = session_offsets[sessions]
    session_items, session_positions = np.empty(total, np.int32), np.empty(total, np.int32)
    item_sessions, item_positions = np.empty(total, np.int32), np.empty(total, np.int32)
    free = item_offsets[:-1].copy()
    at = total
    for session in range(sessions - 1, -1, -1):  # newest first, so that the lists of the items are newest first
        for place in range(offsets[session + 1] - 1, offsets[session] - 1, -1):
            if keep[place]:
                at -= 1
                item, position = items[place], place - offsets[session] + 1
                session_items[at], session_positions[at] = item, position
                item_sessions[free[item]], item_positions[free[item]] = session, position
                free[item] += 1
    return Index(session_offsets, session_items, session_positions, item_offsets, item_sessions, item_positions)


@kernel
def _worse(values: Doubles, keys: IntArray, one: int, other: int) -> bool:
    """The order of everything here: the larger value first, among equal ones the lower key."""
    if values[one] == values[other]:
        return bool(keys[one] > keys[other])
    return bool(values[one] < values[other])


@kernel
def _sink(heap: IntArray, size: int, root: int, values: Doubles, keys: IntArray) -> None:
    while True:
        child = 2 * root + 1
        if child >= size:
            return
        if child + 1 < size and _worse(values, keys, heap[child + 1], heap[child]):
            child += 1
        if not _worse(values, keys, heap[child], heap[root]):
            return
        heap[root], heap[child] = heap[child], heap[root]
        root = child


@kernel
def _best(values: Doubles, keys: IntArray, count: int, chosen: IntArray) -> int:
    """The places of the best of the first `count` values into `chosen`, best first; how many there are."""
    size = min(count, len(chosen))
    for place in range(size):
        chosen[place] = place
    for root in range(size // 2 - 1, -1, -1):
        _sink(chosen, size, root, values, keys)
    for place in range(size, count):
        if _worse(values, keys, chosen[0], place):
            chosen[0] = place
            _sink(chosen, size, 0, values, keys)
    for end in range(size - 1, 0, -1):  # the worst to the back, again and again
        chosen[0], chosen[end] = chosen[end], chosen[0]
        _sink(chosen, end, 0, values, keys)
    return size


@kernel
def _distinct(items: IntArray, places: IntArray) -> int:
    """The places of the distinct items into `places`, newest first, each at its last place; how many there are."""
    count = 0
    for place in range(len(items) - 1, -1, -1):
        new = True
        for other in range(count):
            if items[places[other]] == items[place]:
                new = False
                break
        if new:
            places[count] = place
            count += 1
    return count


class Room(NamedTuple):
    """Space for one query, used again by the next. `board` is zero between queries."""

    board: Doubles  # (A,)
    touched: IntArray  # (A,)
    session: IntArray  # (sample,) candidates, newest first
    similarity: Doubles
    anchor: IntArray  # last position of a shared item in the candidate
    step: IntArray
    order: IntArray  # (sample,) 0, 1, …: equal similarities prefer the newer session
    chosen: IntArray  # (k,)


def make_room(n_items: int, sample: int, k: int) -> Room:
    def empty(size: int) -> IntArray:
        return np.empty(size, np.int32)

    order = np.arange(sample, dtype=np.int32)
    similarity = np.empty(sample, np.float64)
    board = np.zeros(n_items, np.float64)
    return Room(board, empty(n_items), empty(sample), similarity, empty(sample), empty(sample), order, empty(k))


@kernel
def _candidates(
    items: IntArray, query_weights: Doubles, cosine: bool, index: Index, tables: Weights, room: Room
) -> int:
    """Merge the session lists of the query's items, newest session first, until the sample is full."""
    places = np.empty(len(items), np.int32)
    distinct = _distinct(items, places)
    at, end = np.empty(distinct, np.int64), np.empty(distinct, np.int64)
    head = np.empty(distinct, np.int32)  # the newest session of each item that is not yet merged, −1 at the end
    squares = 0.0
    for one in range(distinct):
        item = items[places[one]]
        at[one], end[one] = index.item_offsets[item], index.item_offsets[item + 1]
        head[one] = index.item_sessions[at[one]] if at[one] < end[one] else -1
        squares += query_weights[places[one]] ** 2
    norm = np.sqrt(squares) if cosine else float(distinct)
    count = 0
    while count < len(room.session):
        newest = -1
        for one in range(distinct):
            newest = max(newest, head[one])
        if newest < 0:
            break
        shared, anchor, step = 0.0, 0, 0
        for one in range(distinct):
            if head[one] == newest:
                shared += query_weights[places[one]]
                anchor = max(anchor, index.item_positions[at[one]])
                step = len(items) - places[one] if step == 0 else step
                at[one] += 1
                head[one] = index.item_sessions[at[one]] if at[one] < end[one] else -1
        room.session[count], room.anchor[count], room.step[count] = newest, anchor, step
        room.similarity[count] = shared / (norm * tables.session_norm[newest]) * tables.recency[newest]
        count += 1
    return count


@kernel
def _fill_board(row: int, queries: Queries, index: Index, tables: Weights, room: Room) -> int:
    """Scores of one query onto the board, most similar neighbour first; how many items were touched."""
    place = slice(queries.offsets[row], queries.offsets[row + 1])
    count = _candidates(queries.items[place], queries.weights[place], queries.cosine, index, tables, room)
    touched = 0
    for rank in range(_best(room.similarity, room.order, count, room.chosen)):
        neighbour = room.chosen[rank]
        session, anchor = room.session[neighbour], room.anchor[neighbour]
        strength = room.similarity[neighbour] * queries.step[room.step[neighbour] - 1]
        for at in range(index.session_offsets[session], index.session_offsets[session + 1]):
            item, gap = index.session_items[at], abs(index.session_positions[at] - anchor)
            given = strength * tables.item[item] * tables.gap[gap]
            if room.board[item] == 0.0 and given > 0.0:
                room.touched[touched] = item
                touched += 1
            room.board[item] += given
    return touched


@kernel
def score_all(queries: Queries, index: Index, tables: Weights, room: Room, out: FloatArray) -> None:
    """(B, A) scores into `out`, which is zero."""
    for row in range(len(out)):
        for place in range(_fill_board(row, queries, index, tables, room)):
            item = room.touched[place]
            out[row, item] = room.board[item]
            room.board[item] = 0.0


@kernel
def list_scores(queries: Queries, index: Index, tables: Weights, room: Room) -> Votes:
    """The items with any score, which are few."""
    offsets = np.zeros(len(queries.offsets), np.int64)
    items, scores = np.empty(1024, np.int32), np.empty(1024, np.float32)
    for row in range(len(offsets) - 1):
        first = offsets[row]
        touched = _fill_board(row, queries, index, tables, room)
        if first + touched > len(items):
            more = 2 * (first + touched)
            old_items, old_scores = items, scores
            items, scores = np.empty(more, np.int32), np.empty(more, np.float32)
            items[:first], scores[:first] = old_items[:first], old_scores[:first]
        for place in range(touched):
            item = room.touched[place]
            items[first + place], scores[first + place] = item, room.board[item]
            room.board[item] = 0.0
        offsets[row + 1] = first + touched
    return Votes(offsets, items[: offsets[-1]], scores[: offsets[-1]])


@kernel
def score_candidates(
    queries: Queries, index: Index, tables: Weights, room: Room, candidates: IntArray, out: FloatArray
) -> None:
    """(B, C) scores of the candidates into `out`; −inf where there is none."""
    for row in range(len(out)):
        touched = _fill_board(row, queries, index, tables, room)
        for column in range(candidates.shape[1]):
            item = candidates[row, column]
            out[row, column] = room.board[item] if item >= 0 else -np.inf
        for place in range(touched):
            room.board[room.touched[place]] = 0.0


@kernel
def rank_all(queries: Queries, index: Index, tables: Weights, room: Room, items: IntArray, scores: FloatArray) -> None:
    """The K best items of each query into `items` (B, K), best first, and their scores; ties to the lower index."""
    values = np.empty(len(room.board), np.float64)
    chosen = np.empty(items.shape[1], np.int32)
    for row in range(len(items)):
        positive = 0
        for place in range(_fill_board(row, queries, index, tables, room)):
            item = room.touched[place]
            value = np.float32(room.board[item])  # ranked as `score_all` gives it
            room.board[item] = 0.0
            if value > 0.0:
                room.touched[positive], values[positive] = item, value
                positive += 1
        found = _best(values, room.touched, positive, chosen)
        for rank in range(found):
            items[row, rank], scores[row, rank] = room.touched[chosen[rank]], values[chosen[rank]]
        item = 0
        while found < items.shape[1]:  # the rest of the catalogue has score 0 and comes in order of its index
            if item not in items[row, :found]:
                items[row, found], scores[row, found] = item, 0.0
                found += 1
            item += 1
