"""The log of a test of two arms, session by session in the order in which they began, for the canary's rule."""

from dataclasses import dataclass

import polars as pl

from bcd4rec.data.responses import Responses
from bcd4rec.data.schema import Log, row_problems
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.tables import ROW, collect, scan
from bcd4rec.errors import InputError
from bcd4rec.evaluation.canary import Canary, CanaryConfig
from bcd4rec.evaluation.session_rewards import SessionReward

ARM_COLUMNS = ("arm", "policy")
KNOWN_PAIRS = (("old", "new"), ("external", "new"), ("a", "b"))


@dataclass(frozen=True)
class LoggedArms:
    """What the two arms are called in the log."""

    column: str
    old: str
    new: str


@dataclass(frozen=True)
class AbSessions:
    """Sessions of both arms in the order in which they began."""

    arms: LoggedArms
    in_new: list[bool]
    rewards: list[float]
    left_out: int
    """Sessions that began in other arms."""

    @property
    def share(self) -> float:
        """The new arm's, as it came out."""
        return sum(self.in_new) / len(self.in_new)

    def decide(self, rule: CanaryConfig, share: float, tick: Tick = no_tick) -> Canary:
        """The canary after these sessions, or after those that it needed."""
        canary = Canary(rule)
        for number, (in_new, reward) in enumerate(zip(self.in_new, self.rewards, strict=True)):
            if canary.add(in_new, reward, share) is not None:
                break
            if number % 1000 == 0:
                tick("counting sessions", number / len(self.in_new))
        return canary


def read_sessions(
    log: Log,
    responses: Responses,
    reward: SessionReward,
    minutes: float | None,
    column: str | None = None,
    old: str | None = None,
    new: str | None = None,
) -> AbSessions:
    """`minutes`: how much of each session counts, from its first row on, where the log has a clock."""
    if problems := row_problems(log, responses):
        raise InputError(problems[0].sentence)
    column = _column(log, column)
    rows = _rows(log, responses, column)
    firsts = rows.group_by("session_id").agg(pl.col("time").min().alias("began"), pl.col("arm").first())
    if minutes is not None and log.clock:
        rows = rows.join(firsts.select("session_id", "began"), on="session_id")
        rows = rows.filter(pl.col("time") - pl.col("began") <= int(minutes * 60e6))
    slate = log.slate[0] if log.slate else "time"
    sessions = collect(
        log.tables[0],
        reward.of_rows(rows, slate).join(firsts, on="session_id").sort("began", "session_id"),
    )
    arms = _arms(sorted(sessions["arm"].unique().to_list()), column, old, new)
    ours = sessions.filter(pl.col("arm").is_in([arms.old, arms.new]))
    for name in (arms.old, arms.new):
        if name not in ours["arm"]:
            found = ", ".join(map(repr, sorted(sessions["arm"].unique())))
            raise InputError(f"{log.path}: no session begins in the arm {name!r}; column {column} holds {found}.")
    return AbSessions(
        arms, (ours["arm"] == arms.new).to_list(), ours["session_reward"].to_list(), len(sessions) - len(ours)
    )


def _column(log: Log, column: str | None) -> str:
    there = scan(log.tables[0].path).columns
    found = next((name for name in ([column] if column is not None else ARM_COLUMNS) if name in there), None)
    if found is None:
        wanted = column if column is not None else " or ".join(ARM_COLUMNS)
        raise InputError(
            f"{log.path}: column {wanted} is missing, which tells the arm of each row; the columns found are "
            f"{', '.join(there)}."
        )
    return found


def _rows(log: Log, responses: Responses, column: str) -> pl.LazyFrame:
    """Shown items of all files: session_id, time, slate, arm and reward, in the order of time."""
    parts = []
    for table, typed in log.frames():
        arm = scan(table.path).frame.select(pl.col(ROW).alias("row"), pl.col(column).cast(pl.String).alias("arm"))
        parts.append(typed.join(arm, on="row", maintain_order="left"))
    rows = pl.concat(parts).filter(~pl.col("organic"))
    value = pl.col("response").replace_strict(responses.rewards, return_dtype=pl.Float64)
    columns = [pl.col("session_id"), pl.col("time"), pl.col("arm").fill_null(""), value.alias("reward")]
    slate = [pl.col(name) for name in log.slate]
    return rows.select(*columns, *slate).sort("time", maintain_order=True)


def _arms(found: list[str], column: str, old: str | None, new: str | None) -> LoggedArms:
    if old is not None and new is not None:
        if old == new:
            raise InputError(f"--old and --new are both {old!r}; expected two arms.")
        return LoggedArms(column, old, new)
    if old is None and new is None:
        for pair in KNOWN_PAIRS:
            if set(pair) <= set(found):
                return LoggedArms(column, *pair)
    raise InputError(
        f"column {column} holds {', '.join(map(repr, found[:10]))}; say which arm is which with --old and --new."
    )
