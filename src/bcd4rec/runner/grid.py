"""Work as data: tasks with content hashes, a store that keeps what was made, and a runner that goes on where it was.

A task says what is computed, never where. Its key is a hash of its fields and of the keys of the tasks it needs, so
whatever two tables have in common is computed once. A result is a folder that appears whole or not at all.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import bcd4rec
from bcd4rec.artifacts import MANIFEST, atomic_directory, read_json, remove, write_json
from bcd4rec.errors import InputError

KEY_LENGTH = 20
# What cannot change a result: how it is asked for, shown and served.
WITHOUT_RESULTS = (
    "cli.py",
    "commands",
    "console.py",
    "report",
    "serving",
    "evaluation/findings.py",
)


class Task:
    """A frozen dataclass whose fields, some of which may be tasks, say what is to be made."""

    cost: ClassVar[float] = 1.0  # rough seconds, for the estimate of the time that is left

    @property
    def label(self) -> str:
        """For people who watch."""
        return type(self).__name__.lower()

    def make(self, folder: Path, store: "Store") -> None:
        """Write the result into `folder`; what is needed lies in `store`."""
        raise NotImplementedError

    def weight(self) -> float:
        return self.cost

    @cached_property
    def needs(self) -> "list[Task]":
        return list(_tasks_in([getattr(self, one.name) for one in fields(self)]))  # type: ignore[arg-type]

    @cached_property
    def key(self) -> str:
        text = json.dumps(describe(self), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def describe(value: Any) -> Any:
    """A task, or a field of one, as JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        inner = {one.name: describe(getattr(value, one.name)) for one in fields(value)}
        return {"kind": type(value).__name__} | inner
    if isinstance(value, tuple | list):
        return [describe(one) for one in value]
    return value


def _tasks_in(value: Any) -> Iterator[Task]:
    """The tasks that a value holds, not those within them."""
    for one in value if isinstance(value, list | tuple) else ():
        if isinstance(one, Task):
            yield one
        elif is_dataclass(one) and not isinstance(one, type):
            yield from _tasks_in([getattr(one, each.name) for each in fields(one)])
        else:
            yield from _tasks_in(one)


def code_version() -> str:
    """A hash of the code that results depend on."""
    root = Path(bcd4rec.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root).as_posix()
        if not any(name == part or name.startswith(f"{part}/") for part in WITHOUT_RESULTS):
            digest.update(name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:KEY_LENGTH]


@dataclass(frozen=True)
class Store:
    """The folder where results are kept. With `keep_old` those of other code count, too."""

    folder: Path
    code: str = field(default_factory=code_version)
    keep_old: bool = False

    def path(self, task: Task) -> Path:
        return self.folder / f"{type(task).__name__.lower()}-{task.key}"

    def about(self, task: Task) -> dict[str, Any] | None:
        """The manifest of what is kept, whatever code made it."""
        manifest = self.path(task) / MANIFEST
        return read_json(manifest) if manifest.is_file() else None

    def has(self, task: Task) -> bool:
        about = self.about(task)
        return about is not None and (self.keep_old or about["code"] == self.code)

    def shared(self) -> Path:
        """Where runs of this code share what they have in common, such as pre-trained embeddings."""
        return self.folder / f"shared-{self.code}"

    def make(self, task: Task) -> float:
        """Make one task whose needs are there; how many seconds it took."""
        began = time.monotonic()
        with atomic_directory(self.path(task), force=True) as folder:
            task.make(folder, self)
            seconds = time.monotonic() - began
            about = {"kind": "task", "task": describe(task), "label": task.label, "code": self.code}
            write_json(folder / MANIFEST, about | {"seconds": round(seconds, 2)})
        return seconds

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Only one run at a time works in a store; what runs that were killed have left half done goes first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                busy = f"Another run is at work in {self.folder}; wait for it or choose another --out."
                raise InputError(busy) from None
            for path in self.folder.glob(".*.partial-*"):
                remove(path)
            yield


@dataclass(frozen=True)
class Step:
    """Where a run stands after a task."""

    label: str
    seconds: float
    done: int
    total: int
    share: float  # of the work, by rough cost
    left: float  # seconds, estimated
    failure: str | None = None


