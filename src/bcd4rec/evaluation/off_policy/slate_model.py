"""What a slate is expected to achieve, learned from sessions that it does not judge.

`models.response_regression` says how much each item appeals to a session, apart from where it stands. What becomes of a
slate depends on the places and on whether its items compete. For every response but the least rewarded one, with z_j
the logit of the item in place j and u_j = a(place j) + b z_j,

    independent answers   E[how many answer so] = Σ_j σ(u_j)
    one choice a slate    E[how many answer so] = Σ_j exp(u_j) / (1 + Σ_j exp(u_j))

where a and b are fitted by maximum likelihood. It is one choice where no slate of the log has two such answers: if that
is by chance because answers are rare, both formulas say the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from bcd4rec.data.dataset import Dataset, Transitions
from bcd4rec.data.knowledge import folds
from bcd4rec.data.responses import Responses
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.evaluation.off_policy.decisions import Doubles, Index
from bcd4rec.models.evidence import summary
from bcd4rec.models.response_regression import PLACES, ResponseModel, Sample, fit_response, slates
from bcd4rec.seeding import generator

FOLDS = 2
AT_ONCE = 4096  # slates whose evidence is looked up at once
PRIOR = 1.0  # precision of the normal priors: places at 0, the slope at 1


@dataclass(frozen=True)
class SlateAnswer:
    """How often a slate gets at least a certain response."""

    choice: bool  # at most one item of a slate
    places: Doubles  # (P,) a, by the groups of places
    slope: float  # b

    def expected(self, logits: Doubles, shown: NDArray[np.bool_]) -> Doubles:
        """(n,) of slates with item logits (n, K)."""
        inner = self.places[place_groups(np.arange(logits.shape[1]), len(self.places))] + self.slope * logits
        if not self.choice:
            independent: Doubles = np.where(shown, expit(inner), 0.0).sum(axis=1)
            return independent
        pull = np.where(shown, np.exp(np.minimum(inner, 500.0)), 0.0).sum(axis=1)
        chosen: Doubles = pull / (1.0 + pull)
        return chosen


def place_groups(places: NDArray[np.integer], known: int = len(PLACES)) -> Index:
    """The group of each place, of the first `known` groups; places far down are alike."""
    found: Index = np.searchsorted(PLACES, np.maximum(places, 0), side="right") - 1
    return np.minimum(found, known - 1)


def fit_answer(logits: Doubles, answered: NDArray[np.bool_], shown: NDArray[np.bool_], groups: Index) -> SlateAnswer:
    """From slates whose items have these logits (n, K), which of them were answered so, and the groups of places."""
    choice = logits.shape[1] > 1 and bool((answered.sum(axis=1) <= 1).all())
    count, size = len(logits), int(groups.max()) + 1
    y = answered.astype(np.float64)

    def loss(parameters: Doubles) -> tuple[float, Doubles]:
        inner = parameters[groups] + parameters[-1] * logits
        if choice:
            highest = np.maximum(np.where(shown, inner, -np.inf).max(axis=1, keepdims=True), 0.0)
            pull = np.where(shown, np.exp(inner - highest), 0.0)
            total = pull.sum(axis=1, keepdims=True) + np.exp(-highest)
            misfit = float((np.log(total) + highest).sum() - (y * inner).sum())
            gap = pull / total - y
        else:
            misfit = float(np.where(shown, np.logaddexp(0.0, inner) - y * inner, 0.0).sum())
            gap = np.where(shown, expit(inner) - y, 0.0)
        off = parameters - start
        slope = np.append(np.bincount(groups.ravel(), gap.ravel(), size), (gap * logits).sum()) + PRIOR * off
        return (misfit + 0.5 * PRIOR * float(off @ off)) / count, slope / count

    start = np.append(np.zeros(size), 1.0)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
    return SlateAnswer(choice, found[:-1], float(found[-1]))


@dataclass(frozen=True)
class SlateModel:
    """Expected outcomes of slates, in the order of `decisions.outcomes_of`."""

    response: ResponseModel
    answers: tuple[SlateAnswer, ...]  # of each response but the least rewarded one, in the order of the rewards
    responses: Responses

    def outcomes(self, states: States, items: IntArray) -> Doubles:
        """(n, O) of slates (n, K), padded with `PAD`, in n states."""
        parts = [
            self._some(states[some], items[some])
            for first in range(0, len(items), AT_ONCE)
            if (some := slice(first, first + AT_ONCE))
        ]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.responses.positive) + 1))

    def _some(self, states: States, items: IntArray) -> Doubles:
        rows = self.response.evidence.rows(states, items)
        return self.outcomes_by(self.response.weights.logits(rows, summary(states)[:, None]), items)

    def logits(self, states: States) -> FloatArray:
        """(R, n, A) of the whole catalogue, for who asks about many slates of the same states."""
        weights = self.response.weights
        found = self.response.evidence.sums(states, weights.evidence)
        found += (weights.session @ summary(states).T)[:, :, None]
        return found

    def outcomes_by(self, logits: FloatArray, items: IntArray) -> Doubles:
        """(n, O) of slates (n, K) whose items have the logits (R, n, K)."""
        shown = items != PAD
        reached = [
            answer.expected(each.astype(np.float64), shown) for answer, each in zip(self.answers, logits, strict=True)
        ]
        return expected_outcomes(np.stack([shown.sum(axis=1), *reached]), self.responses)


def expected_outcomes(reached: Doubles, responses: Responses) -> Doubles:
    """(n, O) from how many items of a slate get at least each response, (R + 1, n), by growing reward."""
    order = sorted(responses.names, key=lambda name: responses.rewards[name])
    exactly = reached - np.concatenate([reached[1:], np.zeros((1, reached.shape[1]))])
    by_name = dict(zip(order, exactly, strict=True))
    total = sum(responses.rewards[name] * by_name[name] for name in order)
    return np.stack([*(by_name[name] for name in responses.positive), np.asarray(total)], axis=1)


def fit_slate_model(dataset: Dataset, seed: int, tick: Tick = no_tick) -> SlateModel:
    """From the train split; places and slopes on evidence from other sessions than the slates' own."""
    response, sample = fit_response(dataset, seed, tick)
    order = sorted(dataset.responses.names, key=lambda name: dataset.responses.rewards[name])
    row, groups = _slate_table(sample.transitions)
    shown = row >= 0
    answers = []
    for level, logits in enumerate(_sample_logits(response, sample, dataset.states), start=1):
        codes = [dataset.responses.code(name) for name in order[level:]]
        answered = np.isin(sample.transitions.response, codes)[row] & shown
        answers.append(fit_answer(np.where(shown, logits[row], 0.0), answered, shown, groups))
    return SlateModel(response, tuple(answers), dataset.responses)


