"""Metrics of an impression log: plain functions of a frame with one row per shown item. Rates are in percent."""

import numpy as np
import polars as pl

from bcd4rec.data.responses import Responses
from bcd4rec.data.states import Doubles
from bcd4rec.errors import InputError

RATE_NAMES = {"click": "ctr", "buy": "br"}


def rate_name(responses: Responses) -> str:
    """`ctr` when the target is a click, `br` when it is a purchase, otherwise `<target>_rate`."""
    return RATE_NAMES.get(responses.target, f"{responses.target}_rate")


def _require(log: pl.DataFrame, *columns: str) -> None:
    missing = [column for column in columns if column not in log.columns]
    if missing:
        raise InputError(f"The log has no column {', '.join(missing)}; expected {', '.join(columns)}.")
    if log.is_empty():
        raise InputError("The log has no rows, so there is nothing to measure; expected at least one shown item.")


def _requests(log: pl.DataFrame, responses: Responses) -> pl.DataFrame:
    """One row per request, ordered by session and step: did it get the target, and its reward.

    Rewards are summed as counts of responses, so that no float depends on the order of the rows.
    """
    _require(log, "session_id", "step", "response")
    answer = pl.col("response").cast(pl.String)
    unknown = log.select(answer.filter(answer.is_null() | ~answer.is_in(responses.names)).unique().sort()).to_series()
    if len(unknown):
        known = ", ".join(responses.names)
        raise InputError(f"The log has the response {unknown[-1]!r}; expected one of {known}, or give it a reward.")
    rewards = [(answer == name).sum() * reward for name, reward in responses.rewards.items()]
    grouped = log.group_by("session_id", pl.col("step").cast(pl.Int64)).agg(
        target=(answer == responses.target).any(), reward=pl.sum_horizontal(rewards)
    )
    return grouped.sort("session_id", "step")


def per_session(log: pl.DataFrame, responses: Responses, gamma: float = 0.9) -> pl.DataFrame:
    """One row per session, ordered by `session_id`.

    `steps` counts its requests, `targets` those of them that got the target response at least once; `return`
    is the sum of all rewards, `discounted_return` weighs the rewards of step t (from 0) by γ^t. Where the log says
    which impressions lay `outside` of a learned user's support, `shown` and `outside` count impressions.
    """
    requests = _requests(log, responses)
    reward = requests["reward"].cast(pl.Float64).to_numpy()
    step = requests["step"].to_numpy()
    sessions = requests["session_id"]
    starts = np.flatnonzero((sessions != sessions.shift()).fill_null(True).to_numpy())

    def total(values: Doubles) -> Doubles:
        sums: Doubles = np.add.reduceat(values, starts)  # always in the order of the steps
        return sums

    table = pl.DataFrame(
        {
            "session_id": sessions.gather(starts),
            "steps": np.diff(np.append(starts, len(requests))),
            "targets": np.add.reduceat(requests["target"].to_numpy().astype(np.int64), starts),
            "return": total(reward),
            "discounted_return": total(reward * gamma**step),
        }
    )
    if "outside" not in log.columns:
        return table
    counts = log.group_by("session_id").agg(
        shown=pl.len().cast(pl.Int64), outside=pl.col("outside").sum().cast(pl.Int64)
    )
    return table.join(counts, on="session_id", how="left", maintain_order="left")


def category_accuracy(log: pl.DataFrame, first: pl.DataFrame) -> float:
    """Percentage of shown items of the category of their session's first item: `first` has session_id and category.

    Sessions whose first item has no category do not count; an item without one is of another.
    """
    _require(log, "session_id", "category")
    asked = first.filter(pl.col("category").is_not_null()).select("session_id", wanted="category")
    shown = log.join(asked, on="session_id", how="inner")
    right = (shown["category"] == shown["wanted"]).fill_null(False)
    return 100 * int(right.sum()) / max(len(shown), 1)


def target_rate(sessions: pl.DataFrame) -> float:
    """CTR or BR: requests that got the target response, in percent of all requests. Takes `per_session`'s table."""
    return 100 * int(sessions["targets"].sum()) / int(sessions["steps"].sum())


def rate_by_step(log: pl.DataFrame, responses: Responses) -> pl.DataFrame:
    """The target rate at each step over the sessions that got so far: `step`, `sessions`, `targets`, `rate`."""
    grouped = _requests(log, responses).group_by("step").agg(sessions=pl.len(), targets=pl.col("target").sum())
    return grouped.with_columns(rate=100 * pl.col("targets") / pl.col("sessions")).sort("step")


def _check_catalogue(shown: int, n_items: int) -> None:
    if shown > n_items:
        raise InputError(
            f"The log shows {shown} items, but the catalogue has {n_items}; give the whole catalogue's size."
        )


def in_first(log: pl.DataFrame, x: int) -> pl.DataFrame:
    """The rows of the first x positions."""
    _require(log, "session_id", "item_id", "position")
    if x < 1:
        raise InputError(f"Coverage within the first {x} positions was asked for; expected 1 or more.")
    return log.filter(pl.col("position") < x)


def coverage(log: pl.DataFrame, n_items: int, x: int = 3) -> float:
    """C@x: items within the first x positions at any step of any session, in percent of the catalogue."""
    shown = in_first(log, x)["item_id"].n_unique()
    _check_catalogue(shown, n_items)
    return 100 * shown / n_items


def popularity_curve(log: pl.DataFrame, n_items: int | None = None) -> pl.DataFrame:
    """How often each item was shown, most often first: `rank` (from 1), `item_id`, `shown`, `share` in percent.

    Ties go to the lower id. With `n_items`, the items that were never shown follow with a null id and share 0.
    """
    _require(log, "item_id")
    counts = (
        log.group_by("item_id").agg(shown=pl.len().cast(pl.Int64)).sort(["shown", "item_id"], descending=[True, False])
    )
    if n_items is not None:
        _check_catalogue(len(counts), n_items)
        absent = pl.DataFrame({"shown": np.zeros(n_items - len(counts), np.int64)})
        counts = pl.concat([counts, absent], how="diagonal")
    share = 100 * pl.col("shown") / pl.col("shown").sum()
    return counts.with_columns(share=share, rank=pl.int_range(1, pl.len() + 1)).select(
        "rank", "item_id", "shown", "share"
    )


def gini(log: pl.DataFrame, n_items: int) -> float:
    """Gini coefficient of how often the A items were shown: 0 when all alike, 1 − 1/A when one item has everything."""
    shown = popularity_curve(log, n_items)["shown"].to_numpy()[::-1].astype(np.float64)  # ascending
    ranks = np.arange(1, n_items + 1)
    return float((2 * ranks - n_items - 1) @ shown / (n_items * shown.sum()))


def gap_closed(method: float, behaviour: float, online: float) -> float | None:
    """(method − behaviour) / (online − behaviour) in percent; None where online is not above behaviour."""
    return 100 * ((method - behaviour) / (online - behaviour)) if online > behaviour else None
