"""Nearest neighbours among whole sessions: those that liked the same items vote for what else they liked."""

import threading
from abc import abstractmethod
from typing import ClassVar

import numpy as np
from pydantic import Field

from bcd4rec.config import Config
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, Doubles, FloatArray, IntArray, States
from bcd4rec.models import knn_kernels as kernels
from bcd4rec.models.knn_kernels import Index, Queries, Room, Votes, Weights

KEPT_BATCH = 128  # votes are kept of batches of at least so many states: learning and judging ask for them again …
KEPT_VOTES = 1 << 21  # … until there are so many, of 8 bytes each; then all but the batch at hand are forgotten


class Weighting(Config):
    """How much shared items, neighbours and their items count.

    Candidates are the most recent `sample` sessions that share any item with the session so far; neighbours are
    the k most similar of them, among equals the more recent. Items of the session so far may be recommended.
    """

    cosine: ClassVar[bool] = True  # the similarity is divided by the length of the position weights
    k: int = Field(100, ge=1, description="How many neighbours vote.")
    sample: int = Field(1000, ge=1, description="How many of the most recent sessions with a shared item are compared.")

    @abstractmethod
    def position_weights(self, position: Doubles, length: Doubles) -> Doubles:
        """How much the item at `position` (from 1) of a session of `length` counts in the similarity."""

    @abstractmethod
    def tables(self, sequences: Sequences, index: Index) -> Weights:
        """The factors of similarity and score that do not depend on the query."""

    def step_weights(self, step: Doubles) -> Doubles:
        """How much a neighbour's vote counts whose newest shared item was seen `step` steps ago (from 1)."""
        return np.ones_like(step)


def plain_tables(sequences: Sequences, index: Index) -> Weights:
    """Cosine between sets, and nothing else."""
    sessions, n_items = len(sequences), len(index.item_offsets) - 1
    longest = int(sequences.lengths.max(initial=0))
    norm = np.sqrt(np.diff(index.session_offsets).astype(np.float64))
    return Weights(norm, np.ones(sessions), np.ones(n_items), np.ones(max(longest, 1)))


class SequenceAndTime(Weighting):
    """Sequence and time aware neighbourhood (STAN; Garg et al., SIGIR 2019).

    The item at position p of the l items so far weighs w = exp((p − l)/λ_spw) (its last position, if repeated).
    sim(s, n) = Σ_{i ∈ s ∩ n} w_i / (‖w‖·√|n|) · exp(−age_n/λ_snh), and
    score(i) = Σ_n sim(s, n) · exp(−|pos_n(i) − pos_n(i*)|/λ_inh) with i* the last item of n that is also in s.
    Sequences carry no clock, so the age of a session is how many have begun since, in days of `sessions_per_day`.
    """

    k: int = Field(500, ge=1, description="How many neighbours vote.")
    sample: int = Field(2500, ge=1, description="How many of the most recent sessions with a shared item are compared.")
    lambda_spw: float = Field(2.5, gt=0, description="Within so many steps an item of the session loses a factor e.")
    lambda_snh: float = Field(80.0, gt=0, description="Within so many days a session loses a factor e.")
    lambda_inh: float = Field(5.0, gt=0, description="So many places from the last shared item cost a factor e.")
    sessions_per_day: float = Field(1000.0, gt=0, description="How many sessions count as a day.")

    def position_weights(self, position: Doubles, length: Doubles) -> Doubles:
        return np.exp((position - length) / self.lambda_spw)

    def tables(self, sequences: Sequences, index: Index) -> Weights:
        plain = plain_tables(sequences, index)
        days = np.arange(len(sequences), 0.0, -1.0) / self.sessions_per_day
        gap = np.exp(-np.arange(float(len(plain.gap))) / self.lambda_inh)
        return plain._replace(recency=np.exp(-days / self.lambda_snh), gap=gap)


