"""What a reproduction has found, as data: tables, charts and claims that a page, a text or a terminal can show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bcd4rec.report.page import Table, Verdict


@dataclass(frozen=True)
class Points:
    """One series of a chart; `low` and `high` bound each y where an interval is known."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Chart:
    """A plot, described by its numbers.

    `lines` joins the points of a series, `scatter` does not, `groups` puts the series side by side above each of the
    `labels`, which are then the places 0, 1, 2 … of x.
    """

    name: str  # an id that is unique on the page: letters, digits and hyphens
    title: str
    kind: Literal["lines", "scatter", "groups"]
    across: str
    up: str
    series: Mapping[str, Points]
    labels: Sequence[str] = ()
    logarithmic: bool = False  # both axes
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, whether it holds here, and the numbers under it."""

    text: str
    verdict: Verdict
    evidence: Sequence[str]


@dataclass(frozen=True)
class Finding:
    """One table or figure of the paper, or one ablation, made again."""

    name: str  # as the command line calls it: table1, figure2, …
    title: str
    prose: Sequence[str] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    claims: Sequence[Claim] = ()
    commands: Sequence[str] = ()  # how to run it again


@dataclass(frozen=True)
class Reproduction:
    """All of it. `made` says when, where and with what: date, commit, machine, seeds, time."""

    findings: Sequence[Finding]
    quick: bool
    made: Mapping[str, str]
    costs: Table | None = None  # where the time went
