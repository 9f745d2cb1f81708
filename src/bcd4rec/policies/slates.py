"""From scores to slates: the only place that makes them, and that tells how likely any given one was.

A slate is filled place by place among the items that are still available: the best by score, unless the rule explores;
and after every place items like the one just placed lose by the rule's diversity. Propensities are conditional: the
probability of an item in its place, given the items above it, so that their product is the probability of the slate.
"""

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bcd4rec.config import Config
from bcd4rec.data.states import PAD, FloatArray, IntArray
from bcd4rec.errors import InputError
from bcd4rec.policies.ranking import Doubles, Scores, exclude, top, without_nan

POOL = 8  # times as many items as places are looked at for a diverse slate, unless that does not suffice
TRIES = 8  # random items are drawn blindly so many times before the available ones are looked up

AfterSkip = Literal["repeat", "exclude"]
Unavailable = Literal["liked", "shown", "recommended", "nothing"]
"""Which items of a session are not recommended again: those that were liked, shown (liked before the first
recommendation, or recommended), only those that were recommended, or none."""


class Exploration(Config):
    """How a slate departs from the ranking, place by place, among the items that are still available."""

    kind: Literal["none", "epsilon", "softmax", "own"] = "none"
    """`none`: the ranking. `epsilon`: with probability ε a uniformly random item. `softmax`: by exp(score / t).
    `own`: as the scorer draws its slates, for those that do."""
    epsilon: float = Field(default=0.1, ge=0.0, le=1.0)
    """ε of `epsilon`."""
    temperature: float = Field(default=1.0, ge=1e-6)
    """t of `softmax`, in units of the scores."""


class SlateRule(Config):
    """How a policy makes a slate of its scores. It is part of the policy: chosen from its log, saved and served."""

    diversity: float = Field(default=0.0, ge=0)
    """λ: how much an item loses by each item like it in the same slate, in standard deviations of the scores."""
    after_skip: AfterSkip = "repeat"
    """After a slate was skipped: show what the ranking says (`repeat`), or keep its items out once (`exclude`)."""
    unavailable: Unavailable = "liked"
    """Which items of the session are not recommended again."""
    exploration: Exploration = Field(default_factory=Exploration)
    """How slates depart from the ranking."""

    def in_words(self) -> str:
        """For tables and reports."""
        after = {"repeat": "the ranking is shown again", "exclude": "its items are left out of the next"}
        alike = f", items like those above lose (λ = {self.diversity:g})" if self.diversity else ""
        return f"Slates of the best items by score{alike}; after a skipped slate {after[self.after_skip]}."


class Slates(NamedTuple):
    """B slates of K items, best first.

    `propensities[b, j]` is the probability with which the policy puts this item in place j, given the items it has
    put above. Places left empty hold `PAD`, 1 and −inf.
    """

    items: IntArray  # (B, K)
    propensities: FloatArray  # (B, K)
    values: FloatArray  # (B, K) the scores of the items


def deviation(scores: FloatArray) -> FloatArray:
    """(B,) the standard deviations of the finite scores (B, A) of each row; 0 where there are none."""
    usable = np.isfinite(scores)
    count = np.maximum(usable.sum(axis=1), 1)
    mean = np.where(usable, scores, 0.0).sum(axis=1) / count
    squares = np.where(usable, (scores - mean[:, None]) ** 2, 0.0)
    return np.asarray(np.sqrt(squares.sum(axis=1) / count), np.float32)


class Spread:
    """Slates that do not stake everything on one kind of item: what items lose once another is placed.

    The best K items of one score are often K times the same thing, and if the guess is wrong, all of the slate is. A
    user chooses among what is shown, so the second item of a kind adds less than the first: items like the one just
    placed lose `loss` · max(cos(i, j), 0), where cos is taken between the unit `vectors` (A, D) of items that people
    liked together. The loss (B,) is λ · σ, σ being the standard deviation of the state's scores, so that λ means the
    same for every scorer.

    With `pool` (B, C) the columns of the scores are these items, padded with `PAD`.
    """

    def __init__(self, loss: FloatArray, vectors: FloatArray, pool: IntArray | None = None):
        self._loss, self._vectors, self._pool = loss, vectors, pool
        self._pooled = None if pool is None else vectors[np.maximum(pool, 0)]  # (B, C, D)

    def __call__(self, scores: Scores, rows: NDArray[np.intp], columns: NDArray[np.integer[Any]]) -> None:
        """Lower the scores of `rows` in place once a place of theirs holds `columns`."""
        if self._pooled is None:
            alike = self._vectors[columns] @ self._vectors.T
        else:
            alike = np.einsum("bcd,bd->bc", self._pooled[rows], self._pooled[rows, columns])
        scores[rows] -= self._loss[rows, None] * np.maximum(alike, 0.0)

    def among(self, columns: IntArray) -> "Spread":
        """For scores of these columns (B, C) alone."""
        pool = columns if self._pool is None else np.take_along_axis(self._pool, columns, axis=1)
        return Spread(self._loss, self._vectors, pool)

    def of(self, rows: NDArray[np.intp]) -> "Spread":
        """For the scores of these rows alone."""
        return Spread(self._loss[rows], self._vectors, None if self._pool is None else self._pool[rows])


