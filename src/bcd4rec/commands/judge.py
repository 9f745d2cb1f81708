"""`bcd4rec judge`: what a log says about a policy before anybody sees it: ship, reject, or cannot tell."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bcd4rec.commands._options import Env, Force, Jobs, Json, Ray, Seed, Store
from bcd4rec.data.places import place

if TYPE_CHECKING:
    from rich.table import Table

    from bcd4rec.evaluation.off_policy.verdict import SmallerStep, Verdict
    from bcd4rec.report.page import Table as PageTable

EPILOG = (
    "Example:  bcd4rec judge policy/ --log log.parquet --logger old/; "
    "exit code 0: ship, 3: cannot tell, 4: reject, 2: bad input"
)


def add_to(app: typer.Typer) -> None:
    app.command("judge", epilog=EPILOG)(judge)


def judge(
    new: Annotated[
        Path | None, typer.Argument(metavar="NEW", help="Folder of the policy that is to be judged.")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            parser=place,
            metavar="LOGS",
            help="A log with propensities (also in s3://, gs:// or az://), or a data set made of one (its split test, "
            "or validation), that the policy has not learned from.",
        ),
    ] = None,
    logger: Annotated[
        str | None,
        typer.Option("--logger", help="The policy that wrote the log: its folder, or random. Then more can be told."),
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option("--dataset", help="Data set whose rewards count where LOGS is not one itself.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="This split of the data set.")] = None,
    accept_one_step: Annotated[
        bool, typer.Option("--accept-one-step", help="Better at the log's states is enough to ship.")
    ] = False,
    slate_size: Annotated[
        int | None, typer.Option(min=1, help="How many items the policy will show; refused if the log's slates differ.")
    ] = None,
    largest_step: Annotated[
        bool,
        typer.Option("--largest-step", help="Find the largest share of the new policy that the log can judge."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="With --largest-step and --logger: write the mixed policy to this folder.")
    ] = None,
    model: Annotated[
        bool, typer.Option("--model/--no-model", help="Without a model of the response: quicker, and tells less.")
    ] = True,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Instead: how often verdicts are right, on simulated users.")
    ] = False,
    env: Env = "recsim",
    cases: Annotated[
        str | None, typer.Option(help="With --calibrate: cases by name, e.g. 'null,exploration'. Default: all.")
    ] = None,
    logs: Annotated[int, typer.Option(min=1, help="With --calibrate: independent logs of each case.")] = 20,
    sessions: Annotated[int, typer.Option(min=1, help="With --calibrate: sessions of a log.")] = 2000,
    ranking: Annotated[str, typer.Option(help="With --calibrate: the baseline whose ranking is logged.")] = "markov",
    truth: Annotated[int, typer.Option(min=2, help="With --calibrate: sessions that tell the truth.")] = 20_000,
    jobs: Jobs = None,
    ray: Ray = None,
    store: Store = None,
    report: Annotated[Path | None, typer.Option(help="Also write one self-contained HTML page here.")] = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Say from a log alone whether a policy is better than the one that wrote it, or that the log cannot tell.

    The verdict comes first, in one sentence; then estimates for one step and for whole sessions, with intervals.
    """
    from bcd4rec.artifacts import refuse_existing
    from bcd4rec.console import emit_json, progress, say, show
    from bcd4rec.errors import InputError

    if calibrate:
        from bcd4rec.commands._calibration import calibrate_judging
        from bcd4rec.workflows.judging_study import Settings

        settings = Settings(logs, sessions, truth, ranking, with_model=model, seed=seed)
        calibrate_judging(env, cases, settings, json, jobs, ray, store)
        return
    if jobs is not None or ray is not None or store is not None:
        raise InputError("--jobs, --ray and --store are for --calibrate; one verdict is given by one process.")
    if new is None or log is None:
        raise InputError("judge needs a policy and a log: bcd4rec judge NEW --log LOGS.")
    if out is not None and not (largest_step and logger):
        raise InputError("--out writes the mixture of --largest-step with the policy of --logger; give both.")
    for path, other in ((report, out), (out, report)):
        if path is not None:
            refuse_existing(path, force, inputs=[new, log, dataset, other])
    from bcd4rec.policies.mixture import mix
    from bcd4rec.report.verdict import write_verdict_report
    from bcd4rec.workflows.log_verdict import judge_files

    with progress() as tick:
        found, policy, old = judge_files(
            new, log, logger, dataset, split, accept_one_step, slate_size, model, seed, tick
        )
    step = found.smaller_step
    if out is not None and old is not None and step is not None:
        mix(policy, old, step.share).save(out, force)
    if json:
        emit_json({"policy": str(new), "log": str(log), "logger": logger, "seed": seed} | found.to_json())
    else:
        _show(found)
        if largest_step:
            show(_step_told(step, out))
    if report is not None:
        options = {"--log": log, "--logger": logger, "--dataset": dataset, "--split": split, "--seed": seed}
        given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
        given += ["--accept-one-step"] * accept_one_step + ["--no-model"] * (not model)
        command = shlex.join(["bcd4rec", "judge", str(new), *given])
        write_verdict_report(report, found, f"{policy.name}, judged by {log.name}", [], command, force)
        say(f"The report is in {report}.")
    raise typer.Exit(found.exit_code)


def _show(found: "Verdict") -> None:
    from bcd4rec.console import pairs_table, say, show
    from bcd4rec.report import verdict as page

    show(page.headline(found))
    for one in (page.estimates(found), page.indicative(found)):
        if one.rows:
            show(_table(one))
    show(pairs_table("Beside", page.facts(found)))
    for note in found.notes:
        say(note)


def _step_told(step: "SmallerStep | None", out: Path | None) -> str:
    if step is None:
        return "Largest step: no mixture of 1 % or more can be judged by this log; log with more exploration."
    where = f" It is in {out}." if out is not None else ""
    return (
        f"Largest step: {100 * step.share:.0f} % of the slates from the new policy. {step.word}: {step.reason}{where}"
    )


def _table(found: "PageTable") -> "Table":
    from rich.table import Table

    from bcd4rec.report.page import plain

    shown = Table(title=found.caption, title_justify="left")
    for number, name in enumerate(found.columns):
        shown.add_column(name, justify="left" if number < 3 or number == len(found.columns) - 1 else "right")
    for row in found.rows:
        cells = (plain(cell) for cell in row)
        shown.add_row(*(f"{cell.text} {cell.detail}".strip() for cell in cells))
    return shown
