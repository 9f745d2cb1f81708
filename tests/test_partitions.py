"""Logs in folders of partitions, on this machine and in an object store: the same data set as of one file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from bcd4rec.cli import build
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.files import log_files
from bcd4rec.data.places import StoredPath, partition_values, place
from bcd4rec.errors import InputError
from bcd4rec.policies.policy import learned_policy
from bcd4rec.workflows.fitting import fit
from tests.daily_logs import write_days

pytest.importorskip("moto.server", reason="moto is not installed, which serves buckets to tests: pip install '.[dev]'")
from tests.buckets import served_bucket


def run(command: str, *arguments: object) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(build(command), [command, *map(str, arguments), "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, json.loads(done.stdout)


@pytest.fixture(scope="module")
def days(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("logs") / "days"
    write_days(folder, 3)
    (folder / "_SUCCESS").touch()
    (folder / "_temporary").mkdir()
    pl.DataFrame({"no": ["log"]}).write_parquet(folder / "_temporary" / "part-0.parquet")
    return folder


@pytest.fixture(scope="module")
def bucket(days) -> Iterator[str]:
    """An object store with the same files as `days`, and some others."""
    from bcd4rec.object_store import filesystem

    with served_bucket() as url:
        fs, inside = filesystem(url)
        for file in (file for file in days.rglob("*") if file.is_file()):
            fs.pipe_file(f"{inside}/days/{file.relative_to(days)}", file.read_bytes())
        fs.pipe_file(f"{inside}/text/log.csv", b"session_id\n1\n")
        fs.pipe_file(f"{inside}/broken/log.parquet", b"PAR1 and no more")
        yield url


def test_a_folder_of_partitions_is_one_log(days, tmp_path):
    whole = tmp_path / "whole.parquet"
    pl.concat(pl.read_parquet(file) for file in log_files(days)).write_parquet(whole)
    assert [str(file.relative_to(days)) for file in log_files(days)] == [
        f"day=2025-10-{day}/part-0.parquet" for day in (14, 15, 16)
    ]
    hashes = {run("prepare", log, "--out", tmp_path / log.stem)[1]["content_hash"] for log in (whole, days)}
    assert len(hashes) == 1
    assert run("check", days)[1]["sessions"] == 36


def test_folders_of_dates_count_and_others_do_not(tmp_path):
    for name in ("2026/01/02", "2026/01/01", "dataset"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "part.parquet").touch()
    assert [str(file.relative_to(tmp_path).parent) for file in log_files(tmp_path)] == ["2026/01/01", "2026/01/02"]


def test_what_folders_say_is_a_column(tmp_path):
    folder = tmp_path / "response=skip" / "day=a%2Fb"
    assert partition_values(tmp_path, folder / "x.parquet") == {"response": "skip", "day": "a/b"}
    assert partition_values(tmp_path, tmp_path / "day=__HIVE_DEFAULT_PARTITION__" / "x.parquet") == {"day": None}
    for response, items in (("skip", [7, 8, 9]), ("click", [4, 5, 6])):
        part = tmp_path / "log" / f"response={response}" / "day=2026-01-02"
        part.mkdir(parents=True)
        pl.DataFrame({"visit": [1, 1, 2], "item_id": items}).write_parquet(part / "x.parquet")
    found = run("check", tmp_path / "log", "--map", "session=visit,time=day", "--sort")[1]
    assert found["responses"] == {"skip": 3, "click": 3}
    assert found["days"]["first"] == "2026-01-02T00:00:00"


def test_a_csv_file_in_partitions(tmp_path):
    for day in ("01", "02"):
        folder = tmp_path / f"day=2026-01-{day}"
        folder.mkdir()
        (folder / "x.csv").write_text("visit,item,response\n" + f"{day},7,skip\n{day},8,click\n")
    assert run("check", tmp_path, "--map", "session=visit,time=day,item=item")[1]["impressions"] == 4


def test_paths_of_an_object_store():
    path = place("S3://bucket/logs/")
    assert isinstance(path, StoredPath)
    assert (str(path), path.name, str(path / "day=1")) == ("s3://bucket/logs", "logs", "s3://bucket/logs/day=1")
    assert place("file:///logs/x") == Path("/logs/x")
    assert type(place("logs/x")) is type(Path("logs/x"))


def test_a_log_in_an_object_store_is_the_same_log(bucket, days, tmp_path):
    assert run("check", f"{bucket}/days")[1] == run("check", days)[1] | {"log": f"{bucket}/days"}
    for name, log in (("stored", f"{bucket}/days/"), ("here", days)):
        assert run("prepare", log, "--out", tmp_path / name)[0] == 0
    assert _bytes(tmp_path / "stored") == _bytes(tmp_path / "here")
    one = "day=2025-10-15/part-0.parquet"
    mapped = [run("check", f"{root}/{one}", "--map", "item=item_id")[1] for root in (f"{bucket}/days", days)]
    assert mapped[0]["impressions"] == mapped[1]["impressions"] > 0


def test_a_log_in_an_object_store_judges(bucket, days, tmp_path):
    run("prepare", days, "--out", tmp_path / "dataset")
    data = Dataset.load(tmp_path / "dataset")
    learned_policy(fit("popular", data).scorer, data, {}).save(tmp_path / "policy")
    found = [run("judge", tmp_path / "policy", "--log", log, "--no-model") for log in (f"{bucket}/days", days)]
    assert found[0] == (found[1][0], found[1][1] | {"log": f"{bucket}/days"})
    assert found[0][0] in (0, 3, 4)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("nothing", "does not exist, or holds nothing"),
        ("text", "no .parquet file of a log"),
        ("text/log.csv", "copy it here first"),
        ("broken", "cannot be read as Parquet"),
    ],
)
def test_what_an_object_store_cannot_give_is_one_sentence(bucket, tmp_path, log, words):
    with pytest.raises(InputError, match=words) as refused:
        run("prepare", f"{bucket}/{log}", "--out", tmp_path / "out")
    assert str(refused.value).startswith(f"{bucket}/{log}")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_raw_formats_and_data_sets_are_read_here(bucket, days, tmp_path):
    with pytest.raises(InputError, match="--format trivago is read on this machine alone"):
        run("check", f"{bucket}/days", "--format", "trivago")
    with pytest.raises(InputError, match="a data set is read on this machine alone; copy it here first"):
        Dataset.load(place(f"{bucket}/dataset"))


def _bytes(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}
