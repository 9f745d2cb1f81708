"""What will hurt in a log that has no problems: each a small rule over the counts that `check` makes."""

from collections.abc import Callable

from scipy.special import chdtrc

from bcd4rec.data.clock_warnings import (
    clock_ahead,
    clock_stands,
    clock_units,
    lone_sessions,
    order_not_told,
    slates_not_told,
)
from bcd4rec.data.log_counts import LONG_SLATE, LogCounts, Most, Warned
from bcd4rec.data.propensity_warnings import (
    certain_propensities,
    large_propensities,
    missing_propensities,
    no_propensities,
    overshown_item,
    small_propensities,
)

FEW_POSITIVES = 100  # below, nothing can be learned
RARE, RARE_POSITIVES = 1 / 1000, 1000  # a rate below the first is too few as long as there are fewer than the second
ONE_SLATE = 0.9  # share of sessions
SEEN_ONCE = 0.5  # share of items
FEW_SESSIONS = 20
UNKNOWN_ITEMS = 0.2  # share of held-out impressions
ONE_PLACE = 0.5  # share of slates
CHANCE, ENOUGH_POSITIVES = 0.2, 500  # of the test whether the place matters
ALL_CLICKS = 0.95  # share of the positive responses at one place
LONG_SESSION = 500  # slates, more than a visit has
WITHOUT_IMPRESSIONS = 1 / 3  # share of sessions
LONELY, FAR_ABOVE = 0.2, 20  # share of the impressions of one session or user, and how often the mean of the others
EVERYWHERE, CROWDED = 0.9, 0.5  # share of slates with one item, where a slate holds less than this share of the items
EXPECTED = 10  # by chance, of which none is no accident
AT_FIRST_SIGHT = 0.05  # of the positive responses that first impressions would have
REPEATED = 0.05  # share of the impressions
SPARSE = 1.5  # times what chance brings are no sign of items that come and go


def few_positives(log: LogCounts) -> Warned | None:
    few = log.positives < FEW_POSITIVES
    rare = log.positives < RARE * log.impressions and log.positives < RARE_POSITIVES
    if not (few or rare):
        return None
    told = f"{log.positives:,} of {log.impressions:,} impressions have a positive response"
    mend = f"learn from a longer period, or count more values of {log.column('response')} as positive"
    return Warned("few positives", log.positives, f"{told}; {mend}.")


def sessions_of_one_slate(log: LogCounts) -> Warned | None:
    share = log.sessions_of_one_slate / max(log.sessions, 1)
    if share <= ONE_SLATE:
        return None
    told = f"{100 * share:.0f} % of the sessions have one slate, from which agents learn nothing about what follows"
    mend = f"take a longer unit as session than {log.column('session_id')}, such as a visit or a day"
    return Warned("sessions of one slate", share, f"{told}; {mend}.")


def long_sessions(log: LogCounts) -> Warned | None:
    slates = log.slates_of_median_session
    if slates <= LONG_SESSION:
        return None
    told = f"half of the sessions have {slates:,.0f} slates and more, which is no visit"
    mend = f"take a shorter unit as session than {log.column('session_id')}, such as a visit or a day"
    return Warned("long sessions", slates, f"{told}; {mend}.")


def one_session(log: LogCounts) -> Warned | None:
    """A robot, or all that nobody could tell apart."""
    most = log.session
    if most is None or log.sessions < FEW_SESSIONS or not _stands_out(most):
        return None
    told = f"one of {log.sessions:,} sessions, {most.name}, has {100 * most.share:.0f} % of the impressions"
    mend = f"leave it out if it is a robot, or a value of {log.column('session_id')} for all that is not known"
    return Warned("one session", most.share, f"{told}; {mend}.")


def one_user(log: LogCounts) -> Warned | None:
    most = log.user
    if most is None or not (_stands_out(most) or most.among == 1):
        return None
    told = f"user {most.name} has {100 * most.share:.0f} % of the impressions, and no user is in two splits"
    mend = f"leave {log.column('user_id')} empty where the user is not known, and robots out"
    return Warned("one user", most.share, f"{told}; {mend}.")


def _stands_out(most: Most) -> bool:
    return most.share > LONELY and most.times_the_others > FAR_ABOVE


def sessions_without_impressions(log: LogCounts) -> Warned | None:
    share = log.sessions_without_impressions / max(log.sessions, 1)
    if share <= WITHOUT_IMPRESSIONS:
        return None
    told = f"{100 * share:.0f} % of the sessions have no impression, only organic events, which teach no rates"
    mend = "add what was recommended in them, and mark only what nobody recommended as organic"
    return Warned("sessions without impressions", share, f"{told}; {mend}.")


def only_clicked_slates(log: LogCounts) -> Warned | None:
    if not log.slates or log.slates_with_positive < log.slates or log.positives == log.impressions:
        return None
    told = f"all {log.slates:,} slates of several items have a positive response, so the log was filtered"
    return Warned(
        "only clicked slates", log.slates, f"{told}; add the slates that were skipped, or rates are too high."
    )


def only_clicked_sessions(log: LogCounts) -> Warned | None:
    """None without a click, where slates that were clicked or not at random would leave some."""
    chance = log.without_positive_by_chance
    if log.sessions_without_positive or chance < EXPECTED or log.positives == log.impressions:
        return None
    told = f"all sessions have a positive response, where by chance {chance:,.0f} of {log.sessions:,} had none"
    return Warned(
        "only clicked sessions",
        chance,
        f"{told}, so the log was filtered; add the sessions that clicked nothing, or rates are too high.",
    )


