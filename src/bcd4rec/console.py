"""What a person sees: progress on stderr, tables on stdout, or one JSON object on stdout for scripts."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from bcd4rec.data.sessions import Tick
from bcd4rec.errors import printable

PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}  # paths and ids may hold [ ] and :
QUIET_SECONDS = 2.0  # work shorter than this shows no progress
LINE_SECONDS = 10.0  # between lines of progress of one stage where there is no terminal


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
    console = Console(**PLAIN)
    if isinstance(result, str):
        result = printable(result, keep="\n")
    for part in _fitting(result, console) if isinstance(result, Table) else [result]:
        if isinstance(part, Table) and (width := _width(part, console).minimum) > console.width:
            Console(**PLAIN, width=width).print(part)  # names and numbers are whole, whatever the page
        else:
            console.print(part)


def _fitting(table: Table, console: Console) -> Iterator[Table]:
    """A table that is wider than the page as several below each other, each with the columns that tell rows apart."""
    whole = range(len(table.columns))
    if len(whole) < 3 or _width(table, console).maximum <= console.width:
        yield table
        return
    names = list(whole[: _names(table)])
    part = [*names]
    for column in whole[len(names) :]:
        wider = _with_columns(table, [*part, column], len(names), False)
        if len(part) > len(names) and _width(wider, console).maximum > console.width:
            yield _with_columns(table, part, len(names), part[len(names)] == len(names))
            part = [*names]
        part.append(column)
    yield _with_columns(table, part, len(names), part[len(names)] == len(names))


def _names(table: Table) -> int:
    """How many of the first columns tell rows apart; the first one where none do."""
    cells = [list(column.cells) for column in table.columns]
    for count in range(1, len(cells)):
        rows = list(zip(*cells[:count], strict=True))
        if len(set(rows)) == len(rows):
            return count
    return 1


def _width(table: Table, console: Console) -> Measurement:
    return Measurement.get(console, console.options.update(max_width=10_000), table)


def _with_columns(table: Table, columns: list[int], names: int, titled: bool) -> Table:
    """Only some columns; names and numbers, which stand on the right, are never broken."""
    chosen = [table.columns[column] for column in columns]
    made = Table(title=table.title if titled else None, title_justify=table.title_justify)
    for place, one in enumerate(chosen):
        whole = place < names or one.no_wrap or one.justify == "right"
        width = max(cell_len(str(cell)) for cell in (one.header, *one.cells)) if whole else None
        made.add_column(one.header, style=one.style, justify=one.justify, no_wrap=whole, min_width=width)
    for row in zip(*(list(one.cells) for one in chosen), strict=True):
        made.add_row(*row)
    return made


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
    """A callback `tick(stage, share)` that shows what is done, once the work takes longer than two seconds.

    On a terminal by a bar; elsewhere by a line for each stage, and one now and then.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=err(), transient=True)
    began = time.monotonic()
    tasks: dict[str, Any] = {}
    started = False
    told, line = "", began

    def tell(stage: str, share: float) -> None:
        nonlocal told, line
        now = time.monotonic()
        if now - began > QUIET_SECONDS and now - line > (QUIET_SECONDS if stage != told else LINE_SECONDS):
            told, line = stage, now
            bar.console.print(f"{stage}: {100 * share:.0f} %" if share > 0 else stage)

    def tick(stage: str, share: float) -> None:
        nonlocal started
        if not bar.console.is_terminal:
            tell(stage, share)
            return
        if not started and time.monotonic() - began > QUIET_SECONDS:
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
