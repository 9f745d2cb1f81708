"""CTR: everybody is shown what is answered best when it is shown."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bcd4rec.baselines.baseline import BASELINES, Baseline
from bcd4rec.baselines.popular import Popularity
from bcd4rec.data.dataset import Dataset, Transitions
from bcd4rec.data.states import Doubles, IntArray, Mask

Counts = NDArray[Any]


@BASELINES.register("ctr")
class CTRConfig(Baseline):
    """Smoothed response rates: what an item is worth when it is shown, whatever the session.

    score(i) = Σ_r reward_r · rate_r(i) over the positive responses r, with

        rate_r(i) = (n_ir + m · rate_r(c)) / (n_i + m),   rate_r(c) = (n_cr + m_c · n_r / n) / (n_c + m_c)

    of n_i impressions of item i, n_c of its category c and n in all, n_ir, n_cr and n_r of them answered by r
    (empirical Bayes with a beta prior). An item that was never shown has the rate of its category, and one without a
    category is drawn to the rate of all items. With `position`, an impression at place p counts as rate(p) / mean
    rate: clicks over expected clicks (Zhang & Jones, WWW 2007), so that an item shown at the bottom is not punished
    for it. What is shown at the top because it is better gains too little by that.

    Where a log holds positive responses alone, all rates are 1 and say nothing: then score(i) is i's share of them.
    """

    item_prior: float = Field(20.0, gt=0, description="m: impressions by which an item is drawn to its category.")
    category_prior: float = Field(50.0, gt=0, description="m_c: the same of a category, drawn to all items.")
    position: bool = Field(True, description="Count impressions by how often others at their place were answered.")

    def fit(self, dataset: Dataset, seed: int) -> Popularity:
        shown, responses = dataset.transitions("train"), dataset.responses
        codes = [responses.code(name) for name in responses.positive]
        positive = np.isin(shown.response, codes)
        if positive.all():
            return Popularity((np.bincount(shown.action, minlength=dataset.n_items) / len(shown)).astype(np.float32))
        places = shown.position
        weights = expected(places, positive, self.category_prior) if self.position and places is not None else None
        scores = np.zeros(dataset.n_items)
        for code, name in zip(codes, responses.positive, strict=True):
            scores += responses.rewards[name] * self._rates(shown, shown.response == code, weights, dataset.categories)
        return Popularity(scores.astype(np.float32))

    def _rates(self, shown: Transitions, answered: Mask, weights: Doubles | None, categories: IntArray) -> Doubles:
        """(A,) the smoothed rate of each item."""
        n_items, groups = len(categories), int(categories.max(initial=-1)) + 1
        impressions = np.bincount(shown.action, weights, n_items)
        responses = np.bincount(shown.action[answered], minlength=n_items)
        known = categories >= 0
        hits, trials = (np.bincount(categories[known], counts[known], groups) for counts in (responses, impressions))
        prior = np.full(n_items, responses.sum() / impressions.sum())
        prior[known] = shrunk(hits, trials, prior[0], self.category_prior)[categories[known]]
        return shrunk(responses, impressions, prior, self.item_prior)


def shrunk(hits: Counts, trials: Counts, prior: Doubles | float, weight: float) -> Doubles:
    """The rate of hits, drawn to a prior rate as by `weight` trials more."""
    return np.asarray((hits + weight * prior) / (trials + weight))


def expected(places: IntArray, positive: Mask, prior: float) -> Doubles:
    """(n,) how many impressions each one counts for, by the positive responses expected at its place; 1 on average.

    Impressions without a known place are a place of their own.
    """
    impressions = np.bincount(places + 1)
    rates = shrunk(np.bincount(places[positive] + 1, minlength=len(impressions)), impressions, positive.mean(), prior)
    mean = (impressions * rates).sum() / len(places)
    weights: Doubles = (rates / mean)[places + 1] if mean else np.ones(len(places))
    return weights
