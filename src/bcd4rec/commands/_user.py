"""`bcd4rec train user`: a data set becomes a user to try policies on."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from bcd4rec.artifacts import atomic_directory
from bcd4rec.console import emit_json, progress, say, show
from bcd4rec.data.dataset import Dataset
from bcd4rec.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from bcd4rec.report.page import Table as PageTable


def train_user(dataset: Path, out: Path, settings: dict[str, str], seed: int, force: bool, json: bool) -> None:
    try:
        from bcd4rec.workflows.users import fit_user, without_skill
    except ModuleNotFoundError as error:
        raise InputError(f"A learned user needs {error.name}: pip install 'bcd4rec[train]'.") from None
    from bcd4rec.report.user import calibration_table, write_user_report

    data = Dataset.load(dataset)
    began = time.monotonic()
    with progress() as tick:
        fitted = fit_user(data, settings, seed, tick)
    with atomic_directory(out, force) as folder:
        fitted.save(folder)
        write_user_report(folder / "calibration.html", fitted.calibrations, fitted.outside, fitted.epochs, fitted.about)
    seconds = time.monotonic() - began
    reason = without_skill(fitted.metrics()["calibration"])
    if reason is not None:
        say(f"Warning: this user {reason}. It cannot judge policies, and `evaluate` will say so.")
    if json:
        said = {"user": str(out), "method": "user", "seed": seed, "seconds": seconds}
        emit_json(said | fitted.about["training"] | fitted.metrics())
        return
    show(_table(calibration_table(fitted.calibrations), f"user, trained in {seconds:.0f} s"))
    say(f"The user is in {out}, its calibration in {out / 'calibration.html'}.")
    if reason is None:
        say(f"Try it:  bcd4rec evaluate random popular oracle --env learned --model {out} --dataset {dataset}")


def _table(found: "PageTable", title: str) -> "Table":
    """The report's table for the terminal."""
    from rich.table import Table

    shown = Table(title=title, title_justify="left")
    for place, name in enumerate(found.columns):
        shown.add_column(name.lower() if place < 5 else name, justify="left" if place < 2 else "right", no_wrap=True)
    for row in found.rows:
        shown.add_row(*(cell if isinstance(cell, str) else cell.text for cell in row))
    return shown
