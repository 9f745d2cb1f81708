"""Tasks, the store that keeps them, and the runner that goes on where it was."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

import bcd4rec
from bcd4rec.artifacts import read_json
from bcd4rec.errors import InputError
from bcd4rec.runner import code
from bcd4rec.runner.running import ATTEMPTS, run
from bcd4rec.runner.store import TaskStore, plan
from bcd4rec.runner.tasks import Given, Task


@dataclass(frozen=True)
class Number(Task):
    """Writes a number; a negative one fails."""

    value: int
    seconds: float = 0.0
    cost: ClassVar[float] = 2.0

    def make(self, folder: Path, store: TaskStore) -> None:
        time.sleep(self.seconds)
        if self.value < 0:
            raise InputError(f"{self.value} is negative.")
        (folder / "number.txt").write_text(str(self.value))


@dataclass(frozen=True)
class Place:
    """Not a task, but holds one."""

    of: Number


@dataclass(frozen=True)
class Total(Task):
    parts: tuple[Number, ...]
    place: Place | None = None

    def make(self, folder: Path, store: TaskStore) -> None:
        every = [*self.parts, *([self.place.of] if self.place else [])]
        values = [int((store.path(part) / "number.txt").read_text()) for part in every]
        (folder / "number.txt").write_text(str(sum(values)))


@dataclass(frozen=True)
class Deadly(Task):
    """Kills its worker the first `times` times, as the system does when memory runs out."""

    place: str
    times: int

    def make(self, folder: Path, store: TaskStore) -> None:
        marks = Path(self.place)
        marks.mkdir(exist_ok=True)
        if len(list(marks.iterdir())) < self.times:
            (marks / str(time.time_ns())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / "number.txt").write_text("7")


def total_of(task: Task, store: TaskStore) -> int:
    return int((store.path(task) / "number.txt").read_text())


def test_keys_depend_on_every_field_and_on_needs_alone():
    assert Number(3).key == Number(3).key
    assert len({Number(3).key, Number(4).key, Number(3, 0.1).key, Total((Number(3),)).key}) == 4
    assert Total((Number(3),)).key != Total((Number(5),)).key
    assert Total((), Place(Number(1))).key != Total((), Place(Number(2))).key


def test_needs_are_found_in_tuples_and_within_what_is_no_task():
    task = Total((Number(1), Number(2)), Place(Number(7)))
    assert [need.value for need in task.needs] == [1, 2, 7]


def test_a_plan_makes_what_is_shared_once_and_needs_first(tmp_path):
    one, other = Total((Number(1), Number(2))), Total((Number(2), Number(3)))
    found = plan([one, other, one], TaskStore(tmp_path))
    keys = [task.key for task in found.tasks]
    assert len(keys) == len(set(keys)) == 5
    for task in found.tasks:
        assert all(keys.index(need.key) < keys.index(task.key) for need in task.needs)
    assert found.work == 3 * 2.0 + 2 * 1.0


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_are_made_once_whatever_the_number_of_jobs(tmp_path, jobs):
    store = TaskStore(tmp_path)
    wanted = [Total((Number(1), Number(2))), Total((Number(2), Number(3)), Place(Number(9)))]
    told = []
    assert run(wanted, store, jobs, told.append) == {}
    assert [total_of(task, store) for task in wanted] == [3, 14]
    assert [step.done for step in told] == [0, 1, 2, 3, 4, 5, 6]
    assert (told[0].left, told[0].share) == (None, 0.0)
    assert told[-1].share == pytest.approx(1.0)
    assert told[-1].left == 0.0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("number.txt")}
    told.clear()
    assert run(wanted, store, jobs, told.append) == {}
    assert told == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("number.txt")} == before


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failure_takes_down_only_what_needs_it_and_is_tried_again(tmp_path, jobs):
    store, bad = TaskStore(tmp_path), Number(-1)
    spoiled, fine = Total((Number(1), bad)), Total((Number(1), Number(2)))
    failed = run([spoiled, fine], store, jobs)
    assert failed[bad.key] == "number: -1 is negative."
    assert failed[spoiled.key] == "total: needs number"
    assert len(failed) == 2
    assert total_of(fine, store) == 3
    assert not store.has(bad)
    assert not store.has(spoiled)
    assert set(run([spoiled], store, jobs)) == {bad.key, spoiled.key}


@dataclass(frozen=True)
class Doubled(Task):
    of: Total

    def make(self, folder: Path, store: TaskStore) -> None:
        (folder / "number.txt").write_text(str(2 * total_of(self.of, store)))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failure_reaches_what_needs_it_over_others(tmp_path, jobs):
    store, bad, told = TaskStore(tmp_path), Number(-1), []
    spoiled = Doubled(Total((bad,)))
    failed = run([spoiled, Number(3)], store, jobs, told.append)
    assert failed == {
        bad.key: "number: -1 is negative.",
        spoiled.of.key: "total: needs number",
        spoiled.key: "doubled: needs total",
    }
    assert total_of(Number(3), store) == 3
    assert told[-1].done == told[-1].total == 4


def survives_deaths(tmp_path: Path, store: TaskStore, **how: object) -> None:
    """A worker that dies costs its task, which is tried again; one that always dies fails, and the rest is made."""
    once, always = Deadly(str(tmp_path / "once"), 1), Deadly(str(tmp_path / "always"), 99)
    others = [Number(value, 0.02) for value in range(6)]
    failed = run([once, always, *others], store, 2, **how)
    assert list(failed) == [always.key]
    assert f"its worker died {ATTEMPTS} times" in failed[always.key]
    assert len(list((tmp_path / "always").iterdir())) == ATTEMPTS
    assert [total_of(task, store) for task in (once, *others)] == [7, *range(6)]


def test_a_process_that_is_killed_costs_its_task_and_not_the_run(tmp_path):
    survives_deaths(tmp_path, TaskStore(tmp_path / "store"))


@dataclass(frozen=True)
class Faulty(Task):
    value: int = 0

    def make(self, folder: Path, store: TaskStore) -> None:
        raise KeyError("a fault of ours")


def test_a_fault_of_ours_ends_a_run_of_processes_and_says_where_it_was(tmp_path):
    with pytest.raises(KeyError, match="a fault of ours") as raised:
        run([Faulty(), Number(1)], TaskStore(tmp_path), 2)
    assert "in make" in raised.value.__notes__[0]


def test_what_is_given_is_known_by_its_content_and_copied(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.txt").write_text("1")
    given = Given("data", "abc", str(tmp_path / "data"))
    assert given.key == Given("data", "abc", "elsewhere").key != Given("data", "abd", str(tmp_path / "data")).key
    store = TaskStore(tmp_path / "store")
    assert run([given], store, 2) == {}
    assert (store.path(given) / "data" / "one.txt").read_text() == "1"


AFTER = {(__name__,): "after"}


def test_other_code_is_noticed_and_may_be_kept(tmp_path):
    task = Total((Number(4),))
    run([task], TaskStore(tmp_path, codes={(__name__,): "before"}))
    after = TaskStore(tmp_path, codes=AFTER)
    found = plan([task], after)
    assert (len(found.waiting), found.old) == (2, 2)
    kept = plan([task], TaskStore(tmp_path, keep_old=True, codes=AFTER))
    assert (len(kept.waiting), kept.old) == (0, 0)
    run([task], after)
    assert read_json(after.path(task) / "manifest.json")["code"] == "after"


@pytest.fixture
def house(tmp_path, monkeypatch):
    """Two packages: what computes, with a registry, and a task that uses some of it."""
    files = {
        "src/bcd4rec/__init__.py": "",
        "src/bcd4rec/used.py": "def f():\n    from bcd4rec.within import deep\n",
        "src/bcd4rec/within/__init__.py": "",
        "src/bcd4rec/within/deep.py": "from bcd4rec.registry import PARTS\n",
        "src/bcd4rec/within/other.py": "",
        "src/bcd4rec/registry.py": "PARTS = Registry('bcd4rec.parts')\n",
        "src/bcd4rec/parts/__init__.py": "",
        "src/bcd4rec/parts/one.py": "import json\n",
        "src/bcd4rec/named/by/name.py": "",
        "src/bcd4rec/unused.py": "import bcd4rec.used\n",
        "study/__init__.py": "",
        "study/task.py": "from bcd4rec import used\nfrom study import helper\nNAMED = 'bcd4rec.named.by'\n",
        "study/helper.py": "",
        "study/table.py": "import study.task\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(bcd4rec, "__file__", str(tmp_path / "src/bcd4rec/__init__.py"))
    module = SimpleNamespace(__file__=str(tmp_path / "study/task.py"))
    monkeypatch.setitem(sys.modules, "study.task", module)
    return tmp_path


def version() -> str:
    code._syntax.cache_clear()
    return code.version_of(["study.task"])


USED = {
    *("src/bcd4rec/__init__.py", "src/bcd4rec/used.py", "src/bcd4rec/within/__init__.py"),
    *("src/bcd4rec/within/deep.py", "src/bcd4rec/registry.py", "src/bcd4rec/parts/__init__.py"),
    *(
        "src/bcd4rec/named/by/name.py",
        "src/bcd4rec/parts/one.py",
        "study/__init__.py",
        "study/task.py",
        "study/helper.py",
    ),
}


def test_the_version_of_the_code_is_of_what_a_task_reaches(house):
    files = {path.relative_to(house).as_posix() for path in house.rglob("*.py")}
    assert files > USED
    for name in sorted(files):
        text = (house / name).read_text()
        before = version()
        (house / name).write_text(f'"""What it is for."""\n\n# why\n{text}')
        assert version() == before, f"a comment in {name}"
        (house / name).write_text(f"{text}two = 2\n")
        assert (version() != before) == (name in USED), name


def test_docstrings_within_classes_do_not_count_and_other_strings_do(house):
    def written(text: str) -> str:
        (house / "study/helper.py").write_text(text)
        return version()

    assert written("class A:\n    'one'\n    x = 1\n") == written("class A:\n    x = 1  # two\n")
    assert written("def f():\n    'one'\n    return 'a'\n") == written("def f():\n    return ('a')\n")
    assert written("def f():\n    return 'a'\n") != written("def f():\n    return 'b'\n")


def test_a_new_part_of_a_registry_counts(house):
    before = version()
    (house / "src/bcd4rec/parts/two.py").write_text("x = 1\n")
    assert version() != before


def test_the_code_of_the_reproduction_is_that_of_its_methods_and_not_of_its_pages():
    from reproduction.tasks import evaluations

    found: dict[str, Path] = {}
    code._reach(evaluations.__name__, code._roots(evaluations.__name__), found)
    assert {"bcd4rec.baselines.stan", "bcd4rec.agents.quantile_agent", "bcd4rec.sim.shop", "bcd4rec.losses"} <= set(
        found
    )
    assert not [name for name in found if name.split(".")[1:2] in (["cli"], ["commands"], ["report"], ["serving"])]
    assert "reproduction.table1" not in found


def test_a_manifest_says_what_was_made(tmp_path):
    store, task = TaskStore(tmp_path), Total((Number(4),))
    run([task], store)
    about = read_json(store.path(task) / "manifest.json")
    assert about["task"] == {
        "kind": "Total",
        "parts": [{"kind": "Number", "value": 4, "seconds": 0.0}],
        "place": None,
    }
    assert about["label"] == "total"


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_runner import Number, Total
from bcd4rec.runner.running import run
from bcd4rec.runner.store import TaskStore

if __name__ == "__main__":
    quick = [Number(value) for value in range(5)]
    run([*quick, Total((*quick, Number(100, {seconds})))], TaskStore(Path(sys.argv[1])), jobs=2)
"""


