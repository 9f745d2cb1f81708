"""One way to make tasks, whoever makes them: this process, others of this machine, or workers of a Ray cluster.

The book of what waits, is under way and has failed is the same for all of them, and so are the results: a task is a
function of its fields, and is computed with one thread.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bcd4rec.errors import InputError
from bcd4rec.runner.store import Plan, TaskStore, plan
from bcd4rec.runner.tasks import Task

ATTEMPTS = 3  # how often a task is begun whose workers die before it is given up
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "NUMBA_NUM_THREADS"), "1")


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


class Outcome(NamedTuple):
    """What came of a task: its time, and why it failed or how its worker died, if so."""

    seconds: float
    failure: str | None = None
    died: str | None = None


class Workers(Protocol):
    """Who makes tasks side by side."""

    size: int

    def begin(self, task: Task) -> None:
        """Give a task to a worker that is free."""

    def wait(self) -> list[tuple[str, Outcome]]:
        """The tasks that have come to an end meanwhile, at least one, by key."""

    def close(self, at_once: bool) -> None:
        """All is done; or `at_once`, whatever is under way."""


def run(
    wanted: Iterable[Task],
    store: TaskStore,
    jobs: int = 1,
    tell: Callable[[Step], None] = lambda step: None,
    ray: str | None = None,
) -> dict[str, str]:
    """Make everything that is wanted and not there yet. Returns what failed and why, by key.

    `ray` is `local` or the address of a cluster, of which `jobs` workers are used. A task that fails (an agent that
    diverged) takes only those down that need it; a worker that dies costs its task, which is begun again. Whoever
    interrupts loses the tasks under way and nothing else.
    """
    with store.alone():
        book = Book(plan(wanted, store), tell)
        if ray is None and jobs == 1:
            while (task := book.next()) is not None:
                book.finished(task, attempt(task, store))
        elif book.waiting:
            _side_by_side(book, store, _workers(store, jobs, ray))
    return book.failed


def _workers(store: TaskStore, jobs: int, ray: str | None) -> Workers:
    if ray is not None:
        from bcd4rec.runner.on_ray import RayWorkers

        return RayWorkers(store, jobs, ray)
    from bcd4rec.runner.local import Processes

    return Processes(store, jobs)


def _side_by_side(book: "Book", store: TaskStore, workers: Workers) -> None:
    book.jobs = workers.size
    ended = False
    try:
        while True:
            while len(book.under_way) < workers.size and (task := book.next()) is not None:
                if task.here:
                    book.finished(task, attempt(task, store))
                else:
                    book.begin(task)
                    workers.begin(task)
            if not book.under_way:
                break
            for key, outcome in workers.wait():
                task = book.under_way[key]
                if outcome.died is not None and book.begun[key] < ATTEMPTS:
                    book.begin(task)
                    workers.begin(task)
                else:
                    book.finished(task, outcome)
        ended = True
    finally:
        workers.close(at_once=not ended)


class Book:
    """What is done, what failed, what can be begun, and how long the rest may take."""

    def __init__(self, todo: Plan, tell: Callable[[Step], None]):
        self.waiting = {task.key: task for task in todo.waiting}
        self.under_way: dict[str, Task] = {}
        self.begun: dict[str, int] = {}  # how often
        self.failed: dict[str, str] = {}
        self.jobs = 1
        self._total, self._work, self._tell = len(todo.waiting), todo.work, tell
        self._done, self._worked, self._seconds = 0, 0.0, 0.0

    def next(self) -> Task | None:
        """The next task whose needs are all there, in the order of the plan; it is then no longer waiting."""
        for key, task in self.waiting.items():
            if not any(need.key in self.waiting or need.key in self.under_way for need in task.needs):
                return self.waiting.pop(key)
        return None

    def begin(self, task: Task) -> None:
        self.under_way[task.key] = task
        self.begun[task.key] = self.begun.get(task.key, 0) + 1

    def finished(self, task: Task, outcome: Outcome) -> None:
        self.under_way.pop(task.key, None)
        failure = outcome.failure
        if outcome.died is not None:
            failure = f"its worker died {self.begun[task.key]} times, at last {outcome.died}."
        if failure is not None:
            self._fail(task, failure)
        self._done += 1
        self._worked += task.weight()
        self._seconds += outcome.seconds
        left = max(self._work - self._worked, 0.0) * self._seconds / max(self._worked, 1e-9) / self.jobs
        share = self._worked / max(self._work, 1e-9)
        self._tell(Step(task.label, outcome.seconds, self._done, self._total, share, left, failure))

    def _fail(self, task: Task, failure: str) -> None:
        self.failed[task.key] = f"{task.label}: {failure}"
        for other in [one for one in self.waiting.values() if any(need.key == task.key for need in one.needs)]:
            if self.waiting.pop(other.key, None) is not None:
                self._done += 1
                self._worked += other.weight()
                self._fail(other, f"needs {task.label}")


def attempt(task: Task, store: TaskStore) -> Outcome:
    """Make a task in this process, with one thread."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "torch" in sys.modules:  # else it will heed the variable
        sys.modules["torch"].set_num_threads(1)
    began = time.monotonic()
    try:
        return Outcome(store.make(task))
    except InputError as error:
        return Outcome(time.monotonic() - began, str(error))
