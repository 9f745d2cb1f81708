"""Sessions to transitions `(state, action, reward, next_state, discount)` over a table of distinct states.

Where rows form slates, every item of a slate is shown in the state before it. A skip leaves a state of positives
unchanged (s′ = s), so states are far fewer than transitions; each is stored once, and agents encode it once.
Organic events, which nobody recommended, enter the states and are no transitions; their rows are kept and marked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import polars as pl
from pydantic import Field, model_validator

from bcd4rec.config import Config
from bcd4rec.data.responses import Responses
from bcd4rec.data.state_table import Distinct, MakeRows, StateTable
from bcd4rec.data.states import PAD, IntArray, Mask, Rows

HELD = 0.95  # share of the sessions whose whole history fits into states of automatic size
MOST_POSITIVES, MOST_SKIPS = 50, 200  # automatic sizes end here: a table of states grows with them


class TransitionConfig(Config):
    """What a state remembers, and what one transition is."""

    history: Literal["positives", "all"] = "all"
    """A state holds the last positive items; `all`: also the last skipped items."""
    length: int | None = Field(default=None, ge=1, le=1000)
    """L: how many positive items a state holds; by default as many as 95 % of the sessions have, at most 50."""
    skips: int | None = Field(default=None, ge=0, le=1000)
    """S: how many skipped items a state holds when the history is `all`; by default as many as 95 % of the sessions
    have, at most 200."""
    convention: Literal["shown", "chosen"] = "shown"
    """`shown`: every shown item is a transition. `chosen`: one per step, the first positive item or a random skip."""
    next_state: Literal["item", "slate"] = "slate"
    """`item`: the state after this item's own response. `slate`: the state in which the next slate is asked for."""
    gamma: float = Field(default=0.9, ge=0.0, le=1.0)
    """γ: the discount of every transition but the last of a session, which has 0."""

    @model_validator(mode="before")
    @classmethod
    def _items_for_positives(cls, values: dict[str, object]) -> dict[str, object]:
        # A state with skips is only ever seen after whole slates, so its successor is one too.
        return {"next_state": "item"} | values if values.get("history") == "positives" else values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.history == "all" and self.next_state != "slate":
            raise ValueError("history all needs next_state slate")
        return self

    def sizes(self, positives: pl.Series, skips: pl.Series) -> tuple[int, int]:
        """L and S for sessions with these numbers of positive and of skipped rows."""
        length = max(1, _enough(positives, MOST_POSITIVES)) if self.length is None else self.length
        kept = _enough(skips, MOST_SKIPS) if self.skips is None else self.skips
        return length, kept if self.history == "all" else 0


def _enough(counts: pl.Series, most: int) -> int:
    """The smallest size that holds everything of `HELD` of the sessions, at least 1 where there is anything at all."""
    if counts.sum() == 0:
        return 0
    return int(np.clip(np.quantile(counts.to_numpy(), HELD, method="inverted_cdf"), 1, most))


def window(items: IntArray, end: Rows, first: Rows, width: int) -> IntArray:
    """(n, width) the last `width` entries of `items[first:end]` for each pair, oldest first, padded on the right."""
    if width == 0 or len(items) == 0:
        return np.full((len(end), width), PAD, np.int32)
    length = np.minimum(end - first, width)
    column = np.arange(width)
    result: IntArray = items.take((end - length)[:, None] + column, mode="clip")
    result[column >= length[:, None]] = PAD
    return result


class Chunk:
    """Rows of whole sessions as arrays, with what is counted before each of them."""

    def __init__(self, rows: pl.DataFrame, responses: Responses):
        self.item: IntArray = rows["item"].to_numpy()
        response, organic = rows["response"].to_numpy(), rows["organic"].to_numpy()
        self.positive = np.isin(response, [responses.code(name) for name in responses.positive])
        self.skip = ~self.positive & ~organic  # what nobody recommended cannot be passed over
        new_session = np.diff(rows["session"].to_numpy().astype(np.int64), prepend=-1) != 0
        new_step = np.diff(rows["step"].to_numpy().astype(np.int64), prepend=-1) != 0
        new_request = new_session | new_step | organic | np.append(False, organic[:-1])
        self.session = np.cumsum(new_session) - 1  # (n,) which session of the chunk
        self.session_start = np.flatnonzero(new_session)  # (sessions,) first row
        self.request = np.cumsum(new_request) - 1  # (n,) which request of the chunk
        self.request_start = np.flatnonzero(new_request)  # (requests,) first row
        self.request_session = self.session[self.request_start]  # (requests,)
        self._find_next(organic[self.request_start])
        self.liked = np.append(0, np.cumsum(self.positive))  # (n + 1,) positive rows before each row
        self.skipped = np.append(0, np.cumsum(self.skip))  # (n + 1,) skipped rows before each row

    def _find_next(self, organic: Mask) -> None:
        """`next_request` (requests,): the request in whose state a request ends, or the one behind its session's last.

        A slate ends where the next slate is asked for, after what nobody recommended in between; an organic event ends
        with itself. `last` (requests,) says that no slate follows in the session.
        """
        number = np.arange(len(organic))
        behind = np.searchsorted(self.request_session, self.request_session, side="right")  # of its session's last
        slates = np.append(np.flatnonzero(~organic), len(organic))
        next_slate = slates[np.searchsorted(slates, number, side="right")]
        self.last = next_slate >= behind
        self.next_request = np.where(organic, number + 1, np.minimum(next_slate, behind))


