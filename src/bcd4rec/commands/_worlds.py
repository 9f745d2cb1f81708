"""`bcd4rec benchmark worlds`: one default on many logs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bcd4rec.commands._options import AfterSkip, Diversity, Json, Users

if TYPE_CHECKING:
    from rich.table import Table

EPILOG = "Example:  bcd4rec benchmark worlds --out worlds/ --seeds 3 --log news/ --log travel/"


def worlds(
    out: Annotated[Path, typer.Option("--out", help="Folder of the run. A run that was stopped continues there.")],
    only: Annotated[
        str | None, typer.Option(help="Simulated worlds, e.g. random,shop; `none` for logs alone. Default: all.")
    ] = None,
    log: Annotated[
        list[Path] | None, typer.Option("--log", help="A prepared data set with held-out slates; may be repeated.")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Methods, separated by commas.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each world.")] = 3,
    users: Users = 1000,
    after_skip: AfterSkip = None,
    diversity: Diversity = None,
    json: Json = False,
) -> None:
    """Every method with its defaults on the log of each world, on fresh true users or held-out slates."""
    from bcd4rec.agents.agent import AGENTS
    from bcd4rec.baselines.baseline import BASELINES
    from bcd4rec.commands._options import set_threads
    from bcd4rec.commands.evaluate import slate_options
    from bcd4rec.console import emit_json, progress, say, show
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.errors import InputError
    from bcd4rec.workflows import worlds as running

    set_threads(1)
    rule = slate_options(after_skip, diversity)
    names = list(running.WORLDS) if only is None else [] if only == "none" else only.split(",")
    for name in names:
        if name not in running.WORLDS:
            raise InputError(f"--only: found {name!r}, expected some of {', '.join(running.WORLDS)}.")
    logs: dict[str, Path] = {}
    for path in log or []:
        if path.name in logs or path.name in running.WORLDS:
            raise InputError(f"--log: {path} has a name that is taken ({path.name}); rename the folder.")
        running.held_out(Dataset.load(path), path)
        logs[path.name] = path
    if not names and not logs:
        raise InputError("There is nothing to measure; name worlds with --only or data sets with --log.")
    chosen = methods.split(",") if methods else list(running.METHODS)
    for name in chosen:
        if name not in BASELINES and name not in AGENTS:
            raise InputError(f"--methods: found {name!r}, expected some of {', '.join([*AGENTS, *BASELINES])}.")
    with progress() as tick:
        found = running.run(out, names, logs, chosen, seeds, users, tick, rule)
    if json:
        emit_json({"seeds": seeds, "users": users, "worlds": found})
    else:
        show(_table(list(running.rows(found)), seeds))
        say(f"The results are in {out}.")


def _table(rows: "list[tuple[str, str, dict[str, tuple[float, float]]]]", seeds: int) -> "Table":
    from rich.table import Table

    from bcd4rec.report.methods import friendly

    title = f"In %, means of {seeds} runs with half the width of their 95 % intervals"
    table = Table(title=title, title_justify="left")
    columns: dict[str, Any] = {}
    for _, _, values in rows:
        columns |= dict.fromkeys(values)
    table.add_column("log")
    for name in columns:
        table.add_column(friendly(name), justify="right")
    for title, measure, values in rows:
        table.add_row(f"{title} ({measure})", *(_cell(values.get(name)) for name in columns))
    return table


def _cell(found: tuple[float, float] | None) -> str:
    if found is None:
        return "–"
    return f"{found[0]:.1f}" + (f" ± {found[1]:.1f}" if found[1] else "")