def _slate_table(shown: Transitions) -> tuple[Index, Index]:
    """(slates, K) the rows of each slate, −1 for none, and the groups of their places.

    Rows whose place the log does not tell stand one after the other.
    """
    starts, sizes = slates(shown)
    slate = np.repeat(np.arange(len(starts)), sizes)
    order = np.arange(len(shown)) - starts[slate]
    table = np.full((len(starts), int(sizes.max())), -1, np.int64)
    table[slate, order] = np.arange(len(shown))
    place = np.where(shown.position >= 0, shown.position, order)
    return table, np.where(table >= 0, place_groups(place)[table], 0)


def _sample_logits(response: ResponseModel, sample: Sample, states: States) -> FloatArray:
    """(R, rows)"""
    distinct, inverse = np.unique(sample.transitions.state, return_inverse=True)
    return response.weights.logits(sample.rows, summary(states[distinct])[inverse])


@dataclass(frozen=True)
class CrossFitted:
    """A model for every fold of the sessions, each learned from the other folds."""

    fold: NDArray[np.int64]  # (sessions,)
    models: Sequence[SlateModel]

    def outcomes(self, sessions: Index, states: States, items: IntArray) -> Doubles:
        """(n, O) of slates (n, K) of these rows of `Dataset.sessions`, by models that have not seen them."""
        fold = self.fold[sessions]
        found = np.zeros((len(items), len(self.models[0].responses.positive) + 1))
        for number, model in enumerate(self.models):
            mine = np.flatnonzero(fold == number)
            found[mine] = model.outcomes(states[mine], items[mine])
        return found


def cross_fit(dataset: Dataset, seed: int, count: int = FOLDS, tick: Tick = no_tick) -> CrossFitted:
    """Over all sessions of the data set, whatever split they are in."""
    fold = np.zeros(len(dataset.sessions), np.int64)
    models = []
    for number, left_out in enumerate(folds(dataset.owners, count, generator(seed, "judging folds"))):
        fold[left_out] = number
        part = dataset.sessions.with_columns(split=pl.Series(np.where(left_out, "judged", "train")))
        others = Dataset(dataset.manifest, dataset.items, part, dataset.frame, dataset.states)
        models.append(fit_slate_model(others, seed + number, tick))
    return CrossFitted(fold, models)
