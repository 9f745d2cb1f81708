"""Work as data: a task says what is computed, never where.

Its key is a hash of its fields and of the keys of the tasks it needs, so whatever two tables have in common is computed
once.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bcd4rec.artifacts import content_hash
from bcd4rec.runner.code import KEY_LENGTH

if TYPE_CHECKING:
    from bcd4rec.runner.store import TaskStore


class Task:
    """A frozen dataclass whose fields, some of which may be tasks, say what is to be made."""

    cost: ClassVar[float] = 1.0  # rough seconds, for the estimate of the time that is left
    here: ClassVar[bool] = False  # made where the run was started: it reads files that only this machine may have

    @property
    def label(self) -> str:
        """For people who watch."""
        return type(self).__name__.lower()

    def make(self, folder: Path, store: "TaskStore") -> None:
        """Write the result into `folder`; what is needed lies in `store`."""
        raise NotImplementedError

    def weight(self) -> float:
        return self.cost

    @cached_property
    def needs(self) -> "list[Task]":
        return list(_tasks_in([getattr(self, one.name) for one in fields(self)]))  # type: ignore[arg-type]

    @cached_property
    def everything(self) -> "dict[str, Task]":
        """The task and all that it needs, by key; each comes after what it needs itself."""
        needed = {key: task for need in self.needs for key, task in need.everything.items()}
        return needed | {self.key: self}

    @cached_property
    def key(self) -> str:
        text = json.dumps(describe(self), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


@dataclass(frozen=True)
class Given(Task):
    """A folder that no task made, such as a data set, by its content; workers elsewhere find it in the store."""

    name: str
    content: str
    path: str = field(compare=False)
    cost: ClassVar[float] = 0.1
    here: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return self.name

    @classmethod
    def of(cls, name: str, folder: Path) -> "Given":
        files = [str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()]
        return cls(name, content_hash(folder, files), str(folder.absolute()))

    def make(self, folder: Path, store: "TaskStore") -> None:
        shutil.copytree(self.path, folder / self.name)


def describe(value: Any) -> Any:
    """A task, or a field of one, as JSON; fields that do not count in comparisons are no part of what it is."""
    if is_dataclass(value) and not isinstance(value, type):
        inner = {one.name: describe(getattr(value, one.name)) for one in fields(value) if one.compare}
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
