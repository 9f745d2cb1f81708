"""The page in a browser, through a whole session."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser, browser
from serving_help import Running, quantile_policy, saved, serving

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome is installed")
KEY = "a-key-for-the-studio"
SLATE = "[...document.querySelectorAll('#slate .name')].map(n => n.innerText).join()"
CHIPS = "[...document.querySelectorAll('#session li')].map(n => n.innerText).join()"
SCREENSHOTS = os.environ.get("STUDIO_SCREENSHOTS")  # a folder to look at them


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    scratch = tmp_path_factory.mktemp("studio")
    folder = saved(quantile_policy("bigru", "implicit"), scratch / "policy")
    rows = "".join(f"{item},Item <{item}> & co,\n" for item in range(20))
    (scratch / "items.csv").write_text("item_id,name,picture\n" + rows)
    with serving(scratch, folder, "--items", scratch / "items.csv", "--rate", 0) as running:
        for number in range(6):
            shown = running.recommend(session_id=f"visitor {number}", k=3)
            running.feedback(shown["request_id"], **{f"i{shown['items'][0]['item']}": "click"})
        yield running


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def picture(page: Browser, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(Path(SCREENSHOTS) / f"{name}.png")


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)], ids=["desk", "phone"])
def test_a_whole_session(server: Running, page: Browser, width: int, dark: bool) -> None:
    page.size(width, 900, dark, touch=width < 500)
    page.open(server.address)
    first = page.wait(SLATE)
    assert first.count("Item <") + first.count("2") >= 3
    assert "Nothing yet" in page.run("document.body.innerText")
    assert page.run("document.querySelectorAll('#slate svg.plot').length") == 3
    assert "likelihood under the behaviour policy" in page.run("document.querySelector('#slate .facts').innerText")
    page.key("2")  # take the second item: the first was seen and passed over
    page.wait(f"{SLATE} !== {first!r} && document.querySelectorAll('#session li').length === 2")
    one, two, _ = first.split(",")
    assert page.run(CHIPS) == f"{one},{two} · click"
    assert page.run("document.querySelector('#session li').className") == "skip"
    second = page.run(SLATE)
    assert two not in second.split(",")
    page.run("document.querySelector('#slate .answers button:last-child').click()")
    page.wait("document.querySelectorAll('#session li').length === 3")
    assert page.run(CHIPS).endswith(f"{second.split(',')[0]} · buy")
    third = page.wait(f"{SLATE} !== {second!r} && {SLATE}")
    page.key("s")
    page.wait("document.querySelectorAll('#session li').length === 6")
    assert page.run(CHIPS).endswith(third)
    page.wait(f"slate.length === 3 && {SLATE}")
    picture(page, f"session-{width}")
    page.key("/")
    assert page.run("document.activeElement.id") == "search"
    for letter in "<7>":
        page.key(letter)
    page.wait("document.querySelectorAll('#catalogue button').length === 1")
    page.key("Tab")
    page.key("Enter")
    page.wait(f"{CHIPS}.endsWith('Item <7> & co · click')")
    page.run("document.activeElement.blur()")
    page.key("u")
    page.wait("document.querySelectorAll('#session li').length === 6")
    page.key("r")
    page.wait(f"document.querySelectorAll('#session li').length === 0 && {SLATE} === {first!r}")
    rates = page.wait("document.querySelector('#rates tbody').innerText")
    assert "(now)" in rates
    assert "33.3 [" in rates
    assert "MostPop" in page.run("document.getElementById('beside').innerText")
    assert page.run("document.documentElement.scrollWidth") <= width  # never scrolls sideways
    small = "[...document.querySelectorAll('button')].filter(b => b.offsetHeight && b.offsetHeight < 36).length"
    assert page.run(small) == 0  # fingers
    assert page.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(20, 23, 26)" if dark else "rgb(251, 250, 247)"
    )
    assert page.complaints == []
    arms = server.client.get("/v1/experiments").json()["arms"]
    assert [(one["sessions"], one["requests"]) for one in arms] == [(6, 6)]  # playing was not recorded


def test_it_asks_for_a_key(page: Browser, tmp_path: Path) -> None:
    folder = saved(quantile_policy("meanpool", "expected"), tmp_path / "policy")
    with serving(tmp_path, folder, environment={"BCD4REC_API_KEYS": KEY}) as server:
        page.size(800, 700)
        page.open(server.address)
        page.wait("!document.getElementById('keyform').hidden")
        page.run(f"document.getElementById('key').value = {KEY!r}")
        page.run("document.querySelector('#keyform button').click()")
        assert page.wait(SLATE)
        page.wait("document.getElementById('keyform').hidden && document.getElementById('problem').hidden")
