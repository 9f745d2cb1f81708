"""The report: deterministic, self-contained, safe with any name, and whole in a real browser."""

import html
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bcd4rec.data.responses import RECSIM
from bcd4rec.errors import InputError
from bcd4rec.evaluation.statistics import Interval
from bcd4rec.evaluation.summary import Curves, Evaluation, compare, curves
from bcd4rec.evaluation.wording import number
from bcd4rec.report import plots, svg
from bcd4rec.report.comparison import rate_label, write_report
from bcd4rec.report.methods import COLOURS, STYLES, friendly, styles
from bcd4rec.report.page import Cell, Figure, Page, Section, Table, measured, render, write_page
from markup import Structure, assert_loads_nothing, assert_references_resolve

N_ITEMS = 90
NASTY = "<script>alert('1')</script> & $x_1$"


def played(seed: int, rate: float, skew: float, sessions: int = 40, steps: int = 5) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    odds = 1 / np.arange(1, N_ITEMS + 1) ** skew
    rows = sessions * steps
    return pl.DataFrame(
        {
            "session_id": np.repeat(np.arange(sessions), steps),
            "step": np.tile(np.arange(steps), sessions),
            "position": np.zeros(rows, np.int64),
            "item_id": rng.choice(N_ITEMS, rows, p=odds / odds.sum()),
            "response": np.where(rng.random(rows) < rate, "click", "skip"),
        }
    )


def results(**extra: pl.DataFrame) -> tuple[list[Evaluation], dict[str, Curves]]:
    logs = {"random": played(0, 0.3, 0.0), "popular": played(1, 0.2, 2.0), "oracle": played(2, 0.8, 0.5)} | extra
    found = compare(logs, RECSIM, N_ITEMS, "random", "oracle")
    return found, {name: curves(log, RECSIM, N_ITEMS) for name, log in logs.items()}


def written(folder: Path, name: str = "report.html", **extra: pl.DataFrame) -> str:
    write_report(
        folder / name,
        "Which policy is best?",
        ["An intro with <angles> & ampersands."],
        *results(**extra),
        rules={"Environment": "interest evolution", "Users": "40, seed 0"},
        commands=["bcd4rec demo --out demo", "bcd4rec check 'a & b.parquet'"],
        note="After a skip nothing is excluded.",
        more=[Section("More", ["Later reports add sections."])],
    )
    return (folder / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("report"), **{NASTY: played(3, 0.5, 1.0)})


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    first = written(tmp_path, "first.html")
    svg.matplotlib.rcParams["axes.linewidth"] = 31  # a person's own settings must not matter
    try:
        assert written(tmp_path, "second.html") == first
        assert svg.matplotlib.rcParams["axes.linewidth"] == 31
    finally:
        svg.matplotlib.rcParams["axes.linewidth"] = svg.matplotlib.rcParamsDefault["axes.linewidth"]
    assert str(tmp_path) not in first


def test_table_has_every_number_with_its_interval(page: str) -> None:
    evaluations, _ = results(**{NASTY: played(3, 0.5, 1.0)})
    text = Structure(page).text
    for one in evaluations:
        assert one.gap_closed is not None
        for found in (one.rate, one.coverage, one.mean_return, one.gap_closed):
            assert f"{number(found.value)} [{number(found.low)}, {number(found.high)}]" in text
        assert friendly(one.policy) in text
    assert "After a skip nothing is excluded." in text
    assert "bcd4rec check 'a & b.parquet'" in text
    assert "Later reports add sections." in text


def test_it_loads_nothing(page: str) -> None:
    assert_loads_nothing(page)


def test_everything_is_escaped(page: str) -> None:
    assert "<script" not in page
    assert "<angles>" not in page
    text = Structure(page).text
    assert NASTY in text
    assert "An intro with <angles> & ampersands." in text


def test_ids_are_unique_and_references_resolve(page: str) -> None:
    assert_references_resolve(page)


