"""`bcd4rec evaluate`: policies side by side on the same simulated users."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bcd4rec.commands._options import AfterSkip, DataSet, Env, Force, Json, Model, Preset, Seed, Users

if TYPE_CHECKING:
    from rich.table import Table

    from bcd4rec.evaluation.summary import Evaluation

EPILOG = "Example:  bcd4rec evaluate random popular oracle policy/ --env recsim --dataset dataset/ --users 2000"


def add_to(app: typer.Typer) -> None:
    app.command("evaluate", epilog=EPILOG)(evaluate)


def evaluate(
    policies: Annotated[
        list[str] | None,
        typer.Argument(help="random, oracle, baselines, folders of policies. Default: the first two and popular."),
    ] = None,
    env: Env = "recsim",
    preset: Preset = None,
    model: Model = None,
    dataset: DataSet = None,
    users: Users = 2000,
    after_skip: AfterSkip = "repeat",
    behaviour: Annotated[str, typer.Option(help="The policy at the low end of the gap.")] = "random",
    online: Annotated[str, typer.Option(help="The policy at the high end of the gap.")] = "oracle",
    report: Annotated[Path | None, typer.Option(help="Also write one self-contained HTML page here.")] = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Compare policies on the same fresh users: target rate, coverage and return with intervals, share of the gap."""
    from bcd4rec.artifacts import refuse_existing
    from bcd4rec.commands._options import make_environment
    from bcd4rec.config import OPTIONS
    from bcd4rec.console import emit_json, progress, say, show
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.experiments import comparison
    from bcd4rec.sim.rollout import RolloutConfig

    if report is not None:
        refuse_existing(report, force)
    rules = RolloutConfig.parse({"after_skip": after_skip}, OPTIONS)
    environment = make_environment(env, preset, model)
    data = Dataset.load(dataset) if dataset else None
    names = policies or ["random", "popular", "oracle"]
    contestants = [comparison.contestant(name, environment, data, seed) for name in names]
    with progress() as tick:
        found = comparison.compare(environment, contestants, users, seed, rules, behaviour, online, tick)
    if json:
        shown = {"env": env, "preset": preset, "users": users, "seed": seed, "after_skip": after_skip}
        emit_json(shown | {"policies": [one.to_json() for one in found.evaluations]})
    else:
        show(table(found.evaluations, f"{env}, {users:,} users, after a skip: {after_skip}"))
    if report is not None:
        from bcd4rec.report.comparison import write_report

        setting = {
            "environment": f"{env} {preset or ''}".strip(),
            "users": f"{users:,}",
            "after a skipped slate": after_skip,
        }
        again = (
            f"bcd4rec evaluate {shlex.join(names)} --env {env} --users {users} --after-skip {after_skip} --seed {seed}"
        )
        again += f" --preset {preset}" if preset else ""
        again += f" --dataset {shlex.quote(str(dataset))}" if dataset else ""
        intro = ["Policies side by side on the same simulated users."]
        write_report(
            report, f"Policies on {env}", intro, found.evaluations, found.curves, setting, [again], force=force
        )
        say(f"The report is in {report}.")


def table(evaluations: "list[Evaluation]", title: str) -> "Table":
    """The comparison as people read it: values with 95 % intervals."""
    from rich.table import Table

    shown = Table(title=title, title_justify="left")
    shown.add_column("policy", style="bold")
    for name in (f"{evaluations[0].rate_name.upper()} %", "C@3 %", "return", "gap closed %"):
        shown.add_column(name, justify="right", no_wrap=True)
    for one in evaluations:
        gap = one.gap_closed.text(0) if one.gap_closed else "–"
        shown.add_row(one.policy, one.rate.text(), f"{one.coverage.value:.1f}", one.mean_return.text(), gap)
    return shown
