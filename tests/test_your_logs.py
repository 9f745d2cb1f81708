"""Every command of docs/your-logs.md does what the page says, in the order of the page."""

import itertools
import shlex
import shutil
from pathlib import Path

import polars as pl

from test_cli import run

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT / "docs" / "your-logs.md"


def commands() -> list[tuple[list[str], str | None]]:
    """Each command with the error line that the page shows below it, if any."""
    lines = [line.strip() for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("    ")] + [""]
    return [
        (shlex.split(line)[1:], after if after.startswith("Error: ") else None)
        for line, after in itertools.pairwise(lines)
        if line.startswith("bcd4rec ")
    ]


def test_the_page_shows_the_head_of_the_file() -> None:
    head = (PROJECT / "examples" / "visits.csv").read_text().splitlines()[:3]
    assert "\n".join(f"    {line}" for line in head) in PAGE.read_text(encoding="utf-8")


def test_every_command(tmp_path: Path) -> None:
    shutil.copytree(PROJECT / "examples", tmp_path / "examples")
    found = commands()
    assert len(found) == 14
    for args, error in found:
        done = run(*args, cwd=tmp_path)
        assert done.returncode == (2 if error else 0), (args, done.stderr)
        if error:
            assert done.stderr.strip() == error
    log = pl.read_parquet(tmp_path / "visits.parquet")
    assert log.columns == ["session_id", "item_id", "response", "request_id", "position", "category", "timestamp"]
    assert dict(log["response"].value_counts().iter_rows()) == {"skip": 538, "click": 124, "buy": 26}
    assert {"visits", "policy", "visits.parquet", "examples", "shop"} == {path.name for path in tmp_path.iterdir()}


def test_the_mapping_on_the_command_line_is_the_one_in_the_file(tmp_path: Path) -> None:
    (args,) = [args for args, error in commands() if args[0] == "check" and not error and "--responses" in args]
    file = PROJECT / "examples" / "visits.csv"
    for number, options in enumerate([args[2:], ["--map", PROJECT / "examples" / "visits.toml"]]):
        out = tmp_path / f"{number}.parquet"
        assert run("prepare", file, *options, "--out", tmp_path / f"{number}", "--logs", out).returncode == 0
    assert pl.read_parquet(tmp_path / "0.parquet").equals(pl.read_parquet(tmp_path / "1.parquet"))
