"""`bcd4rec canary`: what a canary would have decided on the log of an A/B test."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bcd4rec.commands._canary import ErrorRate, Highest, Margin, Most, SessionMinutes, SessionRewardOption
from bcd4rec.commands._options import Json, Rewards, Sort, StringIds, TimeUnit

if TYPE_CHECKING:
    from bcd4rec.evaluation.ab_log import AbSessions
    from bcd4rec.evaluation.canary import Canary

EPILOG = "Example:  bcd4rec canary --log ab-test.parquet --old a --new b --share 0.5"
EXIT_CODES = {"promote": 0, "stop": 3, None: 3, "roll back": 4}


def add_to(app: typer.Typer) -> None:
    app.command("canary", epilog=EPILOG)(canary)


def canary(
    log: Annotated[
        Path, typer.Option(metavar="LOGS", help="Parquet or CSV of impressions with a column arm or policy.")
    ],
    arm_column: Annotated[
        str | None, typer.Option(help="Which column tells the arm. Default: arm, else policy.")
    ] = None,
    old: Annotated[
        str | None, typer.Option(help="What the old arm is called there. Default: old, external or a.")
    ] = None,
    new: Annotated[str | None, typer.Option(help="What the new arm is called there. Default: new or b.")] = None,
    share: Annotated[
        float | None, typer.Option(help="Probability of the new arm for a session. Default: as it came out in the log.")
    ] = None,
    margin: Margin = 0.0,
    error: ErrorRate = 0.05,
    most: Most = 10_000,
    session_minutes: SessionMinutes = 30.0,
    session_reward: SessionRewardOption = "slate",
    highest: Highest = None,
    rewards: Rewards = None,
    time_unit: TimeUnit = "s",
    string_ids: StringIds = False,
    sort: Sort = False,
    json: Json = False,
) -> None:
    """Decide by the log of an A/B test as `bcd4rec serve --canary` does, session by session in the order in which they
    began. Exit codes: 0 promote, 3 no decision, 4 roll back, 2 bad input."""
    from bcd4rec.commands._canary import reward_of, rule_of
    from bcd4rec.commands._options import open_log, responses_of
    from bcd4rec.console import emit_json, progress, show
    from bcd4rec.errors import InputError
    from bcd4rec.evaluation.ab_log import read_sessions

    if share is not None and not 0 < share < 1:
        raise InputError(f"--share: found {share:g}, expected a number between 0 and 1, e.g. 0.5.")
    if not 0 < session_minutes <= 100_000:
        raise InputError(f"--session-minutes: found {session_minutes:g}, expected a number above 0.")
    opened = open_log(log, time_unit, string_ids, sort)
    responses = responses_of(opened, rewards, None, None)
    reward = reward_of(session_reward, highest, responses.rewards)
    rule = rule_of(margin, error, most, reward)
    with progress() as tick:
        sessions = read_sessions(opened, responses, reward, session_minutes, arm_column, old, new)
        found = sessions.decide(rule, sessions.share if share is None else share, tick)
    if json:
        emit_json({"log": str(log)} | _told(sessions, found, share))
    else:
        show(found.sentence())
        show(_table(sessions, found, share))
    raise typer.Exit(EXIT_CODES[found.decision])


def _told(sessions: "AbSessions", found: "Canary", share: float | None) -> dict[str, Any]:
    arms, (low, high) = sessions.arms, found.interval
    return {
        "decision": found.decision,
        "sentence": found.sentence(),
        "column": arms.column,
        "old": arms.old,
        "new": arms.new,
        "sessions": {"old": found.sequence.old, "new": found.sequence.new, "left_out": sessions.left_out},
        "means": dict(zip(("old", "new"), found.means, strict=True)),
        "low": low,
        "high": high,
        "share": sessions.share if share is None else share,
        "share_from": "log" if share is None else "option",
        "rule": found.config.model_dump(),
    }


def _table(sessions: "AbSessions", found: "Canary", share: float | None) -> Any:
    from bcd4rec.console import pairs_table

    told = _told(sessions, found, share)
    means = (f"{name}: {mean:.4g}" for name, mean in told["means"].items() if mean is not None)
    where = "as in the log; say it with --share where it is known" if share is None else "as given"
    pairs = [
        ("old arm", f"{told['old']} ({told['sessions']['old']:,} sessions)"),
        ("new arm", f"{told['new']} ({told['sessions']['new']:,} sessions)"),
        ("sessions of other arms", f"{sessions.left_out:,}"),
        ("mean session reward", ", ".join(means)),
        ("new − old", f"{told['low']:+.4g} to {told['high']:+.4g}"),
        ("share of the new arm", f"{told['share']:.4g} ({where})"),
    ]
    return pairs_table(f"Column {told['column']}, error rate {found.config.error:g}", pairs)
