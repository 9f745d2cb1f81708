"""`bcd4rec benchmark`: methods measured on data that others have measured too."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bcd4rec.commands import _checkout, _worlds
from bcd4rec.commands._options import Force, Json, Seed, Threads

if TYPE_CHECKING:
    from rich.table import Table

EPILOG = "Example:  bcd4rec benchmark sessions --data diginetica/ --method stan --lists stan.parquet"


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="Measure methods on data that others have measured too.")
    group.command("sessions", epilog=EPILOG)(sessions)
    _checkout.add(group, "benchmark_users", "users", "benchmark users")
    group.command("worlds", epilog=_worlds.EPILOG)(_worlds.worlds)
    app.add_typer(group, name="benchmark")


def sessions(
    data: Annotated[Path, typer.Option(help="Folder with train.parquet (items) and test.parquet (prefix, target).")],
    method: Annotated[str, typer.Option(help="popular, markov, sknn, vsknn, stan, item2vec, gru4rec or srgnn.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, e.g. --set k=200; may be repeated.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many test cases.")] = None,
    lists: Annotated[
        Path | None, typer.Option(help="Also write the top 20 of each case with scores to this Parquet file.")
    ] = None,
    seed: Seed = 0,
    threads: Threads = 1,
    force: Force = False,
    json: Json = False,
) -> None:
    """Next-item prediction on real sessions: P@20, MRR@20 and speed of a baseline."""
    from bcd4rec.config import parse_settings
    from bcd4rec.console import emit_json, say, show
    from bcd4rec.workflows.sessions import run_sessions_benchmark

    _set_threads(method, threads)
    with logged():
        found = run_sessions_benchmark(data, method, parse_settings(settings), limit, lists, seed, force)
    if json:
        emit_json(found)
    else:
        show(table(found))
    if lists is not None:
        say(f"The lists are in {lists}. Compare methods:  bcd4rec compare {lists} OTHER.parquet")


def _set_threads(method: str, threads: int) -> None:
    """For methods that need torch; looking one up imports what it needs."""
    from bcd4rec.baselines.baseline import BASELINES

    if BASELINES[method] and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


@contextlib.contextmanager
def logged() -> Iterator[None]:
    """What the methods tell while they learn, one line each on stderr."""
    handler = logging.StreamHandler()  # stderr
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger("bcd4rec")
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def table(found: dict[str, Any]) -> "Table":
    from bcd4rec.console import pairs_table

    pairs = [
        (name, f"{found[name]:.2f} % [{found[f'{name}_low']:.2f}, {found[f'{name}_high']:.2f}]")
        for name in ("p@20", "mrr@20")
    ]
    pairs += [
        ("fitted in", f"{found['fit_seconds']:,.1f} s"),
        ("queries a second", f"{found['queries_per_second']:,.0f}"),
    ]
    title = f"{found['method']}, {found['sessions']:,} sessions of {found['items']:,} items, {found['cases']:,} cases"
    return pairs_table(title, pairs)
