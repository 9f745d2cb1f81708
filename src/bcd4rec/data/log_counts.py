"""What `check` counts of a log to see what will hurt, and how a warning is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bcd4rec.data.states import Rows

LONG_SLATE = 5  # places from which on a click rate is expected to fall with the place
DAY = 86_400_000_000  # microseconds
EARLY = 10 * 365 * DAY  # 1980
CAPPED = 100  # no impression counts for more than so small a part of what 1 / propensity can sum up to


@dataclass(frozen=True)
class Warned:
    """Something that will hurt: `value` is the number behind it, `sentence` says it and what to do."""

    kind: str
    value: float
    sentence: str

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "value": self.value, "message": self.sentence}


@dataclass(frozen=True)
class LogPeriod:
    """When the log was written, in microseconds since 1970."""

    first: int
    last: int
    now: int
    early: int  # sessions that begin before computers logged, as seconds read as milliseconds do
    lone: int = 0  # sessions that begin a year or more apart from nearly all others
    following: int = 0  # slates that follow another in their session …
    at_once: int = 0  # … and of those, the ones with the time of the one before
    whole_days: bool = False  # all sessions begin and end at the same time of a day: only dates were logged


@dataclass(frozen=True)
class Most:
    """Who or what has most of something: `count` of all `of`, which `among` so many share."""

    name: str
    count: int
    of: int
    among: int

    @property
    def share(self) -> float:
        return self.count / max(self.of, 1)

    @property
    def times_the_others(self) -> float:
        """How often the others' mean."""
        return self.count * (self.among - 1) / max(self.of - self.count, 1)


@dataclass(frozen=True)
class ShownItem:
    """An item and its impressions that have a propensity."""

    name: str
    shown: int
    inverse: float  # Σ 1 / propensity
    capped: float  # the same, but nothing counts for more than `CAPPED` of all decisions


@dataclass(frozen=True)
class FirstPlaces:
    """The first place of sessions that begin with a slate: all were filled in one and the same state."""

    count: int = 0  # that have a propensity
    inverse: float = 0.0  # Σ 1 / propensity
    squares: float = 0.0  # Σ 1 / propensity²
    items: float = 0.0  # different ones that were there on the same day, on average over the places


@dataclass(frozen=True)
class LogCounts:
    """What the rules look at. A slate of several items is called long here from `LONG_SLATE` items on."""

    sessions: int
    sessions_of_one_slate: int
    items: int  # that were shown
    items_shown_once: int
    impressions: int
    positives: int
    propensities: int  # impressions that have one
    slates: int  # of several items
    slates_with_positive: int  # of those
    without_position: int  # impressions in such slates
    shown_by_place: Rows  # (places,) impressions in long slates
    liked_by_place: Rows  # (places,) positive ones of them
    organic_skips: int
    inverse_propensities: float  # Σ 1 / propensity
    certain: int  # impressions with a propensity of 1
    slates_of_one_place: int  # slates of several items that all have the same position
    late: int  # impressions of the last fifth of the sessions
    late_unknown: int  # of those: of items that the sessions before never show
    clock: LogPeriod | None = None  # None for a log of steps
    late_by_chance: float = 0.0  # how many of them would be unknown if the order of impressions meant nothing
    requests: int = 0  # slates of any size
    sessions_without_impressions: int = 0
    sessions_without_positive: int = 0  # of those that have impressions
    without_positive_by_chance: float = 0.0  # how many would be if slates were independent
    slates_of_median_session: float = 0.0
    repeated: int = 0  # impressions of items that stand in the same slate already
    first_shown: int = 0  # impressions that are the first of their item in their session
    first_liked: int = 0  # positive ones of them
    tells_slates: bool = True  # whether a column says which rows were shown together
    session: Most | None = None  # by impressions
    user: Most | None = None  # by impressions, of those that have several sessions
    item: Most | None = None  # by impressions; `of` are all slates
    first_places: FirstPlaces = field(default_factory=FirstPlaces)
    capped_propensities: float = 0.0  # Σ 1 / propensity over items shown again, none above `CAPPED` of the most
    overshown: ShownItem | None = None  # the item whose capped sum is the largest
    names: Mapping[str, str] = field(default_factory=dict)  # how messages call the columns that the log has
    mapped: bool = True  # --map can name columns

    def column(self, name: str) -> str:
        return self.names.get(name, name)

    def or_name_it(self, name: str, role: str) -> str:
        """What else to do where a column is missing: it may have another name."""
        return f", or name its column with --map {role}=COLUMN" if name not in self.names and self.mapped else ""
