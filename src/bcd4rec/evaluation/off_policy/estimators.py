"""Estimates of what a candidate would achieve, from the sums of a log: pure functions, one for each estimator.

Two targets. *One step*: the candidate acts once, in a state that the logger has led to, averaged over the log's states.
*Session*: the candidate acts from the first step to the last. The first is far easier to tell and is not the second.
Both are in outcomes per step: the session's sum is divided by the mean number of steps of the log's sessions.

With w the ratio of the candidate's to the logger's probability of the shown slate, y its outcome, q(·) a model:

    SNIPS            Σ w y / Σ w
    doubly robust    mean q(candidate) + Σ w (y − q(shown)) / Σ w
    pseudo-inverse   mean q(candidate) + mean v (y − q(shown)),  v as in `pseudo_inverse`
    direct           mean q(candidate)
    per decision     Σ_t Σ_i ρ_it y_it / Σ_i ρ_it,  ρ_it = Π_{s ≤ t} w_is; an ended session keeps its ρ, with y = 0

Each comes with its paired difference to the logger's own rate over the same sessions.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from bcd4rec.evaluation.off_policy.decisions import Doubles
from bcd4rec.evaluation.off_policy.sums import SessionSums
from bcd4rec.evaluation.statistics import Interval, Z

Target = Literal["one step", "session"]
Method = Literal["SNIPS", "doubly robust", "DR + items", "DR + categories", "direct", "per decision"]

ROUNDING = 1e-6  # of the rate: no difference is surer than this, lest the logger be better than itself by rounding


class Smooth(NamedTuple):
    """A smooth function of the mean of the sessions' rows: its value and its slope there."""

    value: float
    slope: Doubles  # (D,)

    def plus(self, other: "Smooth", factor: float = 1.0) -> "Smooth":
        return Smooth(self.value + factor * other.value, self.slope + factor * other.slope)

    def over(self, other: "Smooth") -> "Smooth":
        """The quotient; 0 where there is nothing to divide by, as when the candidate shows nothing of the log."""
        if other.value == 0:
            return Smooth(0.0, np.zeros_like(self.slope))
        value = self.value / other.value
        return Smooth(value, (self.slope - value * other.slope) / other.value)


@dataclass(frozen=True)
class Estimate:
    """What the candidate would achieve, by one method, and how far that is above the logger; per step."""

    target: Target
    method: Method
    outcome: str
    value: Interval
    logger: float
    difference: Interval
    error: float  # standard error of the difference


def mean(sums: SessionSums, column: int) -> Smooth:
    slope = np.zeros(sums.layout.width)
    slope[column] = 1.0
    return Smooth(float(sums.mean[column]), slope)


def standard_error(sums: SessionSums, found: Smooth) -> float:
    """By the delta method over sessions."""
    return float(np.sqrt(max(0.0, float(found.slope @ sums.covariance @ found.slope)) / sums.sessions))


def logger_rate(sums: SessionSums, outcome: int) -> Smooth:
    return mean(sums, sums.layout.of("outcome", outcome)).over(mean(sums, sums.layout.STEPS))


def snips(sums: SessionSums, outcome: int) -> Smooth:
    return mean(sums, sums.layout.of("weighted", outcome)).over(mean(sums, sums.layout.WEIGHT))


def direct(sums: SessionSums, outcome: int) -> Smooth:
    return mean(sums, sums.layout.of("model", outcome)).over(mean(sums, sums.layout.STEPS))


def doubly_robust(sums: SessionSums, outcome: int) -> Smooth:
    explained = mean(sums, sums.layout.of("weighted_model", outcome)).over(mean(sums, sums.layout.WEIGHT))
    return direct(sums, outcome).plus(snips(sums, outcome)).plus(explained, -1.0)


def pseudo_inverse(sums: SessionSums, outcome: int, part: Literal["items", "categories"]) -> Smooth:
    surprise = mean(sums, sums.layout.of(part, outcome)).over(mean(sums, sums.layout.STEPS))
    return direct(sums, outcome).plus(surprise)


def per_decision(sums: SessionSums, outcome: int) -> Smooth:
    """Self-normalised at every step."""
    weight, value = sums.layout.session_weight, sums.layout.session_outcome(outcome)
    found = Smooth(0.0, np.zeros(sums.layout.width))
    for step in range(sums.layout.steps):
        found = found.plus(mean(sums, value.start + step).over(mean(sums, weight.start + step)))
    return found.over(mean(sums, sums.layout.KEPT))


def kept_rate(sums: SessionSums, outcome: int) -> Smooth:
    """The logger's rate over as many steps of the sessions as the session target has."""
    return mean(sums, sums.layout.of("kept", outcome)).over(mean(sums, sums.layout.KEPT))


def estimates(sums: SessionSums) -> list[Estimate]:
    """Of all methods for which the sums have what they need, outcome by outcome."""
    found = []
    for outcome, name in enumerate(sums.names):
        one_step: list[tuple[Method, Smooth]] = [("SNIPS", snips(sums, outcome))]
        if sums.has_model:
            one_step.append(("doubly robust", doubly_robust(sums, outcome)))
            if sums.has_items:
                one_step.append(("DR + items", pseudo_inverse(sums, outcome, "items")))
            if sums.has_categories:
                one_step.append(("DR + categories", pseudo_inverse(sums, outcome, "categories")))
            one_step.append(("direct", direct(sums, outcome)))
        rate = logger_rate(sums, outcome)
        found += [_estimate(sums, "one step", method, name, value, rate) for method, value in one_step]
        session = per_decision(sums, outcome)
        found.append(_estimate(sums, "session", "per decision", name, session, kept_rate(sums, outcome)))
    return found


def _estimate(sums: SessionSums, target: Target, method: Method, outcome: str, found: Smooth, rate: Smooth) -> Estimate:
    gain = found.plus(rate, -1.0)
    error = standard_error(sums, gain) + ROUNDING * abs(rate.value)
    value = _interval(found.value, standard_error(sums, found))
    return Estimate(target, method, outcome, value, rate.value, _interval(gain.value, error), error)


def _interval(value: float, error: float) -> Interval:
    return Interval(value, value - Z * error, value + Z * error)
