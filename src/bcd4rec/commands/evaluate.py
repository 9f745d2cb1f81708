"""`bcd4rec evaluate`: policies side by side on the same simulated users, or on a log itself."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bcd4rec.commands._options import (
    AfterSkip,
    Candidates,
    DataSet,
    Diversity,
    Env,
    Force,
    Json,
    Model,
    Preset,
    Seed,
    Users,
)
from bcd4rec.data.places import place

if TYPE_CHECKING:
    from rich.table import Table

    from bcd4rec.evaluation.summary import Evaluation

EPILOG = (
    "Example:  bcd4rec evaluate policy/ --log dataset/; "
    "or on simulated users:  bcd4rec evaluate random oracle policy/ --env recsim --dataset dataset/ --users 2000"
)
ON_USERS = (
    "env",
    "preset",
    "model",
    "users",
    "after_skip",
    "diversity",
    "candidates",
    "behaviour",
    "online",
    "foreign",
    "doubtful",
)
ON_A_LOG = ("split",)


def add_to(app: typer.Typer) -> None:
    app.command("evaluate", epilog=EPILOG)(evaluate)


def evaluate(
    context: typer.Context,
    policies: Annotated[
        list[str] | None,
        typer.Argument(help="random, oracle, baselines, folders of policies. Default: the first two and popular."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            parser=place,
            metavar="LOGS",
            help="Judge on a log instead of users: how the policies rank what was liked among what was shown. A data "
            "set made by `bcd4rec prepare` (its split test, or validation), or a canonical log.",
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="With --log: this split of the data set.")] = None,
    env: Env = "recsim",
    preset: Preset = None,
    model: Model = None,
    dataset: DataSet = None,
    users: Users = 2000,
    after_skip: AfterSkip = None,
    diversity: Diversity = None,
    candidates: Candidates = "all",
    behaviour: Annotated[str, typer.Option(help="The policy at the low end of the gap.")] = "random",
    online: Annotated[str, typer.Option(help="The policy at the high end of the gap.")] = "oracle",
    report: Annotated[Path | None, typer.Option(help="Also write one self-contained HTML page here.")] = None,
    sessions: Annotated[
        Path | None, typer.Option(help="Also write each session's metrics to Parquet, for `bcd4rec compare`.")
    ] = None,
    foreign: Annotated[
        bool, typer.Option("--foreign", help="Judge policies all the same that were learned from other users' logs.")
    ] = False,
    doubtful: Annotated[
        bool,
        typer.Option(
            "--doubtful",
            help="Judge all the same by a learned user without skill, and policies mostly outside its support.",
        ),
    ] = False,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Compare policies on the same fresh users: target rate, coverage and return with intervals, share of the gap.

    With --log on held-out sessions of a log: AUC, MRR, nDCG and top 1 of what was liked, and the verdict in words.
    """
    from bcd4rec.artifacts import atomic_file, refuse_existing
    from bcd4rec.commands._options import make_environment
    from bcd4rec.console import emit_json, progress, say, show
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.sim.rollout import as_candidates
    from bcd4rec.workflows import comparison
    from bcd4rec.workflows.results import session_table

    _refuse_other_options(context, log)
    read = [log, dataset, model, *map(Path, policies or [])]
    for path, other in ((report, sessions), (sessions, report)):
        if path is not None:
            refuse_existing(path, force, inputs=[*read, other])
    if log is not None:
        from bcd4rec.commands._judgement import evaluate_log

        evaluate_log(log, policies or [], split, dataset, report, sessions, seed, force, json)
        return
    rule, among = slate_options(after_skip, diversity), as_candidates(candidates)
    environment = make_environment(env, preset, model)
    if model is not None and not doubtful:
        from bcd4rec.workflows.users import refuse_without_skill

        refuse_without_skill(model)
    data = Dataset.load(dataset) if dataset else None
    names = policies or ["random", "popular", "oracle"]
    if not foreign:
        comparison.refuse_foreign(names, environment, dataset)
    players = [comparison.with_options(comparison.contestant(name, environment, data, seed), rule) for name in names]
    with progress() as tick:
        found = comparison.compare(environment, players, users, seed, among, behaviour, online, tick)
    if not doubtful:
        comparison.refuse_outside(found.evaluations)
    if sessions is not None:
        with atomic_file(sessions, force) as path:
            session_table(found.sessions).write_parquet(path)
    if json:
        shown = {"env": env, "preset": preset, "users": users, "seed": seed, "candidates": candidates}
        rules = [{"rule": one.rule.model_dump(mode="json")} for one in players]
        told = [one.to_json() | own for one, own in zip(found.evaluations, rules, strict=True)]
        emit_json(shown | {"policies": told})
    else:
        show(table(found.evaluations, f"{env}, {users:,} users. {rules_note(rule, candidates)}"))
    if report is not None:
        from bcd4rec.report.comparison import write_report

        where = f"--env {env}" + (f" --preset {preset}" if preset else "")
        where += f" --model {shlex.quote(str(model))}" if model else ""
        where += f" --dataset {shlex.quote(str(dataset))}" if dataset else ""
        how = f"--users {users} --candidates {candidates}"
        how += "".join(f" --{name.replace('_', '-')} {value}" for name, value in rule.items())
        write_report(
            report,
            f"Policies on {env}",
            ["Policies side by side on the same simulated users."],
            found.evaluations,
            found.curves,
            {"environment": f"{env} {preset or ''}".strip(), "users": f"{users:,}", "seed": str(seed)},
            [f"bcd4rec evaluate {shlex.join(names)} {where} {how} --seed {seed}"],
            note=rules_note(rule, candidates),
            force=force,
        )
        say(f"The report is in {report}.")