def begin(tmp_path: Path, seconds: float) -> subprocess.Popen[bytes]:
    script = tmp_path / "script.py"
    script.write_text(KILLED.format(tests=str(Path(__file__).parent), seconds=seconds))
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "store")],
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
        stderr=subprocess.PIPE,
    )


def wait_until_gone(group: int) -> None:
    """Nobody goes on working for a run that was killed."""
    deadline = time.monotonic() + 120
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.killpg(group, 0)
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path):
    process = begin(tmp_path, 600.0)
    store = TaskStore(tmp_path / "store")
    quick = [Number(value) for value in range(5)]
    deadline = time.monotonic() + 240
    while not (all(store.has(task) for task in quick) and list(store.folder.glob(".number-*"))):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    wait_until_gone(process.pid)
    made = {path: path.stat().st_mtime_ns for path in store.folder.glob("*/number.txt")}
    assert len(made) == 5
    slow = Number(100)  # the same, but for its slowness
    assert run([*quick, Total((*quick, slow))], store) == {}
    assert total_of(Total((*quick, slow)), store) == 110
    assert all(path.stat().st_mtime_ns == then for path, then in made.items())
    assert not list(store.folder.glob(".*"))  # what was half done is gone


def test_two_runs_do_not_work_in_one_store(tmp_path):
    store = TaskStore(tmp_path)
    with store.alone(), pytest.raises(InputError, match="Another run is at work"):
        run([Number(1)], store)
    assert run([Number(1)], store) == {}