class SessionNeighbours:
    """Training sessions in an inverted index, compared with the session at hand."""

    def __init__(self, weighting: Weighting, sequences: Sequences, n_items: int):
        refuse_other_items(sequences.items, 0, n_items)
        self.weighting, self.n_items = weighting, n_items
        self.sequences = Sequences(sequences.items.astype(np.int32), sequences.offsets.astype(np.int64))
        self._index = kernels.build_index(self.sequences.items, self.sequences.offsets, n_items)
        self._tables = weighting.tables(self.sequences, self._index)
        self._local = threading.local()

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        """(B, A), or (B, C) of `candidates` (B, C), −inf where there is none."""
        queries = self._queries(as_sequences(states))
        if candidates is None:
            out = np.zeros((len(states), self.n_items), np.float32)
            kernels.score_all(queries, self._index, self._tables, self._room(), out)
        else:
            refuse_other_items(candidates, PAD, self.n_items)
            wanted, out = np.require(candidates, np.int32, ["C", "W"]), np.empty(candidates.shape, np.float32)
            kernels.score_candidates(queries, self._index, self._tables, self._room(), wanted, out)
        return out

    def votes(self, states: States) -> Votes:
        """The scores that are not 0, as lists: they are few in a large catalogue."""
        if len(states) < KEPT_BATCH:
            return self._votes(states)
        kept = self._kept()
        keys = [one.tobytes() for one in np.ascontiguousarray(states.positives, np.int32)]
        new = {key: row for row, key in enumerate(keys) if key not in kept}
        if new:
            votes = self._votes(states[np.fromiter(new.values(), np.int64)])
            if len(votes.items) + sum(len(items) for items, _ in kept.values()) > KEPT_VOTES:
                kept = {key: kept[key] for key in keys if key in kept}
                self._local.kept = kept
            for row, key in enumerate(new):
                mine = slice(votes.offsets[row], votes.offsets[row + 1])
                kept[key] = votes.items[mine], votes.scores[mine]
        items, scores = zip(*(kept[key] for key in keys), strict=True)
        offsets = np.append(0, np.cumsum([len(one) for one in items])).astype(np.int64)
        return Votes(offsets, np.concatenate(items), np.concatenate(scores))

    def _votes(self, states: States) -> Votes:
        return kernels.list_scores(self._queries(as_sequences(states)), self._index, self._tables, self._room())

    def _kept(self) -> dict[bytes, tuple[IntArray, FloatArray]]:
        """Votes by the positive items that they are for, in each thread; kernels only read them."""
        if not hasattr(self._local, "kept"):
            self._local.kept = {}
        kept: dict[bytes, tuple[IntArray, FloatArray]] = self._local.kept
        return kept

    def top(self, sessions: States | Sequences, k: int) -> tuple[IntArray, FloatArray]:
        """(B, K) the best items and their scores, K = min(k, A), as ranking `scores` gives them but without (B, A)."""
        sequences = as_sequences(sessions) if isinstance(sessions, States) else sessions
        shape = (len(sequences), min(k, self.n_items))
        items, scores = np.empty(shape, np.int32), np.empty(shape, np.float32)
        kernels.rank_all(self._queries(sequences), self._index, self._tables, self._room(), items, scores)
        return items, scores

    def _queries(self, sequences: Sequences) -> Queries:
        refuse_other_items(sequences.items, 0, self.n_items)
        items, offsets = (
            np.require(sequences.items, np.int32, ["C", "W"]),
            np.require(sequences.offsets, np.int64, ["C", "W"]),
        )
        lengths = sequences.lengths
        position = np.arange(len(items)) - np.repeat(offsets[:-1], lengths) + 1.0
        weights = self.weighting.position_weights(position, np.repeat(lengths, lengths).astype(np.float64))
        step = self.weighting.step_weights(np.arange(1.0, lengths.max(initial=0) + 1.0))
        return Queries(items, offsets, weights, step, self.weighting.cosine)

    def _room(self) -> Room:
        """Working space, one for each thread."""
        if not hasattr(self._local, "room"):
            sample = min(self.weighting.sample, max(len(self.sequences), 1))
            self._local.room = kernels.make_room(self.n_items, sample, min(self.weighting.k, sample))
        room: Room = self._local.room
        return room


def as_sequences(states: States) -> Sequences:
    """The positive items of each state as a list."""
    return Sequences(states.positives[states.positives != PAD], np.append(0, np.cumsum(states.lengths, dtype=np.int64)))


def refuse_other_items(items: IntArray, lowest: int, n_items: int) -> None:
    """Compiled code does not check its indices."""
    if items.size and not (lowest <= items.min() and items.max() < n_items):
        raise ValueError(f"item indices from {items.min()} to {items.max()} in a catalogue of {n_items} items")
