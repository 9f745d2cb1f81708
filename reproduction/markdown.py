"""A reproduction as Markdown: the page's tables and verdicts for people who read text."""

import re
from collections.abc import Sequence

from bcd4rec.report.page import SYMBOLS, Cell, Table, plain, wordy
from reproduction.charts import numbers
from reproduction.findings import Chart, Claim, Finding, Reproduction
from reproduction.page import INTRO, QUICK, TITLE, UNDRAWN, all_commands, drawable, short, tally

ROWS = 30  # of a plot's numbers; more are on the page only


def markdown(found: Reproduction) -> str:
    claims = [claim for finding in found.findings for claim in finding.claims]
    parts = [
        f"# {_prose(TITLE)}",
        *([f"> **{_prose(QUICK)}**"] if found.quick else []),
        _prose(INTRO),
        _bullets([f"{_prose(name)}: {_prose(value)}" for name, value in found.made.items()]),
        "## What holds",
        _prose(tally(claims)),
        _bullets([_line(claim, finding) for finding in found.findings for claim in finding.claims]),
        *(part for finding in found.findings for part in _finding(finding, found.quick)),
        *(_titled(found.costs, "##") if found.costs else []),
        "## Run it again",
        _commands(all_commands(found)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _prose(text: str) -> str:
    """One line that Markdown takes for nothing but text; what stands between `…` is code, as on the page."""
    parts = re.split("(`[^`]+`)", " ".join(text.split()))
    line = "".join(part if place % 2 else _escaped(part) for place, part in enumerate(parts))
    return re.sub(r"^(\d*)([#>+=.)-])(?!\d)", r"\1\\\2", line)  # headings, quotes and lists


def _escaped(text: str) -> str:
    """Without a meaning for HTML, marks, tables and the ends of links."""
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"[\\`*|~]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])", r"\\\g<0>", text)


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _line(claim: Claim, finding: Finding | None = None) -> str:
    more = f" ([{_prose(short(finding.title))}](#{finding.name}))" if finding else ""
    return f"{SYMBOLS[claim.verdict]} **{claim.verdict}**: {_prose(claim.text)}{more}"


def _cell(cell: Cell | str) -> str:
    cell = plain(cell)
    text = f"**{_escaped(cell.text)}**" if cell.best and cell.text else _escaped(cell.text)
    return " ".join(f"{text} {_escaped(cell.detail)}".split())


def _names(table: Table) -> list[str]:
    """The columns' names, each below the name of its span."""
    over = [name for name, width in table.spans for _ in range(width)]
    return [table.columns[0], *(f"{name} {column}" for name, column in zip(over, table.columns[1:], strict=True))]


def _table(table: Table) -> str:
    names = _names(table) if table.spans else table.columns
    left = [not place or table.words or wordy([row[place] for row in table.rows]) for place in range(len(names))]
    lines = [list(map(_escaped, names)), [":--" if one else "--:" for one in left]]
    lines += [[_cell(cell) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _titled(table: Table, level: str = "###") -> list[str]:
    return [f"{level} {_prose(table.title)}", _table(table), _prose(table.note)]


def _chart(chart: Chart) -> list[str]:
    title = f"### {_prose(chart.title)}"
    if not drawable(chart):
        return [title, _prose(chart.note), UNDRAWN]
    table = numbers(chart)
    if len(table.rows) > ROWS:
        return [title, _prose(chart.note), f"The page has this plot and its {len(table.rows):,} rows of numbers."]
    what = f"{chart.up} against {chart.across}." if chart.across else f"{chart.up}."
    return [title, _prose(what), _table(table), _prose(chart.note)]


def _claims(claims: Sequence[Claim]) -> list[str]:
    lines = [[_line(claim), *(f"  - {_prose(one)}" for one in claim.evidence)] for claim in claims]
    return ["### What the paper claims", _bullets(["\n".join(line) for line in lines])] if claims else []


def _commands(commands: Sequence[str]) -> str:
    fence = "`" * max([3, *(len(run) + 1 for command in commands for run in re.findall("`+", command))])
    return "\n".join([f"{fence}sh", *commands, fence]) if commands else ""


def _finding(finding: Finding, quick: bool) -> list[str]:
    mark = " (quick run)" if quick else ""
    return [
        f'<a id="{finding.name}"></a>',
        f"## {_prose(finding.title)}{mark}",
        *map(_prose, finding.prose),
        *(part for table in finding.tables for part in _titled(table)),
        *(part for chart in finding.charts for part in _chart(chart)),
        *_claims(finding.claims),
        *(["Run it again:", _commands(finding.commands)] if finding.commands else []),
    ]
