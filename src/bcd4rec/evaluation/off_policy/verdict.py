"""Ship, reject or cannot tell: what follows from the estimates, in one sentence.

- *reject*: the candidate is surely worse. Either the veto says so, the doubly robust estimate with a pseudo-inverse
  over categories (over items where there are none), whose upper bound lies below 0; or the session estimate, where
  its weights are sound.
- *ship*: the session estimate has sound weights and its lower bound lies above 0. Better at the log's states alone is
  not better over sessions, and ships only if that is accepted.
- *cannot tell*: everything else, with the sizes of a canary that would tell.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from bcd4rec.evaluation.off_policy.decisions import Decisions, Doubles
from bcd4rec.evaluation.off_policy.diagnostics import WeightSummary, session_variance, weights_of
from bcd4rec.evaluation.off_policy.estimators import Estimate, Method, Target, estimates
from bcd4rec.evaluation.off_policy.sums import SessionSums
from bcd4rec.evaluation.statistics import Interval

Word = Literal["ship", "reject", "cannot tell"]
Source = Literal["logged", "logger", "estimated"]
EXIT_CODES: dict[Word, int] = {"ship": 0, "cannot tell": 3, "reject": 4}  # bad input is 2

POINTS = (1, 3, 10)  # differences in hundredths of the outcome per step, that canaries are sized for
ONE_SIDED, POWER = 1.6448536269514722, 0.8416212335729143  # normal quantiles of 95 % and of 80 %
VETOES: tuple[Method, ...] = ("DR + categories", "DR + items")
WEIGHTLESS: tuple[Method, ...] = ("direct",)  # told for orientation only
NOT_IN_ORDER = "A smaller step does not ship, and larger ones are asked about only after it."
STEPS = (0.01, 0.02, 0.03, *(round(0.05 * step, 2) for step in range(1, 21)))  # shares of the new policy that are tried


@dataclass(frozen=True)
class Row:
    """A line of the table: an estimate, and whether it may decide."""

    estimate: Estimate
    weights: WeightSummary
    problem: str | None  # why it may not

    @property
    def indicative(self) -> bool:
        return self.problem is not None or self.estimate.method in WEIGHTLESS


@dataclass(frozen=True)
class Indicative:
    """What a model alone says of whole sessions, a step; the intervals are over refits. It never decides."""

    method: str
    outcome: str
    value: Interval
    logger: float
    difference: Interval
    refits: int


def over_refits(method: str, outcome: str, whole: tuple[float, float], parts: Doubles) -> Indicative:
    """From the candidate's and the logger's value, and (R, 2) the same where one group of sessions each is left out."""
    refits = len(parts)
    spread = stats.t.ppf(0.975, refits - 1) * np.sqrt((refits - 1) / refits)

    def interval(value: float, others: Doubles) -> Interval:
        half = float(spread * np.sqrt(((others - others.mean()) ** 2).sum()))
        return Interval(value, value - half, value + half)

    gain = interval(whole[0] - whole[1], parts[:, 0] - parts[:, 1])
    return Indicative(method, outcome, interval(whole[0], parts[:, 0]), whole[1], gain, refits)


@dataclass(frozen=True)
class CanarySize:
    """Sessions of each arm that tell a difference of so many points, one-sided at 5 %, four times in five."""

    points: float
    sessions: int


@dataclass(frozen=True)
class Coverage:
    """How much of what the candidate recommends the log knows, as shares."""

    exploration_only: float  # the log knows it from exploration only
    outside: float  # the logger would never show it there


@dataclass(frozen=True)
class SmallerStep:
    """The largest share of places that may be the candidate's so that the log approves, or at least can judge."""

    share: float
    word: Word
    reason: str


@dataclass(frozen=True)
class Verdict:
    word: Word
    reason: str  # one sentence
    rows: tuple[Row, ...]
    canary: tuple[CanarySize, ...]
    sessions: int
    coverage: Coverage | None = None
    smaller_step: SmallerStep | None = None
    indicative: tuple[Indicative, ...] = ()  # models alone
    propensities: Source = "logged"  # whose the weights are made of
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.word]

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.word,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "sessions": self.sessions,
            "propensities": self.propensities,
            "estimates": [
                asdict(row.estimate)
                | {name: row.estimate.__dict__[name]._asdict() for name in ("value", "difference")}
                | {"mean_weight": row.weights.mean, "effective_sessions": row.weights.sessions}
                | {"effective_steps": row.weights.steps, "problem": row.problem, "indicative": row.indicative}
                for row in self.rows
            ],
            "indicative": [
                asdict(one) | {"value": one.value._asdict(), "difference": one.difference._asdict()}
                for one in self.indicative
            ],
            "canary": [asdict(size) for size in self.canary],
            "coverage": None if self.coverage is None else asdict(self.coverage),
            "smaller_step": None if self.smaller_step is None else asdict(self.smaller_step),
            "notes": list(self.notes),
        }


