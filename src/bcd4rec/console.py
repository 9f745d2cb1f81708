"""What a person sees: progress on stderr, tables on stdout, or one JSON object on stdout for scripts."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from bcd4rec.data.sessions import Tick
from bcd4rec.errors import printable

PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}  # paths and ids may hold [ ] and :
QUIET_SECONDS = 2.0  # work shorter than this shows no progress


def err() -> Console:
    """For people: everything that is not the result."""
    return Console(stderr=True, soft_wrap=True, **PLAIN)


def say(text: str) -> None:
    err().print(printable(text, keep="\n"))


def emit_json(value: dict[str, Any]) -> None:
    """The one object that `--json` promises. NaN and infinity have no place in JSON and become null."""
    sys.stdout.write(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    return value


def show(result: RenderableType) -> None:
    Console(**PLAIN).print(printable(result, keep="\n") if isinstance(result, str) else result)


def pairs_table(title: str, pairs: list[tuple[str, str]]) -> Table:
    """A two-column table of names and values."""
    table = Table(title=printable(title), title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in pairs:
        table.add_row(printable(name), printable(value, keep="\n"))
    return table


@contextlib.contextmanager
def progress() -> Iterator[Tick]:
    """A callback `tick(stage, share)` that draws a bar on a terminal once the work takes longer than two seconds."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=err(), transient=True)
    began = time.monotonic()
    tasks: dict[str, Any] = {}
    started = False

    def tick(stage: str, share: float) -> None:
        nonlocal started
        if not started and time.monotonic() - began > QUIET_SECONDS and bar.console.is_terminal:
            bar.start()
            started = True
        if stage not in tasks:
            for task in tasks.values():
                bar.update(task, completed=1.0, visible=False)
            tasks[stage] = bar.add_task(stage, total=1.0)
        bar.update(tasks[stage], completed=share)

    try:
        yield tick
    finally:
        if started:
            bar.stop()
