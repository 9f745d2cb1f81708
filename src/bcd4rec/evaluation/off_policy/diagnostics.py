"""Whether an estimate may be believed: weights, support, and propensities that can be right."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.states import PAD, IntArray
from bcd4rec.evaluation.off_policy.decisions import Decisions, Doubles
from bcd4rec.evaluation.off_policy.estimators import Smooth, Target, logger_rate, snips, standard_error
from bcd4rec.evaluation.off_policy.sums import SessionSums
from bcd4rec.evaluation.statistics import Z

OFF = 0.1  # the mean weight may differ from 1 by less than this
LEAST_SESSIONS = 100.0  # effective ones
RARE = 0.1  # what the logger shows less often than this is known from exploration only
SURE = 4.0  # standard errors that a propensity check must be off by
TOLERANCE = 0.02  # of the logger's rate, that it may be missed by when it is evaluated against itself

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class WeightSummary:
    """How well a log can stand for what the candidate would have done.

    Both are needed. Weights have the mean 1 if the log could have shown all that the candidate shows; and few effective
    sessions mean that a few of them decide. A candidate that agrees with the logger where a session begins and nowhere
    else has many effective steps and a mean weight near 0.
    """

    target: Target
    mean: float  # for sessions, that of the step at which it is farthest from 1
    sessions: float  # effective ones; for sessions, at the step where they are fewest
    steps: float  # effective ones

    @property
    def problem(self) -> str | None:
        """Why no estimate of this target is believed, in words; None where it is."""
        if abs(self.mean - 1.0) >= OFF:
            return f"the mean weight is {self.mean:.2f} and should be within {OFF} of 1"
        if self.sessions < LEAST_SESSIONS:
            return f"only {self.sessions:.0f} effective sessions stand for it, and {LEAST_SESSIONS:.0f} are needed"
        return None


def weights_of(sums: SessionSums, target: Target) -> WeightSummary:
    layout, mean, squares = sums.layout, sums.mean, sums.mean_squares
    if target == "one step":
        steps = sums.sessions * _effective(mean[layout.WEIGHT], mean[layout.SQUARED])
        sessions = sums.sessions * _effective(mean[layout.WEIGHT], squares[layout.WEIGHT])
        return WeightSummary(target, float(mean[layout.WEIGHT] / mean[layout.STEPS]), sessions, steps)
    average = mean[layout.session_weight]
    effective = [_effective(one, two) for one, two in zip(average, squares[layout.session_weight], strict=True)]
    worst = int(np.abs(average - 1.0).argmax())
    # An ended session keeps its weight, so as many steps count as the log's sessions have.
    steps = sums.sessions * float(np.mean(effective)) * float(mean[layout.KEPT])
    return WeightSummary(target, float(average[worst]), sums.sessions * min(effective), steps)


def _effective(mean: float, mean_square: float) -> float:
    """(Σ w)² / Σ w² as a share."""
    return float(mean**2 / mean_square) if mean_square > 0 else 0.0


@dataclass
class LoggedSupport:
    """How much of what the candidate recommends the log knows, as shares of its recommendations."""

    places: float = 0.0
    rare: float = 0.0
    never: float = 0.0

    def add(self, items: IntArray, propensities: Doubles) -> None:
        """Slates of the candidate (n, K), and the logger's conditional probabilities of them."""
        shown = items != PAD
        self.places += float(shown.sum())
        self.rare += float((shown & (propensities > 0) & (propensities < RARE)).sum())
        self.never += float((shown & (propensities <= 0)).sum())

    def add_logged(self, decisions: Decisions, items: IntArray) -> None:
        """The same by weights, from what the logger has shown (n, K), where it cannot be asked itself."""
        shown = items != PAD
        weight = np.cumprod(decisions.candidate / decisions.logged, axis=1) * shown
        self.places += float(shown.sum())
        self.rare += float(weight[decisions.logged < RARE].sum())
        self.never += float((shown - weight).sum())

    @property
    def exploration_only(self) -> float:
        return float(np.clip(self.rare / max(self.places, 1.0), 0.0, 1.0))

    @property
    def outside(self) -> float:
        return float(np.clip(self.never / max(self.places, 1.0), 0.0, 1.0))