@dataclass(frozen=True)
class Visited:
    """The states that the sessions of a chunk come through, one after the other."""

    count: int
    rows: MakeRows  # the states (n, L + S) of n of their numbers
    of_rows: Callable[[IntArray], tuple[IntArray, IntArray]]  # (n,) state and next state of rows, by ids (count,)

    def distinct(self) -> Distinct:
        return Distinct.among(self.count, self.rows)


def visited_states(chunk: Chunk, config: TransitionConfig, length: int, skips: int) -> Visited:
    if config.history == "all":
        return _states_with_skips(chunk, length, skips)
    return _states_of_positives(chunk, config.next_state == "slate", length)


def _states_of_positives(chunk: Chunk, by_slate: bool, length: int) -> Visited:
    """A session with m positive rows has m + 1 states, one after each of them."""
    ends = np.append(chunk.session_start[1:], len(chunk.item))
    first = chunk.liked[chunk.session_start]  # (sessions,) positive rows of the chunk before the session
    count = chunk.liked[ends] - first + 1  # (sessions,) states of the session
    offset = np.cumsum(count) - count
    owner = np.repeat(np.arange(len(count)), count)
    liked = first[owner] + np.arange(len(owner)) - offset[owner]  # (states,) positive rows before the state
    items = chunk.item[chunk.positive]

    def of_rows(ids: IntArray) -> tuple[IntArray, IntArray]:
        def state_before(rows: Rows, sessions: Rows) -> IntArray:
            found: IntArray = ids[offset[sessions] + chunk.liked[rows] - first[sessions]]
            return found

        start = chunk.request_start[chunk.request]
        state = state_before(start, chunk.session)
        if by_slate:
            end = np.append(chunk.request_start, len(chunk.item))[chunk.next_request[chunk.request]]
            return state, state_before(end, chunk.session)
        after = state_before(np.arange(len(chunk.item)) + 1, chunk.session)
        return state, np.where(chunk.positive, after, state)

    return Visited(len(liked), lambda some: window(items, liked[some], first[owner[some]], length), of_rows)


def _states_with_skips(chunk: Chunk, length: int, kept: int) -> Visited:
    """A session has one state before each request and one after the last."""
    ends = np.append(chunk.session_start[1:], len(chunk.item))
    at = np.concatenate([chunk.request_start, ends])  # (requests + sessions,) rows that the states stand before
    owner = np.concatenate([chunk.request_session, np.arange(len(ends))])
    order = np.lexsort((at, owner))
    at, first = at[order], chunk.session_start[owner[order]]
    liked, skipped = chunk.item[chunk.positive], chunk.item[chunk.skip]

    def rows(some: Rows) -> IntArray:
        before, begin = at[some], first[some]
        positives = window(liked, chunk.liked[before], chunk.liked[begin], length)
        skips = window(skipped, chunk.skipped[before], chunk.skipped[begin], kept)
        return np.concatenate([positives, skips], axis=1)

    def of_rows(ids: IntArray) -> tuple[IntArray, IntArray]:
        # Every session before this one has a state more than it has requests.
        return ids[chunk.request + chunk.session], ids[chunk.next_request[chunk.request] + chunk.session]

    return Visited(len(at), rows, of_rows)


def chunk_transitions(
    rows: pl.DataFrame,
    config: TransitionConfig,
    responses: Responses,
    table: StateTable,
    rng: np.random.Generator,
    distinct: Distinct | None = None,
) -> pl.DataFrame:
    """The transitions of whole sessions, as `SessionIndex.chunks` yields them; distinct states go to `table`.

    `distinct` are the states that they come through, where somebody has found them already.
    """
    chunk = Chunk(rows, responses)
    visited = visited_states(chunk, config, table.length, table.skips)
    state, next_state = visited.of_rows(table.add(distinct or visited.distinct(), visited.rows))
    reward = np.array([responses.rewards[name] for name in responses.names], np.float32)
    discount = np.where(chunk.last, 0.0, config.gamma).astype(np.float32)
    transitions = pl.DataFrame(
        {
            "session": rows["session"],
            "step": rows["step"],
            "state": state,
            "action": chunk.item,
            "response": rows["response"],
            "reward": reward[rows["response"].to_numpy()],
            "next_state": next_state,
            "discount": discount[chunk.request],
            "propensity": rows["propensity"],
            "position": rows["position"],
            "organic": rows["organic"],
        }
        | {name: rows[name] for name in ("request_category",) if name in rows.columns}
    )
    if config.convention == "chosen":
        return transitions[_chosen(chunk.request_start, chunk.positive, rng)]
    return transitions


def _chosen(request_start: Rows, positive: Mask, rng: np.random.Generator) -> Rows:
    """One row per request: its first positive row or, where all were skipped, one drawn at random."""
    sizes = np.diff(np.append(request_start, len(positive)))
    drawn = request_start + (rng.random(len(sizes)) * sizes).astype(np.int64)
    hits = np.append(np.flatnonzero(positive), len(positive))
    first_hit = hits[np.searchsorted(hits, request_start)]
    chosen: Rows = np.where(first_hit < request_start + sizes, first_hit, drawn)
    return chosen
