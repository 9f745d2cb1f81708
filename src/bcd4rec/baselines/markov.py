"""Markov: what came after the last items in other sessions."""

from functools import cached_property
from typing import Any, Self

import numpy as np
from pydantic import Field
from scipy.sparse import csr_array

from bcd4rec.baselines.baseline import BASELINES, Baseline
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import HISTORY, PAD, FloatArray, IntArray, States
from bcd4rec.data.transitions import window
from bcd4rec.policies.bundle import KINDS, Arrays
from bcd4rec.policies.ranking import top_scored

BATCH = 256  # sessions that are ranked at once


@KINDS.register("markov")
class Markov:
    """Sparse rows of successors, and the popularity that each row falls back on."""

    def __init__(self, successors: csr_array, fallback: FloatArray, popularity: FloatArray, decay: float):
        self._successors = successors  # (A, A) row j: the chances of what follows item j, as far as they were counted
        self._fallback, self._popularity = fallback, popularity  # (A,) the rest of row j's chances; the share of item i
        self._decay = decay

    @property
    def n_items(self) -> int:
        return len(self._popularity)

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        found, rest = self._followers(states.positives)
        if candidates is None:
            scores = rest[:, None] * self._popularity
            rows = np.repeat(np.arange(len(states)), np.diff(found.indptr))
            scores[rows, found.indices] += found.data
            return scores
        items = np.maximum(candidates, 0)
        rows = np.broadcast_to(np.arange(len(states))[:, None], items.shape)
        counted = np.asarray(found[rows.ravel(), items.ravel()], np.float32).reshape(items.shape)
        scores = rest[:, None] * self._popularity[items] + counted
        return np.where(candidates == PAD, np.float32(-np.inf), scores)

    def top(self, sessions: States | Sequences, k: int) -> tuple[IntArray, FloatArray]:
        """(B, K) the best items and their scores, K = min(k, A), as ranking `scores` gives them but without (B, A).

        An item that follows nothing of the session scores by its popularity alone, and no item scores below that. So
        one that is among the K best is also among the K most popular, and only those and the followers are compared.
        """
        positives = sessions.positives if isinstance(sessions, States) else _last(sessions)
        shape = (len(positives), min(k, self.n_items))
        items, scores = np.empty(shape, np.int32), np.empty(shape, np.float32)
        for start in range(0, len(positives), BATCH):
            states = States(positives[start : start + BATCH], np.empty((0, 0), np.int32))
            compared = self._compared(self._followers(states.positives)[0], shape[1])
            best, scores[start : start + BATCH] = top_scored(self.scores(states, compared), shape[1])
            items[start : start + BATCH] = np.take_along_axis(compared, best, axis=1)
        return items, scores

    def _compared(self, found: csr_array, k: int) -> IntArray:
        """(B, C) the followers and the k most popular items in ascending order, each once, padded with `PAD`."""
        counts = np.diff(found.indptr)
        followers = np.full((len(counts), int(counts.max(initial=0))), self.n_items, np.int32)
        followers[np.arange(followers.shape[1]) < counts[:, None]] = found.indices
        popular = np.broadcast_to(self._most_popular[:k], (len(counts), k))
        compared = np.sort(np.concatenate([followers, popular], axis=1), axis=1)
        again = np.diff(compared, axis=1, prepend=-1) == 0
        return np.where(again | (compared == self.n_items), PAD, compared).astype(np.int32)

    @cached_property
    def _most_popular(self) -> IntArray:
        return np.argsort(-self._popularity, kind="stable").astype(np.int32)

    def _followers(self, positives: IntArray) -> tuple[csr_array, FloatArray]:
        """(B, A) what was counted of each score, as a sparse matrix, and (B,) the weight of popularity in the rest."""
        lengths = (positives != PAD).sum(axis=1)
        age = lengths[:, None] - 1 - np.arange(positives.shape[1])
        kept = positives != PAD
        weights = (self._decay ** age[kept]).astype(np.float32)
        ends = np.append(0, np.cumsum(lengths))
        session = csr_array((weights, positives[kept], ends), (len(positives), self.n_items), dtype=np.float32)
        found = csr_array(session @ self._successors)
        found.sort_indices()
        rest = session @ self._fallback
        return found, np.where(lengths > 0, rest, np.float32(1)).astype(np.float32)

    def settings(self) -> dict[str, Any]:
        return {"decay": self._decay}

    def arrays(self) -> Arrays:
        rows = {"offsets": self._successors.indptr, "items": self._successors.indices, "chances": self._successors.data}
        return rows | {"fallback": self._fallback, "popularity": self._popularity}

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: Arrays) -> Self:
        size = len(arrays["popularity"])
        rows = csr_array((arrays["chances"], arrays["items"], arrays["offsets"]), (size, size))
        return cls(rows, arrays["fallback"], arrays["popularity"], settings["decay"])


