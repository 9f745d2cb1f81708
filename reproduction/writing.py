"""Numbers as people read them, and verdicts over several cases."""

from collections.abc import Mapping, Sequence

from bcd4rec.evaluation.statistics import Interval
from bcd4rec.evaluation.wording import number
from bcd4rec.report.page import Cell, Verdict
from reproduction.findings import Claim
from reproduction.results import EvaluationRuns

ABSENT = "–"


def spread(found: EvaluationRuns, name: str = "rate") -> str:
    """Mean ± standard deviation over seeds, or the mean alone of one."""
    deviation = found.deviation(name)
    return number(found.mean(name)) + ("" if deviation is None else f" ± {number(deviation)}")


def bounds(found: Interval | None, decimals: int = 1) -> str:
    return ABSENT if found is None else f"[{number(found.low, decimals)}, {number(found.high, decimals)}]"


def with_bounds(found: Interval | None, decimals: int = 1) -> str:
    return ABSENT if found is None else f"{number(found.value, decimals)} {bounds(found, decimals)}"


def signed(found: Interval, decimals: int = 1) -> str:
    sign = "+" if found.value > 0 else ""
    return f"{sign}{with_bounds(found, decimals)}"


def entry(found: EvaluationRuns | None, best: bool = False) -> Cell:
    if found is None:
        return Cell(ABSENT)
    made = len(found.tasks)
    missing = f", {made} of {found.asked} runs" if made < found.asked else ""
    return Cell(spread(found), bounds(found.rate) + missing, best)


def judge(cases: Mapping[str, bool] | Sequence[bool]) -> Verdict:
    """`holds` in all cases, in some, or in none."""
    values = list(cases.values()) if isinstance(cases, Mapping) else list(cases)
    if not values:
        return "not measured"
    return "holds" if all(values) else "holds partly" if any(values) else "does not hold here"


def claim(text: str, cases: Mapping[str, bool], evidence: Sequence[str]) -> Claim:
    return Claim(text, judge(cases), evidence)
