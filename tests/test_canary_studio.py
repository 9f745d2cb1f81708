"""The canary on the page."""

import os
from pathlib import Path

import pytest

from browser import CHROMIUM, browser
from serving_help import quantile_policy, saved, serving

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome is installed")
SCREENSHOTS = os.environ.get("STUDIO_SCREENSHOTS")  # a folder to look at them


def test_the_decision_in_words_and_the_sequence(tmp_path: Path) -> None:
    old, new = (saved(quantile_policy("meanpool", "expected", seed=seed), tmp_path / f"p{seed}") for seed in (5, 6))
    options = ("--share", "0.5", "--session-minutes", "0.05", "--rate", "0")
    with serving(tmp_path, old, "--canary", new, *options) as server, browser(tmp_path / "profile") as page:
        for number in range(90):
            shown = server.recommend(session_id=f"s{number}", k=2)
            answer = "buy" if shown["arm"] == "new" and number % 4 else "click"
            server.feedback(shown["request_id"], **{f"i{shown['items'][0]['item']}": answer})
        page.size(1200, 900, dark=False, touch=False)
        page.open(server.address)
        page.wait("document.querySelector('#canary-sentence').innerText.startsWith('Promoted')")
        assert page.run("document.querySelector('#canary-box').hidden") is False
        band = page.run("document.querySelector('#canary-plot polygon').getAttribute('points')")
        assert band.count(",") >= 20
        assert "NaN" not in page.run("document.querySelector('#canary-plot').innerHTML")
        assert "of new sessions go to the new policy" in page.run("document.querySelector('#canary-facts').innerText")
        if SCREENSHOTS:
            page.run("document.querySelector('#canary-box').scrollIntoView()")
            page.screenshot(Path(SCREENSHOTS) / "canary.png")
