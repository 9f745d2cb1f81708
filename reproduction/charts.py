"""A chart that is described by its numbers becomes a figure: the plot, the same in words, and the numbers."""

import math
from collections.abc import Sequence

import numpy as np

from bcd4rec.evaluation.wording import number
from bcd4rec.report import plots
from bcd4rec.report.methods import friendly
from bcd4rec.report.page import Cell, Figure, Table
from reproduction.findings import Chart, Points

ROWS = 200  # of the numbers behind a plot; more are thinned out

Rows = Sequence[Sequence[Cell | str]]


def figure(chart: Chart, name: str) -> Figure:
    """`name` makes the plot's ids unique on the page."""
    said = "; ".join(_said(chart, series, points) for series, points in chart.series.items())
    alt = f"{chart.title}. {chart.up} against {chart.across}: {said}."
    return Figure(_drawn(chart, name), alt, _thinned(numbers(chart)), " ".join([chart.note, *_hidden(chart)]).strip())


def _drawn(chart: Chart, name: str) -> str:
    series = {one: _series(points) for one, points in chart.series.items()}
    if chart.kind == "groups":
        return plots.groups(name, series, chart.labels, chart.across, chart.up, chart.logarithmic)
    draw = plots.lines if chart.kind == "lines" else plots.scatter
    return draw(name, series, chart.across, chart.up, chart.logarithmic)


def _series(points: Points) -> plots.Series:
    x, y = np.asarray(points.x, np.float64), np.asarray(points.y, np.float64)
    if points.low is None or points.high is None:
        return plots.Series(x, y)
    return plots.Series(x, y, np.asarray(points.low, np.float64), np.asarray(points.high, np.float64))


def _said(chart: Chart, name: str, points: Points) -> str:
    """A series in words: its ends if it is a line, its values if they are few."""
    decimals = _decimals(chart)
    if chart.kind == "lines" and len(points.y) > 1:
        return f"{friendly(name)} from {_value(points.y[0], decimals)} to {_value(points.y[-1], decimals)}"
    if len(points.y) > 6:
        return f"{friendly(name)}, {len(points.y)} points"
    return f"{friendly(name)} {', '.join(_value(y, decimals) for y in points.y)}"


def _hidden(chart: Chart) -> list[str]:
    """What the plot leaves out, in words."""
    found = []
    banded = any(points.low is not None and points.high is not None for points in chart.series.values())
    if chart.kind == "lines" and banded and len(chart.series) >= plots.CROWD:
        found.append("The intervals are with the numbers: drawn, they would hide the lines.")
    across = chart.logarithmic and chart.kind != "groups"
    low = sum(
        (chart.logarithmic and y <= 0) or (across and x <= 0)
        for points in chart.series.values()
        for x, y in zip(points.x, points.y, strict=True)
    )
    if low:
        found.append(f"Points at zero or below have no place on a logarithmic axis and are not drawn: {low}.")
    return found


def numbers(chart: Chart) -> Table:
    """All points of a chart: a row for each x where the series share theirs, else a row for each point."""
    places = {x for points in chart.series.values() for x in points.x}
    longest = max(len(points.x) for points in chart.series.values())
    repeated = any(len(set(points.x)) < len(points.x) for points in chart.series.values())
    if chart.kind == "scatter" or repeated or len(places) > 2 * longest:
        return _by_point(chart)
    return _by_place(chart, range(len(chart.labels)) if chart.kind == "groups" else sorted(places))


def _by_place(chart: Chart, places: Sequence[float]) -> Table:
    decimals = _decimals(chart)
    found = [
        {x: _point(points, place, decimals) for place, x in enumerate(points.x)} for points in chart.series.values()
    ]
    rows = [[_across(chart, x), *(cells.get(x, "–") for cells in found)] for x in places]
    return Table([chart.across or "Group", *map(friendly, chart.series)], rows)


def _by_point(chart: Chart) -> Table:
    decimals = _decimals(chart)
    rows = [
        [friendly(name), _across(chart, x), _point(points, place, decimals)]
        for name, points in chart.series.items()
        for place, x in enumerate(points.x)
    ]
    return Table(["Series", chart.across, chart.up], rows)


def _point(points: Points, place: int, decimals: int | None) -> Cell | str:
    text = _value(points.y[place], decimals)
    if points.low is None or points.high is None:
        return text
    return Cell(text, f"[{_value(points.low[place], decimals)}, {_value(points.high[place], decimals)}]")


def _across(chart: Chart, x: float) -> str:
    if chart.kind == "groups":
        return chart.labels[int(x)]
    return f"{x:,.0f}" if float(x).is_integer() else f"{x:.5g}".replace("-", "−")


def _decimals(chart: Chart) -> int | None:
    """So many that the largest value has four digits; None where values differ by orders of magnitude."""
    values = [abs(y) for points in chart.series.values() for y in points.y if math.isfinite(y)]
    if chart.logarithmic:
        return None
    largest = max(values, default=0.0) or 1.0
    return min(max(3 - math.floor(math.log10(largest)), 0), 6)


def _value(value: float, decimals: int | None) -> str:
    if not math.isfinite(value):
        return "–"
    return number(value, decimals) if decimals is not None else f"{value:.3g}".replace("-", "−")


def _thinned(table: Table) -> Table:
    if len(table.rows) <= ROWS:
        return table
    kept = np.unique(np.linspace(0, len(table.rows) - 1, ROWS).round().astype(int))
    note = f"{len(kept)} of {len(table.rows):,} rows, evenly spread; the plot has them all."
    return Table(table.columns, [table.rows[place] for place in kept], note)
