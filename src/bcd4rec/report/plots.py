"""The kinds of plots: dots, lines, clouds and groups, one style per method and a legend below."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from bcd4rec.data.states import Doubles
from bcd4rec.evaluation.statistics import Interval
from bcd4rec.report.methods import COLOURS, Style, friendly, styles
from bcd4rec.report.svg import INK, draw

CROWD = 6  # from so many lines on, bands around them would hide more than they show
LONGEST = 18  # letters of a method's name before it is cut; tables have the whole name


class Series(NamedTuple):
    """A line, and the band around it if it has one."""

    x: Doubles
    y: Doubles
    low: Doubles | None = None
    high: Doubles | None = None


def _short(method: str) -> str:
    name = friendly(method)
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _legend_columns(names: Sequence[str]) -> int:
    return 3 if max(map(len, names)) <= 10 else 2


def _legend(figure: Figure, axes: Axes, names: Sequence[str]) -> None:
    columns = _legend_columns(names)
    spacing = {"handlelength": 2.4, "columnspacing": 1.2}
    figure.legend(axes.get_lines()[: len(names)], names, loc="outside lower center", ncols=columns, **spacing)


def dots(name: str, values: Mapping[str, Interval], label: str, decimals: int = 1) -> str:
    """One dot per method with its interval, the first method on top."""
    look = styles(list(values))

    def paint(figure: Figure, axes: Axes) -> None:
        for row, (method, found) in enumerate(values.items()):
            colour = COLOURS[look[method].colour]
            axes.plot([found.low, found.high], [row, row], color=colour, linewidth=2, solid_capstyle="butt")
            for end in (found.low, found.high):
                axes.plot([end, end], [row - 0.13, row + 0.13], color=colour, linewidth=2)
            axes.plot([found.value], [row], color=colour, marker="o", markersize=6)
            axes.annotate(
                f"{found.value:.{decimals}f}", (found.high, row), xytext=(7, 0), textcoords="offset points", va="center"
            )
        axes.set_yticks(range(len(values)), [_short(method) for method in values])
        axes.set_ylim(len(values) - 0.4, -0.6)
        axes.margins(x=0.16)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(label)

    return draw(name, 62 + 30 * len(values), paint)


def _chart(
    name: str,
    series: Mapping[str, Series],
    across: str,
    up: str,
    height: float,
    paint: Callable[[Axes, Series, Style, int], None],
    finish: Callable[[Axes], None],
) -> str:
    """Axes with their names, and a legend below; `paint` draws one line, perhaps of markers only, for each series."""
    look = styles(list(series))
    names = [_short(method) for method in series]

    def whole(figure: Figure, axes: Axes) -> None:
        for place, (method, one) in enumerate(series.items()):
            paint(axes, one, look[method], place)
        finish(axes)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        _legend(figure, axes, names)

    rows = -(-len(names) // _legend_columns(names))
    return draw(name, height + 18 * rows, whole)


def _scales(axes: Axes, series: Mapping[str, Series], logarithmic: bool) -> None:
    """Logarithmic axes with plain numbers, or round numbers across: whole ones if only those can occur."""
    if logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
    else:
        whole = all(np.array_equal(one.x, one.x.round()) for one in series.values())
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=whole, steps=[1, 2, 5, 10]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))


def _tick(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}".replace("-", "−")


def lines(
    name: str, series: Mapping[str, Series], across: str, up: str, logarithmic: bool = False, height: float = 230
) -> str:
    """One line per method; `logarithmic` applies to both axes."""
    spread: dict[str, Any] = {"markevery": 0.12, "markersize": 5}  # evenly along the line, however its points lie
    bands = len(series) < CROWD

    def paint(axes: Axes, one: Series, style: Style, _: int) -> None:
        colour = COLOURS[style.colour]
        axes.plot(one.x, one.y, style.line, color=colour, marker=style.marker, linewidth=1.8, **spread)
        if bands and one.low is not None and one.high is not None:
            axes.fill_between(one.x, one.low, one.high, color=colour, alpha=0.16, linewidth=0)

    return _chart(name, series, across, up, height, paint, lambda axes: _scales(axes, series, logarithmic))


def _dots(axes: Axes, series: Series, style: Style, size: float) -> None:
    """Markers without a line between them, each with its interval."""
    colour = COLOURS[style.colour]
    axes.plot(series.x, series.y, linestyle="", color=colour, marker=style.marker or "o", markersize=size)
    if series.low is not None and series.high is not None:
        axes.vlines(series.x, series.low, series.high, color=colour, linewidth=1.4, alpha=0.7)


def scatter(
    name: str, series: Mapping[str, Series], across: str, up: str, logarithmic: bool = False, height: float = 260
) -> str:
    """A cloud of markers per series."""
    size = 6 if sum(len(one.x) for one in series.values()) < 60 else 5

    def paint(axes: Axes, one: Series, style: Style, _: int) -> None:
        _dots(axes, one, style, size)

    return _chart(name, series, across, up, height, paint, lambda axes: _scales(axes, series, logarithmic))


def _room(labels: Sequence[str]) -> tuple[list[str], int]:
    """The labels below the places 0, 1, 2 …, broken at spaces, and the angle at which they do not meet."""
    letters = max(4, int(50 / max(len(labels), 1)))  # some 50 fit in a row
    broken = [textwrap.fill(label, letters, break_long_words=False) for label in labels]
    fits = all(len(line) <= letters for label in broken for line in label.splitlines())
    return (broken, 0) if fits else ([_short(label) for label in labels], 40)


def groups(
    name: str,
    series: Mapping[str, Series],
    labels: Sequence[str],
    across: str,
    up: str,
    logarithmic: bool = False,
    height: float = 260,
) -> str:
    """The series side by side above each label, dots with their intervals; `logarithmic` applies upwards."""
    step = 0.76 / max(len(series), 1)
    size = 6 if len(series) * len(labels) <= 30 else 5
    shown, angle = _room(labels)

    def paint(axes: Axes, one: Series, style: Style, place: int) -> None:
        _dots(axes, one._replace(x=one.x + (place - (len(series) - 1) / 2) * step), style, size)

    def finish(axes: Axes) -> None:
        ha = "right" if angle else "center"
        axes.set_xticks(range(len(labels)), shown, rotation=angle, ha=ha, rotation_mode="anchor" if angle else None)
        axes.set_xlim(-0.5, len(labels) - 0.5)
        axes.tick_params(axis="x", length=0)
        axes.grid(visible=False, axis="x")
        for between in range(1, len(labels)):
            axes.axvline(between - 0.5, color=INK, alpha=0.15, linewidth=0.8, zorder=0)
        if logarithmic:
            axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))

    extra = 70 if angle else 14 * max((label.count("\n") for label in shown), default=0)
    return _chart(name, series, across, up, height + extra, paint, finish)
