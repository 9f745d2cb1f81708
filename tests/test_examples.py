"""The example logs: made by their script, and taken through check and prepare as the docs say."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from bcd4rec.data.dataset import Dataset
from test_cli import result, works

PROJECT = Path(__file__).parents[1]
EXAMPLES = PROJECT / "examples"
LOGS = {
    "shop.jsonl": (60, 846, 0, {"no propensities"}),
    "news.tsv.gz": (50, 618, 71, {"no propensities"}),
    "travel.csv": (90, 540, 0, {"no propensities", "sessions of one slate"}),
    "feed.csv": (40, 249, 42, set[str]()),
    "events.csv": (60, 828, 26, {"no propensities"}),
    "clicks.csv": (70, 285, 0, {"no propensities", "no skips"}),
}


def test_the_script_makes_the_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, PROJECT / "scripts" / "make_examples.py", tmp_path], check=True)
    made = sorted(tmp_path.iterdir())
    assert {path.name for path in made} == {*LOGS, "shop-items.jsonl"}
    for path in made:
        unpack = gzip.decompress if path.suffix == ".gz" else bytes
        assert unpack(path.read_bytes()) == unpack((EXAMPLES / path.name).read_bytes()), path.name


@pytest.mark.parametrize("name", LOGS)
def test_every_example_is_checked_and_prepared(tmp_path: Path, name: str) -> None:
    log, mapping = EXAMPLES / name, EXAMPLES / f"{name.split('.')[0]}.toml"
    found = result("check", log, "--map", mapping)
    sessions, impressions, organic, warned = LOGS[name]
    assert (found["sessions"], found["impressions"], found["organic"]) == (sessions, impressions, organic)
    assert {one["kind"] for one in found["warnings"]} == warned
    first = result("prepare", log, "--map", mapping, "--out", tmp_path / "data", "--test", 0.2)
    again = result("prepare", log, "--map", mapping, "--out", tmp_path / "again", "--test", 0.2)
    assert first["content_hash"] == again["content_hash"]
    works("train", "popular", tmp_path / "data", "--out", tmp_path / "policy")


def test_the_shop_with_all_that_it_knows(tmp_path: Path) -> None:
    more = ("--items", EXAMPLES / "shop-items.jsonl", "--items-id", "sku", "--earlier", 5)
    works("prepare", EXAMPLES / "shop.jsonl", "--map", EXAMPLES / "shop.toml", "--out", tmp_path / "data", *more)
    data = Dataset.load(tmp_path / "data")
    assert data.manifest["features"]["items_new"] == 4
    assert data.manifest["counts"]["users"] == 25
    assert data.manifest["counts"]["organic"] > 0
    assert data.manifest["availability"]["of_items_liked_before"] > 0
