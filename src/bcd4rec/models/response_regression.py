"""A logistic model of the response over evidence: some twenty weights, the same columns on every log.

For every response r but the least rewarded one,

    P(at least r | session s, item i) = σ(u_r · summary(s) + c_r · circumstances + w_r · evidence(s, i)),

and the expected reward is the least reward plus, for each step up, what it adds times its probability. Circumstances
are the place of the item and the size of its slate: people look at the top of a list. They are learned along with the
rest, so that the item's part is what an item is worth apart from where it stood, and stand at their average when the
model is used.

What evidence is counted from must not hold the sessions that weights are learned on: the sessions fall into folds, and
the evidence about each comes from the others. For use, it is counted from all.

Where items have features, some impressions are learned from once more as if their items were new: what is foreseen of
an item without its own responses gets the weight that it has earned by items that were there to check it.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from bcd4rec.data.dataset import Dataset, Transitions
from bcd4rec.data.foresight import foresee
from bcd4rec.data.knowledge import Counted, Knowledge, folds, refuse_other_shape
from bcd4rec.data.responses import Responses
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.states import PAD, Doubles, FloatArray, IntArray, Mask, Rows, States
from bcd4rec.models.content_evidence import ContentEvidence, content_columns
from bcd4rec.models.evidence import SUMMARY, Evidence, summary
from bcd4rec.models.evidence_kernels import COLUMNS, POSITIVE, TARGET
from bcd4rec.seeding import generator

FOLDS = 4
MOST_ROWS = 400_000  # impressions that weights are learned from; counts are taken from all
EXPLAINED_ROWS = 100_000  # impressions that the weights of the circumstances alone are learned from
PRIORS = (10_000.0, 1_000.0, 100.0, 10.0)  # precisions of the normal prior of a weight; columns have unit size
LEAST_SKIPPED = 0.1  # share, so that a log of few skips draws to no weight above 10
PRIOR_ROWS = 20_000  # impressions that choose among them
PLACES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30, 50, 100)  # places from one of these to the next are alike
OTHERS, NEAR = 10, 40  # where nothing was skipped, so many other items stand in for skips; see `_Others`
SMALLEST = 1e-3  # a column whose size is below it says nothing: rounding, or all items alike
AS_NEW = 0.25  # share of the impressions that are learned from once more as if their items were new
AT_ONCE = 2048  # slates whose rows are made at once


@dataclass(frozen=True)
class ResponseWeights:
    """What the model has learned."""

    least: float  # the reward of the least rewarded response
    gains: Doubles  # (R,) what reaching each further response adds
    session: FloatArray  # (R, SUMMARY)
    evidence: FloatArray  # (R, columns)

    def rewards(self, logits: FloatArray) -> FloatArray:
        """Expected rewards (…) of evidence logits (R, …, B, C) or (R, B) to which the session's part was added."""
        with np.errstate(over="ignore"):  # exp(−logit) = ∞ is a chance of 0
            chances = 1.0 / (1.0 + np.exp(-logits))  # several times faster than SciPy's `expit`
        return np.asarray(np.tensordot(self.gains.astype(np.float32), chances, 1) + np.float32(self.least), np.float32)

    def logits(self, rows: FloatArray, states: FloatArray) -> FloatArray:
        """(R, …) of evidence `rows` (…, columns) in sessions with summaries `states` (…, SUMMARY)."""
        parts = zip(self.evidence, self.session, strict=True)
        return np.stack([rows @ weights + states @ own for weights, own in parts])

    def of_rows(self, rows: FloatArray, states: FloatArray) -> FloatArray:
        """(…) expected rewards of evidence `rows` (…, columns) in sessions with summaries `states` (…, SUMMARY)."""
        return self.rewards(self.logits(rows, states))

    def of_all(self, evidence: Evidence, states: States) -> FloatArray:
        """(B, A) expected rewards of the whole catalogue."""
        logits = evidence.sums(states, self.evidence)
        logits += (self.session @ summary(states).T)[:, :, None]
        return self.rewards(logits)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"gains": self.gains, "session": self.session, "evidence": self.evidence}

    @classmethod
    def restore(cls, least: float, arrays: dict[str, NDArray[Any]], columns: int) -> Self:
        gains, session, evidence = arrays["gains"], arrays["session"], arrays["evidence"]
        refuse_other_shape("gains", gains, (len(gains),), np.float64)
        refuse_other_shape("session", session, (len(gains), SUMMARY), np.float32)
        refuse_other_shape("evidence", evidence, (len(gains), columns), np.float32)
        return cls(least, gains, session, evidence)


