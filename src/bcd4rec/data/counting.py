"""The counts behind `check`: chunk after chunk of whole sessions, so that memory does not grow with the log."""

import time
from typing import Any

import numpy as np
import polars as pl

from bcd4rec.data.log_counts import (
    CAPPED,
    DAY,
    EARLY,
    LONG_SLATE,
    FirstPlaces,
    LogCounts,
    LogPeriod,
    Most,
    ShownItem,
)
from bcd4rec.data.sessions import SessionIndex
from bcd4rec.data.states import Doubles, Mask, Rows
from bcd4rec.data.tables import shown

LATE = 5  # one of so many sessions is late
MOST_PLACES = 1000  # of a slate that are told apart
LONE, APART = 0.01, 365 * DAY  # so few sessions so far from all others
TOGETHER = 500  # sessions, one after the other, which could have shown the same items, where no day is known


class Counting:
    """What is counted of the chunks that `SessionIndex.chunks` yields."""

    def __init__(self, index: SessionIndex):
        self.index, responses = index, index.responses
        self.shown: Rows = index.items["impressions"].to_numpy()  # (A,) how often
        self.by_response: Rows = np.zeros(len(responses.names), np.int64)
        self.positives, self._early, self._late = (np.zeros(len(self.shown), np.int64) for _ in range(3))
        self.targets, self.requests = 0, 0  # slates with the target response, and all
        self._liked_slates, self._repeated = 0, 0
        self._sessions: list[pl.DataFrame] = []  # session, slates, liked, times
        self._positive = [responses.code(name) for name in responses.positive]
        self._target = responses.code(responses.target)
        self._begin_late = len(index.sessions) - len(index.sessions) // LATE
        # Slates of several items; with a positive; rows without position; of one position.
        self._several: Rows = np.zeros(4, np.int64)
        self._by_place: Rows = np.zeros((2, MOST_PLACES), np.int64)
        self._first: Rows = np.zeros(2, np.int64)
        self.propensities = _Propensities(self.shown, index.log.clock)

    def add(self, events: pl.DataFrame) -> None:
        """A chunk as `SessionIndex.chunks` yields it."""
        rows = events.filter(~pl.col("organic"))
        liked = rows.filter(pl.col("response").is_in(self._positive))
        self.by_response += np.bincount(rows["response"], minlength=len(self.by_response))
        self.positives += self._by_item(liked)
        late = pl.col("session") >= self._begin_late
        self._early += self._by_item(rows.filter(~late))
        self._late += self._by_item(rows.filter(late))
        pair = pl.col("session").cast(pl.UInt64) * 2**32 + pl.col("item").cast(pl.UInt64)
        first = rows.filter(pair.is_first_distinct())
        self._first += [len(first), int(first["response"].is_in(self._positive).sum())]
        self._by_place += self._places(rows)
        self._add_slates(rows)
        self.propensities.add(events)

    def _by_item(self, rows: pl.DataFrame) -> Rows:
        return np.bincount(rows["item"], minlength=len(self.shown))

    def _add_slates(self, rows: pl.DataFrame) -> None:
        by_step = rows.group_by("session", "step").agg(
            (pl.col("response") == self._target).any(),
            pl.col("time").min(),
            liked=pl.col("response").is_in(self._positive).any(),
            size=pl.len(),
            unplaced=(pl.col("position") < 0).sum(),
            one_place=(pl.col("position").n_unique() == 1) & (pl.col("position").first() >= 0),
            items=pl.col("item").n_unique(),
        )
        some = by_step.filter(pl.col("size") > 1)
        self._several += [len(some), *(int(some[name].sum()) for name in ("liked", "unplaced", "one_place"))]
        self.targets += int(by_step["response"].sum())
        self.requests += len(by_step)
        self._liked_slates += int(by_step["liked"].sum())
        self._repeated += len(rows) - int(by_step["items"].sum())
        self._sessions.append(
            by_step.group_by("session").agg(
                pl.len().alias("slates"), pl.col("liked").any(), pl.col("time").n_unique().alias("times")
            )
        )

    def _places(self, rows: pl.DataFrame) -> Rows:
        """(2, places) the impressions of long slates by their position, and the positive ones of them."""
        long = rows.filter(
            (pl.len().over("session", "step") >= LONG_SLATE) & pl.col("position").is_between(0, MOST_PLACES - 1)
        )
        liked = long.filter(pl.col("response").is_in(self._positive))
        return np.stack([np.bincount(part["position"], minlength=MOST_PLACES) for part in (long, liked)])

    @property
    def steps(self) -> Rows:
        """(sessions that have impressions,) slates of each."""
        found: Rows = np.concatenate([part["slates"].to_numpy() for part in self._sessions])
        return found

    def counts(self) -> LogCounts:
        """What the rules look at."""
        index, steps, impressions = self.index, self.steps, int(self.by_response.sum())
        log, sessions = index.log, index.sessions
        seen = self.shown[self.shown > 0]
        late = int(self._late.sum())
        return LogCounts(
            sessions=len(sessions),
            sessions_of_one_slate=int((steps == 1).sum()),
            items=len(seen),
            items_shown_once=int((seen == 1).sum()),
            impressions=impressions,
            positives=int(self.positives.sum()),
            propensities=int(self.propensities.known.sum()),
            slates=int(self._several[0]),
            slates_with_positive=int(self._several[1]),
            without_position=int(self._several[2]),
            shown_by_place=self._by_place[0],
            liked_by_place=self._by_place[1],
            organic_skips=int((sessions["rows"] - sessions["positives"] - sessions["skips"]).sum()),
            inverse_propensities=float(self.propensities.by_item.sum()),
            capped_propensities=self.propensities.capped,
            certain=self.propensities.certain,
            slates_of_one_place=int(self._several[3]),
            late=late,
            late_unknown=int(self._late[self._early == 0].sum()),
            clock=self._clock() if log.clock else None,
            late_by_chance=float((seen * (late / impressions) ** seen).sum()),
            requests=self.requests,
            sessions_without_impressions=len(sessions) - len(steps),
            sessions_without_positive=sum(int((~part["liked"]).sum()) for part in self._sessions),
            without_positive_by_chance=float(((1 - self._liked_slates / self.requests) ** steps).sum()),
            slates_of_median_session=float(np.median(steps)),
            repeated=self._repeated,
            first_shown=int(self._first[0]),
            first_liked=int(self._first[1]),
            tells_slates=bool(log.slate),
            session=self._largest_session(),
            user=self._largest_user(),
            item=self._most_shown_item(),
            first_places=self.propensities.first_places(),
            overshown=self._overshown(),
            names={name: log.tables[0].name(name) for name in log.columns},
            mapped=log.own.mapped,
        )

    def _clock(self) -> LogPeriod:
        sessions = self.index.sessions
        start, end = sessions["start"].to_numpy(), sessions["end"].to_numpy()
        steps, times = self.steps, sum(int(part["times"].sum()) for part in self._sessions)
        now = int(time.time() * 1e6)
        return LogPeriod(
            int(start.min()),
            int(end.max()),
            now,
            int((start < EARLY).sum()),
            _lone(start[(start >= EARLY) & (start <= now + DAY)]),
            int(steps.sum()) - len(steps),
            int(steps.sum()) - times,
            bool((start % DAY == start[0] % DAY).all() and (end % DAY == start[0] % DAY).all()),
        )

    def _largest_session(self) -> Most:
        by_session = self.index.sessions.select("session_id", count=pl.col("rows") - pl.col("organic"))
        return _most(by_session.filter(pl.col("count") > 0))

    def _largest_user(self) -> Most | None:
        sessions = self.index.sessions
        if "user_id" not in sessions.columns:
            return None
        by_user = (
            sessions.filter(pl.col("user_id").is_not_null())
            .group_by("user_id", maintain_order=True)
            .agg((pl.col("rows") - pl.col("organic")).sum().alias("count"), pl.len().alias("sessions"))
            .filter(pl.col("count") > 0)
        )
        found = _most(by_user) if len(by_user) else None
        several = by_user.filter(pl.col("count") == pl.col("count").max(), pl.col("sessions") > 1)
        return found if len(several) else None

    def _most_shown_item(self) -> Most:
        most = int(self.shown.argmax())
        return Most(self._name(most), int(self.shown[most]), self.requests, int((self.shown > 0).sum()))

    def _overshown(self) -> ShownItem | None:
        found = self.propensities
        most = int(found.capped_by_item.argmax())
        sums = float(found.by_item[most]), float(found.capped_by_item[most])
        return ShownItem(self._name(most), int(found.known[most]), *sums) if found.known[most] else None

    def _name(self, item: int) -> str:
        return shown(self.index.items["item_id"][item])


