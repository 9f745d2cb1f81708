"""CategoryPop: the popular items of the categories that the session has liked."""

from typing import Any, ClassVar, Self

import numpy as np

from bcd4rec.baselines.baseline import BASELINES, Baseline
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.policies.scorer import Arrays, register


@register
class CategoryPopularity:
    """Items of liked categories score above 0, and all others below it."""

    kind: ClassVar[str] = "category_popular"

    def __init__(self, categories: IntArray, counts: FloatArray):
        self._categories, self._counts = categories, counts  # (A,) −1 for an item without category; positive responses
        best = np.zeros(int(categories.max(initial=-1)) + 2, np.float32)  # (C + 1,) the last for items without any
        np.maximum.at(best, categories, counts)
        mean = np.float32(max(counts.mean(dtype=np.float64), 1e-9)) if len(counts) else np.float32(1)
        self._inside: FloatArray = (counts + mean) / (best[categories] + mean)
        self._outside: FloatArray = np.float32(-1) / (1 + counts)

    @property
    def n_items(self) -> int:
        return len(self._categories)

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        shares = self._shares(states)
        if candidates is None:
            liked = shares[:, self._categories]
            return np.where(liked > 0, liked * self._inside, self._outside)
        items = np.maximum(candidates, 0)
        liked = np.take_along_axis(shares, self._categories[items], axis=1)
        scores = np.where(liked > 0, liked * self._inside[items], self._outside[items])
        return np.where(candidates == PAD, np.float32(-np.inf), scores)

    def _shares(self, states: States) -> FloatArray:
        """(B, C + 1) the share of each category in what was liked; the last, for items without category, is 0."""
        liked = np.where(states.positives == PAD, -1, self._categories[states.positives])
        rows, places = np.nonzero(liked >= 0)
        shares = np.zeros((len(states), int(self._categories.max(initial=-1)) + 2), np.float32)
        np.add.at(shares, (rows, liked[rows, places]), np.float32(1))
        result: FloatArray = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1)
        return result

    def settings(self) -> dict[str, Any]:
        return {}

    def arrays(self) -> Arrays:
        return {"categories": self._categories, "counts": self._counts}

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: Arrays) -> Self:
        return cls(arrays["categories"], arrays["counts"])


@BASELINES.register("category_popular")
class CategoryPopularConfig(Baseline):
    """MostPop within what the session is about: what a shop shows that knows its shelves and nothing else.

    score(i) = share(c_i) · (n_i + n̄) / (max_{j ∈ c_i} n_j + n̄) for items of liked categories, with share(c) the part
    of the session's likes in category c, n_i the positive responses to item i in the training sessions and n̄ their
    mean over the items: the best item of each category counts alike, and an item that nobody has liked yet still comes
    before those of other categories. These come by MostPop, score(i) = −1 / (1 + n_i), and so do all items for a
    session without likes or a catalogue without categories.

    Popularity and not the rate per impression: a log has few impressions of each item, so that rates within a category
    are mostly noise (on the shop they bring a lower return), and what was found without being recommended has none.
    """

    def fit(self, dataset: Dataset, seed: int) -> CategoryPopularity:
        counts = np.bincount(dataset.sequences("train").items, minlength=dataset.n_items)
        return CategoryPopularity(dataset.categories, counts.astype(np.float32))
