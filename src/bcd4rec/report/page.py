"""A self-contained HTML page, described as data: sections of prose, figures, tables and commands.

Reports say what is on the page; only this file writes HTML, and it escapes every text it is given. A page loads
nothing: no script, no font, no picture from anywhere.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Literal

from bcd4rec.artifacts import atomic_file
from bcd4rec.evaluation.statistics import Interval
from bcd4rec.evaluation.wording import number

Verdict = Literal["holds", "holds partly", "does not hold here", "not measured"]
SYMBOLS: Mapping[Verdict, str] = {"holds": "✓", "holds partly": "◐", "does not hold here": "✗", "not measured": "–"}
WIDTHS = {"wide": 8, "widest": 12}  # by columns; such tables may be wider than the text, with details below numbers
LONG = 24  # letters of a cell from which on it is broken into lines


@dataclass(frozen=True)
class Cell:
    """A number or a word, what stands smaller behind it, and whether it is the column's best."""

    text: str
    detail: str = ""
    best: bool = False


@dataclass(frozen=True)
class Table:
    """The first column names the rows; columns of words are set as words, and with `words` all of them are.

    `spans` name neighbouring columns together: a name, and how many columns it stands above. A table that is a section
    of its own has its `title` and a `note` below it.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    caption: str = ""
    words: bool = False
    spans: Sequence[tuple[str, int]] = ()
    title: str = ""
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """`svg` is trusted markup from `report.plots`; `alt` says in words what it shows, `data` holds its numbers."""

    svg: str
    alt: str
    data: Table
    caption: str = ""


@dataclass(frozen=True)
class Statement:
    """A sentence under its verdict; `link` is the anchor and the title of the section that has more about it."""

    verdict: Verdict
    text: str
    evidence: Sequence[str] = ()
    link: tuple[str, str] | None = None


@dataclass(frozen=True)
class Section:
    """What is set comes in this order; `parts` are sections within the section.

    A section with an anchor is in the page's contents. `mark` stands behind the title.
    """

    title: str
    prose: Sequence[str] = ()
    figure: Figure | None = None
    table: Table | None = None
    commands: Sequence[str] = ()
    notes: Sequence[str] = ()  # prose that follows
    statements: Sequence[Statement] = ()
    parts: Sequence["Section"] = ()
    anchor: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Page:
    title: str
    intro: Sequence[str]
    sections: Sequence[Section]
    banner: str = ""
    facts: Sequence[tuple[str, str]] = ()  # names and values that stand before everything else


def measured(found: Interval | None, decimals: int = 1) -> Cell:
    if found is None:
        return Cell("–")
    return Cell(number(found.value, decimals), f"[{number(found.low, decimals)}, {number(found.high, decimals)}]")


def _prose(text: str) -> str:
    """What stands between `…` is code; a number and its unit stay on one line."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text).replace(" %", "\u00a0%"))


def _paragraphs(texts: Sequence[str]) -> str:
    return "".join(f"<p>{_prose(text)}</p>\n" for text in texts)


def plain(cell: Cell | str) -> Cell:
    return Cell(cell) if isinstance(cell, str) else cell


def _long(cells: Sequence[Cell | str]) -> bool:
    return any(len(text) > LONG for cell in map(plain, cells) for text in (cell.text, cell.detail))


def wordy(cells: Sequence[Cell | str]) -> bool:
    """Whether a column reads as words: most of its cells are no numbers, or one is long."""
    words = sum(not re.fullmatch(r"([<>≈±+−-]?\s?\d.*|[–-]?)", plain(cell).text) for cell in cells)
    return 2 * words > len(cells) or _long(cells)


def _cell(cell: Cell | str) -> str:
    cell = plain(cell)
    text = f"<strong>{escape(cell.text)}</strong>" if cell.best else escape(cell.text)
    return text + (f" <small>{escape(cell.detail)}</small>" if cell.detail else "")


def _kinds(table: Table) -> list[str]:
    """The attributes of each column's cells but the first's: whether they are words, long, and begin a span."""
    edges = {1 + sum(width for _, width in table.spans[:place]) for place in range(len(table.spans))}
    kinds = []
    for column in range(1, len(table.columns)):
        cells = [row[column] for row in table.rows]
        names = ["word"] * (table.words or wordy(cells)) + ["long"] * _long(cells) + ["edge"] * (column in edges)
        kinds.append(f' class="{" ".join(names)}"' if names else "")
    return kinds


def _head(table: Table, kinds: Sequence[str]) -> str:
    over = "".join(
        f'<th scope="colgroup" colspan="{width}" class="edge">{_prose(name)}</th>' for name, width in table.spans
    )
    names = "".join(
        f'<th scope="col"{kind}>{_prose(name)}</th>' for name, kind in zip(table.columns, ["", *kinds], strict=True)
    )
    return (f"<tr><td></td>{over}</tr>\n" if over else "") + f"<tr>{names}</tr>"


