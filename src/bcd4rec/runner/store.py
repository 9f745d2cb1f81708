"""Where results are kept. A result is a folder that appears whole or not at all."""

import contextlib
import fcntl
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bcd4rec.artifacts import MANIFEST, atomic_directory, read_json, remove, write_json
from bcd4rec.errors import InputError
from bcd4rec.runner.code import version_of
from bcd4rec.runner.tasks import Task, describe

BUSY = "Another run is at work in {}; wait for it or choose another place."


@dataclass(frozen=True)
class TaskStore:
    """The folder where results are kept. With `keep_old` those of other code count, too."""

    folder: Path
    keep_old: bool = False
    codes: dict[tuple[str, ...], str] = field(default_factory=dict)  # by modules; the processes of a run share it

    def code(self, task: Task) -> str:
        """The version of the code of a task and of all that it needs."""
        modules = tuple(sorted({type(one).__module__ for one in task.everything.values()}))
        if modules not in self.codes:
            self.codes[modules] = version_of(modules)
        return self.codes[modules]

    @property
    def name(self) -> str:
        """For people: where results are kept."""
        return str(self.folder)

    def path(self, task: Task) -> Path:
        """The folder of a result, to be read."""
        return self._place(task)

    def about(self, task: Task) -> dict[str, Any] | None:
        """The manifest of what is kept, whatever code made it."""
        manifest = self._place(task) / MANIFEST
        return read_json(manifest) if manifest.is_file() else None

    def abouts(self, tasks: Iterable[Task]) -> list[dict[str, Any] | None]:
        return [self.about(task) for task in tasks]

    def has(self, task: Task) -> bool:
        return self.counts(task, self.about(task))

    def counts(self, task: Task, about: dict[str, Any] | None) -> bool:
        """Whether a result with this manifest need not be made again."""
        return about is not None and (self.keep_old or about["code"] == self.code(task))

    def shared(self, task: Task) -> Path:
        """Where tasks of this code share what they have in common, such as pre-trained embeddings."""
        return self.folder / f"shared-{self.code(task)}"

    def make(self, task: Task) -> float:
        """Make one task whose needs are there; how many seconds it took."""
        began = time.monotonic()
        with atomic_directory(self._place(task), force=True) as folder:
            task.make(folder, self)
            seconds = time.monotonic() - began
            about = {"kind": "task", "task": describe(task), "label": task.label, "code": self.code(task)}
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
                raise InputError(BUSY.format(self.name)) from None
            for path in self.folder.glob(".*.partial-*"):
                remove(path)
            yield

    def _place(self, task: Task) -> Path:
        return self.folder / f"{type(task).__name__.lower()}-{task.key}"


@dataclass(frozen=True)
class Plan:
    """All tasks in an order in which each comes after what it needs, and those still to be made."""

    tasks: Sequence[Task]
    waiting: Sequence[Task]
    old: int  # kept results of other code, which are made again

    @property
    def work(self) -> float:
        return sum(task.weight() for task in self.waiting)


def plan(wanted: Iterable[Task], store: TaskStore) -> Plan:
    tasks = list({key: one for task in wanted for key, one in task.everything.items()}.values())
    left = [
        (task, about) for task, about in zip(tasks, store.abouts(tasks), strict=True) if not store.counts(task, about)
    ]
    return Plan(tasks, [task for task, _ in left], sum(about is not None for _, about in left))