@dataclass
class PropensityCheck:
    """Whether logged propensities can be probabilities of what was shown.

    The mean of 1 / p is the number of items that could have been shown: at most the catalogue, and in one and the same
    state at least as many as were seen in it.
    """

    n_items: int
    shown: int = 0
    missing: int = 0
    zero: int = 0
    large: int = 0
    inverse: Doubles = field(default_factory=lambda: np.zeros(2))  # Σ 1/p and Σ 1/p²
    alike: Doubles = field(default_factory=lambda: np.zeros(3))  # the same in the one state, and how many
    seen: set[int] = field(default_factory=set)  # items in it

    def add(self, items: IntArray, propensities: Doubles, same_state: Mask | None = None) -> None:
        """Slates (n, K); `same_state` (n,) marks those that were made in one and the same state, if any are known."""
        there = items != PAD
        p = propensities[there]
        self.shown += len(p)
        self.missing += int(np.isnan(p).sum())
        self.zero += int((p <= 0).sum())
        self.large += int((p > 1 + 1e-6).sum())
        inverse = 1.0 / p[p > 0]
        self.inverse += [inverse.sum(), (inverse**2).sum()]
        if same_state is not None and items.shape[1]:
            rows = np.flatnonzero(same_state & there[:, 0] & (propensities[:, 0] > 0))
            inverse = 1.0 / propensities[rows, 0]
            self.alike += [inverse.sum(), (inverse**2).sum(), len(rows)]
            self.seen.update(items[rows, 0].tolist())

    @property
    def problem(self) -> str | None:
        """What cannot be right, in words; None where nothing is found."""
        if self.missing:
            return f"{self.missing} of {self.shown} impressions have no propensity"
        if self.zero:
            return f"{self.zero} of {self.shown} impressions have a propensity of 0 or less, yet were shown"
        if self.large:
            return f"{self.large} of {self.shown} impressions have a propensity above 1"
        mean, error = _mean_and_error(self.inverse[0], self.inverse[1], self.shown)
        if mean - SURE * error > self.n_items:
            return (
                f"the mean of 1 / propensity is {mean:.0f}, as if there were so many items to choose from, "
                f"but there are {self.n_items}: the propensities are too small"
            )
        mean, error = _mean_and_error(self.alike[0], self.alike[1], self.alike[2])
        if self.seen and mean + SURE * error < 0.5 * len(self.seen):
            return (
                f"the mean of 1 / propensity is {mean:.1f} in the first place of the first slate, as if there were so "
                f"many items to choose from, but {len(self.seen)} were shown there: the propensities are too large"
            )
        return None


def _mean_and_error(total: float, squares: float, count: float) -> tuple[float, float]:
    if not count:
        return 0.0, 0.0
    mean = total / count
    return mean, float(np.sqrt(max(0.0, squares / count - mean**2) / count))


def self_test(sums: SessionSums) -> str | None:
    """Why propensities fail, in words, where the candidate of `sums` is the logger itself; None if they pass.

    The denominators are those in question (logged, or estimated), the numerators the logger's by other means: its own
    rule, or an estimate from other sessions. Its value must be its own rate, outcome by outcome.
    """
    found = weights_of(sums, "one step")
    if found.problem is not None:
        return f"evaluated against itself, {found.problem}"
    for outcome, name in enumerate(sums.names):
        rate = logger_rate(sums, outcome)
        gap: Smooth = snips(sums, outcome).plus(rate, -1.0)
        surely = abs(gap.value) > Z * standard_error(sums, gap)
        if surely and abs(gap.value) > TOLERANCE * abs(rate.value):
            return (
                f"evaluated against itself, the logger gets {rate.value + gap.value:.4g} {name} a step "
                f"instead of {rate.value:.4g}"
            )
    return None


def session_variance(sums: SessionSums, outcome: int) -> float:
    """Of a session's sum of an outcome, per step of the log's mean session."""
    column = sums.layout.of("kept", outcome)
    return float(max(0.0, sums.covariance[column, column]) / sums.mean[sums.layout.KEPT] ** 2)
