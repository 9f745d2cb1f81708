"""How methods are called and drawn: one name and one colour for each, the same in every table and plot."""

from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple

from bcd4rec.evaluation.wording import NAMES

# Chosen to stay apart under simulated protanopia, deuteranopia and tritanopia, with a contrast of at least 3 to a
# white page. The style sheet has a twin of each for dark pages, under the same name.
COLOURS = {
    "blue": "#1a4fd6",
    "orange": "#c87a00",
    "green": "#008f5f",
    "purple": "#cf3fb2",
    "vermillion": "#8c1c0b",
    "sky": "#2a95d4",
    "olive": "#6f6a00",
    "grey": "#6b7280",
    "ink": "#1b1f24",
}


class Style(NamedTuple):
    """A line that can be told from the others without its colour, too."""

    colour: str
    line: str = "-"
    marker: str = "o"


STYLES = {
    "Random": Style("grey", "--", "x"),
    "Behaviour": Style("grey", "--", "x"),
    "Oracle": Style("ink", ":", "^"),
    "Online": Style("ink", "-.", "v"),
    "MostPop": Style("orange", "-", "s"),
    "CTR": Style("orange", "--", "P"),
    "CategoryPop": Style("orange", ":", "D"),
    "Markov": Style("sky", ":", "p"),
    "SKNN": Style("olive", "-", "<"),
    "VSKNN": Style("olive", ":", "v"),
    "STAN": Style("purple", "-", ">"),
    "GRU": Style("green", "--", "P"),
    "SRGNN": Style("green", "-", "p"),
    "DQN": Style("vermillion", "--", "X"),
    "BCQ": Style("vermillion", "-", "*"),
    "QRDQN": Style("olive", "--", "d"),
    "QRBCQ": Style("purple", "--", "h"),
    "IQN": Style("sky", "-", "D"),
    "BCD4Rec": Style("blue", "-", "o"),
    "perfect": Style("grey", "--", ""),  # the diagonal of a reliability plot
}

# For methods that are not in the table above, in the order in which they come.
_SPARE = [
    Style(colour, line, "osDv^PX"[(turn + place) % 7])
    for turn, line in enumerate(("-.", ":", "-", "--"))
    for place, colour in enumerate(list(COLOURS)[:7])
]


def friendly(method: str) -> str:
    """The name people know a method by; unknown names stay as they are."""
    return NAMES.get(method.lower(), method)


def styles(methods: Sequence[str]) -> dict[str, Style]:
    """A style for each method of a page: its own, or the next spare one, colours that are free on the page first."""
    known = {method: STYLES[friendly(method)] for method in methods if friendly(method) in STYLES}
    taken = {style.colour for style in known.values()}
    spare = cycle(sorted(_SPARE, key=lambda style: style.colour in taken))
    return {method: known.get(method) or next(spare) for method in methods}


def rate_label(name: str) -> str:
    """`ctr` → CTR, `br` → BR, `like_rate` → like rate."""
    return name.upper() if name in ("ctr", "br") else name.replace("_", " ")