def test_each_figure_says_what_it_shows_and_has_its_data(page: str) -> None:
    figures = re.findall(r"<figure>.*?</figure>", page, flags=re.DOTALL)
    assert len(figures) == 3
    for figure in figures:
        (svg,) = Structure(figure).all("svg")
        assert svg["role"] == "img"
        assert all(name in (svg["aria-label"] or "") for name in ("Random", "MostPop", "Oracle"))
        assert "width" not in svg
        assert svg["viewbox"]
        details = figure[figure.index("<details>") :]
        assert details.count("<tr>") >= 4
    steps, popularity = (figure[figure.index("<details>") :] for figure in figures[1:])
    evaluations, found = results(**{NASTY: played(3, 0.5, 1.0)})
    for curve in found.values():
        assert all(f"<td>{rate:.2f}</td>" in steps for rate in curve.by_step["rate"])
    top = "".join(f"<td>{curve.popularity['share'][0]:.3f}</td>" for curve in found.values())
    assert f'<th scope="row">1</th>{top}' in popularity
    assert all(f"{one.rate.low:.2f}" in figures[0] for one in evaluations)


def test_plots_take_their_ink_from_the_page(page: str) -> None:
    drawn = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert "currentColor" in drawn
    assert set(re.findall(r"#[0-9a-fA-F]{6}\b", drawn)) == set()
    style = files("bcd4rec.report").joinpath("style.css").read_text(encoding="utf-8")
    light, dark = style.split("@media screen and (prefers-color-scheme: dark)")
    for name, code in COLOURS.items():
        assert f"--{name}: {code};" in light
        assert f"--{name}: #" in dark


def test_styles_tell_methods_apart() -> None:
    several = {name: style for name, style in STYLES.items() if name != "Behaviour"}  # drawn like Random: it often is
    assert len(set(several.values())) == len(several)
    look = styles(["random", "mine", "popular", "yours", "bcd4rec"])
    assert look["random"] == STYLES["Random"]
    assert len({style.colour for style in look.values()}) == 5
    assert look == styles(["random", "mine", "popular", "yours", "bcd4rec"])
    many = styles([f"method {row}" for row in range(28)])
    assert len(set(many.values())) == 28


def test_friendly_names() -> None:
    assert [friendly(name) for name in ("random", "popular", "oracle", "bcd4rec")] == [
        "Random",
        "MostPop",
        "Oracle",
        "BCD4Rec",
    ]
    assert friendly("my model") == "my model"
    assert [rate_label(name) for name in ("ctr", "br", "like_rate")] == ["CTR", "BR", "like rate"]


def test_numbers() -> None:
    assert [number(value) for value in (1.25, -3.14, -0.01, 0.0, None)] == ["1.2", "−3.1", "0.0", "0.0", "–"]
    assert measured(Interval(-1.0, -2.0, 0.5)) == Cell("−1.0", "[−2.0, 0.5]")
    assert measured(None) == Cell("–")


@pytest.mark.filterwarnings("error")
def test_smallest_and_oddest_results(tmp_path: Path) -> None:
    """One session, one step, one item; then labels that plotting libraries and SVG give a meaning to."""
    tiny = {"random": played(0, 1.0, 0.0, sessions=1, steps=1)}
    found, bent = (
        compare(tiny, RECSIM, N_ITEMS, "random", "random"),
        {"random": curves(tiny["random"], RECSIM, N_ITEMS)},
    )
    assert found[0].gap_closed is None
    write_report(tmp_path / "tiny.html", "Tiny", [], found, bent, {}, [])
    assert "Gap closed" not in (tmp_path / "tiny.html").read_text(encoding="utf-8")
    for label in ("_hidden", "$a_b$", "$unfinished", "推荐", "#1a4fd6", 'id="x', "-->", "x" * 80):
        text = Structure(plots.lines("a", {label: plots.Series(np.arange(3.0), np.arange(3.0))}, "x", "y")).text
        assert label[:17] in text


def test_crowded_plots_have_no_bands() -> None:
    x = np.arange(4.0)
    line = plots.Series(x, x, x - 1, x + 1)
    assert "fill-opacity" in plots.lines("a", dict.fromkeys("abcde", line), "x", "y")
    assert "fill-opacity" not in plots.lines("a", dict.fromkeys("abcdef", line), "x", "y")