def make_slates(
    scores: FloatArray, k: int, exploration: Exploration, rng: np.random.Generator, penalty: Spread | None = None
) -> Slates:
    """Slates of `k` columns of the scores (B, A), in which unavailable items are −inf."""
    places = min(k, scores.shape[1])
    epsilon = _epsilon(exploration, penalty)
    if exploration.kind == "softmax":
        items, propensities = _draw_softmax(without_nan(scores), places, exploration.temperature, rng)
    elif penalty is not None and not epsilon:
        items = _diverse(without_nan(scores), places, penalty)
        propensities = np.ones(items.shape, np.float32)
    elif epsilon:
        items, propensities = _draw_epsilon(without_nan(scores), places, epsilon, rng, penalty)
    else:
        items = top(scores, places)
        propensities = np.ones(items.shape, np.float32)
    values = np.where(items == PAD, np.float32(-np.inf), np.take_along_axis(scores, np.maximum(items, 0), axis=1))
    missing = ((0, 0), (0, k - places))
    parts = zip((items, propensities, values), (PAD, 1, -np.inf), strict=True)
    return Slates(*(np.pad(part, missing, constant_values=empty) for part, empty in parts))


def slate_propensities(
    scores: FloatArray, items: IntArray, exploration: Exploration, penalty: Spread | None = None
) -> FloatArray:
    """(B, K) with which probability each of the given `items` (B, K) comes to its place, given those above.

    0 for what the rule never shows there; 1 for `PAD`, which was not asked for.
    """
    scores = without_nan(scores)
    if exploration.kind == "softmax":
        _epsilon(exploration, penalty)
        return _softmax_propensities(scores, items, exploration.temperature)
    epsilon = _epsilon(exploration, penalty)
    result = np.ones(items.shape, np.float32)
    left = (scores > -np.inf).sum(axis=1)
    for place in range(items.shape[1]):
        rows = np.flatnonzero(items[:, place] != PAD)
        given = items[rows, place].astype(np.int64)
        possible = scores[rows, given] > -np.inf
        best = scores[rows].argmax(axis=1) == given
        chance = epsilon / np.maximum(left[rows], 1) + (1.0 - epsilon) * best
        result[rows, place] = np.where(possible, chance, 0.0)
        scores[rows, given] = -np.inf
        left[rows] -= possible
        if penalty is not None:
            penalty(scores, rows, given)
    return result


