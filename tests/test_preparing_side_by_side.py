"""`prepare --jobs` and `--ray`: the bytes of one process, and its sentences."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from bcd4rec.cli import build
from bcd4rec.data import sessions
from bcd4rec.errors import InputError
from tests.daily_logs import day_of_log, write_days


@pytest.fixture
def days(tmp_path, monkeypatch) -> Path:
    """A log of several chunks."""
    monkeypatch.setattr(sessions, "CHUNK_ROWS", 60)
    write_days(tmp_path / "days", 3)
    return tmp_path / "days"


def prepare(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(build("prepare"), ["prepare", *map(str, arguments), "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_processes_write_the_bytes_of_one(days, tmp_path):
    for out, more in (("one", ()), ("two", ("--jobs", 2))):
        prepare(days, "--out", tmp_path / out, "--split", "hash", *more)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    day_of_log(3).write_parquet(tmp_path / "3.parquet")
    for out, more in (("one", ()), ("two", ("--jobs", 2))):
        prepare(tmp_path / "3.parquet", "--append", tmp_path / out, *more)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_what_a_process_finds_wrong_is_told_by_its_name(days, tmp_path):
    broken = day_of_log(1)
    pl.concat([broken, broken.tail(1)]).write_parquet(days / "day=2025-10-15" / "part-0.parquet")
    said = []
    for jobs in (1, 2):
        with pytest.raises(InputError, match="once more, expected each impression once") as refused:
            prepare(days, "--out", tmp_path / "out", "--jobs", jobs)
        said.append(str(refused.value))
        assert not (tmp_path / "out").exists()
        assert not list(tmp_path.glob(".out*"))
    assert said[0] == said[1]


def test_ray_writes_the_bytes_of_one_process(days, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'bcd4rec[ray]'")
    prepare(days, "--out", tmp_path / "one")
    prepare(days, "--out", tmp_path / "ray", "--ray", "local", "--jobs", 2)
    assert contents(tmp_path / "ray") == contents(tmp_path / "one")