def test_a_page_is_made_of_data() -> None:
    data = Table(["x", "y"], [["1", Cell("2", "[1, 3]")]], caption='A "caption"')
    section = Section(
        "T & T", ["Up to 5 %."], Figure("<svg></svg>", 'says "so"', data), data, ["a < b"], ["Then this."]
    )
    text = render(Page("Title", ["Intro"], [section]))
    assert "<h2>T &amp; T</h2>" in text
    assert 'aria-label="says &quot;so&quot;"' in text
    assert "<td>2 <small>[1, 3]</small></td>" in text
    assert "<i>a</i> <i>&lt;</i> <i>b</i>" in text
    assert "a < b\n" in Structure(text).text
    assert "5\u00a0%" in text
    assert text.index("</pre>") < text.index("Then this.")
    Structure(text)


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        write_page(path, Page("Title", [], []))
    assert path.read_text() == "mine"
    write_page(path, Page("Title", [], []), force=True)
    assert path.read_text().startswith("<!doctype html>")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_one_rate_in_one_report(tmp_path: Path) -> None:
    evaluations, bent = results()
    mixed = [*evaluations, Evaluation("x", "br", *[Interval(1, 1, 1)] * 4, sessions=1, steps=1)]
    with pytest.raises(ValueError, match=r"\['br', 'ctr'\]"):
        write_report(tmp_path / "r.html", "T", [], mixed, bent, {}, [])


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

# The page in a frame of the width of a phone or a desk, measured by a script around it; browsers without a screen
# cannot have a window as narrow as a phone. The page itself allows no script.
PROBE = """<!doctype html><meta charset="utf-8"><iframe id="f" style="border:0;width:{width}px;height:3000px"
srcdoc="{page}"></iframe><pre id="out"></pre><script>
addEventListener("load", () => {{
  const doc = document.getElementById("f").contentDocument, root = doc.documentElement;
  const size = [...doc.querySelectorAll("svg text")].map(t => parseFloat(getComputedStyle(t).fontSize)
    * t.ownerSVGElement.getBoundingClientRect().width / t.ownerSVGElement.viewBox.baseVal.width);
  const cut = [...doc.querySelectorAll("svg text")].filter(t => {{
    const box = t.getBoundingClientRect(); return box.left < 0 || box.right > root.clientWidth; }});
  document.getElementById("out").textContent = JSON.stringify({{scroll: root.scrollWidth, width: root.clientWidth,
    smallest: Math.min(...size), cut: cut.length}}) + doc.body.innerText;
}});</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome is installed to open the report in")
@pytest.mark.parametrize("width", [360, 1200])
def test_in_a_browser(page: str, tmp_path: Path, width: int) -> None:
    (tmp_path / "probe.html").write_text(PROBE.format(width=width, page=html.escape(page)), encoding="utf-8")
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --disable-dev-shm-usage --enable-logging=stderr --dump-dom "
        f"--virtual-time-budget=5000 --window-size=1300,3100 --hide-scrollbars --user-data-dir={tmp_path / 'profile'}"
    ).split()
    done = subprocess.run(
        [str(CHROMIUM), *flags, (tmp_path / "probe.html").as_uri()], capture_output=True, text=True, timeout=120
    )
    if '<pre id="out">' not in done.stdout:  # not even the frame around the page was opened
        pytest.skip(f"{CHROMIUM} does not run here: {done.stderr[-300:]}")
    assert "CONSOLE" not in done.stderr, done.stderr
    out = html.unescape(done.stdout.partition('<pre id="out">')[2].partition("</pre>")[0])
    found = re.match(r'\{"scroll":(\d+),"width":(\d+),"smallest":([\d.]+),"cut":(\d+)\}', out)
    assert found, done.stdout[-2000:]
    scroll, client, smallest, cut = (float(value) for value in found.groups())
    assert scroll <= client == width  # the page never scrolls sideways
    assert smallest >= 9
    assert cut == 0
    words = " ".join(out.split())
    for expected in ("Which policy is best?", "Random", "MostPop", "Oracle", NASTY, "CTR", "Gap closed", "40, seed 0"):
        assert expected in words
