"""Sessions to transitions `(state, action, reward, next_state, discount)` over a table of distinct states.

Where rows form slates, every item of a slate is shown in the state before it. A skip leaves a state of positives
unchanged (s′ = s), so states are far fewer than transitions; each is stored once, and agents encode it once.
"""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, model_validator

from bcd4rec.config import Config
from bcd4rec.data.responses import Responses
from bcd4rec.data.states import HISTORY, PAD, IntArray, States

Index = NDArray[np.int64]


class TransitionConfig(Config):
    """What a state remembers, and what one transition is."""

    history: Literal["positives", "all"] = "positives"
    """A state holds the last positive items; `all`: also the last skipped items."""
    length: int = Field(default=HISTORY, ge=1, le=1000)
    """L: how many positive items a state holds."""
    skips: int = Field(default=20, ge=1, le=1000)
    """S: how many skipped items a state holds when the history is `all`."""
    convention: Literal["shown", "chosen"] = "shown"
    """`shown`: every shown item is a transition. `chosen`: one per step, the first positive item or a random skip."""
    next_state: Literal["item", "slate"] = "item"
    """`item`: the state after this item's own response. `slate`: the state after the whole slate's responses."""
    gamma: float = Field(default=0.9, ge=0.0, le=1.0)
    """γ: the discount of every transition but the last of a session, which has 0."""

    @model_validator(mode="before")
    @classmethod
    def _slates_for_skips(cls, values: dict[str, object]) -> dict[str, object]:
        # A state with skips is only ever seen after whole slates, so its successor is one too.
        return {"next_state": "slate"} | values if values.get("history") == "all" else values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.history == "all" and self.next_state != "slate":
            raise ValueError("history all needs next_state slate")
        return self

    @property
    def kept_skips(self) -> int:
        return self.skips if self.history == "all" else 0


@dataclass(frozen=True)
class Windows:
    """Local states of a chunk, named by how many positives and skips of the chunk lie before them."""

    positives: Index  # (n,) count of positive rows before the state, over the whole chunk
    skips: Index  # (n,) the same for skipped rows
    first_positive: Index  # (n,) the count at the beginning of the state's session
    first_skip: Index


class StateTable:
    """Distinct states in order of their first appearance; state 0 is the empty session."""

    def __init__(self, config: TransitionConfig):
        self.length, self.skips = config.length, config.kept_skips
        width = self.length + self.skips
        self._parts: list[IntArray] = [np.full((1, width), PAD, np.int32)]
        self._known = pl.DataFrame({"key": _keys(self._parts[0]), "id": pl.Series([0], dtype=pl.Int32)})

    def add(self, rows: IntArray) -> IntArray:
        """(n,) ids of the states in `rows` (n, L + S); new states get the next free ids."""
        keys = pl.DataFrame({"key": _keys(rows)})
        distinct = keys.with_row_index("row").unique("key", keep="first", maintain_order=True)
        new = distinct.join(self._known, on="key", how="anti", maintain_order="left")
        first = len(self._known)
        ids = pl.int_range(first, first + len(new), dtype=pl.Int32, eager=True)
        self._known = pl.concat([self._known, new.select("key", ids.alias("id"))])
        self._parts.append(rows[new["row"].to_numpy()])
        found: IntArray = keys.join(self._known, on="key", how="left", maintain_order="left")["id"].to_numpy()
        return found

    def states(self) -> States:
        table = np.concatenate(self._parts)
        return States(
            np.ascontiguousarray(table[:, : self.length]),
            np.ascontiguousarray(table[:, self.length :]),
        )


def _keys(rows: IntArray) -> pl.Series:
    """Each row's bytes as one binary value, so that equality of rows is exact and cheap."""
    rows = np.ascontiguousarray(rows, np.int32)
    width = rows.shape[1] * rows.itemsize
    array = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(rows), [None, pa.py_buffer(rows)])
    series = pl.from_arrow(array)
    assert isinstance(series, pl.Series)  # noqa: S101 (from_arrow of an array is a series; for the type checker)
    return series


