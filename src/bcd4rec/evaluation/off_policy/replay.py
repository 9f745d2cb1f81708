"""A log as the policy would have met it: session by session, slate by slate, with exactly what it would have seen.

Whole sessions are read a chunk at a time. Within a chunk all sessions go forward together, and before each slate the
policy's own methods say what it remembers, what is not available any more and what was just skipped.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.states import PAD, Doubles, IntArray, Mask, Rows
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.policies.policy import Policy, Sessions
from bcd4rec.policies.slates import Unavailable

CELLS = 1 << 23  # scores that are held at once: sessions of a chunk times items of the catalogue
ROWS = 200_000  # impressions of a chunk, unless a single session has more


@dataclass(frozen=True)
class ReplayedSlates:
    """All slates of some whole sessions, those of a session together and in order; item numbers are the data set's."""

    sessions: Rows  # (B,) rows of `Dataset.sessions`
    session: Rows  # (n,) which of them
    step: Rows  # (n,) from 0
    state: IntArray  # (n,) row of `Dataset.states`
    items: IntArray  # (n, K) padded with `PAD`
    responses: IntArray  # (n, K) codes, −1 in empty places
    liked: Mask  # (n, K)
    propensities: Doubles  # (n, K) NaN where the log has none, 1 in empty places
    organic: IntArray  # (m, 3) liked items that nobody recommended: which session, the slate they come before, item

    def __len__(self) -> int:
        return len(self.session)

    @property
    def sizes(self) -> Rows:
        """(n,) how many items each slate has."""
        found: Rows = (self.items != PAD).sum(axis=1)
        return found