def _refuse_other_options(context: typer.Context, log: Path | None) -> None:
    """Users and logs are two ways to judge; an option of the other way would be ignored."""
    from bcd4rec.errors import InputError

    for name in ON_A_LOG if log is None else ON_USERS:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            if log is None:
                raise InputError(f"{option} is for --log, which is not given.")
            raise InputError(f"{option} is for simulated users, but --log {log} judges without them; give one of them.")


def table(evaluations: "list[Evaluation]", title: str) -> "Table":
    """The comparison as people read it: values with 95 % intervals."""
    from rich.table import Table

    from bcd4rec.report.methods import friendly, rate_label

    shown = Table(title=title, title_justify="left")
    shown.add_column("policy", style="bold")
    learned = any(one.outside for one in evaluations)
    more = ["outside %"] if learned else []
    for name in (f"{rate_label(evaluations[0].rate_name)} %", "gap closed %", "C@3 %", "return", *more):
        shown.add_column(name, justify="right", no_wrap=True)
    for one in evaluations:
        gap = one.gap_closed.text(0) if one.gap_closed else "–"
        coverage = f"{one.coverage.value:.1f}"
        outside = [f"{one.outside.value:.1f}" if one.outside else "–"] if learned else []
        shown.add_row(friendly(one.policy), one.rate.text(), gap, coverage, one.mean_return.text(), *outside)
    return shown


def slate_options(after_skip: str | None, diversity: float | None) -> dict[str, Any]:
    """What the command line says about slates; nothing where policies keep their own rules."""
    from bcd4rec.config import OPTIONS
    from bcd4rec.policies.slates import SlateRule

    given = {"after_skip": after_skip, "diversity": diversity}
    given = {name: value for name, value in given.items() if value is not None}
    SlateRule.parse(given, OPTIONS)
    return given


def rules_note(rule: dict[str, Any], candidates: str = "all") -> str:
    """How slates were made, in words, for a table."""
    among = " Only items of the category that was clicked first are shown." if candidates == "category" else ""
    if not rule:
        return f"Each policy makes slates by the rule that its log chose.{among}"
    told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in rule.items())
    return f"All policies make slates with {told}.{among}"
