"""What will hurt in a log that has no problems: each a small rule over the counts that `check` makes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scipy.special import chdtrc

from bcd4rec.data.states import Rows

FEW_POSITIVES = 100  # below, nothing can be learned
RARE, RARE_POSITIVES = 1 / 1000, 1000  # a rate below the first is too few as long as there are fewer than the second
ONE_SLATE = 0.9  # share of sessions
SEEN_ONCE = 0.5  # share of items
FEW_SESSIONS = 20
UNKNOWN_ITEMS = 0.2  # share of held-out impressions
LONG_SLATE = 5  # places from which on a click rate is expected to fall with the place
ONE_PLACE = 0.5  # share of slates
ENOUGH_PROPENSITIES, TOO_LARGE = 1000, 2  # how many, and how often above what is possible, are no accident
DAY = 86_400_000_000  # microseconds
EARLY = 10 * 365 * DAY  # 1980
CHANCE, ENOUGH_POSITIVES = 0.2, 500  # of the test whether the place matters


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
    clock: "LogPeriod | None" = None  # None for a log of steps


def few_positives(log: LogCounts) -> Warned | None:
    few = log.positives < FEW_POSITIVES
    rare = log.positives < RARE * log.impressions and log.positives < RARE_POSITIVES
    if not (few or rare):
        return None
    told = f"{log.positives:,} of {log.impressions:,} impressions have a positive response"
    return Warned("few positives", log.positives, f"{told}; learn from a longer period, or count more as positive.")


def sessions_of_one_slate(log: LogCounts) -> Warned | None:
    share = log.sessions_of_one_slate / max(log.sessions, 1)
    if share <= ONE_SLATE:
        return None
    told = f"{100 * share:.0f} % of the sessions have one slate, from which agents learn nothing about what follows"
    return Warned("sessions of one slate", share, f"{told}; take a longer unit as session, such as a visit or a day.")


def only_clicked_slates(log: LogCounts) -> Warned | None:
    if not log.slates or log.slates_with_positive < log.slates or log.positives == log.impressions:
        return None
    told = f"all {log.slates:,} slates of several items have a positive response, so the log was filtered"
    return Warned(
        "only clicked slates", log.slates, f"{told}; add the slates that were skipped, or rates are too high."
    )


def items_shown_once(log: LogCounts) -> Warned | None:
    share = log.items_shown_once / max(log.items, 1)
    if share <= SEEN_ONCE:
        return None
    told = f"{100 * share:.0f} % of the items were shown once, too little to learn about them"
    return Warned("items shown once", share, f"{told}; take a longer period, or leave rare items out.")


def no_skips(log: LogCounts) -> Warned | None:
    if log.positives < log.impressions:
        return None
    told = f"all {log.impressions:,} impressions are positive, so no rate can be learned, only which item comes next"
    return Warned("no skips", log.impressions, f"{told}; log what was shown and passed over, or use baselines.")


def no_propensities(log: LogCounts) -> Warned | None:
    if log.propensities:
        return None
    told = f"none of {log.impressions:,} impressions has a propensity, without which no new policy can be judged by it"
    return Warned("no propensities", 0, f"{told}; log the probability with which each item was shown.")


def certain_propensities(log: LogCounts) -> Warned | None:
    if not log.propensities or log.certain < log.propensities or log.items < 2:
        return None
    told = (
        f"all {log.propensities:,} propensities are 1, as if each of the {log.items:,} items had no other in its place"
    )
    return Warned("certain propensities", log.certain, f"{told}; log the probability with which each item was shown.")


def small_propensities(log: LogCounts) -> Warned | None:
    """Σ p · (1 / p) over what could be shown is how many could be shown, so 1 / p is at most A on average."""
    mean = log.inverse_propensities / max(log.propensities, 1)
    if log.propensities < ENOUGH_PROPENSITIES or mean <= TOO_LARGE * log.items:
        return None
    told = f"1 / propensity is {mean:,.0f} on average, which with {log.items:,} items can hardly be above {log.items:,}"
    return Warned(
        "small propensities", mean, f"{told}; log each item's probability given those above, not the slate's."
    )


def one_place(log: LogCounts) -> Warned | None:
    if not log.slates or log.slates_of_one_place < ONE_PLACE * log.slates:
        return None
    told = f"in {log.slates_of_one_place:,} of {log.slates:,} slates all items have the same position"
    return Warned("one position", log.slates_of_one_place, f"{told}; log the place of each item, counted from 0.")


def clock_stands(log: LogCounts) -> Warned | None:
    if log.clock is None or log.clock.first < log.clock.last or log.sessions < 2:
        return None
    told = f"all rows of {log.sessions:,} sessions have the same time, so nothing comes before anything"
    return Warned("clock stands", log.sessions, f"{told}; name the column with the time of each request.")


def clock_ahead(log: LogCounts) -> Warned | None:
    if log.clock is None or log.clock.last <= log.clock.now + DAY:
        return None
    days = (log.clock.last - log.clock.now) / DAY
    told = f"the last row is {days:,.0f} days in the future"
    return Warned("clock ahead", days, f"{told}; mend the clock, or name its unit with --time-unit.")


def clock_units(log: LogCounts) -> Warned | None:
    if log.clock is None or not log.clock.early:
        return None
    told = f"{log.clock.early:,} of {log.sessions:,} sessions begin before 1980"
    mend = (
        "name the unit of the time with --time-unit" if log.clock.early == log.sessions else "units are mixed: use one"
    )
    return Warned("clock units", log.clock.early, f"{told}; {mend}.")


def new_items(log: LogCounts) -> Warned | None:
    share = log.late_unknown / max(log.late, 1)
    if share <= UNKNOWN_ITEMS:
        return None
    told = f"{100 * share:.0f} % of the impressions of the last fifth of the sessions are of items never shown before"
    return Warned("new items", share, f"{told}; train on a late period, and often, or items come and go too quickly.")


def slates_without_positions(log: LogCounts) -> Warned | None:
    if not log.without_position:
        return None
    told = f"{log.without_position:,} impressions in slates of several items have no position"
    return Warned("no positions", log.without_position, f"{told}; log the place of each item, counted from 0.")


def positions_without_meaning(log: LogCounts) -> Warned | None:
    """A chi-square test of places against positive responses; places with too few of either are left out."""
    if log.liked_by_place.sum() < ENOUGH_POSITIVES:
        return None
    rate = log.liked_by_place.sum() / log.shown_by_place.sum()
    enough = log.shown_by_place * min(rate, 1 - rate) >= 5
    shown, liked = log.shown_by_place[enough], log.liked_by_place[enough]
    if len(shown) < LONG_SLATE:
        return None
    rate = liked.sum() / shown.sum()
    distance = ((liked - rate * shown) ** 2 / (rate * (1 - rate) * shown)).sum()
    chance = float(chdtrc(len(shown) - 1, distance))
    if chance <= CHANCE:
        return None
    told = (
        f"the rate of positive responses does not depend on the position (p = {chance:.2f}), as if places were shuffled"
    )
    return Warned("positions without meaning", chance, f"{told}; log the places that people saw.")


def few_sessions(log: LogCounts) -> Warned | None:
    if log.sessions >= FEW_SESSIONS:
        return None
    told = f"the log has {log.sessions:,} session{'' if log.sessions == 1 else 's'}"
    return Warned("few sessions", log.sessions, f"{told}; check that the session column tells visits apart.")


def organic_skips(log: LogCounts) -> Warned | None:
    if not log.organic_skips:
        return None
    told = f"{log.organic_skips:,} organic events are skips, which say nothing and are not used"
    return Warned("organic skips", log.organic_skips, f"{told}; leave them out, or mark what was recommended as such.")


def unknown_items(held_out: int, unknown: int) -> Warned | None:
    """Of `prepare`: impressions outside of train, and those of them whose item has none in train."""
    share = unknown / max(held_out, 1)
    if share <= UNKNOWN_ITEMS:
        return None
    told = f"{100 * share:.0f} % of the test and validation impressions are of items that were never shown in train"
    return Warned("unknown items", share, f"{told}; train on a longer or a later period.")


def many_tags(column: str, most: int, items: int, values: int) -> Warned | None:
    """Of `prepare`: values of a list column of items.parquet that no model looks at."""
    if not items:
        return None
    told = f"Column {column} of items.parquet: {items:,} items have more than {most} values that others have, too"
    used = f"models use the first {most} of each and leave out {values:,} values"
    return Warned("many tags", values, f"{told}; {used}, so put those that matter first or leave out common ones.")


RULES: tuple[Callable[[LogCounts], Warned | None], ...] = (
    few_sessions,
    few_positives,
    no_skips,
    only_clicked_slates,
    sessions_of_one_slate,
    items_shown_once,
    new_items,
    slates_without_positions,
    one_place,
    positions_without_meaning,
    no_propensities,
    certain_propensities,
    small_propensities,
    clock_stands,
    clock_ahead,
    clock_units,
    organic_skips,
)


def warnings_of(log: LogCounts) -> list[Warned]:
    return [warned for rule in RULES if (warned := rule(log)) is not None]
