"""`bcd4rec check`: validate a log and show what is in it."""

from typing import Any

import typer

from bcd4rec.commands._options import Json, Positive, Rewards, Sort, StringIds, Target, TimeUnit
from bcd4rec.commands._reading import Format, Map, RawLog, RawPath, ResponseRules, Settings

EPILOG = "Example:  bcd4rec check logs.parquet --rewards skip=0,click=1,buy=5"


def add_to(app: typer.Typer) -> None:
    app.command("check", epilog=EPILOG)(check)


def check(
    logs: RawPath,
    raw_format: Format = None,
    columns: Map = None,
    rules: ResponseRules = None,
    settings: Settings = None,
    rewards: Rewards = None,
    positive: Positive = None,
    target: Target = None,
    time_unit: TimeUnit = "s",
    string_ids: StringIds = False,
    sort: Sort = False,
    json: Json = False,
) -> None:
    """Validate an impression log, row by row, and summarise it. Exit code 2 when something is wrong."""
    from bcd4rec.commands._options import responses_of
    from bcd4rec.commands._reading import reading_pairs, renamed
    from bcd4rec.console import emit_json, progress, say, show
    from bcd4rec.data import checking

    raw = RawLog(logs, raw_format, columns, rules, settings, time_unit, string_ids, sort)
    with progress() as tick, raw.canonical(raw.reader(), tick) as (log, reading):
        report = checking.check(log, responses_of(log, rewards, positive, target), tick)
        problems = [renamed(problem, log.path, logs) for problem in report.problems]
        report = checking.LogReport(logs, problems, report.summary, report.warnings)
    if json:
        emit_json(report.to_json() | ({"reading": reading} if reading is not None else {}))
    elif report.summary:
        show(_table(str(logs), report.summary, reading_pairs(reading) if reading is not None else []))
    for warned in report.warnings:
        say(f"Warning: {warned.sentence}")
    for problem in report.problems:
        say(f"Error: {problem.sentence}")
    if report.problems:
        raise typer.Exit(2)


def items_told(found: dict[str, Any]) -> str:
    """How many there are, of how many categories, and how many of them have several."""
    several = found.get("items_of_several_categories")
    told = f" in {found['categories']:,} categories" if found["categories"] else ""
    return f"{found['items']:,}{told}" + (f"; {several:,} have several" if several else "")


def _table(path: str, found: dict[str, Any], read: list[tuple[str, str]]) -> Any:
    from bcd4rec.commands._reading import organic_told
    from bcd4rec.console import pairs_table

    length, skew = found["session_length"], found["popularity"]
    pairs = [
        *read,
        ("sessions", f"{found['sessions']:,}"),
        ("items", items_told(found)),
        ("impressions", f"{found['impressions']:,} in {found['requests']:,} slates of {found['slate_size']:.1f} items"),
    ]
    if found["organic"]:
        pairs.append(("organic events", organic_told(found)))
    for name, count in found["responses"].items():
        pairs.append((f"response {name}", f"{count:,} ({found['rates'][name]:.2f} % of impressions)"))
    pairs += [
        (f"{found['target']} rate", f"{found['target_rate']:.2f} % of slates"),
        (
            "slates per session",
            f"mean {length['mean']:.1f}, median {length['median']:.0f}, "
            f"10–90 % {length['p10']:.0f}–{length['p90']:.0f}, max {length['max']:.0f}",
        ),
    ]
    if found["days"]:
        pairs.append(("days", f"{found['days']['days']:,} ({found['days']['first']} to {found['days']['last']})"))
    for what in ("impressions", "positives"):
        text = f"Gini {skew[what]['gini']:.2f}; the top tenth of the items has {skew[what]['top_tenth']:.0f} %"
        pairs.append((f"popularity, {what}", text))
    pairs.append(("propensities", f"known for {found['propensities']:.0f} % of impressions"))
    return pairs_table(f"{path}: no problems found", pairs)
