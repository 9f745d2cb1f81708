"""What will hurt in the propensities of a log: `bcd4rec judge` refuses those that cannot be right."""

import math

from bcd4rec.data.log_counts import LogCounts, Warned

ENOUGH_PROPENSITIES, TOO_LARGE = 1000, 2  # how many, and how often above what is possible, are no accident
ENOUGH_FIRST, TOO_FEW, SURE = 100, 0.5, 4  # first places; of the items seen there; standard errors


def no_propensities(log: LogCounts) -> Warned | None:
    if log.propensities:
        return None
    told = f"none of {log.impressions:,} impressions has a propensity, without which no new policy can be judged by it"
    mend = (
        f"log the probability with which each item was shown{_where(log)}{log.or_name_it('propensity', 'propensity')}"
    )
    return Warned("no propensities", 0, f"{told}; {mend}.")


def _where(log: LogCounts) -> str:
    return f" in {log.names['propensity']}" if "propensity" in log.names else ""


def missing_propensities(log: LogCounts) -> Warned | None:
    missing = log.impressions - log.propensities
    if not missing or not log.propensities:
        return None
    told = f"{missing:,} of {log.impressions:,} impressions have no {log.column('propensity')}"
    mend = "by a log with gaps no policy is judged; fill them in, or leave the sessions that have some out"
    return Warned("missing propensities", missing, f"{told}, and {mend}.")


def certain_propensities(log: LogCounts) -> Warned | None:
    if not log.propensities or log.certain < log.propensities or log.items < 2:
        return None
    told = (
        f"all {log.propensities:,} propensities are 1, as if each of the {log.items:,} items had no other in its place"
    )
    mend = f"log the probability with which each item was shown{_where(log)}"
    return Warned("certain propensities", log.certain, f"{told}; {mend}.")


def small_propensities(log: LogCounts) -> Warned | None:
    """Σ p · (1 / p) over what could be shown is how many could be shown, so 1 / p is at most A on average."""
    mean, least = (total / max(log.propensities, 1) for total in (log.inverse_propensities, log.capped_propensities))
    if log.propensities < ENOUGH_PROPENSITIES or least <= TOO_LARGE * log.items:
        return None
    told = (
        f"1 / {log.column('propensity')} is {mean:,.0f} on average, which with {log.items:,} items can hardly be above "
        f"{log.items:,}"
    )
    return Warned(
        "small propensities", mean, f"{told}; log each item's probability given those above, not the slate's."
    )


def overshown_item(log: LogCounts) -> Warned | None:
    """The same for one item: with each propensity p it is shown at most once in 1 / p decisions."""
    found = log.overshown
    if found is None or log.propensities < ENOUGH_PROPENSITIES or small_propensities(log) is not None:
        return None
    if found.capped <= TOO_LARGE * log.propensities:
        return None
    share, chance = found.shown / log.propensities, found.shown / found.inverse
    told = f"item {found.name} makes {100 * share:.1f} % of the impressions, where its {log.column('propensity')} is"
    mend = "log the probability with which the items were really drawn"
    return Warned("overshown item", share, f"{told} {chance:.2g}; {mend}.")


def large_propensities(log: LogCounts) -> Warned | None:
    """In one and the same state, 1 / p is on average at least as many items as were seen in it."""
    first = log.first_places
    if first.count < ENOUGH_FIRST or certain_propensities(log) is not None:
        return None
    mean = first.inverse / first.count
    error = math.sqrt(max(0.0, first.squares / first.count - mean**2) / first.count)
    if mean + SURE * error >= TOO_FEW * first.items:
        return None
    when = "on the same day" if log.clock is not None else "in sessions nearby"
    told = (
        f"1 / {log.column('propensity')} is {mean:,.1f} on average where sessions begin, as if so many items could "
        f"stand in the first place, but {first.items:,.0f} did {when}"
    )
    mend = "log each item's probability among all that could be shown there, unless each session has its own"
    return Warned("large propensities", mean, f"{told}; {mend}.")
