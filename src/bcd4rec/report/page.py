"""A self-contained HTML page, described as data: sections of prose, figures, tables and commands.

Reports say what is on the page; only this file writes HTML, and it escapes every text it is given. A page loads
nothing: no script, no font, no picture from anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from bcd4rec.artifacts import atomic_file
from bcd4rec.evaluation.statistics import Interval


@dataclass(frozen=True)
class Cell:
    """A text and a smaller one behind it."""

    text: str
    detail: str = ""


@dataclass(frozen=True)
class Table:
    """The first column names the rows; the others are numbers unless `words` is set."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    caption: str = ""
    words: bool = False


@dataclass(frozen=True)
class Figure:
    """`svg` is trusted markup from `report.plots`; `alt` says in words what it shows, `data` holds its numbers."""

    svg: str
    alt: str
    data: Table
    caption: str = ""


@dataclass(frozen=True)
class Section:
    title: str
    prose: Sequence[str] = ()
    figure: Figure | None = None
    table: Table | None = None
    commands: Sequence[str] = ()
    notes: Sequence[str] = ()  # prose that follows


@dataclass(frozen=True)
class Page:
    title: str
    intro: Sequence[str]
    sections: Sequence[Section]


def number(value: float | None, decimals: int = 1) -> str:
    """With a real minus sign; an absent value is a dash."""
    if value is None:
        return "–"
    text = f"{value:.{decimals}f}"
    return (text.replace("-", "−") if float(text) else text.removeprefix("-")) if value < 0 else text


def measured(found: Interval | None, decimals: int = 1) -> Cell:
    if found is None:
        return Cell("–")
    return Cell(number(found.value, decimals), f"[{number(found.low, decimals)}, {number(found.high, decimals)}]")


def _prose(text: str) -> str:
    return escape(text).replace(" %", "\u00a0%")  # a number and its unit stay on one line


def _paragraphs(texts: Sequence[str]) -> str:
    return "".join(f"<p>{_prose(text)}</p>\n" for text in texts)


def _cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return escape(cell)
    return escape(cell.text) + (f" <small>{escape(cell.detail)}</small>" if cell.detail else "")


def _table(table: Table) -> str:
    caption = f"<caption>{_prose(table.caption)}</caption>" if table.caption else ""
    head = "".join(f'<th scope="col">{_prose(column)}</th>' for column in table.columns)
    body = "".join(
        f'<tr><th scope="row">{_cell(row[0])}</th>{"".join(f"<td>{_cell(cell)}</td>" for cell in row[1:])}</tr>\n'
        for row in table.rows
    )
    kind = ' class="words"' if table.words else ""
    content = f"<table{kind}>{caption}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"
    # Wide tables scroll by themselves, with the keyboard too, and the page never does.
    label = escape(table.caption or "Table", quote=True)
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">{content}</div>\n'


def _figure(figure: Figure) -> str:
    svg = figure.svg.replace("<svg", f'<svg role="img" aria-label="{escape(figure.alt, quote=True)}"', 1)
    caption = f"<figcaption>{_prose(figure.caption)}</figcaption>\n" if figure.caption else ""
    details = f"<details><summary>The numbers of this plot</summary>\n{_table(figure.data)}</details>\n"
    return f"<figure>\n{svg}\n{caption}{details}</figure>\n"


def _section(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>\n", _paragraphs(section.prose)]
    if section.figure:
        parts.append(_figure(section.figure))
    if section.table:
        parts.append(_table(section.table))
    if section.commands:
        parts.append(f'<pre tabindex="0"><code>{escape(chr(10).join(section.commands))}</code></pre>\n')
    parts.append(_paragraphs(section.notes))
    kind = ' class="beside"' if section.figure and section.prose else ""
    return f"<section{kind}>\n{''.join(parts)}</section>\n"


def render(page: Page) -> str:
    style = files("bcd4rec.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(page.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"<header>\n<h1>{escape(page.title)}</h1>\n{_paragraphs(page.intro)}</header>\n"
        f"{''.join(map(_section, page.sections))}</main>\n</body>\n</html>\n"
    )


def write_page(path: Path, page: Page, force: bool = False) -> None:
    """One file, written whole or not at all."""
    text = render(page)
    with atomic_file(path, force) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")
