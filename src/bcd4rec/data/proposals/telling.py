"""Sessions of a log in words, so that a person can see at a glance whether it was read as it was meant."""

from pathlib import Path
from typing import Any

import polars as pl

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
DONE = {"click": "clicked", "buy": "bought"}
MOST_SLATES = 3  # of a session that are told


def sessions_in_words(log: Path, count: int = 3) -> list[str]:
    """Some sessions of a canonical log, spread over it, among those in which something happened."""
    rows = pl.scan_parquet(log, glob=False)
    if "organic" not in rows.collect_schema():
        rows = rows.with_columns(pl.lit(False).alias("organic"))
    shown = rows.filter(~pl.col("organic"))
    alone = not shown.select((pl.col("response") == "skip").any()).collect().item()
    liked = (pl.col("response") != "skip").any()
    lively = shown.group_by("session_id", maintain_order=True).agg(liked.alias("liked"), pl.len()).collect()
    best = [lively.filter("liked", pl.col("len") > 1), lively.filter("liked"), lively]
    ids = next(one for one in best if one.height)["session_id"].to_list()
    some = [ids[place * len(ids) // count] for place in range(min(count, len(ids)))]
    found = rows.filter(pl.col("session_id").is_in(some)).collect()
    return [_session(one, found.filter(pl.col("session_id") == one), alone) for one in some]


def _session(session: Any, rows: pl.DataFrame, alone: bool) -> str:
    """`alone`: the log holds what was liked, and nobody knows what was shown."""
    organic, shown = rows.filter("organic"), rows.filter(~pl.col("organic"))
    key = next((name for name in ("request_id", "step") if name in rows.columns), None)
    slates = shown.partition_by(key, maintain_order=True) if key else [shown[row] for row in range(shown.height)]
    told = [_slate(slate, not place, alone) for place, slate in enumerate(slates[:MOST_SLATES])]
    before = f", after {_number(organic.height)} thing{_s(organic.height)} found without us" if organic.height else ""
    more = len(slates) - len(told)
    rest = f"; {_number(more)} more {'' if alone else f'slate{_s(more)} '}followed" if more else ""
    return f"In session {session}{before}, {'; then '.join(told)}{rest}."


def _slate(slate: pl.DataFrame, first: bool, alone: bool) -> str:
    count = slate.height
    times = slate["timestamp"].drop_nulls() if "timestamp" in slate.columns else None
    pattern = "on %Y-%m-%d at %H:%M " if first else "at %H:%M "
    when = times[0].strftime(pattern) if times is not None and len(times) else ""
    answers = slate["response"].to_list()
    liked = [(place, answer) for place, answer in enumerate(answers) if answer != "skip"]
    items = slate["item_id"].to_list()
    if count == 1:
        done = _done(answers[0]) if liked else "passed over"
        return f"{when}{items[0]} was {'' if alone else 'shown and '}{done}"
    what = ", ".join(f"the {_place(place)} ({items[place]}) was {_done(answer)}" for place, answer in liked[:3])
    more = f" and {_number(len(liked) - 3)} more" if len(liked) > 3 else ""
    return f"{when}{_number(count)} items were shown, {what or 'none was clicked'}{more}"


def _done(answer: str) -> str:
    return DONE.get(answer, f"answered with {answer}")


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _number(count: int) -> str:
    return NUMBERS[count] if count < len(NUMBERS) else f"{count:,}"


def _place(place: int) -> str:
    if place < len(PLACES):
        return PLACES[place]
    number = place + 1
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 // 10 != 1 else "th"
    return f"{number}{ending}"
