"""What the category and the features of an item let expect of it before anybody has seen it.

Responses n of an item where e were expected are taken for Poisson with a lift that is Gamma-distributed around

    prior = category's lift · lifts of its categorical features · exp(β · axes of its other features),

one factor after the other, each fitted to what those before it leave. Items fall into folds, and the factors of an item
come from the items of the other folds: what is foreseen of an item has never seen its own responses, and is as good for
known items as for new ones. How strongly each factor is drawn to 1 is what foresees the left-out items best; features
that do not help by more than luck would have it are not used.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from bcd4rec.data.content import Content
from bcd4rec.data.knowledge import Counted, likelihoods, once_a_session, refuse_other_shape, strength
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import Doubles, FloatArray, IntArray, Mask, Rows

ITEM_FOLDS = 5
MOST_ITEMS = 50_000  # of those that were seen, the ones that responses were most expected of
GROUPS = (*np.geomspace(0.3, 300.0, 7), np.inf)  # strengths of a value's lift, in expected responses; ∞ is no lift
PENALTIES = (*np.geomspace(0.1, 1e5, 13), 1e12)  # of squared weights of axes, in expected responses; 1e12 is no weight
PASSES = 4
SCALINGS = 8  # steps for each strength of the lifts of tags
LARGEST = 3.0  # of a logarithm


@dataclass(frozen=True)
class Foreseen:
    """Logarithms of lifts, (A,) each, and which items are new: neither shown nor liked in what was counted."""

    new: Mask
    positive: FloatArray
    target: FloatArray
    popularity: FloatArray

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {f"foreseen.{field.name}": getattr(self, field.name) for field in fields(self)}

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]], n_items: int) -> Self:
        found = cls(*(arrays[f"foreseen.{field.name}"] for field in fields(cls)))
        for field in fields(cls):
            dtype: type[np.generic] = np.bool_ if field.name == "new" else np.float32
            refuse_other_shape(f"foreseen.{field.name}", getattr(found, field.name), (n_items,), dtype)
        return found


def foresee(rows: Counted, likes: Sequences, categories: IntArray, content: Content) -> Foreseen:
    """From what Knowledge is counted from."""
    n_items = len(categories)
    weight = once_a_session(rows, n_items)

    def per_item(values: Any) -> Doubles:
        return np.bincount(rows.item, values * weight, n_items).astype(np.float64)

    liked = np.bincount(likes.items, minlength=n_items).astype(np.float64)
    seen = np.bincount(rows.item, minlength=n_items) > 0
    there = seen | (liked > 0)
    usual = np.where(there, liked.sum() / max(there.sum(), 1), 0.0)
    pairs = (
        (per_item(rows.positive), per_item(rows.expected_positive)),
        (per_item(rows.target), per_item(rows.expected_target)),
        (liked, usual),
    )
    found: list[FloatArray] = []
    for number, (n, e) in enumerate(pairs):
        if number == 1 and all(np.array_equal(one, other) for one, other in zip(pairs[0], pairs[1], strict=True)):
            found.append(found[0])  # clicks are all there is
        else:
            found.append(foreseen_lifts(n, e, categories, content))
    return Foreseen(~there, *found)


def foreseen_lifts(n: Doubles, e: Doubles, categories: IntArray, content: Content) -> FloatArray:
    """(A,) log priors of n responses where e were expected."""
    prior = np.zeros(len(n))
    order = np.argsort(-e, kind="stable")
    chosen = np.sort(order[: min(np.count_nonzero(e > 0), MOST_ITEMS)])
    if not len(chosen) or n[chosen].sum() == 0:
        return prior.astype(np.float32)
    fold = np.full(len(n), -1)
    fold[chosen] = np.random.default_rng(0).permutation(len(chosen)) % ITEM_FOLDS
    counts = _Counts(n, e, chosen, fold)
    prior += counts.grouped(prior, categories)
    for codes in content.coded:
        factor = counts.grouped(prior, codes[0]) if len(codes) == 1 else counts.added(prior, codes)
        if counts.better(prior[chosen], factor[chosen], counts.strength(prior)):
            prior += factor
    if content.axes.shape[1]:
        prior += _Ridge(counts, prior, content).lifts()
    return np.clip(prior, -LARGEST, LARGEST).astype(np.float32)


@dataclass(frozen=True)
class _Counts:
    n: Doubles  # (A,)
    e: Doubles
    chosen: Rows  # items that are learned from
    fold: NDArray[np.int64]  # (A,) −1 for items that are not learned from

    def likelihoods(self, log_prior: Doubles, m: float) -> Doubles:
        """Of the chosen items, whose log priors these are."""
        return likelihoods(self.n[self.chosen], self.e[self.chosen], np.exp(log_prior), m)

    def better(self, log_prior: Doubles, factor: Doubles, m: float) -> bool:
        """Whether a factor foresees the chosen items better, by more than a standard error."""
        gain = self.likelihoods(log_prior + factor, m) - self.likelihoods(log_prior, m)
        return bool(gain.sum() > np.sqrt(len(gain)) * gain.std())

    def strength(self, log_prior: Doubles) -> float:
        return strength(self.n[self.chosen], self.e[self.chosen], np.exp(log_prior[self.chosen]))

    def grouped(self, prior: Doubles, codes: IntArray) -> Doubles:
        """(A,) log lifts of the values that items have, each from the items of other folds."""
        values = int(codes.max(initial=-1)) + 1
        mine = self.chosen[codes[self.chosen] >= 0]
        found = np.zeros(len(prior))
        if not len(mine) or not values:
            return found
        places = self.fold[mine] * values + codes[mine]
        mean = self.e * np.exp(prior)
        n, e = (
            np.bincount(places, one[mine], ITEM_FOLDS * values).reshape(ITEM_FOLDS, values) for one in (self.n, mean)
        )
        # The last row is for items that were not learned from, of which nothing is left out.
        n, e = (np.vstack([one.sum(axis=0) - one, one.sum(axis=0)]) for one in (n, e))
        coded, m = np.flatnonzero(codes >= 0), self.strength(prior)
        tried = []
        for drawn in GROUPS:
            lifts = np.zeros_like(n) if np.isinf(drawn) else np.log((np.maximum(n, 0) + drawn) / (e + drawn))
            found = np.zeros(len(prior))
            found[coded] = lifts[self.fold[coded], codes[coded]]
            tried.append((self.likelihoods((prior + found)[self.chosen], m).sum(), found))
        return max(tried, key=lambda one: float(one[0]))[1]

    def added(self, prior: Doubles, codes: IntArray) -> Doubles:
        """(A,) the same of items with several values (k, A), whose log lifts add up."""
        values = int(codes.max(initial=-1)) + 1
        row, item = np.nonzero(codes >= 0)
        places = (np.ones(len(item)), (item, codes[row, item]))
        has = sparse.csr_matrix(places, (len(prior), values))
        chosen, fold, m = self.chosen, self.fold[self.chosen], self.strength(prior)
        mean = self.e[chosen] * np.exp(prior[chosen])
        # Each fold is foreseen by the others; the last column is for items that were not learned from.
        learned = np.column_stack([fold != number for number in range(ITEM_FOLDS)] + [np.ones(len(chosen))])
        best, lifts = self.likelihoods(prior[chosen], m).sum(), np.zeros((values, ITEM_FOLDS + 1))
        mine = has[chosen]
        for found in additive_lifts(mine, self.n[chosen], mean, learned.astype(np.float64), GROUPS[-2::-1]):
            told = (mine @ found)[np.arange(len(chosen)), fold]
            likely = self.likelihoods(prior[chosen] + told, m).sum()
            if likely > best:
                best, lifts = likely, found
        everything: Doubles = (has @ lifts)[np.arange(len(prior)), self.fold]
        return everything


def additive_lifts(
    has: sparse.csr_matrix, n: Doubles, mean: Doubles, learned: Doubles, strengths: Sequence[float]
) -> Iterator[Doubles]:
    """(V, F) log lifts θ of V values for each strength, from n ~ Poisson(mean · exp(Σ θ of an item's values)).

    `has` is (items, V); `learned` (items, F) says what each of F fits learns from. A value's lift is drawn to 1 as in
    `grouped`: it maximises the likelihood with a Gamma prior. All values move at once, each by a k-th of the way, where
    k is the most that an item has, so that no step makes it worse (generalised iterative scaling); strong priors come
    first, and weaker ones go on from there.
    """
    steps = 1.0 / max(float(has.sum(axis=1).max()), 1.0)
    counted, lifts = has.T @ (learned * n[:, None]), np.zeros((has.shape[1], learned.shape[1]))
    for drawn in strengths:
        for _ in range(SCALINGS):
            expected = has.T @ (learned * (mean[:, None] * np.exp(has @ lifts)))
            lifts = lifts + steps * np.log((counted + drawn) / (expected + drawn * np.exp(lifts)))
        yield lifts


class _Ridge:
    """log lift = β · axes, by iterated least squares; each block of axes has a penalty of its own."""

    def __init__(self, counts: _Counts, prior: Doubles, content: Content):
        self._counts, self._prior, self._content = counts, prior, content
        rows = counts.chosen
        self._axes = np.hstack([np.ones((len(rows), 1), np.float32), content.axes[rows]])
        self._n, self._mean = counts.n[rows], counts.e[rows] * np.exp(prior[rows])
        self._e, self._fold = counts.e[rows], counts.fold[rows]
        self._m = counts.strength(prior)

    def lifts(self) -> Doubles:
        """(A,): of items that were learned from by the other folds, of others by all."""
        blocks = len(self._content.blocks) - 1
        lifts, penalties, whole = np.zeros(len(self._n)), [PENALTIES[-1]] * blocks, np.zeros(self._axes.shape[1])
        for number in range(PASSES):
            self._linearise(lifts)
            if number == 0:
                penalties = self._best([[one] * blocks for one in PENALTIES])
            elif number == 1:
                for block in range(blocks if blocks > 1 else 0):
                    tried = [[*penalties[:block], one, *penalties[block + 1 :]] for one in PENALTIES]
                    penalties = self._best(tried)
            whole = self._solve(self._products.sum(axis=0), self._answers.sum(axis=0), penalties)
            lifts = self._lifts(self._axes, whole)
        held_out = self._held_out(penalties)
        found: Doubles = np.zeros(len(self._prior))
        rows = self._counts.chosen
        if not self._counts.better(self._prior[rows], held_out, self._m):
            return found
        low, high = lifts.min(), lifts.max()  # nothing is foreseen to be better than the best that is known
        found[:] = np.clip(self._content.axes @ whole[1:].astype(np.float32) + whole[0], low, high)
        found[rows] = held_out
        return found

    def _linearise(self, lifts: Doubles) -> None:
        """Normal equations of each fold, around `lifts`: the variance of n is mean · (1 + e / m)."""
        mean = self._mean * np.exp(lifts)
        weight = mean / (1.0 + self._e / self._m)
        answer = weight * lifts + (self._n - mean) / (1.0 + self._e / self._m)
        products, answers = [], []
        for rows in self._folds():
            part = self._axes[rows]
            products.append((part * weight[rows, None].astype(np.float32)).T @ part)
            answers.append(part.T @ answer[rows].astype(np.float32))
        self._products, self._answers = np.array(products, np.float64), np.array(answers, np.float64)

    def _folds(self) -> Iterator[Rows]:
        for number in range(ITEM_FOLDS):
            yield np.flatnonzero(self._fold == number)

    def _solve(self, product: Doubles, answer: Doubles, penalties: list[float]) -> Doubles:
        sizes = np.diff(self._content.blocks)
        penalty = np.append(1e-3, np.repeat(penalties, sizes))
        return np.asarray(np.linalg.solve(product + np.diag(penalty), answer), np.float64)

    def _held_out(self, penalties: list[float]) -> Doubles:
        """(n,) lifts of the items of each fold, by the others."""
        lifts = np.zeros(len(self._n))
        product, answer = self._products.sum(axis=0), self._answers.sum(axis=0)
        for number, rows in enumerate(self._folds()):
            weights = self._solve(product - self._products[number], answer - self._answers[number], penalties)
            lifts[rows] = self._lifts(self._axes[rows], weights)
        return lifts

    @staticmethod
    def _lifts(axes: FloatArray, weights: Doubles) -> Doubles:
        found: Doubles = np.clip(axes @ weights, -LARGEST, LARGEST).astype(np.float64)
        return found

    def _best(self, tried: list[list[float]]) -> list[float]:
        """The penalties with which the left-out items are foreseen best."""
        prior = self._prior[self._counts.chosen]
        return max(tried, key=lambda one: self._counts.likelihoods(prior + self._held_out(one), self._m).sum())