@dataclass(frozen=True)
class Plan:
    """All tasks in an order in which each comes after what it needs, and those still to be made."""

    tasks: Sequence[Task]
    waiting: Sequence[Task]
    old: int  # kept results of other code, which are made again

    @property
    def work(self) -> float:
        return sum(task.weight() for task in self.waiting)


def plan(wanted: Iterable[Task], store: Store) -> Plan:
    order: dict[str, Task] = {}

    def visit(task: Task) -> None:
        if task.key not in order:
            for need in task.needs:
                visit(need)
            order[task.key] = task

    for task in wanted:
        visit(task)
    waiting = [task for task in order.values() if not store.has(task)]
    return Plan(list(order.values()), waiting, sum(store.about(task) is not None for task in waiting))


def run(
    wanted: Iterable[Task], store: Store, jobs: int = 1, tell: Callable[[Step], None] = lambda step: None
) -> dict[str, str]:
    """Make everything that is wanted and not there yet. Returns what failed and why, by key.

    A task that fails (an agent that diverged) takes only those down that need it. Whoever interrupts loses the tasks
    under way and nothing else.
    """
    with store.alone():
        book = _Book(plan(wanted, store), jobs, tell)
        if jobs == 1:
            while (task := book.next()) is not None:
                book.finished(task, *_attempt(task, store))
        else:
            _side_by_side(book, store, jobs)
    return book.failed


class _Book:
    """What is done, what failed, what can be begun, and how long the rest may take."""

    def __init__(self, todo: Plan, jobs: int, tell: Callable[[Step], None]):
        self.waiting = {task.key: task for task in todo.waiting}
        self.under_way: dict[str, Task] = {}
        self.failed: dict[str, str] = {}
        self._total, self._work, self._jobs, self._tell = len(todo.waiting), todo.work, jobs, tell
        self._done, self._worked, self._seconds = 0, 0.0, 0.0

    def next(self) -> Task | None:
        """The next task whose needs are all there, in the order of the plan; it is then no longer waiting."""
        for key, task in self.waiting.items():
            if not any(need.key in self.waiting or need.key in self.under_way for need in task.needs):
                return self.waiting.pop(key)
        return None

    def finished(self, task: Task, seconds: float, failure: str | None = None) -> None:
        self.under_way.pop(task.key, None)
        if failure is not None:
            self._fail(task, failure)
        self._done += 1
        self._worked += task.weight()
        self._seconds += seconds
        left = max(self._work - self._worked, 0.0) * self._seconds / max(self._worked, 1e-9) / self._jobs
        share = self._worked / max(self._work, 1e-9)
        self._tell(Step(task.label, seconds, self._done, self._total, share, left, failure))

    def _fail(self, task: Task, failure: str) -> None:
        self.failed[task.key] = f"{task.label}: {failure}"
        for other in [one for one in self.waiting.values() if any(need.key == task.key for need in one.needs)]:
            if self.waiting.pop(other.key, None) is not None:
                self._done += 1
                self._worked += other.weight()
                self._fail(other, f"needs {task.label}")


def _side_by_side(book: _Book, store: Store, jobs: int) -> None:
    """One process for each task under way; each computes with one thread, since two would slow each other down."""
    from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
    from multiprocessing import get_context

    threads = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "NUMBA_NUM_THREADS"), "1")
    before = {name: os.environ.get(name) for name in threads}
    os.environ.update(threads)  # the processes inherit it
    futures: dict[Future[tuple[float, str | None]], Task] = {}
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_serve)
    try:
        while True:
            while len(futures) < jobs and (task := book.next()) is not None:
                book.under_way[task.key] = task
                futures[pool.submit(_attempt, task, store)] = task
            if not futures:
                break
            for future in wait(futures, return_when=FIRST_COMPLETED).done:
                book.finished(futures.pop(future), *future.result())
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _serve() -> None:
    """A process of the pool leaves Ctrl-C to the one that started it, and ends when that one is gone."""
    import signal
    from multiprocessing import parent_process
    from threading import Thread

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def end_with_it() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=end_with_it, daemon=True).start()


def _attempt(task: Task, store: Store) -> tuple[float, str | None]:
    _one_thread()
    began = time.monotonic()
    try:
        return store.make(task), None
    except InputError as error:
        return time.monotonic() - began, str(error)


def _one_thread() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "torch" in sys.modules:  # else it will heed the variable
        sys.modules["torch"].set_num_threads(1)
