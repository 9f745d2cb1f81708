"""What commands that make tasks have in common: a bar, and words for what was interrupted."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bcd4rec.console import err
from bcd4rec.errors import InputError, printable
from bcd4rec.runner.running import Crew, Step, run

if TYPE_CHECKING:
    from bcd4rec.runner.running import Tell
    from bcd4rec.runner.store import TaskStore
    from bcd4rec.runner.tasks import Task


def make(tasks: "Iterable[Task]", store: "TaskStore", jobs: int | None, ray: str | None) -> dict[str, str]:
    """As `run`, with a bar on a terminal, or else a line for each task."""
    with bar() as tell:
        return run(tasks, store, workers(jobs, ray), tell, ray)


def crew(store: "TaskStore", jobs: int | None, ray: str | None) -> Crew:
    return Crew(store, workers(jobs, ray), ray)


def workers(jobs: int | None, ray: str | None) -> int:
    """Without a number one process, or all that a cluster has."""
    return jobs if jobs is not None else 1 if ray is None else 0


def refuse_parted(store: str | None, ray: str | None) -> None:
    """Workers of a cluster cannot see a folder that only we know."""
    if ray not in (None, "local") and store is None:
        raise InputError(
            "--ray ADDRESS needs --store: a bucket such as s3://bucket/prefix, or a folder that all machines share."
        )


@contextmanager
def bar() -> "Iterator[Tell]":
    columns = (TextColumn("{task.fields[count]}"), BarColumn(bar_width=24), TextColumn("{task.fields[left]}"))
    shown = Progress(*columns, TimeElapsedColumn(), console=err(), transient=True, disable=not err().is_terminal)
    task = shown.add_task("", total=1.0, count="", left="")

    def tell(step: Step) -> None:
        left = f"about {step.left / 60:.0f} min left" if step.left is not None else ""
        shown.update(task, completed=step.share, count=f"{step.done} of {step.total}", left=left)
        if not step.done:
            shown.console.print(printable(f"{step.total} tasks, beginning with {step.label}"))
            return
        failed = f" FAILED: {step.failure}" if step.failure is not None else ""
        line = f"{step.done:4d}/{step.total}  {step.seconds:6.1f} s  {step.label}; {left}{failed}"
        shown.console.print(printable(line))

    with shown:
        yield tell
