"""What will hurt in the times of a log."""

from bcd4rec.data.log_counts import DAY, LogCounts, Warned

AT_ONCE = 0.5  # share of the slates that follow another
MINUTE, MANY = 60_000_000, 20  # microseconds, in which so many sessions do not begin and end


def clock_stands(log: LogCounts) -> Warned | None:
    """One time for all, or one minute, as where a log has the time at which it was copied."""
    if log.clock is None or not _stands(log):
        return None
    seconds = (log.clock.last - log.clock.first) / 1e6
    when = "the same time" if not seconds else f"times within {seconds:,.0f} seconds"
    told = f"all rows of {log.sessions:,} sessions have {when} in {log.column('timestamp')}"
    mend = f"so nothing comes before anything; {_name_the_time(log)}"
    return Warned("clock stands", log.sessions, f"{told}, {mend}.")


def _stands(log: LogCounts) -> bool:
    if log.clock is None:
        return False
    lasted = log.clock.last - log.clock.first
    return log.sessions > 1 if lasted == 0 else lasted < MINUTE and log.sessions >= MANY


def _name_the_time(log: LogCounts) -> str:
    return "name the column with the time of each request" + (" (--map time=COLUMN)" if log.mapped else "")


def clock_ahead(log: LogCounts) -> Warned | None:
    if log.clock is None or log.clock.last <= log.clock.now + DAY:
        return None
    days = (log.clock.last - log.clock.now) / DAY
    told = f"the last row is {days:,.0f} days in the future by {log.column('timestamp')}"
    return Warned("clock ahead", days, f"{told}; mend the clock, or name its unit with --time-unit.")


def clock_units(log: LogCounts) -> Warned | None:
    if log.clock is None or not log.clock.early:
        return None
    told, column = f"{log.clock.early:,} of {log.sessions:,} sessions begin before 1980", log.column("timestamp")
    every = log.clock.early == log.sessions
    mend = f"name the unit of {column} with --time-unit" if every else f"{column} mixes units, or clocks: use one"
    return Warned("clock units", log.clock.early, f"{told}; {mend}.")


def lone_sessions(log: LogCounts) -> Warned | None:
    if log.clock is None or not log.clock.lone:
        return None
    told = f"{log.clock.lone:,} of {log.sessions:,} sessions begin a year or more apart from all others"
    mend = f"mend the clock of {log.column('timestamp')}, or leave them out: periods count from the first day"
    return Warned("lone sessions", log.clock.lone, f"{told}; {mend}.")


def _at_once(log: LogCounts) -> float:
    """The share of slates that have the time of the one before; a clock that stands is told as such."""
    return 0.0 if log.clock is None or _stands(log) else log.clock.at_once / max(log.clock.following, 1)


def slates_not_told(log: LogCounts) -> Warned | None:
    """Rows of one moment that nobody calls a slate, in a log that tells what was passed over."""
    share = _at_once(log)
    if share <= AT_ONCE or log.tells_slates or log.positives == log.impressions:
        return None
    if log.clock is not None and log.clock.whole_days:
        return None
    column = log.column("timestamp")
    told = f"{100 * share:.0f} % of the rows have the {column} of the row before in their session, and each is a slate"
    mend = "if they were shown together, name the column that tells slates"
    how = " (--map slate=COLUMN, which may be the one of the time)" if log.mapped else ""
    return Warned("slates not told", share, f"{told} of its own; {mend}{how}.")


def order_not_told(log: LogCounts) -> Warned | None:
    share = _at_once(log)
    if share <= AT_ONCE or slates_not_told(log) is not None:
        return None
    days = " (all times are whole days)" if log.clock is not None and log.clock.whole_days else ""
    told = f"{100 * share:.0f} % of the slates that follow another have its {log.column('timestamp')}{days}"
    mend = "so the order of rows in the file decides what came first; log finer times"
    how = ", or name a column that counts with --map step=COLUMN" if log.mapped else ""
    return Warned("order not told", share, f"{told}, {mend}{how}.")
