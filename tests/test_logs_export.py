"""`bcd4rec logs export`: what comes out is what `check` and `prepare` take."""

import sqlite3
from pathlib import Path

import polars as pl
import pytest

from bcd4rec.serving.storage.store import open_store
from test_cli import fails, result, works
from test_storage import NOW, answer, slate


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Ten sessions with three slates of three items, and the first item of each second slate clicked."""
    path = tmp_path / "served.db"
    store = open_store(str(path))
    for number in range(30):
        store.submit([slate(number, f"s{number // 3}", step=number % 3, time_us=NOW + number * 3_600_000_000)])
        if number % 2 == 0:
            store.submit([answer(number, "a", "click", NOW + number)])
    store.submit([answer(99, "a", "click"), answer(0, "z", "click"), answer(0, "a", "buy")])
    store.close()
    return path


def test_export_check_prepare(tmp_path: Path, database: Path) -> None:
    out = tmp_path / "logs.parquet"
    found = result("logs", "export", "--database", f"sqlite:///{database}", "--out", out, process=True)
    assert found["responses"] == {"skip": 75, "click": 14, "buy": 1}
    assert (found["sessions"], found["requests"], found["impressions"], found["propensities"]) == (10, 30, 90, 60)
    assert found["dropped"] == {"feedback_without_impression": 1, "feedback_for_items_not_shown": 1}
    checked = result("check", out)
    assert checked["ok"] is True
    assert (checked["sessions"], checked["requests"], checked["impressions"]) == (10, 30, 90)
    assert checked["responses"] == found["responses"]
    made = result("prepare", out, "--out", tmp_path / "dataset")
    assert (made["sessions"], made["transitions"]) == (10, 90)
    kept = pl.read_parquet(tmp_path / "dataset" / "transitions.parquet")["propensity"]
    assert sorted(kept.drop_nulls().unique().to_list()) == pytest.approx([1 / 3, 0.5])


def test_a_csv_is_the_same_log(tmp_path: Path, database: Path) -> None:
    for name in ("a.parquet", "a.csv"):
        works("logs", "export", "--database", database, "--out", tmp_path / name)
    first, second = (result("check", tmp_path / name) for name in ("a.parquet", "a.csv"))
    assert {**first, "log": None, "path": None} == {**second, "log": None, "path": None}


def test_days_and_tables_for_people(tmp_path: Path, database: Path) -> None:
    days = ["--since", "2025-10-09T12:00:00+00:00", "--until", "2025-10-10"]
    found = result("logs", "export", "--database", database, "--out", tmp_path / "a.parquet", *days)
    starts = [NOW + 3 * number * 3_600_000_000 for number in range(10)]  # NOW is 2025-10-09 08:53:20
    assert found["sessions"] == sum(1760011200 <= start / 1e6 < 1760054400 for start in starts) == 4
    done = works("logs", "export", "--database", database, "--out", tmp_path / "a.parquet", "--policy", "v1", "--force")
    assert "dropped: feedback without impression" in done.stdout
    assert done.stderr == f"The log is in {tmp_path / 'a.parquet'} (90 impressions).\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--out", "a.txt"], "--out: found 'a.txt', expected a name that ends in .parquet or .csv"),
        (["--since", "yesterday"], "--since: found 'yesterday', expected a date such as 2026-01-31"),
        (["--until", "1999-01-01"], "no impressions of these days"),
        (["--policy", "v9"], "no impressions of these days and this policy"),
        (["--rewards", "skip=0,like=1"], "holds the response 'buy'"),
        (["--integer-items"], "--integer-items: found the item 'a'"),
        (["--database", "none.db"], "none.db does not exist; expected a database that `bcd4rec serve` wrote"),
        (["--database", "text.db"], "text.db cannot be read (file is not a database)"),
        (["--database", "other.db"], "other.db cannot be read (no such table: bcd4rec_storage)"),
        (["--out", "text.db/a.csv"], "text.db is a file"),
        (["--out", "old.csv"], "old.csv exists already"),
    ],
)
def test_bad_input(tmp_path: Path, database: Path, args: list[str], words: str) -> None:
    (tmp_path / "text.db").write_text("not a database " * 100)
    (tmp_path / "old.csv").write_text("mine")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE mine (a)").connection.close()
    before = sorted(tmp_path.iterdir())
    given = {"--database": "served.db", "--out": "a.parquet"} | dict(zip(args[::2], args[1::2], strict=False))
    options = [part for pair in given.items() for part in pair] + (args if len(args) == 1 else [])
    assert words in fails("logs", "export", *options, cwd=tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "old.csv").read_text() == "mine"


def test_export_while_the_server_runs(tmp_path: Path, database: Path) -> None:
    store = open_store(str(database))
    store.submit([slate(30, "s10")]).result(20)
    found = result("logs", "export", "--database", database, "--out", tmp_path / "a.parquet", process=True)
    assert found["requests"] == 31
    store.submit([slate(31, "s10")]).result(20)
    assert store.status().connected
    store.close()
