"""What is counted of a log while it becomes transitions: by item, by response, and what is shown again."""

from collections import Counter
from typing import Any

import numpy as np
import polars as pl

from bcd4rec.data.responses import Responses
from bcd4rec.data.states import IntArray, Mask, Rows


class LogTally:
    """Counts of impressions; `impressions`, `positives` and `held_out` (validation and test) are by item."""

    def __init__(self, n_items: int, responses: Responses, requests: bool):
        """`requests`: the log tells which category was asked for."""
        self.impressions, self.positives, self.held_out = (np.zeros(n_items, np.int64) for _ in range(3))
        self.by_response = np.zeros(len(responses.names), np.int64)
        self.availability: Counter[str] = Counter()
        self.requested: set[str] | None = set() if requests else None
        self._positive = [responses.code(name) for name in responses.positive]

    def add(self, rows: pl.DataFrame, splits: "Splits", again: dict[str, int]) -> None:
        """Rows of whole sessions, as `SessionIndex.chunks` yields them, and what `shown_again` tells of them."""
        shown = rows.filter(~pl.col("organic"))
        seen = shown.filter(pl.Series(splits.train[shown["session"].to_numpy()]))
        self.impressions += self._by_item(seen["item"])
        self.positives += self._by_item(seen.filter(pl.col("response").is_in(self._positive))["item"])
        self.by_response += np.bincount(shown["response"], minlength=len(self.by_response))
        self.availability.update(again)
        self.add_held_out(shown, shown["item"], splits)

    def add_held_out(self, shown: pl.DataFrame, items: pl.Series, splits: "Splits") -> None:
        """What only the rows themselves tell, and no file of a data set."""
        self.held_out += self._by_item(items.filter(pl.Series(splits.held_out[shown["session"].to_numpy()])))
        if self.requested is not None:
            self.requested |= set(shown["request_category"].drop_nulls())

    def restore(self, items: pl.DataFrame, renumber: IntArray, manifest: dict[str, Any]) -> None:
        """Begin with what a data set has counted: `renumber` says which item each of its items is here."""
        self.impressions[renumber] = items["impressions"].to_numpy()
        self.positives[renumber] = items["positives"].to_numpy()
        self.by_response += np.array(list(manifest["counts"]["responses"].values()), np.int64)
        self.availability.update(manifest["availability"])

    def _by_item(self, items: pl.Series) -> Rows:
        return np.bincount(items, minlength=len(self.impressions))


class Splits:
    """Which sessions are in train, and which are held out of it."""

    def __init__(self, sessions: pl.DataFrame):
        self.train: Mask = (sessions["split"] == "train").to_numpy()
        self.held_out: Mask = sessions["split"].is_in(["validation", "test"]).to_numpy()


def shown_again(rows: pl.DataFrame, responses: Responses) -> dict[str, int]:
    """Of the impressions after a positive response of their session: how many are of an item that was liked before.

    Where none is, a liked item was not available any more; where people come back to what they liked, it is.
    """
    liked = pl.col("response").is_in([responses.code(name) for name in responses.positive])
    after = pl.when(liked).then(pl.col("step") + (~pl.col("organic")).cast(pl.UInt32))  # the first slate that knows it
    marked = rows.select(
        "organic",
        liked=liked,
        later=(pl.col("step") >= after.min().over("session")).fill_null(False),
        again=(pl.col("step") >= after.min().over("session", "item")).fill_null(False),
    ).filter(~pl.col("organic"))
    return {
        "impressions_after_a_like": int(marked["later"].sum()),
        "of_items_liked_before": int(marked["again"].sum()),
        "liked_again": int((marked["again"] & marked["liked"]).sum()),
    }
