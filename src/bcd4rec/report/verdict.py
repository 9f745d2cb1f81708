"""The verdict of a log on a policy, as tables and as a page."""

from collections.abc import Sequence
from pathlib import Path

from bcd4rec.evaluation.off_policy.verdict import Row, Verdict
from bcd4rec.evaluation.statistics import Interval
from bcd4rec.report import plots
from bcd4rec.report.page import Cell, Figure, Page, Section, Table, write_page

DECIMALS = 4
PLOT = (
    "A dot is an estimate; the line through it is the 95 % interval. Right of 0 is better than the logger. "
    "Per decision is of whole sessions, the others are of one step; direct is a model alone."
)
WORDS = {"ship": "Ship", "reject": "Reject", "cannot tell": "Cannot tell"}
PROPENSITIES = {"logged": "of the log", "logger": "of the logger's rule", "estimated": "estimated from the log"}
COLUMNS = ("Target", "Estimate", "Outcome", "New policy", "Logger", "Difference")
WEIGHTS = ("Mean weight", "Effective sessions", "Effective steps")


def headline(verdict: Verdict) -> str:
    """The one sentence that comes first."""
    return f"{WORDS[verdict.word]}. {verdict.reason}"


def _number(value: float, decimals: int = DECIMALS) -> str:
    return f"{value:.{decimals}f}".replace("-", "−")


def _measured(found: Interval, signed: bool = False) -> Cell:
    value = f"{found.value:+.{DECIMALS}f}".replace("-", "−") if signed else _number(found.value)
    return Cell(value, f"[{_number(found.low)}, {_number(found.high)}]")


def _cells(row: Row) -> list[Cell | str]:
    one = row.estimate
    told: list[Cell | str] = [one.target, one.method, one.outcome, _measured(one.value), _number(one.logger)]
    weights = [_number(row.weights.mean, 2), f"{row.weights.sessions:,.0f}", f"{row.weights.steps:,.0f}"]
    return [*told, _measured(one.difference, signed=True), *weights]


def estimates(verdict: Verdict) -> Table:
    """What may decide."""
    rows = [_cells(row) for row in verdict.rows if not row.indicative]
    caption = "Outcomes a step, with 95 % intervals over sessions."
    return Table([*COLUMNS, *WEIGHTS], rows, caption=caption)


def indicative(verdict: Verdict) -> Table:
    """What is told for orientation only, and why."""
    rows = [
        [*_cells(row)[:6], row.problem or "a model alone, which no weights correct"]
        for row in verdict.rows
        if row.indicative
    ]
    for one in verdict.indicative:
        told: list[Cell | str] = ["session", one.method, one.outcome, _measured(one.value), _number(one.logger)]
        why = f"a model alone, which no weights correct; intervals over {one.refits} refits"
        rows.append([*told, _measured(one.difference, signed=True), why])
    return Table([*COLUMNS, "Why it does not decide"], rows, caption="Indicative: nothing is decided by these lines.")


def facts(verdict: Verdict) -> list[tuple[str, str]]:
    """Names and values beside the tables."""
    found = [("sessions", f"{verdict.sessions:,}"), ("propensities", PROPENSITIES[verdict.propensities])]
    if verdict.coverage is not None:
        coverage = verdict.coverage
        found.append(("known from exploration only", _percent(coverage.exploration_only)))
        found.append(("outside of the support", _percent(coverage.outside)))
    canary = ", ".join(f"{one.sessions:,} for {one.points:g}" for one in verdict.canary) + " points of difference"
    canary = f"sessions an arm: {canary}"
    found.append(("canary", canary))
    step = verdict.smaller_step
    if step is not None:
        told = f"{100 * step.share:.0f} % of the places from the new policy: {step.word}"
        found.append(("largest step", told))
    elif verdict.coverage is not None:
        found.append(("largest step", "no share of 1 % or more can be judged"))
    return found


def _percent(value: float) -> str:
    return f"{100 * value:.1f} % of what it recommends"


def _figure(verdict: Verdict, outcome: str) -> Figure | None:
    """The estimates that are sound, and the model alone; None where there are none."""
    sound = [row.estimate for row in verdict.rows if row.problem is None]
    values: dict[str, Interval] = {one.method: one.difference for one in sound if one.outcome == outcome}
    if not values:
        return None
    label = f"Difference in {outcome} a step"
    table = [[name, *(_number(part) for part in one)] for name, one in values.items()]
    said = ", ".join(f"{name} {_number(one.value)}" for name, one in values.items())
    return Figure(
        plots.dots("difference", values, label, DECIMALS),
        f"Dot plot of the difference to the logger in {outcome} a step, with 95 % intervals: {said}.",
        Table(["Estimate", label, "low", "high"], table),
    )


def write_verdict_report(
    path: Path, verdict: Verdict, title: str, intro: Sequence[str], command: str, force: bool
) -> None:
    outcome = verdict.rows[-1].estimate.outcome
    deciding, figure = estimates(verdict), _figure(verdict, outcome)
    sections = [
        Section(
            "What decides",
            ["One step: the new policy acts once, in the states of the log. Session: it acts from the first slate on."],
            table=deciding if deciding.rows else None,
            notes=[] if deciding.rows else ["No estimate is sound enough to decide; see below why."],
        ),
        *([Section(f"The difference in {outcome}", [PLOT], figure)] if figure is not None else []),
        Section("Indicative", table=indicative(verdict)),
        *([Section("To know", list(verdict.notes))] if verdict.notes else []),
        Section("Run it again", ["The same command gives the same numbers."], commands=[command]),
    ]
    write_page(path, Page(title, [headline(verdict), *intro], sections, facts=facts(verdict)), force)