def logged_slates(
    dataset: Dataset, split: str | None = None, n_items: int | None = None, tick: Tick = no_tick
) -> Iterator[ReplayedSlates]:
    """The log in chunks of whole sessions, of one split or all; `n_items` is the largest catalogue that scores them."""
    if dataset.manifest["config"].get("convention") == "chosen":
        raise InputError(
            "The data set keeps one item of each slate (convention chosen), and judging needs all that was shown; "
            "prepare it with --set convention=shown, or give the log itself."
        )
    session = dataset.frame["session"].to_numpy()
    starts = np.flatnonzero(np.diff(session, prepend=np.uint32(np.iinfo(np.uint32).max)))
    most = max(1, CELLS // max(n_items or dataset.n_items, 1))
    judged = np.ones(len(dataset.sessions), np.bool_)
    if split is not None:
        judged = (dataset.sessions["split"] == split).to_numpy()
    ends = np.append(starts[1:], len(session))
    mine = judged[session[starts]]
    starts, ends = starts[mine], ends[mine]
    chunk = _chunk_numbers(ends - starts, most)
    for number in range(int(chunk[-1]) + 1 if len(chunk) else 0):
        tick("replaying the log", number / (chunk[-1] + 1))
        some = np.flatnonzero(chunk == number)
        yield _slates(dataset, starts[some], ends[some])


def _chunk_numbers(sizes: Rows, most: int) -> Rows:
    """(B,) for sessions of so many rows: the chunk of each, of at most `most` sessions and about `ROWS` rows."""
    by_rows = (np.cumsum(sizes) - sizes) // ROWS
    chunk, start = np.zeros(len(sizes), np.int64), 0
    for first, last in _runs(by_rows):
        inside = np.arange(last - first) // most
        chunk[first:last] = start + inside
        start += int(inside[-1]) + 1
    return chunk


def _runs(values: Rows) -> list[tuple[int, int]]:
    edges = np.append(np.flatnonzero(np.diff(values, prepend=-1)), len(values))
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def _slates(dataset: Dataset, starts: Rows, ends: Rows) -> ReplayedSlates:
    rows = np.concatenate([np.arange(first, last) for first, last in zip(starts, ends, strict=True)])
    frame = dataset.frame[rows]
    number, session = np.unique(frame["session"].to_numpy().astype(np.int64), return_inverse=True)
    step, item = frame["step"].to_numpy().astype(np.int64), frame["action"].to_numpy().astype(np.int32)
    code, organic = frame["response"].to_numpy().astype(np.int32), frame["organic"].to_numpy()
    positive = np.isin(code, [dataset.responses.code(name) for name in dataset.responses.positive])
    outside = organic & positive
    shown = np.flatnonzero(~organic)
    key = np.stack([session[shown], step[shown]])
    first = np.flatnonzero(np.append(True, (np.diff(key) != 0).any(axis=0))[: len(shown)])
    slate = np.cumsum(np.bincount(first, minlength=len(shown))) - 1
    place = np.arange(len(shown)) - first[slate] if len(shown) else np.zeros(0, np.int64)
    shape = (len(first), int(place.max(initial=0)) + 1)

    def table(values: NDArray[Any], empty: float) -> NDArray[Any]:
        found = np.full(shape, empty, values.dtype)
        found[slate, place] = values[shown]
        return found

    chance = frame["propensity"].cast(float).fill_null(float("nan")).to_numpy()
    return ReplayedSlates(
        number,
        session[shown][first],
        step[shown][first],
        frame["state"].to_numpy()[shown][first],
        table(item, PAD),
        table(code, -1),
        table(positive, False),
        table(chance, 1.0),
        np.stack([session[outside], step[outside], item[outside]], axis=1).astype(np.int32),
    )


class ReplayedStep(NamedTuple):
    """Some slates of the log, and the sessions before them as a policy sees them."""

    rows: Rows  # (b,) of `ReplayedSlates`
    sessions: Sessions  # b of them
    items: IntArray  # (b, K) what was shown, in the policy's numbers; `PAD` also for what it does not know
    unknown: Mask  # (b, K) shown, and not known to the policy


class Translation:
    """Item numbers of a data set and of a policy; an item that the other does not know is `PAD`."""

    def __init__(self, dataset: Vocabulary, policy: Vocabulary):
        alike = dataset.ids.equals(policy.ids)
        same = np.arange(len(policy), dtype=np.int32)
        self._to_policy = np.append(same if alike else policy.positions_of(dataset), PAD).astype(np.int32)
        self._to_dataset = np.append(same if alike else dataset.positions_of(policy), PAD).astype(np.int32)

    def to_policy(self, items: IntArray) -> IntArray:
        return self._to_policy[items]

    def to_dataset(self, items: IntArray) -> IntArray:
        return self._to_dataset[items]

    @property
    def of_policy(self) -> IntArray:
        """(A′,) where each item of the policy stands in the data set."""
        return self._to_dataset[:-1]


def replay(policy: Policy, slates: ReplayedSlates, translation: Translation) -> Iterator[ReplayedStep]:
    """Step by step: every session's first slate, then every second one, and so on."""
    items = translation.to_policy(slates.items)
    liked = slates.liked & (items != PAD)
    organic = slates.organic.copy()
    organic[:, 2] = translation.to_policy(organic[:, 2])
    organic = organic[organic[:, 2] != PAD]
    count = len(slates.sessions)
    sessions = policy.begin(count, _rows_of(organic[organic[:, 1] == 0], count))
    order = np.argsort(slates.step, kind="stable")
    edges = np.searchsorted(slates.step[order], np.arange(int(slates.step.max(initial=-1)) + 2))
    for step in range(len(edges) - 1):
        rows = order[edges[step] : edges[step + 1]]
        who = slates.session[rows]
        if step:
            sessions = _between(policy, sessions, organic[organic[:, 1] == step])
        yield ReplayedStep(rows, sessions[who], items[rows], (items[rows] == PAD) & (slates.items[rows] != PAD))
        shown = np.full((count, items.shape[1]), PAD, np.int32)
        pleased = np.zeros(shown.shape, np.bool_)
        shown[who], pleased[who] = items[rows], liked[rows]
        sessions = policy.after(sessions, shown, pleased)


def _rows_of(events: IntArray, count: int) -> IntArray:
    """(B, E) the items of events (m, 3), session by session in their order, padded behind."""
    many = np.bincount(events[:, 0], minlength=count)
    found = np.full((count, int(many.max(initial=0))), PAD, np.int32)
    place = np.arange(len(events)) - (np.cumsum(many) - many)[events[:, 0]]
    found[events[:, 0], place] = events[:, 2]
    return found


def _between(policy: Policy, sessions: Sessions, events: IntArray) -> Sessions:
    """After what people found by themselves between two slates: it is remembered, and nothing was skipped last."""
    if not len(events):
        return sessions
    items = _rows_of(events, len(sessions))
    found = policy.after(sessions, items, items != PAD)
    touched = (items != PAD).any(axis=1, keepdims=True)
    own: Unavailable = policy.rule.unavailable
    width = sessions.skipped.shape[1]
    return Sessions(
        found.states,
        sessions.unavailable if own == "recommended" else found.unavailable,
        np.where(touched, np.int32(PAD), sessions.skipped) if width else sessions.skipped,
    )
