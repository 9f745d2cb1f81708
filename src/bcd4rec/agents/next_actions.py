"""The best allowed next actions of states over evidence: exact, or in large catalogues among candidates."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bcd4rec.data.states import PAD, FloatArray, IntArray, Mask, States
from bcd4rec.models import large
from bcd4rec.models.evidence import Evidence, summary
from bcd4rec.models.evidence_search import EvidenceSearch
from bcd4rec.models.response_regression import ResponseWeights
from bcd4rec.policies.evidence_policy import BehaviourWeights

AT_ONCE = 512  # states whose whole catalogue is scored at once …
PAIRS_AT_ONCE = 2**24  # … or fewer where it is large: a state and an item need some 40 bytes
POOLED_AT_ONCE = 128  # states whose candidates are
PAIRS = 2_000_000_000  # state and item pairs that may be scored to find next actions; more states are sampled
POOL = 8  # times as many candidates as next actions that are good whatever the session
MEASURED = 64  # states that recall is measured on


def states_at_once(n_items: int) -> int:
    """How many states are scored at once."""
    return max(1, min(AT_ONCE, PAIRS_AT_ONCE // n_items))


def most_states(n_items: int) -> int:
    """How many states next actions are found for; candidates cost no more than `LARGE` items do."""
    return max(AT_ONCE, PAIRS // min(n_items, large.LARGE))


@dataclass(frozen=True)
class NextActions:
    """What is asked for: the best `width` items by the response model that behaviour and rule allow."""

    weights: ResponseWeights
    behaviour: BehaviourWeights | None
    width: int
    again: bool  # whether items that were liked can be shown again

    def exact(self, evidence: Evidence, states: States) -> tuple[IntArray, FloatArray]:
        """(B, C) the best allowed items by the response model, `PAD` where there are fewer, and the share allowed."""
        sums = evidence.sums(states, self._rows)
        possible = np.ones(sums.shape[1:], np.bool_)
        if not self.again:
            liked, places = np.nonzero(states.positives != PAD)
            possible[liked, states.positives[liked, places]] = False
        best, possible = self._best(sums, states, possible)
        exists = np.take_along_axis(possible, best, axis=1)
        return np.where(exists, best, np.int32(PAD)), possible.mean(axis=1, dtype=np.float32)

    def searches(self, evidence: Evidence) -> list[EvidenceSearch]:
        """Of the items that the response model likes, and of those that the behaviour model finds likely."""
        weights, behaviour = self.weights, self.behaviour

        def rewards(sums: FloatArray, sessions: FloatArray) -> FloatArray:
            return weights.rewards(sums + (weights.session @ sessions.T)[:, :, None])

        def likely(sums: FloatArray, sessions: FloatArray) -> FloatArray:
            return np.ascontiguousarray(sums[0])

        found = [EvidenceSearch(evidence, weights.evidence, evidence.own_sums(weights.evidence), rewards)]
        if behaviour is not None:
            rows = behaviour.evidence[None]
            found.append(EvidenceSearch(evidence, rows, evidence.own_sums(rows), likely))
        return found

    def among(self, evidence: Evidence, searches: list[EvidenceSearch], states: States) -> IntArray:
        """As `exact`, among the candidates that `searches` find: they cost the same however large the catalogue."""
        pool = _union([one.pools(states, POOL * self.width) for one in searches])
        sums = np.moveaxis(evidence.rows(states, pool) @ self._rows.T, -1, 0)
        possible = pool != PAD
        if not self.again:
            for liked in states.positives.T:
                possible &= pool != liked[:, None]
        best, possible = self._best(np.ascontiguousarray(sums), states, possible)
        exists = np.take_along_axis(possible, best, axis=1)
        items = np.full((len(states), self.width), PAD, np.int32)
        items[:, : best.shape[1]] = np.where(exists, np.take_along_axis(pool, best, axis=1), np.int32(PAD))
        return items

    @property
    def _rows(self) -> FloatArray:
        behaviour, rows = self.behaviour, self.weights.evidence
        return rows if behaviour is None else np.concatenate([rows, behaviour.evidence[None]])

    def _best(self, sums: FloatArray, states: States, possible: Mask) -> tuple[IntArray, Mask]:
        """(B, C′) the columns of the best of what is `possible` (B, C) and allowed, and (B, C) what is both."""
        weights = self.weights
        own = (weights.session @ summary(states).T)[:, :, None]
        scores = weights.rewards(sums[: len(weights.gains)] + own)
        if self.behaviour is not None:  # the likeliest of what can be shown is always allowed
            possible &= self.behaviour.allowed(np.where(possible, sums[-1], -np.inf))
        scores[~possible] = -np.inf
        width = min(self.width, scores.shape[1])
        return np.argpartition(-scores, width - 1, axis=1)[:, :width].astype(np.int32), possible


class SearchRecall:
    """What candidates miss: on a sample of states, which of the exact next actions are among those found."""

    def __init__(self) -> None:
        self._kept: list[FloatArray] = []
        self._shares: list[FloatArray] = []

    def compare(self, asked: NextActions, evidence: Evidence, states: States) -> None:
        """State by state, because the scores of a large catalogue are large."""
        found = asked.among(evidence, asked.searches(evidence), states)
        for row in range(len(states)):
            expected, share = asked.exact(evidence, states[row : row + 1])
            inside = expected[0] != PAD
            self._kept.append(np.array([np.isin(expected[0][inside], found[row]).mean() if inside.any() else 1.0]))
            self._shares.append(share)

    @property
    def allowed(self) -> float:
        """The mean share of the catalogue that is allowed."""
        return float(np.mean(self._shares)) if self._shares else 1.0

    def told(self, states: int) -> dict[str, Any]:
        """For reports and bundles."""
        recall = float(np.mean(self._kept)) if self._kept else 1.0
        return {"states": states, "recall": round(recall, 4), "measured_on": len(self._kept)}


def _union(pools: list[IntArray]) -> IntArray:
    """(B, C) the items of all pools, each once, ascending behind the padding."""
    if len(pools) == 1:
        return pools[0]
    found = np.sort(np.concatenate(pools, axis=1), axis=1)
    found[:, 1:][found[:, 1:] == found[:, :-1]] = PAD
    found.sort(axis=1)
    most = int((found != PAD).sum(axis=1).max(initial=1))
    return np.ascontiguousarray(found[:, found.shape[1] - most :])
