"""Tasks side by side in processes of this machine, one for each task under way.

Each has a line of its own to the run that started it: when a process dies, that line ends, and what it was at is known.
"""

import contextlib
import os
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from typing import Any

from bcd4rec.runner.running import THREADS, Ending, attempt
from bcd4rec.runner.store import TaskStore
from bcd4rec.runner.tasks import Task


@dataclass
class _Worker:
    process: BaseProcess
    line: Any  # connection.Connection, which is generic for type checkers alone
    task: Task | None = None


class Processes:
    """So many processes; each computes with one thread, since two would slow each other down."""

    def __init__(self, store: TaskStore, jobs: int):
        self.size, self._store = jobs, store
        self._workers: list[_Worker] = []
        self._before = {name: os.environ.get(name) for name in THREADS}
        os.environ.update(THREADS)  # the processes inherit it

    def begin(self, task: Task) -> None:
        worker = next((one for one in self._workers if one.task is None), None) or self._start()
        worker.task = task
        with contextlib.suppress(OSError):  # if it has died meanwhile, `wait` will find it
            worker.line.send(task)

    def wait(self) -> list[tuple[str, Ending]]:
        busy = {one.line: one for one in self._workers if one.task is not None}
        return [self._ended(busy[line]) for line in connection.wait(list(busy))]  # type: ignore[index]

    def _ended(self, worker: _Worker) -> tuple[str, Ending]:
        task, worker.task = worker.task, None
        assert task is not None  # noqa: S101 (only busy ones are waited for; for the type checker)
        try:
            found = worker.line.recv()
        except (EOFError, OSError):
            worker.process.join()
            self._workers.remove(worker)
            return task.key, Ending(0.0, died=_how(worker.process.exitcode))
        if isinstance(found, BaseException):
            raise found
        return task.key, found

    def _start(self) -> _Worker:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._store))
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))
        return self._workers[-1]

    def close(self, at_once: bool) -> None:
        for worker in self._workers:
            if at_once:
                worker.process.kill()
            worker.line.close()
        for worker in self._workers:
            worker.process.join()
        for name, value in self._before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"by signal {-code}{' (out of memory?)' if code == -9 else ''}"
    return f"with exit code {code}"


def _serve(line: Any, store: TaskStore) -> None:
    """A process makes what comes over its line, leaves Ctrl-C to the run, and ends when the run is gone."""
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
    while True:
        try:
            task = line.recv()
        except EOFError:
            return
        try:
            line.send(attempt(task, store))
        except Exception as error:  # a fault of ours: the run ends with it
            line.send(_portable(error))


def _portable(error: Exception) -> Exception:
    """With what led to it, which does not travel otherwise."""
    import traceback

    error.add_note("".join(traceback.format_exception(error)))
    return error
