"""The report of one training run: did the values stay where returns can be?"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bcd4rec.evaluation.wording import number
from bcd4rec.report import plots
from bcd4rec.report.methods import friendly
from bcd4rec.report.page import Figure, Page, Section, Table, write_page
from bcd4rec.training import Report


def write_training_report(
    path: Path, method: str, reports: Sequence[Report], realised: float, sets: dict[str, Any] | None = None
) -> None:
    """One HTML page with the values against what is feasible and what was realised, and the loss."""
    sections = [_values(reports, realised), _loss(reports)]
    intro = [
        "Offline, nobody corrects a value that is too high: the agent never gets to try the action. So the first "
        "thing to look at is whether its values stay near what sessions really returned.",
    ]
    if sets is not None:
        intro.append(sets_sentence(sets))
    write_page(path, Page(f"Training of {friendly(method)}", intro, sections))


def sets_sentence(sets: dict[str, Any]) -> str:
    """How well candidates stood for the catalogue."""
    found = f"{100 * sets['recall']:.1f} % of the exact ones are among them, on {sets['measured_on']} states of the log"
    return f"The catalogue is large, so allowed next actions were sought among candidates: {found}."


def _curve(reports: Sequence[Report], value: Callable[[Report], float]) -> plots.Series:
    return plots.Series(np.array([float(one.step) for one in reports]), np.array([value(one) for one in reports]))


def _values(reports: Sequence[Report], realised: float) -> Section:
    feasible = reports[-1].feasible
    series = {
        "Q̄, greedy action": _curve(reports, lambda one: one.q_bar),
        "mean target": _curve(reports, lambda one: one.target_value),
        "realised": _curve(reports, lambda one: realised),
    }
    last = reports[-1]
    figure = Figure(
        plots.lines("values", series, "Update", "Discounted return"),
        f"Lines of the values by update: Q̄ ends at {number(last.q_bar, 2)}, the mean target at "
        f"{number(last.target_value, 2)}; the log realised {number(realised, 2)}.",
        _data(series),
        caption=f"The largest return that rewards and discount allow is {number(feasible)}.",
    )
    verdict = (
        "Q̄ ends far above what the log realised: expect overestimation, and compare on held-out users before use."
        if last.q_bar > realised + 0.5 * (feasible - realised)
        else "Q̄ ends in the range of feasible returns."
    )
    prose = [
        "Q̄ is the mean value of the recommended item over states of the validation split; the mean target is what the "
        "network is trained towards; realised is the mean discounted return per shown item in the log.",
        verdict,
    ]
    return Section("Values against returns", prose, figure)


def _loss(reports: Sequence[Report]) -> Section:
    series = {"loss": _curve(reports, lambda one: one.loss)}
    figure = Figure(
        plots.lines("loss", series, "Update", "Quantile Huber loss"),
        f"Line of the loss by update, from {number(reports[0].loss, 3)} to {number(reports[-1].loss, 3)}.",
        _data(series),
    )
    return Section("Loss", ["Mean over the updates since the point before."], figure)


def _data(series: dict[str, plots.Series]) -> Table:
    steps = next(iter(series.values())).x
    rows = [
        [f"{step:g}", *(number(float(one.y[place]), 3) for one in series.values())] for place, step in enumerate(steps)
    ]
    return Table(["Update", *series], rows)
