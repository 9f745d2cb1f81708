"""A reproduction for people: the page in a real browser, the Markdown through a real parser, tables on a terminal."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt
from rich.cells import cell_len

from bcd4rec.errors import InputError
from bcd4rec.report import plots
from bcd4rec.report.page import SYMBOLS, Cell, Table, wordy
from browser import CHROMIUM, Browser, browser
from markup import Structure, assert_loads_nothing, assert_references_resolve
from reproduction.charts import figure, numbers
from reproduction.findings import Chart, Claim, Finding, Points, Reproduction
from reproduction.markdown import markdown
from reproduction.page import QUICK, tally, write_reproduction
from reproduction.terminal import show_finding
from reproduction_example import BETAS, LONG, NASTY, reproduction

DRAWN = 8  # plots of the example that have points


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reproduction") / "report.html"
    write_reproduction(path, reproduction(quick=True))
    return path


@pytest.fixture(scope="module")
def page(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def said(value: str) -> str:
    """As it is read on the page: marks of code are gone."""
    return re.sub("`([^`]+)`", r"\1", value).replace(" %", "\u00a0%")


def cells(grid: Table) -> list[list[str]]:
    rows = [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in grid.rows]
    return [[f"{one.text} {one.detail}".strip() for one in row] for row in rows]


def test_the_same_findings_give_the_same_bytes(page: str, tmp_path: Path) -> None:
    write_reproduction(tmp_path / "again.html", reproduction(quick=True))
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page
    assert markdown(reproduction()) == markdown(reproduction())


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    path, empty = tmp_path / "report.html", Reproduction([], False, {})
    path.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        write_reproduction(path, empty)
    assert path.read_text() == "mine"
    write_reproduction(path, empty, force=True)
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_page_is_whole_by_itself(page: str) -> None:
    assert_loads_nothing(page)
    assert_references_resolve(page)
    assert "<b>" not in page
    assert "<code>bcd4rec tune</code> searches" in page


def test_everything_found_is_on_the_page(page: str) -> None:
    found, text = reproduction(), Structure(page).text
    for finding in found.findings:
        for grid in finding.tables:
            assert all(cell in text for row in cells(grid) for cell in row)
            assert said(grid.note) in text
        for chart in finding.charts:
            assert chart.title in text
            assert said(chart.note) in text
        for claim in finding.claims:
            badge = f"{SYMBOLS[claim.verdict]}\u00a0{claim.verdict}"
            assert text.count(f"{badge}{claim.text}") == 2  # in the summary and in its section
            assert all(line in text for line in claim.evidence)
        assert all(said(prose) in text for prose in finding.prose)
        assert all(text.count(command) == 2 for command in finding.commands)
    assert all(name in text and value in text for name, value in found.made.items())
    assert "69.9" in text  # of the costs
    assert NASTY in text


def test_best_entries_are_strong_and_spans_cover_their_columns(page: str) -> None:
    rows = reproduction().findings[0].tables[0].rows
    best = [cell.text for row in rows for cell in row if isinstance(cell, Cell) and cell.best]
    assert re.findall(r"<strong>(.*?)</strong>", page)[: len(best)] == best
    spans = re.findall(r'<th scope="colgroup" colspan="(\d)" class="edge">(.*?)</th>', page)
    assert spans == [("4", "RecSim-1"), ("4", "RecSim-2"), ("4", "RecSim-3"), ("4", "DN")]
    body = page[page.index('colspan="4"') :]
    row = re.findall(r"<tr>.*?</tr>", body[body.index("<tbody>") :], flags=re.DOTALL)[0]
    edges = [place for place, kind in enumerate(re.findall(r"<td( class=\"edge\")?>", row)) if kind]
    assert edges == [0, 4, 8, 12]


def test_a_quick_run_says_so_everywhere(page: str, tmp_path: Path) -> None:
    titles = re.findall(r"<h2>(.*?)</h2>", page)[1:]  # the first one is of the contents
    assert len(titles) == 7
    assert all(title.endswith('<span class="mark">quick run</span>') for title in titles)
    assert QUICK in page
    full = reproduction()
    write_reproduction(tmp_path / "full.html", Reproduction(full.findings[3:], full.quick, full.made, full.costs))
    assert "quick run" not in (tmp_path / "full.html").read_text(encoding="utf-8").lower()
    text = markdown(reproduction(quick=True))
    assert f"> **{QUICK}**" in text
    assert text.count("(quick run)") == len(reproduction().findings)
    assert "quick run" not in markdown(reproduction()).lower()


def test_tally_counts_each_verdict() -> None:
    claims = [Claim("a", "holds", []), Claim("b", "not measured", []), Claim("c", "holds", [])]
    assert tally(claims) == "3 claims of the paper. Holds: 2, not measured: 1."
    assert tally([]) == "No claims were examined."


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["76.4", "−3", "–", "", "12 min 3 s", "< 0.001", "± 4"], False),
        (["none", "item2vec", "3"], True),
        (["1", "2", "3 or more than that, as it happens"], True),
        ([Cell("1", "over three seeds of 2,000 users")], True),
    ],
)
def test_words_and_numbers(column: list[Cell | str], expected: bool) -> None:
    assert wordy(column) == expected


def test_the_smallest_reproduction(tmp_path: Path) -> None:
    empty = Reproduction([], False, {})
    write_reproduction(tmp_path / "empty.html", empty)
    text = Structure((tmp_path / "empty.html").read_text(encoding="utf-8")).text
    assert "No claims were examined." in text
    assert "No claims were examined." in markdown(empty)


# The numbers behind a plot


def chart(kind: Any, series: dict[str, Points], **more: Any) -> Chart:
    return Chart("c", "Title", kind, "across", "up", series, **more)


def test_series_with_the_same_places_share_rows() -> None:
    found = numbers(
        chart("lines", {"iqn": Points([1, 2, 3], [0.5, -0.25, float("nan")]), "x": Points([2], [7.0], [6], [9])})
    )
    assert found.columns == ["across", "IQN", "x"]
    assert found.rows == [
        ["1", "0.500", "–"],
        ["2", "−0.250", Cell("7.000", "[6.000, 9.000]")],
        ["3", "–", "–"],
    ]


def test_points_that_share_nothing_have_a_row_each() -> None:
    clouds = {"a": Points([1.5, 1.5], [10.0, 20.0]), "b": Points([12000], [30.0])}
    expected = [["a", "1.5", "10.00"], ["a", "1.5", "20.00"], ["b", "12,000", "30.00"]]
    assert numbers(chart("scatter", clouds)).rows == expected
    assert numbers(chart("lines", clouds)).rows == expected  # a line that goes straight up


def test_groups_have_a_row_for_each_label() -> None:
    found = numbers(chart("groups", {"dqn": Points([0, 2], [1.0, 2.0])}, labels=["p", "q", "r"]))
    assert found.rows == [["p", "1.000"], ["q", "–"], ["r", "2.000"]]


def test_long_tables_are_thinned_and_say_so() -> None:
    x = list(range(850))
    found = figure(chart("lines", {"a": Points(x, [float(one) for one in x])}), "id").data
    places = [int(str(row[0])) for row in found.rows]
    assert (places[0], places[-1], len(places)) == (0, 849, 200)
    assert set(np.diff(places)) == {4, 5}
    assert found.caption.startswith("200 of 850 rows")
    short = figure(chart("lines", {"a": Points(x[:200], [1.0] * 200)}), "id").data
    assert (len(short.rows), short.caption) == (200, "")


def test_what_is_not_drawn_is_said() -> None:
    low = figure(chart("scatter", {"a": Points([0, 1, 2], [1.0, -1.0, 3.0])}, logarithmic=True), "id")
    assert low.caption.endswith("are not drawn: 2.")
    many = {f"m{place}": Points([0, 1], [1.0, 2.0], [0, 1], [2, 3]) for place in range(plots.CROWD)}
    assert "intervals are with the numbers" in figure(chart("lines", many), "id").caption
    assert figure(chart("groups", many, labels=["p", "q"]), "id").caption == ""


# The plots


def marks(svg: str) -> list[list[tuple[float, float]]]:
    """The places of the markers of each series, as drawn; the legend repeats one of each and is left out."""
    groups = re.findall(r'<g id="\S*line2d_\d+">.*?(?=<g id=|$)', svg, flags=re.DOTALL)
    found = [re.findall(r'<use xlink:href="#\S+" x="([\d.]+)" y="([\d.]+)" style="([^"]*)"', one) for one in groups]
    series = [one for one in found if one and any("var(--" in style for *_, style in one)]
    return [[(float(x), float(y)) for x, y, _ in one] for one in series]


def assert_straight(values: list[float], places: list[float]) -> None:
    """What was drawn is a straight scale of what was given."""
    slope, start = np.polyfit(values, places, 1)
    np.testing.assert_allclose(slope * np.array(values) + start, places, atol=1e-2)


def test_scatter_puts_each_point_in_its_place() -> None:
    rng = np.random.default_rng(3)
    series = {name: plots.Series(rng.random(size), rng.random(size)) for name, size in {"dqn": 5, "bcq": 7}.items()}
    found = marks(plots.scatter("id", series, "x", "y"))[:2]
    assert [len(one) for one in found] == [5, 7]
    for place in range(2):
        values = [float(value) for one in series.values() for value in one[place]]
        assert_straight(values, [point[place] for one in found for point in one])


def test_groups_stand_side_by_side_in_the_order_of_the_series() -> None:
    rng = np.random.default_rng(4)
    names, labels = ["dqn", "bcq", "iqn"], ["p", "q", "r", "s"]
    values = rng.random((len(names), len(labels)))
    series = {
        name: plots.Series(np.arange(len(labels), dtype=float), row, row - 1, row + 1)
        for name, row in zip(names, values, strict=True)
    }
    svg = plots.groups("id", series, labels, "", "y")
    found = marks(svg)[: len(names)]
    across = np.array([[x for x, _ in one] for one in found])
    assert (np.diff(across.T.ravel()) > 0).all()  # label by label, and within a label series by series
    gaps = np.diff(across.T.ravel()).round(2)
    within, between = gaps[0], gaps[len(names) - 1]
    assert set(gaps) == {within, between}
    assert between > within
    assert_straight(values.ravel().tolist(), [y for one in found for _, y in one])
    assert svg.count("LineCollection") == len(names)
    assert all(f">{label}</text>" in svg for label in labels)


def test_long_labels_are_broken_or_turned() -> None:
    series = {"a": plots.Series(np.arange(2.0), np.arange(2.0))}
    broken = plots.groups("id", series, ["a label of several words that goes on", "q"], "", "y")
    assert ">a label of several words</text>" in broken.replace("that goes on", "")
    assert "rotate(-40" not in broken
    assert "rotate(-40" in plots.groups("id", series, ["Donaudampfschifffahrtsgesellschaft", "q"], "", "y")


def test_fractions_across_have_fractions_for_ticks() -> None:
    line = plots.lines("id", {"a": plots.Series(np.array(BETAS), np.arange(5.0))}, "β", "y")
    assert ">0.4</text>" in line
    whole = plots.lines("id", {"a": plots.Series(np.arange(0.0, 40_000, 1000), np.arange(40.0))}, "Update", "y")
    assert ">20,000</text>" in whole


# Markdown


def parsed(text: str) -> list[list[list[str]]]:
    """The tables of a Markdown text, as a parser of Markdown finds them: rows of cells."""
    html = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)
    return [
        [
            [Structure(cell).text for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)]
            for row in re.findall(r"<tr>(.*?)</tr>", table, flags=re.DOTALL)
        ]
        for table in re.findall(r"<table>(.*?)</table>", html, flags=re.DOTALL)
    ]


def test_markdown_has_the_same_cells() -> None:
    nasty = Table(["a|b", NASTY], [[NASTY, Cell(NASTY, "[1, 2]", True)], ["-", "1. x"], ["|", "a\nb"]], title="N")
    found = reproduction()
    findings = [*found.findings, Finding("more", "More", tables=[nasty])]
    tables = parsed(markdown(Reproduction(findings, False, found.made, found.costs)))
    for grid in (grid for finding in findings for grid in finding.tables):
        over = [f"{name} " for name, width in grid.spans for _ in range(width)] or [""] * len(grid.columns)
        names = [grid.columns[0], *(span + name for span, name in zip(over, grid.columns[1:], strict=False))]
        body = [[cell.replace("\n", " ") for cell in row] for row in cells(grid)]
        assert [names, *body] in tables


def test_markdown_is_text_all_through() -> None:
    lines = ["# no heading", "1. no list", "- no list", "> no quote", "[no](link) <i>x</i> ~~no~~ __no__ a_b_c", "+ x"]
    code = "Use `a_b <i>` twice, `x`."
    finding = Finding(
        "odd", "Odd *title* <u>", [*lines, code], claims=[Claim(NASTY, "holds", [NASTY])], commands=["a ```b```"]
    )
    text = markdown(Reproduction([finding], False, {}))
    html = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)
    for line in lines:
        assert f"<p>{line.replace('<', '&lt;').replace('>', '&gt;')}</p>" in html
    assert "<p>Use <code>a_b &lt;i&gt;</code> twice, <code>x</code>.</p>" in html
    assert not re.search(r"<(ol|blockquote|em|s|b|i|u)>", html)
    assert Structure(html).text.count(NASTY) == 3
    assert "a ```b```\n</code>" in html


def test_markdown_has_small_plots_as_tables_and_points_to_large_ones() -> None:
    text = markdown(reproduction())
    (beta,) = (table for table in parsed(text) if table[0] == ["β", "BCD4Rec", "QRBCQ", "BCQ"])
    assert [row[0] for row in beta[1:]] == [f"{one:g}" for one in BETAS]
    assert "The page has this plot and its 850 rows of numbers." in text
    assert "- Date: 2025-11-16\n" in text
    assert text.count('<a id="table1"></a>') == 1
    assert text.count("](#table1)") == 3


# The terminal


@pytest.mark.parametrize("width", [80, 100, 300])
def test_on_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    finding = reproduction().findings[0]
    show_finding(finding, quick=True)
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert QUICK in lines
    assert max(cell_len(line) for line in lines) <= width
    assert max(cell_len(line) for line in lines if line[:1] in "│┃") <= 100
    assert "…" not in out
    body = [[part.strip() for part in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    spans, flat = map(cells, finding.tables)
    for row in spans:  # a table for each domain, and each has the row's name
        assert all([row[0], *row[start : start + 4]] in body for start in (1, 5, 9, 13))
    assert all(any(cell in found for found in body) for row in flat for cell in row)
    for claim in finding.claims:
        assert any(line.startswith(f"{SYMBOLS[claim.verdict]} {claim.verdict}: ") for line in lines)
    assert "report.html: Gap closed on each log." in err
    assert all(f"  {command}" in err.splitlines() for command in finding.commands)


def test_words_on_the_terminal_are_broken_into_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    show_finding(reproduction().findings[3], quick=False)
    out = capsys.readouterr().out
    rows = [line.strip("│").split("│") for line in out.splitlines() if line.startswith("│")]
    assert max(map(cell_len, out.splitlines())) <= 90
    last = " ".join(" ".join(row[-1].strip() for row in rows).split())
    assert "chosen by Q̄ on the validation split, as the paper says relative to the most likely action" in last
    assert LONG in last.replace(" ", "")
    assert LONG in "".join(row[0].strip() for row in rows)
    assert "…" not in out
    assert QUICK not in out


# The browser


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium or google-chrome is installed to open the page in")
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


OUTSIDE = """[...document.querySelectorAll('body *')].filter(one => {
  const box = one.getBoundingClientRect(), right = document.body.clientWidth + 0.5;
  return !one.parentElement.closest('.scroll, pre, svg') && box.width && (box.left < 0 || box.right > right);
}).map(one => one.outerHTML.slice(0, 80))"""
SMALLEST = """Math.min(...[...document.querySelectorAll('svg text')].map(text => {
  const svg = text.ownerSVGElement, scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  return scale * parseFloat(getComputedStyle(text).fontSize); }))"""
CUT = """[...document.querySelectorAll('svg text')].filter(text => {
  const box = text.getBoundingClientRect(), figure = text.closest('figure').getBoundingClientRect();
  return box.left < figure.left - 1 || box.right > figure.right + 1; }).map(text => text.textContent)"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser(tab: Browser, file: Path, width: int, dark: bool) -> None:
    tab.size(width, 900, dark, touch=width < 600)
    tab.open(file.as_uri())
    for opened in ("false", "true"):
        tab.run(f"document.querySelectorAll('details').forEach(one => one.open = {opened})")
        wide, client = tab.run("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide == client == width  # the page itself never scrolls sideways
        assert tab.run(OUTSIDE) == []
    plotted = tab.run("[...document.querySelectorAll('svg')].map(svg => svg.getBoundingClientRect().height)")
    assert len(plotted) == DRAWN
    assert min(plotted) > 150
    assert tab.run(SMALLEST) >= 9
    assert tab.run(CUT) == []
    ground = [int(part) for part in tab.run("getComputedStyle(document.body).backgroundColor")[4:-1].split(",")]
    assert max(ground) < 60 if dark else min(ground) > 240
    assert tab.complaints == []


def test_wide_tables_scroll_and_keep_their_names(tab: Browser, file: Path) -> None:
    tab.size(390, 900, touch=True)
    tab.open(file.as_uri())
    tab.run("document.querySelector('.wide').scrollLeft = 400")
    inside, outside = tab.run("[document.querySelector('.wide').scrollLeft, document.scrollingElement.scrollLeft]")
    assert (inside, outside) == (400, 0)
    box = "document.querySelector('.wide tbody th').getBoundingClientRect()"
    left, right = tab.run(f"[{box}.left, {box}.right]")
    assert 0 <= left < 30 < right < 200  # the methods' names stay, with room for the numbers


def test_numbers_open_by_click_and_by_key(tab: Browser, file: Path) -> None:
    tab.size(1280, 900)
    tab.open(file.as_uri())
    tab.run("window.found = [...document.querySelectorAll('details')]")
    assert tab.run("found.map(one => one.open)") == [False] * DRAWN
    tab.run("found[0].querySelector('summary').click()")
    tab.run("found[1].querySelector('summary').focus()")
    tab.key("Enter")
    assert tab.run("found.map(one => one.open)") == [True, True] + [False] * (DRAWN - 2)
    heights = tab.run("found.map(one => one.querySelector('table').getBoundingClientRect().height > 100)")
    assert heights[:2] == [True, True]
    assert tab.run("found[1].querySelectorAll('tbody tr').length") == 200
    assert tab.run(OUTSIDE) == []


def test_every_link_leads_somewhere(tab: Browser, file: Path) -> None:
    tab.size(1280, 900)
    tab.open(file.as_uri())
    links = tab.run("[...document.querySelectorAll('nav a')].map(one => [one.hash.slice(1), one.textContent])")
    anchors = ["claims", "table1", "figure2", "figure3", "table3", "costs", "again"]
    assert [anchor for anchor, _ in links] == anchors
    for anchor, title in links:
        tab.run(f"document.querySelector('nav a[href=\"#{anchor}\"]').click()")
        assert tab.run("location.hash") == f"#{anchor}"
        assert tab.run("document.querySelector(':target h2').textContent") == f"{title} quick run"
    assert tab.run("[...document.querySelectorAll('main a')].every(a => document.getElementById(a.hash.slice(1)))")


def test_on_paper_nothing_is_clipped(tab: Browser, file: Path) -> None:
    tab.size(718, 1000, dark=True, paper=True)  # A4 with the browser's own margins
    tab.open(file.as_uri())
    assert tab.run("document.documentElement.scrollWidth") == 718
    assert max(tab.run("[...document.querySelectorAll('table')].map(one => one.getBoundingClientRect().right)")) <= 718
    assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tab.size(1280, 900)
