"""Nearest neighbours among whole sessions: what SKNN, VSKNN and STAN share."""

import threading
from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field

from bcd4rec.baselines import knn_kernels as kernels
from bcd4rec.baselines.baseline import BASELINES, Baseline
from bcd4rec.baselines.knn_kernels import Doubles, Index, Queries, Room, Weights
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.policies.bundle import KINDS, Arrays


class NeighbourConfig(Baseline):
    """What the methods share: sessions that liked the same items vote for what else they liked.

    Candidates are the most recent `sample` sessions that share any item with the session so far; neighbours are
    the k most similar of them, among equals the more recent. Items of the session so far may be recommended.
    """

    method: ClassVar[str]
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

    def fit(self, dataset: Dataset, seed: int) -> "SessionKNN":
        return SessionKNN(self, dataset.sequences("train"), dataset.n_items)


def plain_tables(sequences: Sequences, index: Index) -> Weights:
    """Cosine between sets, and nothing else."""
    sessions, n_items = len(sequences), len(index.item_offsets) - 1
    longest = int(sequences.lengths.max(initial=0))
    norm = np.sqrt(np.diff(index.session_offsets).astype(np.float64))
    return Weights(norm, np.ones(sessions), np.ones(n_items), np.ones(max(longest, 1)))


@KINDS.register("session_knn")
class SessionKNN:
    """The policy: training sessions in an inverted index, compared with the session at hand."""

    def __init__(self, config: NeighbourConfig, sequences: Sequences, n_items: int):
        _check(sequences.items, 0, n_items)
        self.config = config
        self._sequences = Sequences(sequences.items.astype(np.int32), sequences.offsets.astype(np.int64))
        self._n_items = n_items
        self._index = kernels.build_index(self._sequences.items, self._sequences.offsets, n_items)
        self._tables = config.tables(self._sequences, self._index)
        self._local = threading.local()

    @property
    def n_items(self) -> int:
        return self._n_items

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        queries = self._queries(as_sequences(states))
        if candidates is None:
            out = np.zeros((len(states), self._n_items), np.float32)
            kernels.score_all(queries, self._index, self._tables, self._room(), out)
        else:
            _check(candidates, PAD, self._n_items)
            wanted, out = np.require(candidates, np.int32, ["C", "W"]), np.empty(candidates.shape, np.float32)
            kernels.score_candidates(queries, self._index, self._tables, self._room(), wanted, out)
        return out

    def top(self, sessions: States | Sequences, k: int) -> tuple[IntArray, FloatArray]:
        """(B, K) the best items and their scores, K = min(k, A), as ranking `scores` gives them but without (B, A)."""
        sequences = as_sequences(sessions) if isinstance(sessions, States) else sessions
        shape = (len(sequences), min(k, self._n_items))
        items, scores = np.empty(shape, np.int32), np.empty(shape, np.float32)
        kernels.rank_all(self._queries(sequences), self._index, self._tables, self._room(), items, scores)
        return items, scores

    def _queries(self, sequences: Sequences) -> Queries:
        _check(sequences.items, 0, self._n_items)
        items, offsets = (
            np.require(sequences.items, np.int32, ["C", "W"]),
            np.require(sequences.offsets, np.int64, ["C", "W"]),
        )
        lengths = sequences.lengths
        position = np.arange(len(items)) - np.repeat(offsets[:-1], lengths) + 1.0
        weights = self.config.position_weights(position, np.repeat(lengths, lengths).astype(np.float64))
        step = self.config.step_weights(np.arange(1.0, lengths.max(initial=0) + 1.0))
        return Queries(items, offsets, weights, step, self.config.cosine)

    def _room(self) -> Room:
        """Working space, one for each thread."""
        if not hasattr(self._local, "room"):
            sample = min(self.config.sample, max(len(self._sequences), 1))
            self._local.room = kernels.make_room(self._n_items, sample, min(self.config.k, sample))
        room: Room = self._local.room
        return room

    def settings(self) -> dict[str, Any]:
        return {"method": self.config.method, "config": self.config.model_dump(), "n_items": self._n_items}

    def arrays(self) -> Arrays:
        return {"items": self._sequences.items, "offsets": self._sequences.offsets}

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: Arrays) -> Self:
        name = settings["method"]
        if name not in BASELINES or not issubclass(method := BASELINES[name], NeighbourConfig):
            raise ValueError(f"{name!r} is no method of nearest neighbours")
        config = method.parse(settings["config"], "bundle")
        return cls(config, Sequences(arrays["items"], arrays["offsets"]), settings["n_items"])


def as_sequences(states: States) -> Sequences:
    """The positive items of each state as a list."""
    return Sequences(states.positives[states.positives != PAD], np.append(0, np.cumsum(states.lengths, dtype=np.int64)))


def _check(items: IntArray, lowest: int, n_items: int) -> None:
    """Compiled code does not check its indices."""
    if items.size and not (lowest <= items.min() and items.max() < n_items):
        raise ValueError(f"item indices from {items.min()} to {items.max()} in a catalogue of {n_items} items")
