"""One way to make tasks, whoever makes them: this process, others of this machine, or workers of a Ray cluster.

The book of what waits, is under way and has failed is the same for all of them, and so are the results: a task is a
function of its fields, and is computed with one thread.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from bcd4rec.errors import InputError
from bcd4rec.runner.store import Plan, TaskStore, plan
from bcd4rec.runner.tasks import Task

ATTEMPTS = 3  # how often a task is begun whose workers die before it is given up
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "NUMBA_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Step:
    """Where a run stands after a task, or with none done before its first one."""

    label: str
    seconds: float
    done: int
    total: int
    share: float  # of the work, by rough cost
    left: float | None  # seconds, estimated from what is done
    failure: str | None = None


Tell = Callable[[Step], None]


class Ending(NamedTuple):
    """What came of a task: its time, and why it failed or how its worker died, if so."""

    seconds: float
    failure: str | None = None
    died: str | None = None


class Workers(Protocol):
    """Who makes tasks side by side."""

    size: int

    def begin(self, task: Task) -> None:
        """Give a task to a worker that is free."""

    def wait(self) -> list[tuple[str, Ending]]:
        """The tasks that have come to an end meanwhile, at least one, by key."""

    def close(self, at_once: bool) -> None:
        """All is done; or `at_once`, whatever is under way."""


def run(
    wanted: Iterable[Task],
    store: TaskStore,
    jobs: int = 1,
    tell: Tell = lambda step: None,
    ray: str | None = None,
) -> dict[str, str]:
    """Make everything that is wanted and not there yet. Returns what failed and why, by key.

    `ray` is `local` or the address of a cluster, of which `jobs` workers are used, or all (0). A task that fails (an
    agent that diverged) takes only those down that need it; a worker that dies costs its task, which is begun again.
    Whoever interrupts loses the tasks under way and nothing else.
    """
    with Crew(store, jobs, ray) as crew:
        return crew.make(wanted, tell)


class Crew:
    """Whoever makes the tasks of a run, which may be asked for more when it sees what came of the first."""

    def __init__(self, store: TaskStore, jobs: int = 1, ray: str | None = None):
        self.store, self._jobs, self._ray = store, jobs, ray
        self._begun: Workers | None = None
        self._alone = store.alone()

    def __enter__(self) -> "Crew":
        self._alone.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *about: Any) -> None:
        try:
            if self._begun is not None:
                self._begun.close(at_once=kind is not None)
        finally:
            self._alone.__exit__(kind, *about)

    @property
    def size(self) -> int:
        """How many tasks at once."""
        return self._workers().size if self._ray is not None else self._jobs

    def make(self, wanted: Iterable[Task], tell: Tell = lambda step: None) -> dict[str, str]:
        """As `run`."""
        book = Book(plan(wanted, self.store), tell)
        if self._ray is None and self._jobs == 1:
            while (task := book.next()) is not None:
                book.finished(task, attempt(task, self.store))
        elif book.waiting:
            _side_by_side(book, self.store, self._workers())
        return book.failed

    def _workers(self) -> Workers:
        """Begun when there is something to do."""
        if self._begun is None and self._ray is not None:
            from bcd4rec.runner.on_ray import RayWorkers

            self._begun = RayWorkers(self.store, self._jobs, self._ray)
        elif self._begun is None:
            from bcd4rec.runner.local import Processes

            self._begun = Processes(self.store, self._jobs)
        return self._begun


def _side_by_side(book: "Book", store: TaskStore, workers: Workers) -> None:
    book.jobs = workers.size
    while True:
        while len(book.under_way) < workers.size and (task := book.next()) is not None:
            if task.here:
                book.finished(task, attempt(task, store))
            else:
                book.begin(task)
                workers.begin(task)
        if not book.under_way:
            return
        for key, outcome in workers.wait():
            task = book.under_way[key]
            if outcome.died is not None and book.begun[key] < ATTEMPTS:
                book.begin(task)
                workers.begin(task)
            else:
                book.finished(task, outcome)


class Book:
    """What is done, what failed, what can be begun, and how long the rest may take."""

    def __init__(self, todo: Plan, tell: Tell):
        self.waiting = {task.key: task for task in todo.waiting}
        self.under_way: dict[str, Task] = {}
        self.begun: dict[str, int] = {}  # how often
        self.failed: dict[str, str] = {}
        self.jobs = 1
        self._total, self._work, self._tell = len(todo.waiting), todo.work, tell
        self._done, self._worked, self._seconds = 0, 0.0, 0.0
        if todo.waiting:
            tell(Step(todo.waiting[0].label, 0.0, 0, self._total, 0.0, None))

    def next(self) -> Task | None:
        """The next task whose needs are all there, in the order of the plan; it is then no longer waiting."""
        for key, task in self.waiting.items():
            if not any(need.key in self.waiting or need.key in self.under_way for need in task.needs):
                return self.waiting.pop(key)
        return None

    def begin(self, task: Task) -> None:
        self.under_way[task.key] = task
        self.begun[task.key] = self.begun.get(task.key, 0) + 1

    def finished(self, task: Task, outcome: Ending) -> None:
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


def attempt(task: Task, store: TaskStore) -> Ending:
    """Make a task in this process, with one thread."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "torch" in sys.modules:  # else it will heed the variable
        sys.modules["torch"].set_num_threads(1)
    began = time.monotonic()
    try:
        return Ending(store.make(task))
    except InputError as error:
        return Ending(time.monotonic() - began, str(error))
