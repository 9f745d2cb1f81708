"""`prepare --append`: days added one at a time are the data set of all of them at once; what cannot be added."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from bcd4rec.cli import build
from bcd4rec.data import transition_file
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.splits import SplitConfig, assign_splits
from bcd4rec.errors import InputError
from tests.daily_logs import day_of_log, write_days

SIZES = ("--length", 3, "--skips", 5)
STABLE = (*SIZES, "--split", "hash", "--test", 0.2)


def prepare(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(build("prepare"), ["prepare", *map(str, arguments), "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def one_by_one(files: list[Path], out: Path, *options: object) -> dict[str, Any]:
    found = prepare(files[0], "--out", out, *options)
    for file in files[1:]:
        found = prepare(file, "--append", out)
    return found


@pytest.mark.parametrize(
    "options",
    [
        STABLE,
        (*STABLE, "--history", "positives"),
        (*SIZES, "--split", "time", "--periods", "train=4,user=3,test=2", "--validation", 0),
    ],
)
def test_ten_days_one_at_a_time_are_ten_days_at_once(tmp_path, monkeypatch, options):
    monkeypatch.setattr(transition_file, "ROW_GROUP", 100)  # which days do not fill
    if "positives" in options:
        options = tuple(one for one in options if one not in ("--skips", 5))
    files = write_days(tmp_path / "days", 10)
    whole = prepare(tmp_path / "days", "--out", tmp_path / "whole", *options)
    found = one_by_one(files, tmp_path / "grown", *options)
    assert contents(tmp_path / "grown") == contents(tmp_path / "whole")
    assert found | {"dataset": ""} == whole | {"dataset": ""}
    data = Dataset.load(tmp_path / "grown")
    first = pl.concat([pl.read_parquet(file) for file in files[:1]])["item_id"].unique()
    assert len(first) < data.n_items  # later days brought more, and some between those that were there
    assert data.items["item_id"].is_sorted()
    assert (np.diff(data.vocabulary.positions_of(type(data.vocabulary)(first.sort()))) > 1).any()
    assert found["dropped"] if "time" in options else not found["dropped"]


def test_mapped_logs_and_what_a_second_file_tells_of_items(tmp_path):
    for day in range(3):
        day_of_log(day).rename({"item_id": "sku", "session_id": "visit"}).write_csv(tmp_path / f"{day}.csv")
    ids = pl.concat([day_of_log(day) for day in range(3)])["item_id"].unique(maintain_order=True)
    pl.DataFrame({"sku": ids, "price": ids / 7}).write_parquet(tmp_path / "items.parquet")
    (tmp_path / "logs").mkdir()
    for day in range(3):
        (tmp_path / "logs" / f"{day}.csv").write_bytes((tmp_path / f"{day}.csv").read_bytes())
    how = ("--map", "item=sku,session=visit,slate=request_id", "--items", tmp_path / "items.parquet")
    prepare(tmp_path / "0.csv", "--out", tmp_path / "wider", *STABLE, *how)
    with pytest.raises(InputError, match=r"has items that only .*items\.parquet tells of"):
        prepare(tmp_path / "1.csv", "--append", tmp_path / "wider", *how)
    for log, out in (("logs", "whole"), ("0.csv", "grown")):
        prepare(tmp_path / log, "--out", tmp_path / out, *STABLE, *how, "--no-new-items")
    for day in (1, 2):
        prepare(tmp_path / f"{day}.csv", "--append", tmp_path / "grown", *how)
    assert contents(tmp_path / "grown") == contents(tmp_path / "whole")
    before = contents(tmp_path / "grown")
    day_of_log(3).rename({"item_id": "sku", "session_id": "visit"}).write_csv(tmp_path / "3.csv")
    for options, words in (
        (how[:2], "was made with --items; give the file again"),
        (("--map", "item=sku,session=visit", *how[2:]), r"was read with --format csv .* read it in the same way"),
    ):
        with pytest.raises(InputError, match=words):
            prepare(tmp_path / "3.csv", "--append", tmp_path / "grown", *options)
    assert contents(tmp_path / "grown") == before


def test_sessions_that_come_late_stand_behind(tmp_path):
    for name, day in (("second", 1), ("first", 0)):
        day_of_log(day).write_parquet(tmp_path / f"{name}.parquet")
    found = one_by_one([tmp_path / "second.parquet", tmp_path / "first.parquet"], tmp_path / "grown", *STABLE)
    (warned,) = [one for one in found["warnings"] if one["kind"] == "late sessions"]
    assert warned["message"].startswith("12 of 24 sessions begin before others")
    pl.concat([day_of_log(0), day_of_log(1)]).write_parquet(tmp_path / "both.parquet")
    prepare(tmp_path / "both.parquet", "--out", tmp_path / "both", *STABLE)
    assert _rows(tmp_path / "grown").equals(_rows(tmp_path / "both"))  # the same, but for the order


def _rows(folder: Path) -> pl.DataFrame:
    """All that happened in the sessions of a data set, in a form that does not depend on its order."""
    data = Dataset.load(folder)
    states = pl.DataFrame({"liked": data.states.positives.tolist(), "skipped": data.states.skips.tolist()})
    rows = data.frame.with_columns(
        data.sessions["session_id"].gather(data.frame["session"]), data.sessions["split"].gather(data.frame["session"])
    ).drop("session", "state", "next_state")
    for name in ("state", "next_state"):
        seen = states[data.frame[name].to_numpy()]
        rows = rows.with_columns(seen["liked"].alias(f"{name} liked"), seen["skipped"].alias(f"{name} skipped"))
    return rows.sort("session_id", "step", "position")


def test_a_hash_splits_by_user_and_seed_alone():
    ids = [f"s{number}" for number in range(4000)]
    frame = pl.DataFrame({"session_id": ids, "user_id": [f"u{number % 1500}" for number in range(4000)]})
    split = SplitConfig(by="hash", test=0.25, validation=0.2)

    def splits(frame: pl.DataFrame, seed: int = 0) -> pl.DataFrame:
        return assign_splits(frame, split, seed, clock=True)[0]

    all_at_once = splits(frame)
    assert all_at_once.group_by("user_id").agg(pl.col("split").n_unique())["split"].max() == 1
    assert splits(frame[17:900]).equals(all_at_once[17:900])
    shares = {name: count / 4000 for name, count in all_at_once["split"].value_counts().iter_rows()}
    assert shares == pytest.approx({"test": 0.25, "validation": 0.15, "train": 0.6}, abs=0.03)
    assert not splits(frame, seed=1).equals(all_at_once)
    alone = frame.drop("user_id")
    assert splits(alone.head(300)).equals(splits(alone).head(300))


# ---- what cannot be added


@pytest.fixture
def grown(tmp_path) -> Path:
    day_of_log(0).write_parquet(tmp_path / "0.parquet")
    prepare(tmp_path / "0.parquet", "--out", tmp_path / "dataset", *STABLE)
    return tmp_path / "dataset"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda day: day.with_columns(pl.col("session_id").replace("1-4", "0-3")),
            r"session '0-3' is in the data set .* already;",
        ),
        (lambda _: day_of_log(0), r"already \(12 such sessions\); give each session whole"),
        (
            lambda day: day.with_columns(category=pl.lit("other")),
            r"column category: found 'other' for item 1000, which has 'c0' in the data set",
        ),
        (lambda day: day.drop("user_id"), "has no column user_id, as the data set .* has; give all days alike"),
        (lambda day: day.with_columns(request_category=pl.lit("x")), "has a column request_category, unlike"),
        (lambda day: day.with_columns(pl.col("item_id").cast(pl.String)), "holds strings, but .* has integers"),
        (lambda day: day.drop("timestamp").with_columns(step=pl.lit(0)), "orders rows by step, but .* by timestamp"),
        (lambda day: day.with_columns(response=pl.lit("read")), "found 'read', expected one of skip, click, buy"),
    ],
)
def test_a_log_that_does_not_fit_leaves_the_data_set_alone(grown, tmp_path, change, words):
    change(day_of_log(1)).write_parquet(tmp_path / "new.parquet")
    before = contents(grown)
    with pytest.raises(InputError, match=words):
        prepare(tmp_path / "new.parquet", "--append", grown)
    assert contents(grown) == before
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ((), "drawn among all its sessions at once; prepare it anew with --split hash"),
        (("--split", "time", "--periods", "train=9"), "drawn among all of its train period at once"),
        (("--split", "hash", "--earlier", 2), "made with --earlier"),
        (("--split", "hash", "--convention", "chosen"), "--convention chosen; prepare all at once"),
        (("--split", "hash", "--map", "item=item_id", "--set", "min_support=2"), "made with min_support"),
    ],
)
def test_data_sets_that_cannot_grow(tmp_path, made, words):
    day_of_log(0).write_parquet(tmp_path / "0.parquet")
    day_of_log(1).write_parquet(tmp_path / "1.parquet")
    prepare(tmp_path / "0.parquet", "--out", tmp_path / "dataset", *made)
    with pytest.raises(InputError, match=words):
        prepare(tmp_path / "1.parquet", "--append", tmp_path / "dataset")


def test_options_that_the_data_set_has_already(grown, tmp_path):
    day_of_log(1).write_parquet(tmp_path / "1.parquet")
    for options, words in (
        (("--append", grown, "--out", tmp_path / "x"), "give one of them"),
        (
            ("--append", grown, "--rewards", "skip=0,click=1"),
            "--rewards is what the data set of --append was",
        ),
        (("--append", tmp_path), "is no data set|is missing"),
        (("--append", tmp_path / "nowhere"), "is no data set of format"),
        ((), "prepare needs a place for the data set: --out DIR"),
    ):
        with pytest.raises(InputError, match=words):
            prepare(tmp_path / "1.parquet", *options)