def _row(row: Sequence[Cell | str], kinds: Sequence[str]) -> str:
    cells = "".join(f"<td{kind}>{_cell(cell)}</td>" for cell, kind in zip(row[1:], kinds, strict=True))
    return f'<tr><th scope="row">{_cell(row[0])}</th>{cells}</tr>\n'


def _table(table: Table, label: str) -> str:
    caption = f"<caption><span>{_prose(table.caption)}</span></caption>" if table.caption else ""
    kinds = _kinds(table)
    body = "".join(_row(row, kinds) for row in table.rows)
    content = f"<table>{caption}\n<thead>{_head(table, kinds)}</thead>\n<tbody>\n{body}</tbody></table>"
    # Wide tables scroll by themselves, with the keyboard too, and the page never does.
    kind = " ".join(["scroll", *(name for name, least in WIDTHS.items() if len(table.columns) >= least)])
    label = escape(table.caption or label, quote=True)
    return f'<div class="{kind}" role="region" tabindex="0" aria-label="{label}">{content}</div>\n'


def _figure(figure: Figure) -> str:
    svg = figure.svg.replace("<svg", f'<svg role="img" aria-label="{escape(figure.alt, quote=True)}"', 1)
    caption = f"<figcaption>{_prose(figure.caption)}</figcaption>\n" if figure.caption else ""
    summary = "The numbers of this plot"
    details = f"<details><summary>{summary}</summary>\n{_table(figure.data, summary)}</details>\n"
    return f"<figure>\n{svg}\n{caption}{details}</figure>\n"


def _statement(one: Statement) -> str:
    kind = one.verdict.replace(" ", "-")
    badge = f'<span class="badge">{SYMBOLS[one.verdict]}\u00a0{escape(one.verdict)}</span>'
    link = f' <a href="#{escape(one.link[0])}">{_prose(one.link[1])}</a>' if one.link else ""
    evidence = "".join(f"<li>{_prose(text)}</li>" for text in one.evidence)
    below = f"<ul>{evidence}</ul>" if evidence else ""
    return f'<li class="{kind}">{badge}<div><p>{_prose(one.text)}{link}</p>{below}</div></li>\n'


def _command(command: str) -> str:
    """A line that is broken between words only, never behind the hyphens of an option."""
    words = " ".join(f"<i>{escape(word)}</i>" for word in command.split(" "))
    return f"<span>{words}\n</span>"


def _parts(section: Section, level: int) -> str:
    parts = [_paragraphs(section.prose)]
    if section.figure:
        parts.append(_figure(section.figure))
    if section.table:
        parts.append(_table(section.table, section.title))
    if section.commands:
        parts.append(f'<pre tabindex="0"><code>{"".join(map(_command, section.commands))}</code></pre>\n')
    parts.append(_paragraphs(section.notes))
    if section.statements:
        parts.append(f'<ul class="statements">\n{"".join(map(_statement, section.statements))}</ul>\n')
    if section.parts:
        inner = "".join(_section(part, level + 1) for part in section.parts)
        parts.append(f'<div class="parts">\n{inner}</div>\n')
    return "".join(parts)


def _section(section: Section, level: int = 2) -> str:
    kinds = ["beside"] * bool(section.figure and section.prose) + ["plot"] * bool(section.figure)
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    anchor = f' id="{escape(section.anchor)}"' if section.anchor else ""
    mark = f' <span class="mark">{escape(section.mark)}</span>' if section.mark else ""
    title = f"<h{level}>{_prose(section.title)}{mark}</h{level}>\n"
    return f"<section{kind}{anchor}>\n{title}{_parts(section, level)}</section>\n"


def _contents(sections: Sequence[Section]) -> str:
    links = "".join(
        f'<li><a href="#{escape(one.anchor)}">{_prose(one.title)}</a></li>\n' for one in sections if one.anchor
    )
    return f'<nav aria-label="Contents">\n<h2>Contents</h2>\n<ol>\n{links}</ol>\n</nav>\n' if links else ""


def render(page: Page) -> str:
    style = files("bcd4rec.report").joinpath("style.css").read_text(encoding="utf-8")
    banner = f'<p class="banner" role="note">{_prose(page.banner)}</p>\n' if page.banner else ""
    pairs = "".join(f"<div><dt>{_prose(name)}</dt><dd>{_prose(value)}</dd></div>\n" for name, value in page.facts)
    facts = f"<dl>\n{pairs}</dl>\n" if pairs else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(page.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"<header>\n<h1>{escape(page.title)}</h1>\n{banner}{_paragraphs(page.intro)}{facts}</header>\n"
        f"{_contents(page.sections)}{''.join(map(_section, page.sections))}</main>\n</body>\n</html>\n"
    )


def write_page(path: Path, page: Page, force: bool = False) -> None:
    """One file, written whole or not at all."""
    text = render(page)
    with atomic_file(path, force) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")