@BASELINES.register("markov")
class MarkovConfig(Baseline):
    """Item to item: people who liked this next liked that (Linden et al. 2003; sequential rules of Ludewig & Jannach,
    UMUAI 2018).

    score(i) = Σ_j decay^age(j) · P(i | j) over the session's items j, the last one of age 0, with

        P(i | j) = (N_ji + β · π_i) / (N_j + β)

    N_ji sums 1 / distance over all places in the training sessions where i follows j within `window` places, N_j is
    its sum over all i, and π_i the share of item i in all positive responses; π_i alone for a session without likes.
    Of each N_j· the `successors` largest are kept.
    """

    window: int = Field(10, ge=1, description="How many places behind an item its successors may stand.")
    decay: float = Field(0.7, ge=0, le=1, description="Weight of an item of the session relative to the one after it.")
    prior: float = Field(1.0, gt=0, description="β: how much popularity counts beside what was counted.")
    successors: int = Field(200, ge=1, description="How many successors of an item are kept.")

    def fit(self, dataset: Dataset, seed: int) -> Markov:
        sequences, n_items = dataset.sequences("train"), dataset.n_items
        counts = following(sequences, n_items, self.window)
        total = counts.sum(axis=1)
        kept = _largest(counts, self.successors)
        kept.data /= np.repeat(total + self.prior, np.diff(kept.indptr))
        popularity = np.bincount(sequences.items, minlength=n_items) / max(len(sequences.items), 1)
        fallback = self.prior / (total + self.prior)
        return Markov(kept.astype(np.float32), fallback.astype(np.float32), popularity.astype(np.float32), self.decay)


def following(sequences: Sequences, n_items: int, reach: int) -> csr_array:
    """(A, A) N_ji: how often item i followed item j, a distance of d places counting 1/d."""
    session = np.repeat(np.arange(len(sequences)), sequences.lengths)
    counts = csr_array((n_items, n_items), dtype=np.float64)
    for distance in range(1, min(reach, int(sequences.lengths.max(initial=1)) - 1) + 1):
        same = session[distance:] == session[:-distance]
        pairs = sequences.items[:-distance][same], sequences.items[distance:][same]
        counts = counts + csr_array((np.full(len(pairs[0]), 1.0 / distance), pairs), counts.shape)
    return csr_array(counts)


def _largest(counts: csr_array, most: int) -> csr_array:
    """The `most` largest entries of each row; ties to the lower column."""
    row = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    order = np.lexsort((counts.indices, -counts.data, row))
    place = np.arange(len(order)) - counts.indptr[row]  # rows keep their stretch
    kept = order[place < most]
    result = csr_array((counts.data[kept], (row[kept], counts.indices[kept])), counts.shape)
    result.sort_indices()
    return result


def _last(sequences: Sequences) -> IntArray:
    """(n, L) the items of each session that a state would hold."""
    return window(sequences.items, sequences.offsets[1:], sequences.offsets[:-1], HISTORY)
