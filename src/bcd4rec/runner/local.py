"""A runner that makes tasks on this machine, one after the other or side by side, and goes on where it was."""

import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bcd4rec.errors import InputError
from bcd4rec.runner.store import Plan, TaskStore, plan
from bcd4rec.runner.tasks import Task


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


def run(
    wanted: Iterable[Task], store: TaskStore, jobs: int = 1, tell: Callable[[Step], None] = lambda step: None
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


def _side_by_side(book: _Book, store: TaskStore, jobs: int) -> None:
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


def _attempt(task: Task, store: TaskStore) -> tuple[float, str | None]:
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
