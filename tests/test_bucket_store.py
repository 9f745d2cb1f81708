"""Results in a bucket: whole or not at all, one run at a time, and the same bytes as in a folder."""

import json
import pickle
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bcd4rec.artifacts import MANIFEST
from bcd4rec.errors import InputError
from bcd4rec.runner import bucket
from bcd4rec.runner.bucket import CACHE, BucketStore, open_store
from bcd4rec.runner.running import run
from bcd4rec.runner.store import TaskStore, plan
from buckets import served_bucket
from test_runner import AFTER, Number, Place, Total, total_of

WANTED = [Total((Number(1), Number(2))), Total((Number(2), Number(3)), Place(Number(9)))]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served_bucket() as found:
        yield found


@pytest.fixture
def store(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BucketStore:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    found = open_store(f"{url}/{tmp_path.name}")
    assert isinstance(found, BucketStore)
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """All bytes of the results in a store, but for the time that each took."""
    found = {}
    for path in sorted(one for one in folder.rglob("*") if one.is_file() and one.parent != folder):
        data = path.read_bytes()
        if path.parent.parent == folder and path.name == MANIFEST:
            data = json.dumps(json.loads(data) | {"seconds": 0}).encode()
        found[str(path.relative_to(folder))] = data
    return found


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_are_those_of_a_folder_and_come_from_the_bucket_elsewhere(store, tmp_path, jobs):
    folder = TaskStore(tmp_path / "folder")
    assert run(WANTED, store, jobs) == run(WANTED, folder) == {}
    shutil.rmtree(store.folder)  # another machine has nothing
    assert plan(WANTED, store).waiting == []
    for task in plan(WANTED, store).tasks:
        store.path(task)
    assert contents(store.folder) == contents(folder.folder)
    told = []
    assert run(WANTED, store, jobs, told.append) == {}
    assert told == []


def test_a_result_counts_when_its_manifest_is_there(store, monkeypatch):
    fs, task = store._at[0], Number(5)

    def break_off(local: str, remote: str) -> None:
        if remote.endswith(MANIFEST):
            raise OSError("the network is away")
        put(local, remote)

    put = fs.put_file
    monkeypatch.setattr(fs, "put_file", break_off)
    with pytest.raises(OSError, match="away"):
        run([task], store)
    assert fs.find(store._away(task)) == [f"{store._away(task)}/number.txt"]
    assert not store.has(task)
    monkeypatch.undo()
    monkeypatch.setenv(CACHE, str(store.folder.parent))
    assert run([task], store) == {}
    assert store.has(task)


def test_what_other_code_has_made_is_replaced(store):
    task = WANTED[0]
    run([task], replace(store, codes={(Number.__module__,): "before"}))
    after = replace(store, codes=AFTER)
    assert plan([task], after).old == 3
    assert run([task], after) == {}
    assert after.about(task)["code"] == "after"
    assert total_of(task, after) == 3


def test_one_run_at_a_time_and_a_dead_one_is_taken_over(store, monkeypatch):
    with store.alone(), pytest.raises(InputError, match="Another run is at work in s3://our-results/"):
        run([Number(1)], store)
    claims = f"{store._at[1]}/lock"
    assert store._at[0].find(claims) == []
    store._show(f"{claims}/killed.json", "killed")
    with pytest.raises(InputError, match=r"counts as dead"):
        run([Number(1)], store)
    monkeypatch.setattr(bucket, "STALE", -5.0)  # as if two minutes had passed
    assert run([Number(1)], store) == {}
    assert store._at[0].find(claims) == []


def test_a_run_shows_signs_of_life_and_does_not_claim_what_was_taken(store, monkeypatch):
    monkeypatch.setattr(bucket, "BEAT", 0.01)
    shown: list[str] = []
    show = BucketStore._show

    def counted(self: BucketStore, claim: str, owner: str) -> None:
        shown.append(claim)
        show(self, claim, owner)

    monkeypatch.setattr(BucketStore, "_show", counted)
    with store.alone():
        deadline = time.monotonic() + 120
        while len(shown) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(shown) >= 3
        store._at[0].rm_file(shown[0])  # another run took this one for dead
        time.sleep(0.1)
    assert not store._at[0].exists(shown[0])


def test_elsewhere_it_has_the_cache_of_that_machine(store, tmp_path, monkeypatch):
    sent = pickle.dumps(store)
    monkeypatch.setenv(CACHE, str(tmp_path / "elsewhere"))
    found = pickle.loads(sent)  # noqa: S301 (our own)
    assert found.url == store.url
    assert found.folder.parent == tmp_path / "elsewhere"


def test_a_bucket_cannot_write_outside_of_the_cache(store):
    task = Number(8)
    run([task], store)
    manifest = json.dumps(store.about(task) | {"files": ["../../out.txt"]}).encode()
    store._at[0].pipe_file(f"{store._away(task)}/{MANIFEST}", manifest)
    with pytest.raises(InputError, match="outside of its folder"):
        store.path(task)
