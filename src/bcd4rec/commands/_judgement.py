"""`bcd4rec evaluate --log`, and what it shares with the end of `bcd4rec train`: policies judged on a log itself."""

import shlex
from pathlib import Path
from typing import Any

from rich.table import Table

from bcd4rec.artifacts import atomic_file
from bcd4rec.console import emit_json, progress, say, show
from bcd4rec.data.dataset import Dataset
from bcd4rec.evaluation.logged_slates import HEADLINES, MEASURES, TIED, Judgement
from bcd4rec.workflows import judging
from bcd4rec.workflows.results import session_table

UNITS = {
    "slate": "slates with something liked and something not",
    "session": "sessions of single items, each by its place among others of the log at that moment",
    "next item": "next items among the whole catalogue (positive responses alone)",
}


def evaluate_log(
    log: Path,
    names: list[str],
    split: str | None,
    dataset: Path | None,
    report: Path | None,
    sessions: Path | None,
    seed: int,
    force: bool,
    json: bool,
) -> None:
    learned_from = Dataset.load(dataset or log) if dataset is not None or judging.is_dataset(log) else None
    names = names or (["popular"] if learned_from is not None else [])
    bundles = judging.load_bundles(names, learned_from is not None)
    with progress() as tick, judging.open_judged_log(log, split, bundles, learned_from, tick) as judged:
        for caution in judging.cautions(bundles, judged):
            say(caution)
        found = judging.judge(names, bundles, judged, learned_from, seed, tick)
        ids = judged.dataset.sessions["session_id"]
    pairs = judging.pairs_of(found)
    if sessions is not None:
        with atomic_file(sessions, force) as path:
            session_table(found.sessions(ids)).write_parquet(path)
    verdicts = [found.sentence(*pair) for pair in pairs]
    if json:
        emit_json({"log": str(log), "seed": seed} | found.to_json(pairs))
    else:
        show(table(found, str(log), judging.reference_of(found)))
        for verdict in verdicts:
            show(verdict)
    if report is not None:
        from bcd4rec.report.logged import write_logged_report

        given = ["bcd4rec", "evaluate", "--log", str(log), *names, "--seed", str(seed)]
        given += ["--split", split] if split else []
        given += ["--dataset", str(dataset)] if dataset else []
        intro = ["How well policies rank what people liked among what they were shown, on the log itself.", told(found)]
        write_logged_report(report, found, f"Policies on {log.name}", intro, verdicts, shlex.join(given), force)
        say(f"The report is in {report}.")


def told(found: Judgement) -> str:
    """What was judged on, in words."""
    cases = found.cases
    return f"Split {cases.split}: {len(cases):,} {UNITS[cases.unit]}."


def table(found: Judgement, title: str, reference: str | None = None) -> Table:
    """Values with 95 % intervals, a row for each policy, and what each is above the reference."""
    names = HEADLINES[found.cases.unit]
    shown = Table(title=f"{title}. {told(found)}", title_justify="left")
    shown.add_column("policy", style="bold")
    unknown = any(found.unknown.values())
    parts = [part for part, mask in found.cases.parts.items() if mask.any() and not mask.all()]
    of_parts = [f"{MEASURES[found.headline]}, {part}" for part in parts]
    apart = [f"{MEASURES[found.headline]} − {reference}"] if reference is not None else []
    more = [*apart, *of_parts, "tied %", *(["unknown %"] if unknown else [])]
    for name in (*(MEASURES[name] for name in names), *more):
        shown.add_column(name, justify="right")
    for policy in found.values:
        cells = [_text(found.interval(policy, name)) for name in names]
        if reference is not None:
            cells.append(_text(found.difference(policy, reference)) if policy != reference else "")
        cells += [_short(found.interval(policy, found.headline, part), 3) for part in parts]
        cells.append(_short(found.interval(policy, TIED), 1))
        cells += [f"{found.unknown.get(policy, 0.0):.1f}"] if unknown else []
        shown.add_row(policy, *cells)
    return shown


def _text(value: Any) -> str:
    return value.text(3) if value is not None else "–"


def _short(value: Any, decimals: int) -> str:
    return f"{value.value:.{decimals}f}" if value is not None else "–"
