"""Each page of docs/logs shows the head of its example and its mapping, and its commands do what it says."""

import gzip
import shlex
import shutil
from pathlib import Path
from unittest import mock

import pytest

from test_cli import run

PROJECT = Path(__file__).parents[1]
EXAMPLES = PROJECT / "examples"
PAGES = {
    "shop": "shop.jsonl",
    "news": "news.tsv.gz",
    "travel": "travel.csv",
    "feed": "feed.csv",
    "events": "events.csv",
    "clicks": "clicks.csv",
}


def text_of(name: str) -> str:
    return (PROJECT / "docs" / "logs" / f"{name}.md").read_text(encoding="utf-8")


def indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())


def test_there_is_a_page_for_each_kind() -> None:
    assert {path.stem for path in (PROJECT / "docs" / "logs").iterdir()} == set(PAGES)
    linked = [
        (PROJECT / "docs" / name).read_text(encoding="utf-8") for name in ("what-can-my-log-tell.md", "your-logs.md")
    ]
    assert all(f"(logs/{name}.md)" in page for name in PAGES for page in linked)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_true(name: str, tmp_path: Path) -> None:
    page, data = text_of(name), (EXAMPLES / PAGES[name]).read_bytes()
    rows = (gzip.decompress(data) if PAGES[name].endswith(".gz") else data).decode().splitlines()
    assert indented("\n".join(rows[:2])) in page
    assert indented((EXAMPLES / f"{name}.toml").read_text()) in page
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    commands = [shlex.split(line)[1:] for line in page.splitlines() if line.startswith("    bcd4rec ")]
    assert [args[0] for args in commands[:4]] == ["start", "check", "prepare", "train"]
    with mock.patch("bcd4rec.commands._stages.AGENT", "ctr"):  # what an agent does on a log is tested elsewhere
        for args in commands:
            done = run(*args, cwd=tmp_path)
            assert done.returncode == 0, (args, done.stderr)
            if args[0] == "train":
                assert ("teaches which item comes next" in done.stdout) == (name == "clicks")
    assert (tmp_path / f"start-{name}" / "start.html").is_file()