class Filling:
    """Slates in the making: what the rule would put in the next place, given all that stands above."""

    def __init__(self, scores: FloatArray, exploration: Exploration, penalty: Spread | None = None):
        """`scores` (B, A), −inf for what is not available, are used up."""
        self._scores, self._exploration, self._penalty = scores, exploration, penalty

    def draw(self, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
        """(B,) the columns for the next place, `PAD` where nothing is left, and their scores."""
        made = make_slates(self._scores, 1, self._exploration, rng, self._penalty)
        return made.items[:, 0], made.values[:, 0]

    def put(self, columns: IntArray) -> None:
        """What the next place holds (B,), whoever chose it; nothing for `PAD`."""
        rows = np.flatnonzero(columns != PAD)
        self._scores[rows, columns[rows]] = -np.inf
        if self._penalty is not None:
            self._penalty(self._scores, rows, columns[rows])


def _epsilon(exploration: Exploration, penalty: Spread | None) -> float:
    if exploration.kind == "own":
        raise InputError("Only a policy that draws its slates itself has exploration of its own.")
    if exploration.kind == "softmax" and penalty is not None:
        raise InputError("Slates whose places depend on each other can explore by epsilon, not by softmax.")
    return exploration.epsilon if exploration.kind == "epsilon" else 0.0


def _draw_epsilon(
    scores: Scores, k: int, epsilon: float, rng: np.random.Generator, penalty: Spread | None = None
) -> tuple[IntArray, FloatArray]:
    """Place by place: with probability ε any of the items that are left, else the best of them. `scores` is used up."""
    items = np.full((len(scores), k), PAD, np.int32)
    propensities = np.ones(items.shape, np.float32)
    explores = rng.random(items.shape) < epsilon
    left = (scores > -np.inf).sum(axis=1)  # (B,) how many items are left
    for place in range(k):
        rows = np.flatnonzero(left)
        best = scores.argmax(axis=1)[rows]
        drawn = best.copy()
        bold = explores[rows, place]
        drawn[bold] = _any_items(scores, rows[bold], rng)
        items[rows, place] = drawn
        propensities[rows, place] = epsilon / left[rows] + (1.0 - epsilon) * (drawn == best)
        scores[rows, drawn] = -np.inf
        left[rows] -= 1
        if penalty is not None:
            penalty(scores, rows, drawn)
    return items, propensities


def _diverse(scores: Scores, k: int, penalty: Spread) -> IntArray:
    """As `_draw_epsilon` with ε = 0, of a few of the best items where there are many: others can only lose.

    What an item loses is never negative, so nothing outside of the best M can win while the winner is above the least
    of them; rows where it is not are done in full.
    """
    size = POOL * k
    if scores.shape[1] <= 4 * size:
        return _draw_epsilon(scores, k, 0.0, np.random.default_rng(0), penalty)[0]
    pool = np.sort(np.argpartition(scores, -size, axis=1)[:, -size:], axis=1).astype(np.int32)
    left = np.take_along_axis(scores, pool, axis=1)
    least = left.min(axis=1)
    few, rows = penalty.among(pool), np.arange(len(scores))
    items = np.full((len(scores), k), PAD, np.int32)
    sure = np.ones(len(scores), np.bool_)
    for place in range(k):
        best = left.argmax(axis=1)
        sure &= left[rows, best] > least
        items[:, place] = pool[rows, best]
        left[rows, best] = -np.inf
        few(left, rows, best)
    if (unsure := np.flatnonzero(~sure)).size:
        again = _draw_epsilon(scores[unsure], k, 0.0, np.random.default_rng(0), penalty.of(unsure))
        items[unsure] = again[0]
    return items


def _any_items(scores: Scores, rows: NDArray[np.intp], rng: np.random.Generator) -> NDArray[np.int64]:
    """For each of `rows` a uniformly random column among those that are not −inf, of which there must be one."""
    drawn = rng.integers(scores.shape[1], size=len(rows))
    for _ in range(TRIES):  # most items are available, so this seldom misses and does not read whole rows
        missed = np.flatnonzero(scores[rows, drawn] == -np.inf)
        if not len(missed):
            return drawn
        drawn[missed] = rng.integers(scores.shape[1], size=len(missed))
    missed = np.flatnonzero(scores[rows, drawn] == -np.inf)
    keys = rng.random((len(missed), scores.shape[1]))
    drawn[missed] = np.where(scores[rows[missed]] > -np.inf, keys, -1.0).argmax(axis=1)
    return drawn


def _draw_softmax(scores: Scores, k: int, temperature: float, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
    """Draws by weight without replacement: the order of the largest sums of log weight and Gumbel noise."""
    weights = _log_weights(scores, temperature)
    items = top(weights - np.log(rng.standard_exponential(scores.shape)), k)
    return items, _softmax_propensities(scores, items, temperature)


def _softmax_propensities(scores: Scores, items: IntArray, temperature: float) -> FloatArray:
    weights = _log_weights(scores, temperature)
    empty = items == PAD
    drawn = np.where(empty, -np.inf, np.take_along_axis(weights, np.maximum(items, 0), axis=1))
    exclude(weights, items)
    # What a place was drawn from: its own item, those of the places below it, and those that were never drawn.
    ascending = np.concatenate([_log_sum(weights), drawn[:, ::-1]], axis=1)
    total = np.logaddexp.accumulate(ascending, axis=1)[:, :0:-1]  # (B, K)
    usable = ~empty & (drawn > -np.inf)
    chance = np.exp(np.where(usable, drawn, 0.0) - np.where(usable, total, 0.0))
    return np.where(empty, 1.0, np.where(usable, chance, 0.0)).astype(np.float32)


def _log_weights(scores: Scores, temperature: float) -> Doubles:
    finite = np.minimum(scores, np.finfo(np.float32).max).astype(np.float64)
    return np.asarray((finite - _highest(finite)) / temperature)


def _highest(weights: Doubles) -> Doubles:
    """(B, 1) the largest entry of each row, 0 where all are −inf."""
    highest = weights.max(axis=1, keepdims=True)
    return np.where(highest == -np.inf, 0.0, highest)


def _log_sum(weights: Doubles) -> Doubles:
    """(B, 1) log Σ exp over each row; SciPy's is ten times slower."""
    highest = _highest(weights)
    with np.errstate(divide="ignore"):
        logs: Doubles = np.log(np.exp(weights - highest).sum(axis=1, keepdims=True))
    return highest + logs
