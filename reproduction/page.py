"""The page of a reproduction: each claim of the paper with its verdict, then each table and figure beside ours."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bcd4rec.report.page import SYMBOLS, Page, Section, Statement, Table, write_page
from reproduction.charts import figure
from reproduction.findings import Chart, Claim, Finding, Reproduction

TITLE = "The paper, made again"
INTRO = (
    "Batch-Constrained Distributional Reinforcement Learning for Session-based Recommendation: its tables, its figures "
    "and what it claims, from runs of this library. The paper's own numbers stand beside ours where it prints them."
)
QUICK = "Quick run: fewer users, sessions and updates; figures are not for quoting."
UNDRAWN = "Nothing was measured that could be drawn here."


def write_reproduction(path: Path, found: Reproduction, force: bool = False) -> None:
    """One self-contained HTML file."""
    sections = [
        _summary(found),
        *(_finding(finding, found.quick) for finding in found.findings),
        *([_costs(found.costs, found.quick)] if found.costs else []),
        _again(found),
    ]
    banner = QUICK if found.quick else ""
    write_page(path, Page(TITLE, [INTRO], sections, banner, list(found.made.items())), force)


def tally(claims: Sequence[Claim]) -> str:
    """How many claims got which verdict, in words."""
    counts = Counter(claim.verdict for claim in claims)
    said = ", ".join(f"{verdict}: {counts[verdict]}" for verdict in SYMBOLS if counts[verdict])
    noun = "claim" if len(claims) == 1 else "claims"
    return f"{len(claims)} {noun} of the paper. {said[:1].upper()}{said[1:]}." if claims else "No claims were examined."


def short(title: str) -> str:
    """`Table 1` of `Table 1: every method`."""
    return title.partition(":")[0]


def all_commands(found: Reproduction) -> list[str]:
    """Each command once, in the order of the findings."""
    return list(dict.fromkeys(command for finding in found.findings for command in finding.commands))


def drawable(chart: Chart) -> bool:
    return any(len(points.y) for points in chart.series.values())


def _mark(quick: bool) -> str:
    return "quick run" if quick else ""


def _summary(found: Reproduction) -> Section:
    statements = [
        Statement(claim.verdict, claim.text, link=(finding.name, short(finding.title)))
        for finding in found.findings
        for claim in finding.claims
    ]
    claims = [claim for finding in found.findings for claim in finding.claims]
    return Section("What holds", [tally(claims)], statements=statements, anchor="claims", mark=_mark(found.quick))


def _finding(finding: Finding, quick: bool) -> Section:
    parts = [_table(table) for table in finding.tables] + [_chart(finding.name, chart) for chart in finding.charts]
    if finding.claims:
        statements = [Statement(claim.verdict, claim.text, claim.evidence) for claim in finding.claims]
        parts.append(Section("What the paper claims", statements=statements))
    if finding.commands:
        parts.append(Section("Run it again", commands=finding.commands))
    return Section(finding.title, finding.prose, parts=parts, anchor=finding.name, mark=_mark(quick))


def _table(table: Table) -> Section:
    return Section(table.title, table=table, notes=[table.note] if table.note else [])


def _chart(finding: str, chart: Chart) -> Section:
    if not drawable(chart):
        return Section(chart.title, [*([chart.note] if chart.note else []), UNDRAWN])
    return Section(chart.title, figure=figure(chart, f"{finding}-{chart.name}"))


def _costs(costs: Table, quick: bool) -> Section:
    return replace(_table(costs), anchor="costs", mark=_mark(quick))


def _again(found: Reproduction) -> Section:
    commands = all_commands(found)
    prose = ["The same commands with the same seeds give the same numbers." if commands else "No commands were kept."]
    return Section("Run it again", prose, commands=commands, anchor="again", mark=_mark(found.quick))