def window(items: IntArray, end: Index, first: Index, width: int) -> IntArray:
    """(n, width) the last `width` entries of `items[first:end]` for each pair, oldest first, padded on the right."""
    if width == 0:
        return np.empty((len(end), 0), np.int32)
    length = np.minimum(end - first, width)
    column = np.arange(width)
    index = (end - length)[:, None] + column
    inside = column < length[:, None]
    padded = np.append(items, np.int32(PAD))
    result: IntArray = padded[np.where(inside, index, len(items))].astype(np.int32, copy=False)
    return result


def chunk_transitions(
    rows: pl.DataFrame, config: TransitionConfig, responses: Responses, table: StateTable, luck: np.random.Generator
) -> pl.DataFrame:
    """The transitions of whole sessions, as `SessionIndex.chunks` yields them; distinct states go to `table`."""
    session = rows["session"].to_numpy().astype(np.int64)
    step = rows["step"].to_numpy().astype(np.int64)
    item = rows["item"].to_numpy()
    response = rows["response"].to_numpy()
    positive = np.isin(response, [responses.code(name) for name in responses.positive])

    new_session = np.diff(session, prepend=-1) != 0
    new_request = new_session | (np.diff(step, prepend=-1) != 0)
    request = np.cumsum(new_request) - 1  # (n,) which request of the chunk
    request_start = np.flatnonzero(new_request)  # (requests,) first row
    session_start = np.flatnonzero(new_session)[np.cumsum(new_session) - 1]  # (n,) first row of the session
    last_request = np.append(new_session[request_start][1:], True)  # (requests,) the last of its session

    positives_before = np.cumsum(positive) - positive
    skips_before = np.cumsum(~positive) - ~positive
    before, first = positives_before[request_start], positives_before[session_start[request_start]]
    skipped, first_skip = skips_before[request_start], skips_before[session_start[request_start]]

    def identify(windows: Windows) -> IntArray:
        parts = [window(item[positive], windows.positives, windows.first_positive, table.length)]
        parts.append(window(item[~positive], windows.skips, windows.first_skip, table.skips))
        return table.add(np.concatenate(parts, axis=1))

    at_request = identify(Windows(before, skipped, first, first_skip))  # (requests,) the state a slate is shown in
    state = at_request[request]
    if config.next_state == "slate":
        after = np.append(before[1:], positive.sum())
        after_skips = np.append(skipped[1:], (~positive).sum())
        at_end = identify(
            Windows(after[last_request], after_skips[last_request], first[last_request], first_skip[last_request])
        )
        following = np.append(at_request[1:], PAD).astype(np.int32)
        following[last_request] = at_end
        next_state = following[request]
    else:
        next_state = state.copy()
        hit = np.flatnonzero(positive)
        origin = request[hit]
        next_state[hit] = identify(
            Windows(positives_before[hit] + 1, skips_before[hit], first[origin], first_skip[origin])
        )
    reward = np.array([responses.rewards[name] for name in responses.names], np.float32)[response]
    discount = np.where(last_request, 0.0, config.gamma).astype(np.float32)[request]
    transitions = pl.DataFrame(
        {
            "session": rows["session"],
            "step": rows["step"],
            "state": state,
            "action": item,
            "response": response,
            "reward": reward,
            "next_state": next_state,
            "discount": discount,
            "propensity": rows["propensity"],
        }
    )
    if config.convention == "chosen":
        return transitions[_chosen(request_start, positive, luck)]
    return transitions


def _chosen(request_start: Index, positive: NDArray[np.bool_], luck: np.random.Generator) -> Index:
    """One row per request: its first positive row or, where all were skipped, one drawn at random."""
    sizes = np.diff(np.append(request_start, len(positive)))
    drawn = request_start + (luck.random(len(sizes)) * sizes).astype(np.int64)
    hits = np.append(np.flatnonzero(positive), len(positive))
    first_hit = hits[np.searchsorted(hits, request_start)]
    chosen: Index = np.where(first_hit < request_start + sizes, first_hit, drawn)
    return chosen
