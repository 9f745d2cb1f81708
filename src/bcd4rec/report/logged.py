"""The report of policies judged on a log itself: one table, one plot and the verdicts."""

from collections.abc import Sequence
from pathlib import Path

from bcd4rec.evaluation.logged_slates import HEADLINES, MEASURES, TIED, Judgement
from bcd4rec.evaluation.wording import number
from bcd4rec.report import plots
from bcd4rec.report.methods import friendly
from bcd4rec.report.page import Cell, Figure, Page, Section, Table, measured, write_page

DECIMALS = 3
PARTS = {
    "first": "first slates",
    "later": "later slates",
    "known": "known items",
    "new": "new items",
}


def _results(judgement: Judgement) -> Table:
    names = HEADLINES[judgement.cases.unit]
    strange = any(judgement.unknown.values())
    rows: list[list[Cell | str]] = [
        [
            friendly(policy),
            *(measured(judgement.interval(policy, name), DECIMALS) for name in names),
            number(tied.value) if (tied := judgement.interval(policy, TIED)) is not None else "–",
            *([number(judgement.unknown.get(policy, 0.0))] if strange else []),
        ]
        for policy in judgement.values
    ]
    columns = ["Policy", *(MEASURES[name] for name in names), "Tied %", *(["Unknown %"] if strange else [])]
    return Table(columns, rows, caption="Each value with its 95 % interval.")


def _by_part(judgement: Judgement) -> Table:
    parts = {part: int(mask.sum()) for part, mask in judgement.cases.parts.items() if mask.any()}
    columns = ["Policy", *(f"{PARTS[part]} ({count:,})" for part, count in parts.items())]
    rows: list[list[Cell | str]] = [
        [
            friendly(policy),
            *(measured(judgement.interval(policy, judgement.headline, part), DECIMALS) for part in parts),
        ]
        for policy in judgement.values
    ]
    return Table(
        columns,
        rows,
        caption=f"{MEASURES[judgement.headline]} of parts of the cases: slates before and after the session's first "
        "like; slates all of whose liked items had impressions in train, and the others.",
    )


def _figure(judgement: Judgement) -> Figure:
    label = MEASURES[judgement.headline]
    found = {policy: judgement.interval(policy) for policy in judgement.values}
    values = {policy: one for policy, one in found.items() if one is not None}
    rows = [[friendly(name), *(number(value, DECIMALS) for value in one)] for name, one in values.items()]
    said = ", ".join(f"{friendly(name)} {number(one.value, DECIMALS)}" for name, one in values.items())
    return Figure(
        plots.dots("headline", values, label, DECIMALS),
        f"Dot plot of {label} with 95 % intervals: {said}.",
        Table(["Policy", label, "low", "high"], rows),
    )


def write_logged_report(
    path: Path,
    judgement: Judgement,
    title: str,
    intro: Sequence[str],
    verdicts: Sequence[str],
    command: str,
    force: bool,
) -> None:
    label = MEASURES[judgement.headline]
    sections = [
        Section("Results", table=_results(judgement), notes=verdicts),
        Section(
            f"{label} of each policy",
            [f"A dot is the {label}; the line through it is the 95 % interval over sessions. Farther right is better."],
            _figure(judgement),
        ),
        Section("Parts of the log", table=_by_part(judgement)),
        Section("Run it again", ["The same command gives the same numbers."], commands=[command]),
    ]
    write_page(path, Page(title, intro, sections), force)