class _Propensities:
    """Sums of 1 / propensity.

    Where each place is a decision among several items, Σ 1 / p over the impressions of one item has the expectation of
    how often it could have been shown. Items that were shown once are left out of the sum over all: an impression is
    compared with what others show, or a log of a few of a million items would seem to have impossible propensities.
    No impression counts for more than a hundredth of what a sum can be, so that none decides alone.
    """

    def __init__(self, shown: Rows, clock: bool):
        self._day = pl.col("time") // DAY if clock else (pl.col("session") // TOGETHER).cast(pl.Int64)
        decisions = int(shown.sum())
        self._again: Mask = shown > 1
        self._most_of_all = decisions * int((shown > 0).sum()) / CAPPED
        self._most_of_one = decisions / CAPPED
        self.known: Rows = np.zeros(len(shown), np.int64)  # (A,) impressions that have one
        self.by_item, self.capped_by_item = (np.zeros(len(shown)) for _ in range(2))  # (A,) Σ 1 / p
        self.capped, self.certain = 0.0, 0
        self._first: Doubles = np.zeros(4)  # places, Σ 1 / p, Σ 1 / p², and each time the items of the same day

    def add(self, events: pl.DataFrame) -> None:
        """Rows of whole sessions in their order, also organic ones."""
        begins = (pl.col("session") != pl.col("session").shift()).fill_null(True)
        rows = events.select("organic", "item", "propensity", begins=begins, day=self._day)
        rows = rows.filter(~pl.col("organic") & pl.col("propensity").is_not_null())
        item, inverse = rows["item"].to_numpy(), _inverse(rows)
        self.known += np.bincount(item, minlength=len(self.known))
        self.by_item += np.bincount(item, inverse, len(self.known))
        self.capped_by_item += np.bincount(item, np.minimum(inverse, self._most_of_one), len(self.known))
        self.capped += float(np.minimum(inverse, self._most_of_all)[self._again[item]].sum())
        self.certain += int((inverse == 1).sum())
        first = rows.filter("begins")
        inverse = _inverse(first)
        by_day = first.group_by("day").agg(pl.len(), pl.col("item").n_unique())
        self._first += [len(first), inverse.sum(), (inverse**2).sum(), int((by_day["len"] * by_day["item"]).sum())]

    def first_places(self) -> FirstPlaces:
        count, inverse, squares, items = self._first.tolist()
        return FirstPlaces(int(count), inverse, squares, items / max(count, 1))


def _inverse(rows: pl.DataFrame) -> Doubles:
    return 1 / rows["propensity"].to_numpy().astype(np.float64)


def _most(counted: pl.DataFrame) -> Most:
    """Of a table whose first column are names, with their `count`."""
    place = int(counted["count"].to_numpy().argmax())
    name, count = shown(counted[counted.columns[0]][place]), int(counted["count"][place])
    return Most(name, count, int(counted["count"].sum()), len(counted))


def _lone(start: np.ndarray[Any, Any]) -> int:
    """How many of these times, in order, are on the small side of a long gap."""
    if not len(start):
        return 0
    gaps = np.flatnonzero(np.diff(start) > APART) + 1
    few = LONE * len(start)
    before, after = gaps[gaps <= few], len(start) - gaps[len(start) - gaps <= few]
    return int(before.max(initial=0) + after.max(initial=0))
