"""What the same user liked in earlier sessions opens a session, as organic events that nobody recommended now."""

from dataclasses import replace

import numpy as np
import polars as pl

from bcd4rec.data.sessions import SessionIndex
from bcd4rec.data.tables import collect
from bcd4rec.errors import InputError


def with_earlier(index: SessionIndex, most: int) -> SessionIndex:
    """The index with the last `most` positive items of each user before a session begins, which `chunks` puts in front.

    What is in memory is one row for each positive response of a user who has several sessions.
    """
    if not most:
        return index
    if not index.log.has("user_id"):
        raise InputError("--earlier needs a column user_id (--map user=COLUMN): whose sessions belong together.")
    if not index.log.clock:
        raise InputError("--earlier needs a column timestamp (--map time=COLUMN); steps tell no session's time.")
    users = index.sessions.group_by("user_id").len().filter((pl.col("len") > 1) & pl.col("user_id").is_not_null())
    users = users.select("user_id").sort("user_id").with_row_index("user")
    opening = _openings(index.sessions.join(users, on="user_id", maintain_order="left"), _liked(index, users), most)
    counts = opening.group_by("session_id").agg(pl.len().cast(pl.Int64).alias("opened"))
    sessions = index.sessions.join(counts, on="session_id", how="left", maintain_order="left")
    opened = pl.col("opened").fill_null(0)
    sessions = sessions.with_columns(pl.col(name) + opened for name in ("rows", "organic", "positives")).drop("opened")
    return replace(index, sessions=sessions, opening=opening)


def _liked(index: SessionIndex, users: pl.DataFrame) -> pl.DataFrame:
    """user, time, item, response of all positive rows of `users`, by user and time."""
    items = index.items.select("item_id", pl.int_range(pl.len(), dtype=pl.Int32).alias("item"))
    codes = {name: code for code, name in enumerate(index.responses.names)}
    found = []
    for number, (table, frame) in enumerate(index.log.frames()):
        rows = (
            frame.filter(pl.col("response").is_in(index.responses.positive))
            .join(users.lazy(), on="user_id")
            .join(items.lazy(), on="item_id")
            .select(
                "user",
                "time",
                (pl.col("row").cast(pl.Int64) + number * 2**40).alias("order"),
                "item",
                pl.col("response").replace_strict(codes, return_dtype=pl.UInt8),
            )
        )
        found.append(collect(table, rows))
    return pl.concat(found).sort("user", "time", "order")


def _openings(sessions: pl.DataFrame, liked: pl.DataFrame, most: int) -> pl.DataFrame:
    """session_id, item, response: of each session the last rows of `liked` by the same user before it starts."""
    asked = sessions["user"].to_numpy().astype(np.int64)
    owner = liked["user"].to_numpy().astype(np.int64)
    is_like = np.repeat([False, True], [len(asked), len(owner)])
    time = np.concatenate([sessions["start"].to_numpy(), liked["time"].to_numpy()])
    order = np.lexsort((is_like, time, np.concatenate([asked, owner])))  # what is liked at the start comes after it
    before = np.empty(len(order), np.int64)
    before[order] = np.cumsum(is_like[order])
    end = before[: len(asked)]  # (sessions,) rows of `liked` up to the start, of this user and those in front of her
    count = np.minimum(end - np.searchsorted(owner, asked), most)
    session = np.repeat(np.arange(len(asked)), count)
    within = np.arange(len(session)) - np.repeat(np.cumsum(count) - count, count)
    rows = np.repeat(end - count, count) + within
    return pl.DataFrame({"session_id": sessions["session_id"][session]}).hstack(liked[rows].select("item", "response"))
