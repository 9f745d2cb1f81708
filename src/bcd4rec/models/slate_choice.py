"""How people answer whole slates: the users that a slate rule is tried on before anybody serves it.

The logit of item i in a slate that session s sees is

    z_i = w · evidence(s, i) + c · log(1 + place) + d · [i was just skipped] + e · log(1 + how alike i is to what was)
          + v · (summary(s), [the slate before was skipped]) − log(1 + θ Σ_{j ≠ i} max(cos(i, j), 0)),

and its chance of a positive response exp(z_i) / (1 + Σ_j exp(z_j)) where the log's people choose one item of a slate or
none, 1 / (1 + exp(−z_i)) where they answer each item for itself. θ is what items lose by others like them in the same
slate: of n alike items none is worth less than nothing, but together they may be worth no more than one.

Evidence is counted from other sessions than it is weighed on, so no session tells about itself, and leaves out votes of
similar sessions, which take most of the time. Chances are those of the next answer given all answers so far, so
sessions that are drawn answer by answer are sessions of users whose tastes nobody knows yet: what a slate reveals
counts, and so does what a rule keeps repeating.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from bcd4rec.data.dataset import Dataset, Transitions
from bcd4rec.data.knowledge import Knowledge
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.models.evidence import SUMMARY, Evidence, summary
from bcd4rec.models.evidence_kernels import COLUMNS
from bcd4rec.models.response_regression import circumstances, count_knowledge, sample_sessions, slates, take
from bcd4rec.seeding import generator

Doubles = NDArray[np.float64]
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

ITEM = COLUMNS + 3  # columns of an item: its evidence, its place, whether it or its like were just skipped
ALL = ITEM + SUMMARY + 1  # and of the session: its summary, whether the slate before was skipped
PLACE, AGAIN, NEAR, SKIPPED = COLUMNS, COLUMNS + 1, COLUMNS + 2, ALL - 1
COUNTED, WEIGHED = 400_000, 150_000  # at most so many impressions are counted, and so many weighed
PRIOR, FREE = 10.0, 1e-3  # precisions of the priors of items' and sessions' weights; columns have unit size
SMALLEST = 1e-3  # a column smaller than that says nothing
REDUNDANCIES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)  # values of θ that are tried where θ = 0 is rejected
REJECTED = 2.0  # standard errors, clustered by session
LIKELY = 1.92  # below the largest log-likelihood lie the values of a 95 % interval
CELLS = 1 << 22  # pairs of items in memory at once
SEVERAL = 0.5  # with fewer slates of several positives than this share of what independent answers give, people choose


@dataclass(frozen=True)
class SlateUsers:
    """What was learned."""

    evidence: Evidence
    weights: FloatArray  # (ALL,)
    redundancy: float  # θ
    one_choice: bool
    z: float  # by how many standard errors the log says that items lose by others like them
    after_skips: int  # impressions it was learned from in slates that follow one skipped whole
    again: int  # those of them whose item was in the skipped slate

    def chances(self, states: States, items: IntArray, skipped: IntArray) -> Doubles:
        """(B, K) of a positive response to each of `items` (B, K), after the slates `skipped` (B, E) or `PAD`."""
        rows = columns(self.evidence, states, items, np.arange(items.shape[1]), skipped)
        logits = (rows @ self.weights).astype(np.float64) - np.log1p(
            self.redundancy * likeness(items, items, self.evidence.items.tastes)
        )
        weights = np.where(items == PAD, 0.0, np.exp(np.minimum(logits, 50.0)))
        return np.asarray(weights / (1.0 + (weights.sum(axis=1, keepdims=True) if self.one_choice else weights)))

    def answers(self, chances: Doubles, luck: Doubles) -> Mask:
        """(B, K) which items get a positive response, by uniform numbers `luck` (B, K)."""
        if not self.one_choice:
            return np.asarray(luck < chances)
        place = (np.cumsum(chances, axis=1) <= luck[:, :1]).sum(axis=1)
        return np.asarray(np.arange(chances.shape[1]) == place[:, None])


def likeness(items: IntArray, others: IntArray, vectors: FloatArray) -> Doubles:
    """(B, K) Σ_{j ≠ i} max(cos(i, j), 0) of `items` (B, K) to `others` (B, J), both padded with `PAD`."""
    mine, theirs = (np.where((one == PAD)[..., None], np.float32(0), vectors[one]) for one in (items, others))
    pairs = np.maximum(mine @ theirs.swapaxes(1, 2), 0.0)
    pairs[items[:, :, None] == others[:, None, :]] = 0.0
    return np.asarray(pairs.sum(axis=2), np.float64)


def columns(
    evidence: Evidence, states: States, items: IntArray, place: NDArray[np.integer], skipped: IntArray
) -> FloatArray:
    """(B, K, ALL) what the logits of `items` (B, K) at `place` (K,) or (B, K) are linear in."""
    found = np.empty((*items.shape, ALL), np.float32)
    found[..., :COLUMNS] = evidence.rows(states, items)
    found[..., PLACE] = np.log1p(place)
    found[..., AGAIN] = ((items[:, :, None] == skipped[:, None, :]) & (items != PAD)[:, :, None]).any(axis=2)
    found[..., NEAR] = np.log1p(likeness(items, skipped, evidence.items.tastes))
    found[..., ITEM:SKIPPED] = summary(states)[:, None]
    found[..., SKIPPED] = (skipped != PAD).any(axis=1)[:, None]
    return found


@dataclass(frozen=True)
class LoggedSlates:
    """n impressions of m slates, the rows of a slate together."""

    starts: Rows  # (m,)
    sizes: Rows  # (m,)
    session: Rows  # (m,)
    liked: Mask  # (n,)
    previous: Rows  # (m,) the slate before in the same session if all of it was skipped, else −1

    @classmethod
    def of(cls, shown: Transitions, positive: Mask) -> "LoggedSlates":
        starts, sizes = slates(shown)
        session = shown.session[starts].astype(np.int64)
        whole = ~np.logical_or.reduceat(positive, starts) if len(starts) else np.empty(0, np.bool_)
        follows = np.append(False, (session[1:] == session[:-1]) & whole[:-1])[: len(starts)]
        return cls(starts, sizes, session, positive, np.where(follows, np.arange(len(starts)) - 1, -1))

    def batches(self) -> Iterator[tuple[Rows, Rows, Mask]]:
        """Some slates of like size, their rows (B, K), and which places of these hold an item."""
        order = np.argsort(self.sizes, kind="stable")
        first = 0
        while first < len(order):
            largest = int(self.sizes[order[min(first + 1024, len(order)) - 1]])
            some = order[first : first + max(1, min(1024, CELLS // largest**2))]
            place = np.arange(self.sizes[some].max())
            inside = place < self.sizes[some, None]
            yield some, np.where(inside, self.starts[some, None] + place, 0), inside
            first += len(some)

    def items(self, some: Rows, action: IntArray) -> IntArray:
        """(B, K) the items of slates, padded; a slate −1 is empty."""
        sizes = np.where(some < 0, 0, self.sizes[some])
        place = np.arange(max(int(sizes.max(initial=0)), 1))
        inside = place < sizes[:, None]
        rows = np.where(inside, self.starts[some, None] + place, 0)
        return np.where(inside, action[rows], PAD).astype(np.int32)


def fit_slate_users(dataset: Dataset, seed: int) -> SlateUsers:
    """Weighed on some sessions of `train`, at most half of them, and counted on the others and on `validation`."""
    train = dataset.transitions("train")
    half = generator(seed, "sessions weighed").random(len(dataset.sessions)) < 0.5
    evidence = Evidence(_knowledge(dataset, train, ~half, seed), Sequences.of([]))
    rows = np.flatnonzero(half[train.session])
    drawn = sample_sessions(take(train, rows), dataset, generator(seed, "impressions weighed"), WEIGHED)
    shown = take(train, rows[drawn[train.session[rows]]])
    codes = [dataset.responses.code(name) for name in dataset.responses.positive]
    logged = LoggedSlates.of(shown, np.isin(shown.response, codes))
    inputs, alike = _inputs(evidence, logged, shown, dataset.states)
    return _fitted(evidence, logged, inputs, alike)


def _knowledge(dataset: Dataset, train: Transitions, chosen: Mask, seed: int) -> Knowledge:
    """Which items go together is counted from `chosen` train sessions; what each is worth from held-out sessions alone.

    Scorers find items best that were lucky in the train split. Users who believed in the same luck would never tire
    of them.
    """
    counted = chosen & sample_sessions(train, dataset, generator(seed, "sessions counted"), COUNTED)
    together, *_ = count_knowledge(dataset, "train", train, circumstances(train, dataset.states), counted)
    held_out = dataset.transitions("validation")
    counted = sample_sessions(held_out, dataset, generator(seed, "held-out sessions counted"), COUNTED)
    alone, *_ = count_knowledge(dataset, "validation", held_out, circumstances(held_out, dataset.states), counted)
    return replace(alone, similar=together.similar, followers=together.followers, tastes=together.tastes)


def _inputs(evidence: Evidence, logged: LoggedSlates, shown: Transitions, states: States) -> tuple[FloatArray, Doubles]:
    """(n, ALL) `columns`, and (n,) `likeness`, of every impression."""
    inputs, alike = np.zeros((len(shown), ALL), np.float32), np.zeros(len(shown))
    position = np.maximum(shown.position, 0)
    for some, rows, inside in logged.batches():
        items = np.where(inside, shown.action[rows], PAD).astype(np.int32)
        skipped = logged.items(logged.previous[some], shown.action)
        here = states[shown.state[logged.starts[some]]]
        inputs[rows[inside]] = columns(evidence, here, items, position[rows], skipped)[inside]
        alike[rows[inside]] = likeness(items, items, evidence.items.tastes)[inside]
    return inputs, alike


def _fitted(evidence: Evidence, logged: LoggedSlates, inputs: FloatArray, alike: Doubles) -> SlateUsers:
    one_choice = people_choose(logged)
    size = np.sqrt(np.mean(inputs.astype(np.float64) ** 2, axis=0))
    scale = np.where(size > SMALLEST, size, np.inf).astype(np.float32)
    scale[ITEM] = 1.0  # the constant
    again, inputs = int(inputs[:, AGAIN].sum()), inputs / scale
    weights, loss = fit_weights(logged, inputs, np.zeros(len(alike)), one_choice)
    z = redundancy_score(logged, inputs, weights, alike, one_choice)
    best, redundancy = weights, 0.0
    if z > REJECTED:
        tried = []
        for value in REDUNDANCIES:
            tried.append((value, *fit_weights(logged, inputs, -np.log1p(value * alike), one_choice, weights)))
            if tried[-1][2] > loss:
                break
            loss = tried[-1][2]
        # Policies make slates more alike than logs have them, so the least value that fits is taken, not the best.
        redundancy, best = next((value, found) for value, found, reached in tried if reached < loss + LIKELY)
    after_skips = int(logged.sizes[logged.previous >= 0].sum())
    weights = best / scale
    return SlateUsers(evidence, weights.astype(np.float32), redundancy, one_choice, z, after_skips, again)


def people_choose(logged: LoggedSlates) -> bool:
    """Whether a slate gets one positive response at most, as far as the log tells.

    Compared with answers that do not know of each other: slates of n impressions and k positives in all have several
    with a chance of 1 − (1 − r)^n − n r (1 − r)^(n − 1), where r is the share of positives.
    """
    rate, size = logged.liked.mean(), logged.sizes
    expected = (1.0 - (1.0 - rate) ** size - size * rate * (1.0 - rate) ** (size - 1.0)).sum()
    found = (np.add.reduceat(logged.liked.astype(np.int64), logged.starts) > 1).sum()
    return bool(found < SEVERAL * expected)


def _target(logged: LoggedSlates, one_choice: bool) -> Doubles:
    """(n,) 1 for positive impressions; where people choose, for the first of a slate alone."""
    if not one_choice:
        return logged.liked.astype(np.float64)
    found: Rows = np.cumsum(logged.liked)
    before: Rows = np.repeat(found[logged.starts] - logged.liked[logged.starts], logged.sizes)
    return np.asarray(logged.liked & (found - before == 1), np.float64)


def _chances(logged: LoggedSlates, logits: Doubles, one_choice: bool) -> tuple[Doubles, float]:
    """(n,) chances of a positive response, and Σ log of the normalisers."""
    if not one_choice:
        chances: Doubles = 1.0 / (1.0 + np.exp(-logits))
        return chances, float(np.logaddexp(0.0, logits).sum())
    highest = np.maximum(np.maximum.reduceat(logits, logged.starts), 0.0)
    weights = np.exp(logits - np.repeat(highest, logged.sizes))
    total = np.add.reduceat(weights, logged.starts) + np.exp(-highest)
    return weights / np.repeat(total, logged.sizes), float((highest + np.log(total)).sum())


def fit_weights(
    logged: LoggedSlates, inputs: FloatArray, offset: Doubles, one_choice: bool, start: Doubles | None = None
) -> tuple[Doubles, float]:
    """Weights (ALL,) that minimise Σ −log-likelihood + ½ Σ penalty · weight², and this minimum."""
    target = _target(logged, one_choice)
    penalty = np.where(np.arange(ALL) < ITEM, PRIOR, FREE)
    count = len(target)

    def loss(weights: Doubles) -> tuple[float, Doubles]:
        logits = (inputs @ weights.astype(np.float32)) + offset
        chances, normaliser = _chances(logged, logits, one_choice)
        total = normaliser - float(target @ logits) + 0.5 * float(penalty @ weights**2)
        slope = inputs.T @ (chances - target).astype(np.float32)
        return total / count, (slope + penalty * weights) / count

    begin = np.zeros(ALL) if start is None else start
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    return found.x, float(found.fun) * count


def redundancy_score(
    logged: LoggedSlates, inputs: FloatArray, weights: Doubles, alike: Doubles, one_choice: bool
) -> float:
    """By how many standard errors the likelihood grows with θ at θ = 0; sessions are independent of each other."""
    logits = (inputs @ weights.astype(np.float32)).astype(np.float64)
    chances, _ = _chances(logged, logits, one_choice)
    slope = np.add.reduceat((chances - _target(logged, one_choice)) * alike, logged.starts)
    _, number = np.unique(logged.session, return_inverse=True)
    by_session = np.bincount(number, slope)
    return float(by_session.sum() / max(np.sqrt((by_session**2).sum()), 1e-9))
