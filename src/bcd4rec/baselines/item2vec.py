"""Item2vec: items are alike that stand in the same sessions."""

from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field

from bcd4rec.baselines.baseline import BASELINES, Baseline
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.policies.scorer import Arrays, register
from bcd4rec.seeding import generator


@register
class Item2Vec:
    """score(i) = Σ cos(v_i, v_j) · decay^age over the items j of the session, the last one of age 0."""

    kind: ClassVar[str] = "item2vec"

    def __init__(self, vectors: FloatArray, decay: float):
        self._vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        self._raw, self._decay = vectors, decay

    @property
    def n_items(self) -> int:
        return len(self._vectors)

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        session = self._encode(states)
        if candidates is None:
            return np.asarray(session @ self._vectors.T, np.float32)
        values = np.einsum("bcd,bd->bc", self._vectors[np.maximum(candidates, 0)], session)
        return np.where(candidates == PAD, -np.inf, values).astype(np.float32)

    def _encode(self, states: States) -> FloatArray:
        """(B, D)"""
        known = states.positives != PAD
        age = states.lengths[:, None] - 1 - np.arange(states.positives.shape[1])
        weights = np.where(known, self._decay ** np.maximum(age, 0).astype(np.float32), 0).astype(np.float32)
        session: FloatArray = np.einsum("bl,bld->bd", weights, self._vectors[np.maximum(states.positives, 0)])
        return session

    def settings(self) -> dict[str, Any]:
        return {"decay": self._decay}

    def arrays(self) -> Arrays:
        return {"vectors": self._raw}

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: Arrays) -> Self:
        return cls(arrays["vectors"], settings["decay"])


@BASELINES.register("item2vec")
class Item2VecConfig(Baseline):
    """Item2vec (Barkan & Koenigstein, 2016): skip-gram with negative sampling over the items of sessions.

    Items are scored by the cosine to the session's items, the later ones counting more.
    """

    width: int = Field(100, ge=1, description="D: entries of an item's embedding.")
    epochs: int = Field(5, ge=1, description="Passes over the pairs of items.")
    window: int = Field(5, ge=1, description="How many places apart two items of a pair may be.")
    negatives: int = Field(5, ge=1, description="Random items to each pair.")
    batch_size: int = Field(4096, ge=1, description="Pairs of a step; fewer sessions want smaller steps.")
    decay: float = Field(0.7, ge=0, le=1, description="Weight of an item relative to the one after it.")

    def fit(self, dataset: Dataset, seed: int) -> Item2Vec:
        from bcd4rec.models.pretraining import item2vec  # learning needs torch, recommending does not

        rng = generator(seed, "item2vec")
        vectors = item2vec(
            dataset.sequences("train"),
            dataset.n_items,
            self.width,
            rng,
            epochs=self.epochs,
            window=self.window,
            negatives=self.negatives,
            batch_size=self.batch_size,
        )
        return Item2Vec(vectors, self.decay)