def event_stream(log: LogCounts) -> Warned | None:
    """What was shown is one row, and what was clicked another: nothing is liked when it is seen first."""
    expected = log.first_shown * log.positives / max(log.impressions, 1)
    if expected < EXPECTED or log.first_liked >= AT_FIRST_SIGHT * expected:
        return None
    told = (
        f"{log.first_liked:,} of {log.positives:,} positive responses are to an item's first row in its session, by "
        f"chance {expected:,.0f}, so that showing and clicking are rows of their own"
    )
    how = " (--set attribution=true)" if log.mapped else ""
    mend = (
        f"make one row of both{how}, with the last {log.column('response')}, or items are skipped and clicked at once"
    )
    return Warned("event stream", log.first_liked, f"{told}; {mend}.")


def repeated_items(log: LogCounts) -> Warned | None:
    """In other places than the first, or the rows would stand twice; an event stream is told as such."""
    share = log.repeated / max(log.impressions, 1)
    if share <= REPEATED or event_stream(log) is not None:
        return None
    told = f"{log.repeated:,} of {log.impressions:,} impressions are of an item that stands in the same slate already"
    mend = "leave the copies out, as of a join that found several rows"
    return Warned("repeated items", log.repeated, f"{told}; {mend}.")


def item_everywhere(log: LogCounts) -> Warned | None:
    most = log.item
    if most is None or most.of < FEW_SESSIONS or most.share < EVERYWHERE:
        return None
    if log.impressions >= CROWDED * log.items * most.of:  # slates show half of all items
        return None
    told = (
        f"item {most.name} is in {100 * most.share:.0f} % of the slates, so that nobody knows how they are without it"
    )
    return Warned("item everywhere", most.share, f"{told}; leave it out if no policy chooses it, as with a banner.")


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


def one_place(log: LogCounts) -> Warned | None:
    if not log.slates or log.slates_of_one_place < ONE_PLACE * log.slates:
        return None
    told = f"in {log.slates_of_one_place:,} of {log.slates:,} slates all items have the same {log.column('position')}"
    return Warned("one position", log.slates_of_one_place, f"{told}; log the place of each item, counted from 0.")


def new_items(log: LogCounts) -> Warned | None:
    share = log.late_unknown / max(log.late, 1)
    if share <= UNKNOWN_ITEMS:
        return None
    told = f"{100 * share:.0f} % of the impressions of the last fifth of the sessions are of items never shown before"
    sparse = log.late_unknown <= SPARSE * log.late_by_chance
    mend = "train on a late period, and often, or items come and go too quickly"
    mend = "as many as by chance: take a longer period, or leave rare items out" if sparse else mend
    return Warned("new items", share, f"{told}; {mend}.")


def slates_without_positions(log: LogCounts) -> Warned | None:
    if not log.without_position:
        return None
    told = f"{log.without_position:,} impressions in slates of several items have no {log.column('position')}"
    mend = f"log the place of each item, counted from 0{log.or_name_it('position', 'position')}"
    return Warned("no positions", log.without_position, f"{told}; {mend}.")


def one_clicked_place(log: LogCounts) -> Warned | None:
    liked, shown = log.liked_by_place, log.shown_by_place
    if liked.sum() < FEW_POSITIVES or liked.max() < ALL_CLICKS * liked.sum():
        return None
    place, share = int(liked.argmax()), float(liked.max() / liked.sum())
    if 2 * shown[place] > shown.sum():  # hardly anything stands elsewhere
        return None
    told = f"{100 * share:.0f} % of the positive responses in long slates are at {log.column('position')} {place}"
    mend = "log which item was clicked, not only the slate, or leave out places that nobody sees"
    return Warned("one clicked position", share, f"{told}; {mend}.")


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
        f"the rate of positive responses does not depend on {log.column('position')} (p = {chance:.2f}), as if places "
        "were shuffled"
    )
    return Warned("positions without meaning", chance, f"{told}; log the places that people saw.")


def few_sessions(log: LogCounts) -> Warned | None:
    if log.sessions >= FEW_SESSIONS:
        return None
    told = f"the log has {log.sessions:,} session{'' if log.sessions == 1 else 's'}"
    mend = f"check that {log.column('session_id')} tells visits apart"
    return Warned("few sessions", log.sessions, f"{told}; {mend}.")


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
    """Of `prepare`: values of a list column of items.parquet, as its own file calls it, that no model looks at."""
    if not items:
        return None
    told = f"Column {column}: {items:,} items have more than {most} values that others have, too"
    used = f"models use the first {most} of each and leave out {values:,} values"
    return Warned("many tags", values, f"{told}; {used}, so put those that matter first or leave out common ones.")


RULES: tuple[Callable[[LogCounts], Warned | None], ...] = (
    few_sessions,
    few_positives,
    no_skips,
    only_clicked_slates,
    only_clicked_sessions,
    event_stream,
    repeated_items,
    sessions_of_one_slate,
    long_sessions,
    one_session,
    one_user,
    sessions_without_impressions,
    slates_not_told,
    item_everywhere,
    items_shown_once,
    new_items,
    slates_without_positions,
    one_place,
    one_clicked_place,
    positions_without_meaning,
    no_propensities,
    missing_propensities,
    certain_propensities,
    small_propensities,
    overshown_item,
    large_propensities,
    clock_stands,
    clock_ahead,
    clock_units,
    lone_sessions,
    order_not_told,
    organic_skips,
)


def warnings_of(log: LogCounts) -> list[Warned]:
    return [warned for rule in RULES if (warned := rule(log)) is not None]
