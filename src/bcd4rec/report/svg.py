"""Drawings as inline SVG: the same data give the same bytes, and the page's colours and fonts apply to them.

380 units wide with text of 12, so that they can be read on a phone and are not too large beside prose.
"""

import io
import logging
import re
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bcd4rec.report.methods import COLOURS

WIDTH = 380
INK = COLOURS["ink"]

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "bcd4rec",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so the layout is the same everywhere
    "font.size": 12,
    "axes.labelsize": 12,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.15,
    "grid.color": INK,
    "grid.linewidth": 0.8,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


def draw(name: str, height: float, paint: Callable[[Figure, Axes], None]) -> str:
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # a person's own matplotlibrc must not change the report
        matplotlib.rcParams.update(_SETTINGS)
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the browser has it
        figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        paint(figure, figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(buffer.getvalue(), name)


def _inline(svg: str, name: str) -> str:
    """The SVG as a part of a page: no prologue, no size of its own, ids that are unique on the page, live colours."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<[^>]+>", lambda tag: _live(tag[0], name), svg)  # tags alone: a label may look like an id, too
    return re.sub(r"\n\s*", "\n", svg)


def _live(tag: str, name: str) -> str:
    if tag.startswith("<svg"):
        tag = re.sub(r' (width|height)="[^"]*"', "", tag)
    tag = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", tag)
    for colour, code in COLOURS.items():
        tag = tag.replace(code, "currentColor" if colour == "ink" else f"var(--{colour})")
    return tag


logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # its search for fonts is not news to anyone
