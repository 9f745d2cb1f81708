"""MostPop: everybody is shown what most others liked."""

from typing import Any, ClassVar, Self

import numpy as np

from bcd4rec.baselines.baseline import BASELINES, Baseline
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.policies.scorer import Arrays, register


@register
class Popularity:
    """One score for each item, whatever the session."""

    kind: ClassVar[str] = "popular"

    def __init__(self, counts: FloatArray):
        self._counts = np.asarray(counts, np.float32)  # (A,)

    @property
    def n_items(self) -> int:
        return len(self._counts)

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        if candidates is None:
            return np.tile(self._counts, (len(states), 1))
        return np.where(candidates == PAD, np.float32(-np.inf), self._counts[np.maximum(candidates, 0)])

    def top(self, sessions: States | Sequences, k: int) -> tuple[IntArray, FloatArray]:
        """(B, K) the same K = min(k, A) items for everybody, and their scores; ties to the lower index."""
        best = np.argsort(-self._counts, kind="stable")[:k].astype(np.int32)
        return np.tile(best, (len(sessions), 1)), np.tile(self._counts[best], (len(sessions), 1))

    def settings(self) -> dict[str, Any]:
        return {}

    def arrays(self) -> Arrays:
        return {"counts": self._counts}

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: Arrays) -> Self:
        return cls(arrays["counts"])


@BASELINES.register("popular")
class PopularConfig(Baseline):
    """MostPop: the floor every method has to clear.

    score(i) = how many positive responses item i had in the training sessions.
    """

    def fit(self, dataset: Dataset, seed: int) -> Popularity:
        items = dataset.sequences("train").items
        return Popularity(np.bincount(items, minlength=dataset.n_items).astype(np.float32))
