"""Which items of a session the log shows again, against how often chance would bring them back.

Items that are not shown again although chance alone would have done so were kept out by whoever wrote the log: nobody
knows how people would answer them, and a policy that learned from this log should keep them out, too.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bcd4rec.data.dataset import Dataset

Unavailable = Literal["liked", "shown", "recommended", "nothing"]
Index = NDArray[np.int64]

RARE = 0.2  # shown again less often than this share of what chance brings: kept out
FEW = 3.0  # where chance brings fewer, their absence says nothing
SESSIONS = 20_000  # at most so many are counted, the first of the split
PAIR = ["session", "action"]


@dataclass(frozen=True)
class Repeats:
    """Impressions of items that their session had met before, and how many chance would bring."""

    found: int
    expected: float

    def __add__(self, other: "Repeats") -> "Repeats":
        return Repeats(self.found + other.found, self.expected + other.expected)

    @property
    def kept_out(self) -> bool:
        return self.found < max(RARE * self.expected, 1.0)

    def __str__(self) -> str:
        return f"{self.found:,} times, by chance {self.expected:,.0f}"


@dataclass(frozen=True)
class MetAgain:
    """By what had happened to the item before in its session."""

    skipped: Repeats  # recommended, and never liked so far
    liked: Repeats  # recommended and liked
    organic: Repeats  # liked without having been recommended

    def unavailable(self) -> tuple[Unavailable, str]:
        """What a policy should keep out of its slates, and why."""
        liked = self.liked + self.organic
        if self.skipped.found == 0 and self.skipped.expected < FEW:
            return "liked", "sessions are too short to tell whether items come back; liked ones do not"
        if self.skipped.kept_out and not (self.liked.kept_out or self.liked.found < FEW):
            return "nothing", f"liked items are shown again ({self.liked})"
        if self.skipped.kept_out and not self.organic.kept_out:
            return "recommended", f"only what was recommended is not shown again ({self.skipped})"
        if self.skipped.kept_out:
            return "shown", f"what was shown is not shown again ({self.skipped})"
        if liked.kept_out:
            return "liked", f"liked items are not shown again ({liked}), skipped ones are ({self.skipped})"
        return "nothing", f"liked items are shown again ({liked}), and so are skipped ones ({self.skipped})"


def count_repeats(dataset: Dataset) -> MetAgain:
    """In the train split. Chance shows every item with its share of all impressions."""
    events = dataset.events("train").with_columns(pl.col("session", "step").cast(pl.Int64))
    events = events.filter(pl.col("session") <= events["session"].unique().sort().head(SESSIONS).max())
    positive = [dataset.responses.code(name) for name in dataset.responses.positive]
    liked, organic = pl.col("response").is_in(positive), pl.col("organic")
    shown = events.filter(~organic).select(*PAIR, "step")
    first = (
        events.filter(~organic | liked)
        .group_by(PAIR)
        .agg(
            shown=pl.col("step").filter(~organic).min(),
            liked=pl.col("step").filter(~organic & liked).min(),
            # An organic event has the step of the slate that follows it, and comes before that slate.
            organic=pl.col("step").filter(organic).min() - 1,
        )
    )
    # For each pair, what it is from which slate on, until it becomes something else: None is never.
    never = pl.lit(None, pl.Int64)
    spans = {
        "skipped": (pl.col("shown"), pl.col("liked")),
        "liked": (pl.col("liked"), never),
        "organic": (pl.col("organic"), pl.col("shown")),
    }
    share = np.bincount(shown["action"].to_numpy(), minlength=dataset.n_items) / max(len(shown), 1)
    return MetAgain(**{name: _repeats(shown, first, begin, end, share) for name, (begin, end) in spans.items()})


def _repeats(
    shown: pl.DataFrame, first: pl.DataFrame, begin: pl.Expr, end: pl.Expr, share: NDArray[np.float64]
) -> Repeats:
    """Impressions after step `begin` of their pair, up to its step `end`."""
    spans = first.select(*PAIR, begin=begin, end=end).filter(
        pl.col("begin").is_not_null() & (pl.col("end").is_null() | (pl.col("end") > pl.col("begin")))
    )
    again = shown.join(spans, on=PAIR).filter(
        (pl.col("step") > pl.col("begin")) & (pl.col("end").is_null() | (pl.col("step") <= pl.col("end")))
    )
    session = spans["session"].to_numpy()
    keys = np.sort(_key(shown["session"].to_numpy(), shown["step"].to_numpy()))
    last = np.iinfo(np.int32).max
    low = np.searchsorted(keys, _key(session, spans["begin"].to_numpy()), side="right")
    high = np.searchsorted(keys, _key(session, spans["end"].fill_null(last).to_numpy()), side="right")
    return Repeats(len(again), float(share[spans["action"].to_numpy()] @ (high - low)))


def _key(session: Index, step: Index) -> Index:
    """Sessions and steps as one number, in order; a step may be −1."""
    return session * (1 << 32) + step + 1