@dataclass(frozen=True)
class Sample:
    """What weights are learned on: impressions with evidence from other sessions than their own."""

    transitions: Transitions  # of the sampled sessions
    rows: FloatArray  # (n, columns)
    fold: NDArray[np.int8]  # (n,) whose evidence it is
    evidence: list[Evidence]  # of each fold, counted from the others


@dataclass(frozen=True)
class ResponseModel:
    """The model, ready to be asked: evidence from all sessions, and weights."""

    evidence: Evidence
    weights: ResponseWeights

    def expected_rewards(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        """(B, A), or (B, C) of `candidates` (B, C); −inf in padded places."""
        if candidates is None:
            return self.weights.of_all(self.evidence, states)
        rows = self.evidence.rows(states, candidates)
        found = self.weights.of_rows(rows, summary(states)[:, None])
        return np.where(candidates == PAD, np.float32(-np.inf), found)


def fit_response(dataset: Dataset, seed: int, tick: Tick = no_tick) -> tuple[ResponseModel, Sample]:
    """Learn from the train split."""
    shown = dataset.transitions("train")
    levels = _levels(dataset.responses)
    around = circumstances(shown, dataset.states)
    sampled = sample_sessions(shown, dataset, generator(seed, "response sample"), MOST_ROWS)
    chosen = np.flatnonzero(sampled[shown.session])
    columns = COLUMNS + content_columns(dataset.content)
    rows, fold = np.zeros((len(chosen), columns), np.float32), np.zeros(len(chosen), np.int8)
    as_new = _AsNew(seed)
    others = _Others(dataset, seed) if _nothing_skipped(shown, dataset.responses) else None
    aside: list[Evidence] = []
    for number, left_out in enumerate(folds(dataset.owners, FOLDS, generator(seed, "response folds"))):
        tick("counting", number / (FOLDS + 1))
        aside.append(count_evidence(dataset, shown, around, ~left_out))
        mine = np.flatnonzero(left_out[shown.session[chosen]])
        part = take(shown, chosen[mine])
        rows[mine], fold[mine] = slate_rows(aside[-1], part, dataset.states), number
        if others is not None:
            others.draw(aside[-1], part)
        elif dataset.content is not None:
            as_new.draw(aside[-1], rows, mine, part.action)
    tick("counting", FOLDS / (FOLDS + 1))
    everything = count_evidence(dataset, shown, around, np.ones(len(dataset.sessions), np.bool_))
    tick("weighing", 1.0)
    sample = Sample(take(shown, chosen), rows, fold, aside)
    answers = np.stack([np.isin(sample.transitions.response, codes) for codes, _ in levels]).astype(np.float64)
    gains, lifts = [gain for _, gain in levels], [_lift(codes, dataset.responses) for codes, _ in levels]
    if others is None:
        more, again = as_new.all(rows)
        weights = _fit(more, around[chosen[again]], answers[:, again], dataset.responses, gains, lifts, fold[again])
    else:
        contrasted, chances, picked = others.all()
        alike = np.eye(1, around.shape[1], dtype=np.float32).repeat(len(picked), axis=0)  # nothing stood anywhere
        several = np.tile(picked, (len(levels), 1))
        weights = _fit(contrasted, alike, several, dataset.responses, gains, [None] * len(levels), chances=chances)
    return ResponseModel(everything, weights), sample


def _levels(responses: Responses) -> list[tuple[list[int], float]]:
    """For each response above the least rewarded one: the codes of at least this response, and what it adds."""
    order = sorted(responses.names, key=lambda name: responses.rewards[name])
    found = []
    for place in range(1, len(order)):
        gain = responses.rewards[order[place]] - responses.rewards[order[place - 1]]
        found.append(([responses.code(name) for name in order[place:]], gain))
    return found


def _lift(codes: list[int], responses: Responses) -> int | None:
    """The column that holds an item's lift of reaching a level, of those that are counted."""
    if set(codes) == {responses.code(name) for name in responses.positive}:
        return POSITIVE
    return TARGET if codes == [responses.code(responses.target)] else None


def _nothing_skipped(shown: Transitions, responses: Responses) -> bool:
    return bool(np.isin(shown.response, [responses.code(name) for name in responses.positive]).all())


def take(shown: Transitions, rows: Rows) -> Transitions:
    return Transitions(*(getattr(shown, name)[rows] for name in Transitions.__dataclass_fields__))


def slates(shown: Transitions) -> tuple[Rows, Rows]:
    """The first row and the size of each slate; the rows of a slate stand together."""
    new = (np.diff(shown.session.astype(np.int64), prepend=-1) != 0) | (
        np.diff(shown.step.astype(np.int64), prepend=-1) != 0
    )
    starts = np.flatnonzero(new)
    return starts, np.diff(np.append(starts, len(shown)))


def circumstances(shown: Transitions, states: States) -> FloatArray:
    """(n, SUMMARY + 1 + places): the session's summary, the logarithm of the slate's size, and the place where known.

    The first place is the one that others are compared with; impressions without a place are as if they stood there.
    """
    _, sizes = slates(shown)
    distinct, inverse = np.unique(shown.state, return_inverse=True)
    own = summary(states[distinct])[inverse]
    size = np.log(np.repeat(sizes, sizes))[:, None]
    place = np.searchsorted(PLACES, np.maximum(shown.position, 0), side="right") - 1
    used = np.flatnonzero(np.bincount(place, minlength=len(PLACES))[1:]) + 1
    return np.concatenate([own, size, place[:, None] == used], axis=1).astype(np.float32)


def _counted(shown: Transitions, around: FloatArray, responses: Responses) -> Counted:
    positive = np.isin(shown.response, [responses.code(name) for name in responses.positive])
    target = shown.response == responses.code(responses.target)
    expected = _explained(around, positive)
    bought = expected if np.array_equal(positive, target) else _explained(around, target)
    return Counted(shown.session, shown.action, positive, target, expected, bought)


def _explained(around: FloatArray, answers: Mask) -> Doubles:
    """(n,) the chance of an answer by the circumstances alone."""
    rows = np.linspace(0, len(answers) - 1, min(len(answers), EXPLAINED_ROWS)).astype(np.int64)
    weights = logistic(around[rows], answers[rows].astype(np.float64), np.full(around.shape[1], 1e-3))
    chances: Doubles = expit(around @ weights).astype(np.float64)
    return chances


def sample_sessions(shown: Transitions, dataset: Dataset, rng: np.random.Generator, most: int) -> Mask:
    """(sessions,) whole sessions at random, until there are enough rows."""
    sizes = np.bincount(shown.session, minlength=len(dataset.sessions))
    order = rng.permutation(len(sizes))
    chosen = np.zeros(len(sizes), np.bool_)
    chosen[order[np.cumsum(sizes[order]) - sizes[order] < most]] = True
    return chosen


def count_evidence(dataset: Dataset, shown: Transitions, around: FloatArray, sessions: Mask) -> Evidence:
    """Counted from these sessions and from nothing else, also what their circumstances led to expect."""
    return Evidence(*count_knowledge(dataset, "train", shown, around, sessions))


def count_knowledge(
    dataset: Dataset, split: str, shown: Transitions, around: FloatArray, sessions: Mask
) -> tuple[Knowledge, Sequences, ContentEvidence | None]:
    """What is known of the items from these sessions of a split and the impressions `shown`, their likes, and what
    features say where there are any."""
    likes, mine = dataset.sequences(split, sessions), np.flatnonzero(sessions[shown.session])
    counted = _counted(take(shown, mine), around[mine], dataset.responses)
    content = dataset.content
    if content is None:
        return Knowledge.count(counted, likes, dataset.categories), likes, None
    foreseen = foresee(counted, likes, dataset.categories, content)
    known = Knowledge.count(counted, likes, dataset.categories, foreseen)
    return known, likes, ContentEvidence(content, foreseen)


def slate_rows(evidence: Evidence, shown: Transitions, states: States) -> FloatArray:
    """(n, columns) the evidence about every shown item in the state it was shown in."""
    out = np.zeros((len(shown), evidence.columns), np.float32)
    if not len(shown):
        return out
    starts, sizes = slates(shown)
    order = np.argsort(sizes, kind="stable")  # slates of like size together, so that little is padded
    for first in range(0, len(order), AT_ONCE):
        some = order[first : first + AT_ONCE]
        place = starts[some, None] + np.arange(sizes[some].max())
        inside = np.arange(place.shape[1]) < sizes[some, None]
        items = np.where(inside, shown.action[np.where(inside, place, 0)], PAD).astype(np.int32)
        out[place[inside]] = evidence.rows(states[shown.state[starts[some]]], items)[inside]
    return out


class _AsNew:
    """Impressions that are learned from once more, as if their items were new."""

    def __init__(self, seed: int):
        self._rng = generator(seed, "as if new")
        self._places: list[Rows] = []
        self._rows: list[FloatArray] = []

    def draw(self, evidence: Evidence, rows: FloatArray, mine: Rows, items: IntArray) -> None:
        """Some of `rows[mine]`, which are about `items`."""
        some = np.flatnonzero(self._rng.random(len(mine)) < AS_NEW)
        self._places.append(mine[some])
        self._rows.append(evidence.as_new(rows[mine[some]], items[some]))

    def all(self, rows: FloatArray) -> tuple[FloatArray, Rows]:
        """`rows` and those that were drawn, and which row each of them is."""
        places = np.arange(len(rows))
        if not self._places:
            return rows, places
        return np.concatenate([rows, *self._rows]), np.concatenate([places, *self._places])


class _Others:
    """Items that were not chosen, to stand in for skips where a log has none (noise-contrastive estimation).

    Half of them are drawn by popularity, half among those that similar sessions chose, since telling these apart is
    what recommending is about. How often an item would be drawn goes into the model as a known term, so that the
    weights do not depend on it.
    """

    def __init__(self, dataset: Dataset, seed: int):
        self._likes = dataset.sequences("train").items
        self._popularity = np.bincount(self._likes, minlength=dataset.n_items) / max(len(self._likes), 1)
        self._states = dataset.states
        self._rng = generator(seed, "items not chosen")
        self._parts: list[tuple[FloatArray, Doubles, Doubles]] = []

    def draw(self, evidence: Evidence, chosen: Transitions) -> None:
        some = self._rng.permutation(len(chosen))[: MOST_ROWS // OTHERS // FOLDS]
        states, size = self._states[chosen.state[some]], OTHERS // 2
        popular = self._likes[self._rng.integers(len(self._likes), size=(len(some), OTHERS - size))]
        near, votes = evidence.neighbours.top(states, NEAR * size)
        near = np.where(votes > 0, near, PAD)
        drawn = self._rng.permuted(near, axis=1)[:, :size]
        items = np.concatenate([chosen.action[some, None], popular, drawn], axis=1).astype(np.int32)
        among = (items[:, :, None] == near[:, None, :]).any(axis=2) & (items != PAD)
        chance = (OTHERS - size) * self._popularity[np.maximum(items, 0)] + among * (drawn.shape[1] / near.shape[1])
        picked = np.zeros(items.shape)
        picked[:, 0] = 1.0
        inside = items != PAD
        rows = evidence.rows(states, items)
        self._parts.append((rows[inside], chance[inside], picked[inside]))
        if evidence.content is not None:
            new = inside & (self._rng.random(inside.shape) < AS_NEW)
            self._parts.append((evidence.as_new(rows[new], items[new]), chance[new], picked[new]))

    def all(self) -> tuple[FloatArray, Doubles, Doubles]:
        """Rows (n, columns), how often each would be drawn, and whether it was the chosen one."""
        rows, chances, picked = zip(*self._parts, strict=True)
        return np.concatenate(rows), np.concatenate(chances), np.concatenate(picked)


def _fit(
    rows: FloatArray,
    around: FloatArray,
    answers: Doubles,
    responses: Responses,
    gains: list[float],
    lifts: list[int | None],
    fold: NDArray[np.int8] | None = None,
    chances: Doubles | None = None,
) -> ResponseWeights:
    """Weights of every level: `answers` (R, n) tell whether it was reached, `fold` (n,) which rows are learned from
    together; `chances` are those of `_Others`, whose rows are enough to learn any weights from.

    Weights are drawn to those that give the item's own rate: 1 / (1 − mean rate) for its lift, the column `lifts` of
    each level, and 0 for all else. How strongly, folds that were left out choose: on a thin log what cannot be learned
    stays at the rate.
    """
    size = np.sqrt(np.mean(rows.astype(np.float64) ** 2, axis=0))
    scale = np.where(size > SMALLEST, size, np.inf).astype(np.float32)
    inputs = np.concatenate([around, rows / scale], axis=1)
    free = around.shape[1]
    found = []
    for answer, lift in zip(answers, lifts, strict=True):
        centre = np.zeros(inputs.shape[1])
        if lift is not None and size[lift] > SMALLEST:
            centre[free + lift] = size[lift] / max(1 - answer.mean(), LEAST_SKIPPED)
        known = inputs @ centre.astype(np.float32)
        if chances is not None:
            known -= np.log(np.maximum(chances, 1e-12)).astype(np.float32)
        prior = PRIORS[-1] if fold is None else _prior(inputs, free, answer, known, fold)
        found.append(centre + logistic(inputs, answer, _penalty(inputs, free, prior), known))
    # The circumstances at their average; of them only the session's summary differs when the model is used.
    elsewhere = around[:, SUMMARY:].mean(axis=0)
    session = np.stack([weights[:SUMMARY] for weights in found])
    session[:, 0] += [weights[SUMMARY:free] @ elsewhere for weights in found]
    return ResponseWeights(
        min(responses.rewards.values()),
        np.array(gains),
        session.astype(np.float32),
        np.stack([weights[free:] / scale for weights in found]).astype(np.float32),
    )


def _penalty(inputs: FloatArray, free: int, prior: float) -> Doubles:
    """(columns,) the first `free` columns are hardly held back."""
    return np.append(np.full(free, 1e-3), np.full(inputs.shape[1] - free, prior))


def _prior(inputs: FloatArray, free: int, answers: Doubles, known: FloatArray, fold: NDArray[np.int8]) -> float:
    """The precision under which weights learned on some folds explain the others best, on part of a large log."""
    some = np.linspace(0, len(answers) - 1, min(len(answers), PRIOR_ROWS)).astype(np.int64)
    inputs, answers, known, fold = inputs[some], answers[some], known[some], fold[some]
    losses = np.zeros(len(PRIORS))
    for number in np.unique(fold):
        mine, rest, begin = fold == number, fold != number, np.zeros(inputs.shape[1])
        for place, prior in enumerate(PRIORS):  # the strongest first, from which the next is never far
            begin = logistic(inputs[rest], answers[rest], _penalty(inputs, free, prior), known[rest], begin)
            losses[place] += log_loss(inputs[mine] @ begin.astype(np.float32) + known[mine], answers[mine])
    return PRIORS[int(np.argmin(losses))]


def log_loss(logits: FloatArray, answers: Doubles) -> float:
    """The sum of it."""
    return float(np.logaddexp(0.0, logits, dtype=np.float64).sum() - answers @ logits)


def logistic(
    inputs: FloatArray,
    answers: Doubles,
    penalty: Doubles,
    known: FloatArray | None = None,
    begin: Doubles | None = None,
) -> Doubles:
    """Weights that minimise Σ log-loss + ½ Σ penalty · weight²; `known` (n,) is added to the logits."""
    count = max(len(answers), 1)

    def loss(weights: Doubles) -> tuple[float, Doubles]:
        logits = inputs @ weights.astype(np.float32)
        logits = logits if known is None else logits + known
        misfit = log_loss(logits, answers)
        slope = inputs.T @ (expit(logits) - answers).astype(np.float32)
        total = misfit + 0.5 * float(penalty @ weights**2)
        return total / count, (slope.astype(np.float64) + penalty * weights) / count

    start = np.zeros(inputs.shape[1]) if begin is None else begin
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    weights: Doubles = found.x
    return weights
