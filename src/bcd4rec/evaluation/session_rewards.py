"""What a whole session is worth, as one bounded number: what two arms of a test are compared by."""

from collections.abc import Sequence
from typing import Literal, Self

import polars as pl
from pydantic import model_validator

from bcd4rec.config import Config

Measure = Literal["slate", "item", "total"]
MEASURES: tuple[Measure, ...] = ("slate", "item", "total")


class SessionReward(Config):
    """The rewards of a session's shown items, slate by slate, as one number from `lowest` to `highest`."""

    measure: Measure = "slate"
    """slate: the strongest response to each slate, on average over slates. item: the mean over shown items. total: the
    sum over everything shown, at most `highest`."""
    lowest: float = 0.0
    """The smallest reward of a response, which is also that of an item that nobody answered; of a total: 0."""
    highest: float = 1.0
    """The largest reward of a response; of a total: where it is cut off."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.lowest < self.highest:
            raise ValueError(f"the rewards of sessions go from {self.lowest} to {self.highest}, expected less to more")
        return self

    @classmethod
    def from_rewards(cls, measure: Measure, rewards: Sequence[float], highest: float | None = None) -> Self:
        """Of the responses' rewards; a total needs `highest`, and only a total has it."""
        if measure == "total":
            return cls(measure=measure, lowest=0.0, highest=1.0 if highest is None else highest)
        return cls(measure=measure, lowest=min(rewards), highest=max(rewards))

    def of(self, slates: Sequence[Sequence[float]]) -> float:
        """The reward of one session: for each of its slates the reward of every shown item."""
        slates = [slate for slate in slates if slate]
        if not slates:
            return self.lowest
        if self.measure == "slate":
            found = sum(max(slate) for slate in slates) / len(slates)
        else:
            found = sum(sum(slate) for slate in slates)
            found = found / sum(map(len, slates)) if self.measure == "item" else found
        return min(max(found, self.lowest), self.highest)

    def of_rows(self, rows: pl.LazyFrame, slate: str) -> pl.LazyFrame:
        """`session_id` and `session_reward` of rows with session_id, `slate` and the item's `reward`."""
        slates = rows.group_by("session_id", slate).agg(
            pl.col("reward").max().alias("strongest"), pl.col("reward").sum().alias("sum"), pl.len().alias("items")
        )
        found = {
            "slate": pl.col("strongest").mean(),
            "item": pl.col("sum").sum() / pl.col("items").sum(),
            "total": pl.col("sum").sum(),
        }[self.measure]
        return slates.group_by("session_id").agg(found.clip(self.lowest, self.highest).alias("session_reward"))
