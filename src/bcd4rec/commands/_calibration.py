"""`bcd4rec judge --calibrate`: how often verdicts are right where the truth is known."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from bcd4rec.console import emit_json, progress, show
from bcd4rec.errors import InputError
from bcd4rec.workflows import judging_study as study

if TYPE_CHECKING:
    from rich.table import Table


def calibrate_judging(
    env: str,
    names: str | None,
    settings: study.Settings,
    json: bool,
    jobs: int | None = None,
    ray: str | None = None,
    store: str | None = None,
) -> None:
    if env != "recsim":
        raise InputError(f"--calibrate needs users who tell the truth: found --env {env}, expected recsim.")
    chosen = [name.strip() for name in names.split(",")] if names else list(study.CASES)
    if ray is not None or store is not None or (jobs or 1) > 1:
        tallies = _side_by_side(chosen, settings, jobs, ray, store)
    else:
        tallies = _here(chosen, settings)
    if json:
        emit_json({"env": env} | asdict(settings) | {"cases": [one.to_json() for one in tallies]})
    else:
        size = f"{settings.logs:,} independent logs of {settings.sessions:,} sessions"
        show(table(tallies, f"{size}; shares in % with 95 % intervals"))


def _here(names: list[str], settings: study.Settings) -> list[study.Tally]:
    tallies: list[study.Tally] = []
    with progress() as tick:
        for case in study.cases(names, settings, tick):
            *_, last = study.run(case, settings, tick)
            tallies += last
    return tallies


def _side_by_side(
    names: list[str], settings: study.Settings, jobs: int | None, ray: str | None, store: str | None
) -> list[study.Tally]:
    """As tasks, which are kept where --store says, so that a study that was stopped goes on."""
    from bcd4rec.artifacts import scratch
    from bcd4rec.commands._tasks import bar, crew, refuse_parted
    from bcd4rec.runner.bucket import open_store
    from bcd4rec.workflows.judging_tasks import study_side_by_side

    refuse_parted(store, ray)
    with scratch(None) as own, crew(open_store(store or own), jobs, ray) as workers, bar() as tell:
        try:
            return study_side_by_side(names, settings, workers, tell)
        except KeyboardInterrupt:
            kept = f"what is finished is kept in {store}" if store else "nothing is kept without --store"
            raise InputError(f"Interrupted; {kept}.") from None


def table(tallies: list[study.Tally], title: str) -> "Table":
    from rich.table import Table

    shown = Table(title=title, title_justify="left")
    columns = ("true, session", "true, one step", "ship", "ship, one step accepted", "reject")
    covered = ("covered, session (of)", "covered, one step (of)")
    for name in ("candidate", *columns, *covered):
        shown.add_column(name, justify="left" if name == "candidate" else "right")
    for one in tallies:
        true = [f"{100 * one.truth[target].value:+.1f}" for target in ("session", "one step")]
        words = [one.words["ship"], one.accepting["ship"], one.words["reject"]]
        shares = [study.share(count, one.logs).text() for count in words]
        inside = [
            f"{study.share(one.covered[target], one.answered[target]).text()} ({one.answered[target]})"
            if one.answered[target]
            else "no answer"
            for target in ("session", "one step")
        ]
        shown.add_row(f"{one.case}: {one.candidate}", *true, *shares, *inside)
    return shown
