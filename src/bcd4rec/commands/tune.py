"""`bcd4rec tune`: settings from a grid, chosen by the log alone."""

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from bcd4rec.agents.agent import AGENTS
from bcd4rec.commands._options import Jobs, Json, Ray, Seed, Settings, Store, Threads, set_threads

if TYPE_CHECKING:
    from rich.table import Table

    from bcd4rec.workflows.tuning import By, Knob, Trial

EPILOG = "Example:  bcd4rec tune bcd4rec dataset/ --out tuned/ --trials 20 --seed 0"
SHOWN = 10  # trials in the table


def add_to(app: typer.Typer) -> None:
    app.command("tune", epilog=EPILOG)(tune)


def tune(
    method: Annotated[str, typer.Argument(metavar="METHOD", help=f"An agent: {', '.join(AGENTS.declared())}.")],
    dataset: Annotated[
        Path, typer.Argument(metavar="DATASET", help="Folder made by `bcd4rec prepare`, with a validation split.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the trials; a search that it holds goes on.")],
    by: Annotated[
        str, typer.Option("--by", help="What is to be high on the validation split: q_bar, or recall (R@3).")
    ] = "q_bar",
    trials: Annotated[int, typer.Option(min=0, help="How many settings are tried; 0 for the whole grid.")] = 20,
    settings: Settings = None,
    seed: Seed = 0,
    threads: Threads = 1,
    jobs: Jobs = None,
    ray: Ray = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Search a grid of hyper-parameters offline, never on an environment. What --set says is not searched."""
    from bcd4rec.artifacts import read_json, remove
    from bcd4rec.commands._tasks import crew, refuse_parted
    from bcd4rec.config import parse_settings
    from bcd4rec.console import emit_json, progress, say, show
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.errors import InputError
    from bcd4rec.runner.bucket import open_store
    from bcd4rec.runner.tasks import Given
    from bcd4rec.workflows.tuning import BEST, SideBySide, knobs
    from bcd4rec.workflows.tuning import tune as search

    given = parse_settings(settings)
    set_threads(threads)
    data = Dataset.load(dataset)
    refuse_parted(store, ray)
    several = ray is not None or (jobs or 1) > 1
    try:
        with progress() as tick, ExitStack() as stack:
            side = None
            if several:
                knobs(method, given)  # what is wrong with them is said before anything is begun
                kept = open_store(store or out.with_name(f"{out.name}.tasks"))
                side = SideBySide(stack.enter_context(crew(kept, jobs, ray)), Given.of("dataset", dataset))
            tried = search(method, data, cast("By", by), trials, seed, out, given, tick, side)
    except KeyboardInterrupt:
        raise InputError(f"Interrupted; run the same command again to go on with the trials in {out}.") from None
    if several and store is None:
        remove(out.with_name(f"{out.name}.tasks"))  # the trials are in their own file
    found = read_json(out / BEST)
    changed = " ".join(f"--set {key}={value}" for key, value in found["settings"].items())
    command = f"bcd4rec train {method} {dataset} --out policy/ {changed} --seed {seed}"
    if json:
        emit_json(found | {"command": command, "tried": [asdict(trial) for trial in tried]})
        return
    show(_trials(tried, cast("By", by), found["realised_return"]))
    show(_choices(knobs(method, given), found["settings"]))
    say("Q̄ rises with overestimation, too: far above the log's own return it is not to be believed.")
    say(f"All {len(tried)} trials are in {out}. Train with the best:  {command}")


def _trials(tried: "list[Trial]", by: "By", realised: float) -> "Table":
    """The best trials, then those that were given up."""
    from rich.table import Table

    order = sorted(tried, key=lambda trial: (-(trial.objective(by) or 0.0), trial.number))
    order = [trial for trial in order if not trial.reason] + [trial for trial in order if trial.reason]
    table = Table(title=f"The first {min(SHOWN, len(order))} of {len(order)} trials by {by}", title_justify="left")
    for name in ("trial", *tried[0].settings, "Q̄", "log's return", "R@3 %"):
        table.add_column(name.replace("_", " "), justify="right", no_wrap=name == "R@3 %")
    for trial in order[:SHOWN]:
        told = ["diverged", f"{realised:.2f}", "–"]
        if trial.q_bar is not None:
            told = [f"{trial.q_bar:.2f}", f"{realised:.2f}", _recall(trial)]
        table.add_row(str(trial.number), *(f"{value:g}" for value in trial.settings.values()), *told)
    return table


def _recall(trial: "Trial") -> str:
    return f"{trial.recall:.1f} [{trial.recall_low:.1f}, {trial.recall_high:.1f}]"


def _choices(grid: "dict[str, Knob]", chosen: dict[str, float]) -> "Table":
    """What was chosen, beside the paper's choices."""
    from rich.table import Table

    table = Table(title="Chosen here and in the paper", title_justify="left")
    table.add_column("setting", style="bold")
    for name in ("tried", "chosen", "paper, DN", "paper, RecSim"):
        table.add_column(name, justify="right", no_wrap=name == "tried")
    for key, knob in grid.items():
        numbers = (chosen[key], knob.diginetica, knob.recsim)
        tried = ", ".join(f"{value:g}" for value in knob.values)
        table.add_row(key.replace("_", " "), tried, *("–" if value is None else f"{value:g}" for value in numbers))
    return table
