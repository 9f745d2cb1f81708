"""The report of a learned user: can its answers be believed?"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bcd4rec.evaluation.calibration import Calibration, Skill
from bcd4rec.evaluation.wording import number
from bcd4rec.report import plots
from bcd4rec.report.page import Cell, Figure, Page, Section, Table, measured, write_page

PERFECT = "perfect"


class Pass(Protocol):
    """One pass of the training."""

    @property
    def number(self) -> int: ...
    @property
    def loss(self) -> float: ...
    @property
    def held_out(self) -> float: ...


def calibration_table(calibrations: Mapping[str, Calibration]) -> Table:
    """A row for each set of sessions and response, and one for all responses together."""
    rows: list[list[Cell | str]] = []
    for name, found in calibrations.items():
        for response, skill in {"all": found.overall, **found.responses}.items():
            rate = number(skill.rate) if skill.rate is not None else "–"
            error = number(skill.error, 2) if skill.error is not None else "–"
            loss, base = measured(skill.log_loss, 3), number(skill.base_log_loss, 3)
            rows.append([name, response, rate, loss, base, measured(skill.skill), measured(skill.auc), error])
    columns = ["Sessions", "Response", "Rate %", "Log-loss", "Base", "Skill %", "AUC %", "Error"]
    return Table(columns, rows, caption="Each value with its 95 % interval over sessions.")


def write_user_report(
    path: Path,
    calibrations: Mapping[str, Calibration],
    outside: Mapping[str, float],
    epochs: Sequence[Pass],
    about: Mapping[str, Any],
) -> None:
    """One HTML page: tables against the base rates, a reliability plot for each response, drift, support, training."""
    first = next(iter(calibrations))
    intro = [
        "A model that was trained to foretell responses plays the user. What it says about policies is worth as much "
        "as its probabilities are: this page compares them with what sessions did that it has never seen.",
    ]
    sections = [_results(calibrations)]
    sections += [_reliability(response, calibrations) for response in calibrations[first].responses]
    sections += [_support(calibrations, outside, about), _training(epochs), _settings(about)]
    write_page(path, Page("A learned user", intro, sections))


def _results(calibrations: Mapping[str, Calibration]) -> Section:
    counts = "; ".join(
        f"{name}: {found.impressions:,} shown items of {found.sessions:,} sessions"
        for name, found in calibrations.items()
    )
    notes = [
        f"{counts}. Held-out sessions lie in the period that the model learned from; the other periods come later, so "
        "what is lost from one row to the next is drift.",
        "Log-loss is the mean of −log of the probability given to what happened; base rates (Base) always say how "
        "often each response happened in the sessions learned from. Skill is the share of their log-loss that the "
        "model saves: 0 % is worth nothing. AUC is the chance that an item with the response got a higher "
        "probability than one without; 50 % is a coin. Error is the mean distance of the dots below from the "
        "diagonal, in percentage points.",
    ]
    return Section("Against the base rates", table=calibration_table(calibrations), notes=notes)


def _series(skill: Skill) -> plots.Series:
    x, y, low, high = (
        np.array([getattr(one, name) for one in skill.bins], np.float64)
        for name in ("predicted", "observed", "low", "high")
    )
    return plots.Series(x, y, low, high)


def _reliability(response: str, calibrations: Mapping[str, Calibration]) -> Section:
    series = {name: _series(found.responses[response]) for name, found in calibrations.items()}
    largest = max(float(max(one.x.max(), one.y.max())) for one in series.values())
    perfect = plots.Series(np.array([0.0, largest]), np.array([0.0, largest]))
    errors = ", ".join(f"{name} {number(found.responses[response].error, 2)}" for name, found in calibrations.items())
    rows = [
        [name, f"{one.size:,}", *(number(value, 2) for value in one[1:])]
        for name, found in calibrations.items()
        for one in found.responses[response].bins
    ]
    figure = Figure(
        plots.lines(f"reliability-{_plain(response)}", series | {PERFECT: perfect}, "Predicted in %", "Observed in %"),
        f"Reliability of {response}: observed against predicted share; mean distances in points: {errors}.",
        Table(["Sessions", "Shown items", "Predicted %", "Observed %", "low", "high"], rows),
        caption=f"Mean distance from the diagonal in percentage points: {errors}.",
    )
    prose = [
        f"Shown items in ten groups of equal size by the predicted probability of {response}: across, what was "
        "predicted on average; up, what happened. On the diagonal the probabilities are right. "
        "Bands are 95 % intervals.",
    ]
    return Section(f"Reliability: {response}", prose, figure)


def _plain(name: str) -> str:
    """A name that can be part of an id."""
    return "".join(letter if letter.isalnum() and letter.isascii() else f"-{ord(letter):x}-" for letter in name)


def _support(
    calibrations: Mapping[str, Calibration], outside: Mapping[str, float], about: Mapping[str, Any]
) -> Section:
    rows = [[name, f"{found.impressions:,}", number(outside[name])] for name, found in calibrations.items()]
    prose = [
        "A policy that is tried on this user may recommend what the log never showed; there the model guesses, and a "
        "policy can learn to exploit that. A recommendation lies outside of the support if its item was shown fewer "
        f"than {about['config']['support']} times, or if it is less likely to be shown in its session than 99 % of "
        "what other sessions were shown. The log's own share is what to compare a policy's share with.",
    ]
    return Section("Support", prose, table=Table(["Sessions", "Shown items", "Outside %"], rows))


def _training(epochs: Sequence[Pass]) -> Section:
    x = np.array([float(one.number) for one in epochs])
    series = {
        "fitted": plots.Series(x, np.array([one.loss for one in epochs])),
        "held out": plots.Series(x, np.array([one.held_out for one in epochs])),
    }
    best = min(epochs, key=lambda one: one.held_out)
    rows = [[str(one.number), number(one.loss, 4), number(one.held_out, 4)] for one in epochs]
    figure = Figure(
        plots.lines("training", series, "Pass", "Log-loss"),
        f"Lines of the log-loss by pass; held-out sessions like pass {best.number} best, {number(best.held_out, 4)}.",
        Table(["Pass", "fitted", "held out"], rows),
    )
    prose = [
        f"Pass {best.number} is kept: afterwards the model learns its sessions by heart. The held-out sessions of this "
        "plot choose the pass and the final scaling; those of the tables above are others.",
    ]
    return Section("Training", prose, figure)


def _settings(about: Mapping[str, Any]) -> Section:
    values = about["config"] | {"seed": about["seed"], "data": about["data"]["content_hash"][:16]}
    table = Table(["Setting", "Value"], [[key, str(value)] for key, value in values.items()], words=True)
    return Section("Settings", table=table)