def verdict_of(
    sums: SessionSums, target: str, accept_one_step: bool = False, refused: str | None = None, by: str = "reward"
) -> Verdict:
    """What the log says. `target` is the outcome that canaries are sized for, `by` the one that decides.

    `refused` says why nothing can be decided, if so.
    """
    rows = table(sums)
    canary = canary_sizes(sums, sums.names.index(target))
    word, reason = _decide([row for row in rows if row.estimate.outcome == by], accept_one_step, refused)
    if word == "cannot tell":
        one, *more = canary
        told = ", ".join(f"{size.sessions:,} for {size.points:g}" for size in more)
        reason += f"; a canary of {one.sessions:,} sessions an arm would tell a difference of {one.points:g} point"
        reason += f" ({told})."
    return Verdict(word, reason, tuple(rows), canary, sums.sessions)


def table(sums: SessionSums) -> list[Row]:
    """Both targets, every method and outcome."""
    weights = {target: weights_of(sums, target) for target in ("one step", "session")}
    rows = []
    for estimate in estimates(sums):
        found = weights[estimate.target]
        unweighted = estimate.method in (*VETOES, *WEIGHTLESS)
        rows.append(Row(estimate, found, None if unweighted else found.problem))
    return rows


def _decide(rows: Sequence[Row], accept_one_step: bool, refused: str | None) -> tuple[Word, str]:
    if refused is not None:
        return "cannot tell", refused
    by_method = {row.estimate.method: row for row in rows}
    veto = next((by_method[method] for method in VETOES if method in by_method), None)
    session = by_method["per decision"]
    step = by_method.get("doubly robust", by_method["SNIPS"])
    if session.problem is None and session.estimate.difference.high < 0:
        return "reject", f"Worse over whole sessions: {_change(session)}."
    alone = accept_one_step and step.problem is None  # two tests in a row would err twice as often as one
    if not alone and session.problem is None and session.estimate.difference.low > 0:
        return "ship", f"Better over whole sessions: {_change(session)}."
    if veto is not None and veto.estimate.difference.high < 0:
        return "reject", f"Worse at the log's states, even at best: {_change(veto)}."
    better = step.problem is None and step.estimate.difference.low > 0
    if alone:
        if better:
            return "ship", f"Better at the log's states, which was accepted as enough: {_change(step)}."
        return "cannot tell", f"At the log's states, which were to decide, it may be better or worse ({_change(step)})"
    why = session.problem or f"over whole sessions it may be better or worse ({_change(session)})"
    if better:
        return "cannot tell", f"Better at the log's states ({_change(step)}), but one step is not the session: {why}"
    return "cannot tell", f"The log cannot tell whether it is better: {why}"


def _change(row: Row) -> str:
    value, low, high = row.estimate.difference
    text = f"{value:+.4f} {row.estimate.outcome} a step, 95 % interval {low:+.4f} to {high:+.4f}"
    return text.replace("-", "−")


def canary_sizes(sums: SessionSums, outcome: int, points: Sequence[float] = POINTS) -> tuple[CanarySize, ...]:
    """From how much sessions of this log differ in the outcome."""
    variance = session_variance(sums, outcome)
    need = 2.0 * variance * (ONE_SIDED + POWER) ** 2
    return tuple(CanarySize(one, max(1, math.ceil(need / (one / 100.0) ** 2))) for one in points)


class StepSizes:
    """The sums of mixtures whose places are the candidate's with probability α, for several α at once."""

    def __init__(self, outcomes: tuple[str, ...], longest: int, alphas: Sequence[float] = STEPS):
        self.sums = {alpha: SessionSums(outcomes, longest) for alpha in sorted(alphas)}

    def add(self, decisions: Decisions) -> None:
        for alpha, sums in self.sums.items():
            sums.add(decisions.mixed(alpha))

    def largest(self, target: Target = "session") -> float | None:
        """The largest α up to which weights are sound all along; None where they are for none."""
        found = None
        for alpha, sums in self.sums.items():
            if weights_of(sums, target).problem is not None:
                break
            found = alpha
        return found

    def approved(self, target: str) -> SmallerStep | None:
        """The largest α up to which all steps ship over whole sessions; where none does, the largest sound one.

        Steps are tested from the smallest on, in an order that was fixed beforehand, and the first that does not ship
        ends it: so the probability that any step is approved wrongly is that of a single test, however many are tried.
        The smallest step is told best: its gain falls with α, and so does its error, but weights vary less.
        """
        found: SmallerStep | None = None
        sound = self.largest("session")
        for alpha in [] if sound is None else [one for one in self.sums if one <= sound]:
            verdict = verdict_of(self.sums[alpha], target)
            if verdict.word != "ship":
                break
            found = SmallerStep(alpha, verdict.word, verdict.reason)
        if found is None and sound is not None:
            verdict = verdict_of(self.sums[sound], target)
            # A step beyond one that did not ship is not shipped, whatever it would say alone.
            word: Word = "cannot tell" if verdict.word == "ship" else verdict.word
            found = SmallerStep(sound, word, verdict.reason if word == verdict.word else NOT_IN_ORDER)
        return found
