"""Runs on Ray, on one local Ray for this whole file: the same folders as with one process, whatever dies."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bcd4rec.errors import InputError
from bcd4rec.runner import on_ray
from bcd4rec.runner.bucket import CACHE, open_store
from bcd4rec.runner.on_ray import cluster
from bcd4rec.runner.running import run
from bcd4rec.runner.store import TaskStore, plan
from buckets import served_bucket
from test_bucket_store import WANTED, contents
from test_runner import Number, survives_deaths


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_bucket() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE, str(tmp_path_factory.mktemp("cache")))  # before Ray, whose workers inherit both
        patch.setenv("PYTHONPATH", os.pathsep.join(entry for entry in sys.path if entry))
        yield url


@pytest.fixture(scope="module")
def ray(bucket: str) -> Iterator[Any]:
    with cluster("local", 2) as found:
        yield found


def test_folders_are_the_same_with_one_process_two_and_ray(ray, bucket, tmp_path):
    ways = {"one": {}, "two": {"jobs": 2}, "ray": {"jobs": 2, "ray": "local"}}
    for name, way in ways.items():
        assert run(WANTED, TaskStore(tmp_path / name), **way) == {}
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "ray") != {}
    away = open_store(f"{bucket}/results")
    assert run(WANTED, away, 2, ray="local") == {}
    shutil.rmtree(away.folder)
    for task in plan(WANTED, away).tasks:
        away.path(task)
    assert contents(away.folder) == contents(tmp_path / "one")


def test_a_failure_on_a_worker_is_told_as_here(ray, tmp_path):
    assert run([Number(-1), Number(1)], TaskStore(tmp_path), 2, ray="local") == {
        Number(-1).key: "number: -1 is negative."
    }


def test_a_worker_of_ray_that_is_killed_costs_its_task_and_not_the_run(ray, tmp_path):
    survives_deaths(tmp_path, TaskStore(tmp_path / "store"), ray="local")


def test_a_worker_with_other_code_or_another_disk_says_so(ray, tmp_path):
    other = TaskStore(tmp_path, codes={(Number.__module__,): "other"})
    (failure,) = run([Number(1)], other, 2, ray="local").values()
    assert "has another version of the code; install the same there" in failure


def test_runs_of_the_reproduction_are_the_same_on_ray(ray, tmp_path):
    from reproduction.tasks.evaluations import EvaluationRun
    from reproduction.tasks.learners import Trained
    from reproduction.tasks.logs import RecSimLog

    log = RecSimLog("recsim-1", 40, 3)
    short = (("updates", 4), ("batch_size", 16), ("shrink", 5))
    players = ["random", Trained(log, "popular", 3), Trained(log, "bcd4rec", 3, short)]
    wanted = [EvaluationRun(log, player, 20, 3) for player in players]
    assert run(wanted, TaskStore(tmp_path / "one")) == run(wanted, TaskStore(tmp_path / "ray"), 2, ray="local") == {}
    assert contents(tmp_path / "one") == contents(tmp_path / "ray")


def test_two_workers_of_ray_train_the_policy_of_one(ray, tmp_path):
    from bcd4rec.agents.presets import preset
    from bcd4rec.policies import bundle
    from bcd4rec.runner.tasks import Given
    from bcd4rec.workflows.seeds import POLICY, SeededPolicy
    from bcd4rec.workflows.several_workers import train_together
    from test_tuning import prepared

    folder = prepared(tmp_path)
    short = {"updates": 5, "batch_size": 15, "pretraining": "none", "behaviour_epochs": 1, "target_every": 3}
    settings = tuple((preset("paper") | short | {"cosines": 8}).items())
    one = SeededPolicy(Given.of("dataset", folder), "bcd4rec", settings, "none", 2)
    two, told = replace(one, workers=2), list[dict[str, Any]]()
    store, checkpoint = TaskStore(tmp_path / "store"), tmp_path / "checkpoint"
    assert run([one], store) == {}
    train_together(two, store, checkpoint, tell=told.append, every=0.0)
    assert [report["step"] for report in told] == [5]
    assert [file.name for file in checkpoint.glob("*/manifest.json")] == ["manifest.json"]
    found, expected = (bundle.load(store.path(task) / POLICY).scorer.arrays() for task in (two, one))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
    losses = [task.result(store)["training"]["loss"] for task in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


JOINING = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_runner import Number
from bcd4rec.runner.running import run
from bcd4rec.runner.store import TaskStore, plan

if __name__ == "__main__":
    print(run([Number(3)], TaskStore(Path(sys.argv[1])), 0, ray=sys.argv[2]))
"""


def test_a_run_joins_a_cluster_and_leaves_it_running(ray, tmp_path):
    script = tmp_path / "join.py"
    script.write_text(JOINING.format(tests=str(Path(__file__).parent)))
    path = os.pathsep.join(entry for entry in sys.path if entry)
    address = ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "store"), address],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert run([Number(4)], TaskStore(tmp_path), 2, ray="local") == {}  # it is still there
    assert done.stdout.strip() == "{}", done.stdout
    assert TaskStore(tmp_path / "store").has(Number(3))


def test_without_ray_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'bcd4rec\[ray\]'"):
        run([Number(1)], TaskStore(tmp_path), ray="local")


@pytest.mark.parametrize(
    ("address", "words"),
    [("127.0.0.1:1", "no cluster answers at 127.0.0.1:1"), ("cluster", "expected local, auto, or HOST:PORT")],
)
def test_an_address_where_nothing_is_says_so(address, words):
    import ray

    with pytest.raises(InputError, match=words):
        on_ray._join(ray, address, {})
