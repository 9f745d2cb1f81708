"""A finding of a reproduction on the terminal: its tables and the verdicts; plots are on the page."""

from collections.abc import Iterator, Sequence
from typing import Literal

from rich import table as rich_table
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from bcd4rec.console import say, show
from bcd4rec.report.page import SYMBOLS, Cell, Table, plain, wordy
from reproduction.findings import Claim, Finding
from reproduction.page import QUICK

WIDTH = 100  # letters in a row, on terminals that have so many
WRAPPED = 40  # letters of a word column before it is broken into lines
COLOURS = {"holds": "green", "holds partly": "yellow", "does not hold here": "red", "not measured": "bright_black"}


def show_finding(finding: Finding, quick: bool) -> None:
    show(Rule(style="dim"))
    show(Text(f"{finding.title} ({finding.name})", "bold"))
    if quick:
        show(Text(QUICK, "yellow"))
    for text in finding.prose:
        show(text)
    for table in finding.tables:
        for piece in tables(table, min(WIDTH, Console().width)):
            show(piece)
        if table.note:
            show(Text(table.note, "dim"))
    for claim in finding.claims:
        _show_claim(claim)
    if finding.charts:
        say(f"Not drawn here, but in report.html: {'; '.join(chart.title for chart in finding.charts)}.")
    if finding.commands:
        say("Run it again:")
    for command in finding.commands:
        say(f"  {command}")


def _show_claim(claim: Claim) -> None:
    verdict = Text(f"{SYMBOLS[claim.verdict]} {claim.verdict}", COLOURS[claim.verdict])
    show(verdict + Text(f": {claim.text}"))
    for line in claim.evidence:
        show(Padding(line, (0, 0, 0, 4), expand=False))


def tables(table: Table, width: int) -> Iterator[rich_table.Table]:
    """The table in as few tables as fit in the width, each with the rows' names; columns of one span stay together."""
    widths = [_width(table, column) for column in range(len(table.columns))]
    pieces: list[list[int]] = []
    for block in _blocks(table):
        room = width - 1 - widths[0] - sum(widths[column] for column in block)
        if pieces and sum(widths[column] for column in pieces[-1]) <= room:
            pieces[-1] += block
        else:
            pieces.append(block)
    for number, piece in enumerate(pieces):
        yield _table(table, piece, table.title if not number else f"{table.title} (continued)")


def _blocks(table: Table) -> list[list[int]]:
    """The columns after the first that should stay together."""
    sizes = [size for _, size in table.spans] or [1] * (len(table.columns) - 1)
    starts = [1 + sum(sizes[:place]) for place in range(len(sizes))]
    return [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]


def _name(table: Table, column: int) -> str:
    """The column's name, below its span's if it is the first one there."""
    starts = {block[0]: span for block, (span, _) in zip(_blocks(table), table.spans, strict=False)}
    if not table.spans:
        return table.columns[column]
    return f"{starts.get(column, '')}\n{table.columns[column]}"


def _cells(table: Table, column: int) -> list[Cell]:
    return [plain(row[column]) for row in table.rows]


def _text(entry: Cell) -> Text:
    return Text(entry.text, "bold" if entry.best else "") + Text(f" {entry.detail}" if entry.detail else "", "dim")


def _width(table: Table, column: int) -> int:
    """With the space and the line beside it."""
    cells = [cell_len(_text(entry).plain) for entry in _cells(table, column)]
    names = [cell_len(line) for line in _name(table, column).splitlines()]
    return min(max([*cells, *names]), WRAPPED) + 3


def _table(table: Table, columns: Sequence[int], title: str) -> rich_table.Table:
    shown = rich_table.Table(title=title, title_justify="left")
    shown.add_column(_name(table, 0), style="bold", max_width=WRAPPED, overflow="fold")
    for column in columns:
        words = wordy(_cells(table, column))
        justify: Literal["left", "right"] = "left" if words else "right"
        shown.add_column(_name(table, column), justify=justify, no_wrap=not words, max_width=WRAPPED, overflow="fold")
    for row in table.rows:
        shown.add_row(*(_text(plain(row[column])) for column in (0, *columns)))
    return shown
