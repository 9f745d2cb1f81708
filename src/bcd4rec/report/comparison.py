"""The report that compares policies: one table and three plots."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from bcd4rec.data.states import Rows
from bcd4rec.evaluation.summary import COVERED, Curves, Evaluation
from bcd4rec.evaluation.wording import number
from bcd4rec.report import plots
from bcd4rec.report.methods import friendly, rate_label
from bcd4rec.report.page import Cell, Figure, Page, Section, Table, measured, write_page

POINTS = 60  # ranks of a popularity curve that are drawn and tabled
REACHED = 0.01  # steps that fewer of the sessions reach are not drawn

Columns = Mapping[str, plots.Series]


def _one_rate(evaluations: Sequence[Evaluation]) -> str:
    names = {evaluation.rate_name for evaluation in evaluations}
    if len(names) != 1:
        raise ValueError(f"a comparison needs evaluations of one rate, found {sorted(names)}")
    return rate_label(names.pop())


def _data(first: str, series: Columns, decimals: int) -> Table:
    """The plotted points, a row for each x and a column for each method."""
    found = {method: dict(zip(one.x.tolist(), one.y.tolist(), strict=True)) for method, one in series.items()}
    places = sorted({x for points in found.values() for x in points})
    rows = [[f"{x:g}", *(number(points.get(x), decimals) for points in found.values())] for x in places]
    return Table([first, *map(friendly, found)], rows)


def results_table(evaluations: Sequence[Evaluation], note: str = "") -> Table:
    rate = _one_rate(evaluations)
    with_gap = any(evaluation.gap_closed for evaluation in evaluations)
    with_support = any(evaluation.outside for evaluation in evaluations)
    rows: list[list[Cell | str]] = [
        [
            friendly(one.policy),
            measured(one.rate),
            *([measured(one.gap_closed)] if with_gap else []),
            measured(one.coverage),
            measured(one.mean_return),
            *([measured(one.outside)] if with_support else []),
        ]
        for one in evaluations
    ]
    columns = ["Policy", f"{rate} %", *(["Gap closed %"] if with_gap else []), f"C@{COVERED} %", "Return"]
    columns += ["Outside support %"] if with_support else []
    return Table(columns, rows, caption=f"Each value with its 95 % interval. {note}".strip())


def _results(evaluations: Sequence[Evaluation], note: str) -> Section:
    rate = _one_rate(evaluations)
    notes = [f"{rate} is the share of requests that got the response we want."]
    if any(evaluation.gap_closed for evaluation in evaluations):
        notes.append(
            "Gap closed says how far a policy gets from the behaviour policy (0 %) to the best one that could be "
            "had online (100 %); it is the number to compare between environments."
        )
    if any(evaluation.outside for evaluation in evaluations):
        notes.append(
            "Outside support is the share of recommendations that the learned user has too little to say about: its "
            "answers there are guesses, and a policy that gets its rate from there has not earned it."
        )
    notes += [
        f"C@{COVERED} is the share of the catalogue that appeared in the first {COVERED} places at least once. "
        "Return is the sum of rewards of a session.",
        "Policies whose intervals do not overlap differ by more than the luck of who the users were.",
    ]
    return Section("Results", table=results_table(evaluations, note), notes=notes)


def _rate_figure(evaluations: Sequence[Evaluation]) -> Section:
    rate = _one_rate(evaluations)
    values = {one.policy: one.rate for one in evaluations}
    rows = [
        [friendly(name), *(number(value, 2) for value in (found.value, found.low, found.high))]
        for name, found in values.items()
    ]
    said = ", ".join(f"{friendly(name)} {number(found.value)}" for name, found in values.items())
    figure = Figure(
        plots.dots("rate", values, f"{rate} in %"),
        f"Dot plot of {rate} in percent with 95 % intervals: {said}.",
        Table(["Policy", f"{rate} %", "low", "high"], rows),
    )
    prose = [f"A dot is the {rate}; the line through it is the 95 % interval over sessions. Farther right is better."]
    return Section(f"{rate} of each policy", prose, figure)


def _step_series(frame: pl.DataFrame) -> plots.Series:
    kept = frame.filter(pl.col("sessions") >= REACHED * pl.col("sessions").max())
    x, y, low, high = (kept[name].to_numpy().astype(np.float64) for name in ("step", "rate", "low", "high"))
    return plots.Series(x + 1, y, low, high)


def _step_figure(rate: str, curves: Mapping[str, Curves]) -> Section:
    series = {method: _step_series(one.by_step) for method, one in curves.items()}
    said = ", ".join(f"{friendly(name)} from {number(one.y[0])} to {number(one.y[-1])}" for name, one in series.items())
    figure = Figure(
        plots.lines("step", series, "Step of the session", f"{rate} in %"),
        f"Lines of {rate} in percent by step of the session: {said}.",
        _data("Step", series, 2),
    )
    prose = [
        f"The {rate} of the first request, the second, and so on, over the sessions that got so far. A policy that "
        "learns from the session rises; one that runs out of good items, or wears the user out, falls."
        + (" Bands are 95 % intervals." if len(curves) < plots.CROWD else ""),
    ]
    return Section(f"{rate} by step of the session", prose, figure)


def _ranks(count: int) -> Rows:
    """At most `POINTS` ranks of 1…count, evenly spread on a logarithmic axis, first and last included."""
    spread = np.unique(np.geomspace(1, count, POINTS).round().astype(np.int64))
    return spread if count > POINTS else np.arange(1, count + 1)


def _popularity_series(frame: pl.DataFrame) -> plots.Series:
    shares = frame.filter(pl.col("shown") > 0)["share"].to_numpy()
    ranks = _ranks(len(shares))
    return plots.Series(ranks.astype(np.float64), shares[ranks - 1])


def _popularity_figure(curves: Mapping[str, Curves]) -> Section:
    series = {method: _popularity_series(one.popularity) for method, one in curves.items()}
    said = ", ".join(f"{friendly(name)} {number(one.gini, 2)}" for name, one in curves.items())
    figure = Figure(
        plots.lines("popularity", series, "Item, most shown first", "Share of shown items in %", logarithmic=True),
        f"Lines of the share of recommendations that each item got, by rank; Gini coefficients: {said}.",
        _data("Rank", series, 3),
        caption=f"Gini coefficient (0: all items alike, 1: one item only): {said}.",
    )
    prose = [
        "How often each item was shown, from the most to the least shown one; both axes are logarithmic. A flat line "
        "spreads attention over the catalogue, a steep one repeats a few favourites, and it ends where a policy has "
        "shown all the items it ever shows.",
    ]
    return Section("Popularity of what is recommended", prose, figure)


def comparison_sections(
    evaluations: Sequence[Evaluation], curves: Mapping[str, Curves], note: str = ""
) -> list[Section]:
    sections = [_results(evaluations, note), _rate_figure(evaluations)]
    if curves:
        sections += [_step_figure(_one_rate(evaluations), curves), _popularity_figure(curves)]
    return sections


def _how(rules: Mapping[str, str], commands: Sequence[str]) -> list[Section]:
    sections = []
    if rules:
        table = Table(["Setting", "Value"], [[key, value] for key, value in rules.items()], words=True)
        sections.append(Section("What was compared, and how", ["These settings hold for all policies."], table=table))
    if commands:
        sections.append(Section("Run it again", ["The same commands give the same numbers."], commands=commands))
    return sections


def write_report(
    path: Path,
    title: str,
    intro: Sequence[str],
    evaluations: Sequence[Evaluation],
    curves: Mapping[str, Curves],
    rules: Mapping[str, str],
    commands: Sequence[str],
    note: str = "",
    more: Sequence[Section] = (),
    force: bool = False,
) -> None:
    """The comparison as one HTML file.

    `note` stands above the results, e.g. which rule breaks repetitions; `rules` become a table of their own, and
    `more` sections follow the plots.
    """
    sections = [*comparison_sections(evaluations, curves, note), *more, *_how(rules, commands)]
    write_page(path, Page(title, intro, sections), force)
