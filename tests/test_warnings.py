"""What `check` warns about: each rule just before and just after its bound, and the counts from a log by a loop."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import chi2_contingency

from bcd4rec.data import checking, sessions
from bcd4rec.data.checking import check
from bcd4rec.data.clock_warnings import MINUTE
from bcd4rec.data.log_counts import DAY, FirstPlaces, LogCounts, LogPeriod, Most, ShownItem
from bcd4rec.data.responses import Responses
from bcd4rec.data.schema import Log
from bcd4rec.data.tables import COLUMNS
from bcd4rec.data.warnings import RULES, positions_without_meaning, unknown_items, warnings_of
from test_cli import result, run

RESPONSES = Responses(rewards={"skip": 0, "click": 1, "buy": 5})
YEAR = 365 * DAY
CLOCK = LogPeriod(first=40 * YEAR, last=41 * YEAR, now=50 * YEAR, early=0)
FALLING = np.array([300, 200, 150, 100, 80, 50])
GOOD = LogCounts(
    sessions=300,
    sessions_of_one_slate=20,
    items=50,
    items_shown_once=3,
    impressions=12_000,
    positives=880,
    propensities=12_000,
    slates=2000,
    slates_with_positive=700,
    without_position=0,
    shown_by_place=np.full(6, 2000),
    liked_by_place=FALLING,
    organic_skips=0,
    inverse_propensities=12_000 * 40.0,
    capped_propensities=12_000 * 40.0,
    certain=300,
    slates_of_one_place=100,
    late=2400,
    late_unknown=100,
    clock=CLOCK,
)


def test_a_good_log_gets_no_warning() -> None:
    assert warnings_of(GOOD) == []


@pytest.mark.parametrize(
    ("kind", "good", "bad", "value", "words"),
    [
        ("few positives", {"positives": 100}, {"positives": 99}, 99, "99 of 12,000 impressions have"),
        (
            "few positives",
            {"positives": 900, "impressions": 900_000},
            {"positives": 900, "impressions": 900_001},
            900,
            "900 of 900,001 impressions",
        ),
        (
            "few positives",
            {"positives": 1000, "impressions": 5_000_000},
            {"positives": 999, "impressions": 5_000_000},
            999,
            "999 of 5,000,000",
        ),
        (
            "sessions of one slate",
            {"sessions_of_one_slate": 270},
            {"sessions_of_one_slate": 276},
            0.92,
            "92 % of the sessions have one slate",
        ),
        (
            "only clicked slates",
            {"slates_with_positive": 1999},
            {"slates_with_positive": 2000},
            2000,
            "all 2,000 slates of several items",
        ),
        ("items shown once", {"items_shown_once": 25}, {"items_shown_once": 26}, 0.52, "52 % of the items"),
        ("no skips", {"positives": 11_999}, {"positives": 12_000}, 12_000, "all 12,000 impressions are positive"),
        ("no propensities", {"propensities": 1}, {"propensities": 0}, 0, "none of 12,000 impressions"),
        ("no positions", {"without_position": 0}, {"without_position": 7}, 7, "7 impressions in slates"),
        ("few sessions", {"sessions": 20}, {"sessions": 19, "sessions_of_one_slate": 2}, 19, "the log has 19 sessions"),
        ("one position", {"slates_of_one_place": 999}, {"slates_of_one_place": 1000}, 1000, "in 1,000 of 2,000 slates"),
        ("new items", {"late_unknown": 480}, {"late_unknown": 504}, 0.21, "21 % of the impressions of the last fifth"),
        ("certain propensities", {"certain": 11_999}, {"certain": 12_000}, 12_000, "all 12,000 propensities are 1"),
        (
            "small propensities",
            {"capped_propensities": 12_000 * 100.0, "inverse_propensities": 12_000 * 9000.0},
            {"capped_propensities": 12_000 * 101.0, "inverse_propensities": 12_000 * 102.0},
            102,
            "1 / propensity is 102 on average, which with 50 items",
        ),
        (
            "missing propensities",
            {"propensities": 12_000},
            {"propensities": 11_993},
            7,
            "7 of 12,000 impressions have no propensity",
        ),
        (
            "overshown item",
            {"overshown": ShownItem("'a'", 3000, 60_000.0, 24_000.0)},
            {"overshown": ShownItem("'a'", 3000, 60_000.0, 24_001.0)},
            0.25,
            "item 'a' makes 25.0 % of the impressions, where its propensity is 0.05;",
        ),
        (
            "large propensities",
            {"first_places": FirstPlaces(100, 1000.0, 10_000.0, 20.0)},
            {"first_places": FirstPlaces(100, 1000.0, 10_000.0, 20.1)},
            10,
            "1 / propensity is 10.0 on average where sessions begin, as if so many items could stand in the first "
            "place, but 20 did on the same day",
        ),
        (
            "large propensities",  # Σ 1 / p² for a standard error of 0.5, four of which are still possible
            {"first_places": FirstPlaces(100, 1000.0, 12_500.0, 24.0)},
            {"first_places": FirstPlaces(100, 1000.0, 12_500.0, 24.1)},
            10,
            "1 / propensity is 10.0 on average",
        ),
        (
            "large propensities",
            {"first_places": FirstPlaces(99, 99.0, 99.0, 20.0)},
            {"first_places": FirstPlaces(100, 100.0, 100.0, 20.0), "clock": None},
            1,
            "1 / propensity is 1.0 on average where sessions begin, as if so many items could stand in the first "
            "place, but 20 did in sessions nearby",
        ),
        (
            "only clicked sessions",
            {"without_positive_by_chance": 9.9},
            {"without_positive_by_chance": 10.0},
            10,
            "all sessions have a positive response, where by chance 10 of 300 had none",
        ),
        (
            "only clicked sessions",
            {"without_positive_by_chance": 50.0, "sessions_without_positive": 1},
            {"without_positive_by_chance": 50.0},
            50,
            "all sessions have a positive response, where by chance 50 of 300",
        ),
        (
            "event stream",  # 880 of 12,000 are positive, so 88 of 1,200 first impressions would be
            {"first_shown": 1200, "first_liked": 5},
            {"first_shown": 1200, "first_liked": 4},
            4,
            "4 of 880 positive responses are to an item's first row in its session, by chance 88",
        ),
        (
            "event stream",
            {"first_shown": 136},
            {"first_shown": 137},
            0,
            "0 of 880 positive responses are to an item's first row in its session, by chance 10",
        ),
        (
            "long sessions",
            {"slates_of_median_session": 500.0},
            {"slates_of_median_session": 501.0},
            501,
            "half of the sessions have 501 slates and more",
        ),
        (
            "one session",
            {"session": Most("'x'", 2400, 12_000, 300)},
            {"session": Most("'x'", 2520, 12_000, 300)},
            0.21,
            "one of 300 sessions, 'x', has 21 % of the impressions",
        ),
        (
            "one session",  # of 24 others, 20 times their mean is 5,455
            {"session": Most("'x'", 5400, 12_000, 25)},
            {"session": Most("'x'", 5520, 12_000, 25)},
            0.46,
            "one of 300 sessions, 'x', has 46 % of the impressions",
        ),
        (
            "one user",
            {"user": Most("'x'", 2400, 12_000, 300)},
            {"user": Most("'x'", 2520, 12_000, 300)},
            0.21,
            "user 'x' has 21 % of the impressions, and no user is in two splits",
        ),
        (
            "one user",
            {"user": Most("'x'", 6000, 12_000, 2)},
            {"user": Most("'x'", 12_000, 12_000, 1)},
            1,
            "user 'x' has 100 % of the impressions",
        ),
        (
            "sessions without impressions",
            {"sessions_without_impressions": 100},
            {"sessions_without_impressions": 102},
            0.34,
            "34 % of the sessions have no impression",
        ),
        (
            "item everywhere",
            {"item": Most("7", 1799, 2000, 50)},
            {"item": Most("7", 1800, 2000, 50)},
            0.9,
            "item 7 is in 90 % of the slates",
        ),
        (
            "item everywhere",  # six items in each of 2,000 slates are half of twelve
            {"item": Most("7", 1800, 2000, 50), "items": 12},
            {"item": Most("7", 1800, 2000, 50), "items": 13},
            0.9,
            "item 7 is in 90 % of the slates",
        ),
        (
            "one clicked position",
            {"liked_by_place": np.array([4, 94, 1, 0, 0, 0])},
            {"liked_by_place": np.array([4, 95, 1, 0, 0, 0])},
            0.95,
            "95 % of the positive responses in long slates are at position 1",
        ),
        (
            "one clicked position",
            {"liked_by_place": np.array([4, 95, 0, 0, 0, 0])},
            {"liked_by_place": np.array([4, 96, 0, 0, 0, 0])},
            0.96,
            "96 % of the positive responses in long slates are at position 1",
        ),
        (
            "one clicked position",
            {"liked_by_place": np.array([100, 0]), "shown_by_place": np.array([1001, 1000])},
            {"liked_by_place": np.array([100, 0]), "shown_by_place": np.array([1000, 1000])},
            1,
            "100 % of the positive responses in long slates are at position 0",
        ),
        (
            "lone sessions",
            {"clock": replace(CLOCK, lone=0)},
            {"clock": replace(CLOCK, lone=3)},
            3,
            "3 of 300 sessions begin a year or more apart from all others",
        ),
        (
            "order not told",
            {"clock": replace(CLOCK, following=1000, at_once=500)},
            {"clock": replace(CLOCK, following=1000, at_once=510)},
            0.51,
            "51 % of the slates that follow another have its timestamp, so",
        ),
        (
            "order not told",
            {"clock": replace(CLOCK, following=1000, at_once=500, whole_days=True), "tells_slates": False},
            {"clock": replace(CLOCK, following=1000, at_once=510, whole_days=True), "tells_slates": False},
            0.51,
            "51 % of the slates that follow another have its timestamp (all times are whole days), so",
        ),
        (
            "slates not told",
            {"clock": replace(CLOCK, following=1000, at_once=500), "tells_slates": False},
            {"clock": replace(CLOCK, following=1000, at_once=510), "tells_slates": False},
            0.51,
            "51 % of the rows have the timestamp of the row before in their session, and each is a slate of its own",
        ),
        (
            "clock stands",
            {"clock": LogPeriod(40 * YEAR, 40 * YEAR + MINUTE, 50 * YEAR, 0)},
            {"clock": LogPeriod(40 * YEAR, 40 * YEAR, 50 * YEAR, 0)},
            300,
            "all rows of 300 sessions have the same time",
        ),
        (
            "clock stands",
            {"clock": LogPeriod(40 * YEAR, 40 * YEAR + MINUTE, 50 * YEAR, 0)},
            {"clock": LogPeriod(40 * YEAR, 40 * YEAR + MINUTE - 1, 50 * YEAR, 0)},
            300,
            "all rows of 300 sessions have times within 60 seconds in timestamp, so nothing",
        ),
        (
            "repeated items",
            {"repeated": 600},
            {"repeated": 601},
            601,
            "601 of 12,000 impressions are of an item that stands in the same slate already",
        ),
        (
            "clock ahead",
            {"clock": LogPeriod(40 * YEAR, 50 * YEAR + DAY, 50 * YEAR, 0)},
            {"clock": LogPeriod(40 * YEAR, 50 * YEAR + 3 * DAY, 50 * YEAR, 0)},
            3,
            "the last row is 3 days in the future",
        ),
        (
            "clock units",
            {"clock": LogPeriod(40 * YEAR, 41 * YEAR, 50 * YEAR, 0)},
            {"clock": LogPeriod(1, 41 * YEAR, 50 * YEAR, 2)},
            2,
            "2 of 300 sessions begin before 1980; timestamp mixes units",
        ),
        (
            "clock units",
            {"clock": None},
            {"clock": LogPeriod(1, 2, 50 * YEAR, 300)},
            300,
            "300 of 300 sessions begin before 1980; name the unit of timestamp with --time-unit",
        ),
        ("organic skips", {"organic_skips": 0}, {"organic_skips": 3}, 3, "3 organic events are skips"),
    ],
)
def test_each_rule_on_both_sides_of_its_bound(
    kind: str, good: dict[str, Any], bad: dict[str, Any], value: float, words: str
) -> None:
    assert kind not in [one.kind for one in warnings_of(replace(GOOD, **good))]
    (warned,) = [one for one in warnings_of(replace(GOOD, **bad)) if one.kind == kind]
    assert warned.value == pytest.approx(value)
    assert warned.sentence.startswith(words)
    assert "; " in warned.sentence  # and what to do about it
    own = {name: f"my_{name} ({name})" for name in COLUMNS}
    (called,) = [one for one in warnings_of(replace(GOOD, **bad, names=own)) if one.kind == kind]
    for name in ("session_id", "timestamp", "user_id", "position", "response"):
        told = called.sentence.replace("positive response", "").replace(f"{name}=COLUMN", "")
        assert re.search(rf"\b{name}\b", told.replace(own[name], "")) is None  # a column is the user's own
    (fixed,) = [one for one in warnings_of(replace(GOOD, **bad, mapped=False)) if one.kind == kind]
    assert "--map" not in fixed.sentence  # of a format that knows its columns
    assert "--set" not in fixed.sentence


def test_rules_that_leave_the_word_to_others() -> None:
    """What one rule explains, no other tells once more."""
    one_moment = LogPeriod(40 * YEAR, 40 * YEAR, 50 * YEAR, 0, following=1000, at_once=1000)
    assert kinds(clock=one_moment) == ["clock stands"]
    assert kinds(clock=one_moment, tells_slates=False) == ["clock stands"]
    quick = replace(one_moment, last=40 * YEAR + 1)
    assert kinds(clock=quick) == ["clock stands"]
    few = {"sessions": 19, "sessions_of_one_slate": 1}
    assert kinds(clock=quick, **few) == ["few sessions", "order not told"]  # who may have been that quick
    assert kinds(first_shown=1200, repeated=2000) == ["event stream"]
    together = replace(CLOCK, following=1000, at_once=900)
    assert kinds(clock=together) == ["order not told"]
    assert kinds(clock=together, tells_slates=False) == ["slates not told"]
    assert kinds(clock=together, tells_slates=False, positives=12_000) == ["no skips", "order not told"]  # as baskets
    overshown = ShownItem("'a'", 3000, 90_000.0, 90_000.0)
    assert kinds(overshown=overshown) == ["overshown item"]
    assert kinds(overshown=overshown, capped_propensities=12_000 * 101.0) == ["small propensities"]
    assert kinds(overshown=overshown, propensities=999, impressions=999, positives=500) == []
    first = FirstPlaces(100, 100.0, 100.0, 20.0)
    assert kinds(first_places=first, certain=12_000) == ["certain propensities"]
    assert kinds(positives=12_000, without_positive_by_chance=50.0) == ["no skips"]
    assert kinds(sessions=19, sessions_of_one_slate=1, session=Most("1", 9000, 12_000, 300)) == ["few sessions"]
    assert kinds(item=Most("7", 19, 19, 2000), items=2000) == []  # of so few slates
    assert kinds(item=Most("7", 20, 20, 2000), items=2000) == ["item everywhere"]


def kinds(**changes: Any) -> list[str]:
    return [one.kind for one in warnings_of(replace(GOOD, **changes))]


def test_late_items_by_chance_or_not() -> None:
    """The number is the same, what to do is not."""
    (warned,) = warnings_of(replace(GOOD, late_unknown=600, late_by_chance=399.0))
    assert "items come and go too quickly" in warned.sentence
    (warned,) = warnings_of(replace(GOOD, late_unknown=600, late_by_chance=400.0))
    assert "25 % of the impressions of the last fifth" in warned.sentence
    assert "as many as by chance: take a longer period" in warned.sentence


def test_a_log_without_skips_is_not_called_filtered() -> None:
    kinds = [one.kind for one in warnings_of(replace(GOOD, positives=12_000, slates_with_positive=2000))]
    assert kinds == ["no skips"]


def test_places_that_do_not_matter() -> None:
    """The chance is that of SciPy's test, and the rule is silent where places matter or nobody can tell."""
    shown = np.array([2000, 1900, 1800, 1700, 1600, 3, 0])
    even = np.array([201, 188, 183, 168, 162, 1, 0])
    told = positions_without_meaning(replace(GOOD, shown_by_place=shown, liked_by_place=even))
    assert told is not None
    assert told.value == pytest.approx(chi2_contingency([even[:5], shown[:5] - even[:5]]).pvalue)
    assert "as if places were shuffled" in told.sentence
    assert positions_without_meaning(GOOD) is None
    few = replace(GOOD, shown_by_place=shown, liked_by_place=even // 2)  # fewer than 500 clicks
    assert positions_without_meaning(few) is None
    short = replace(GOOD, shown_by_place=shown[:4], liked_by_place=even[:4])
    assert positions_without_meaning(short) is None


def test_unknown_items() -> None:
    assert unknown_items(0, 0) is None
    assert unknown_items(1000, 200) is None
    warned = unknown_items(1000, 210)
    assert warned is not None
    assert warned.value == pytest.approx(0.21)
    assert warned.sentence.startswith("21 % of the test and validation impressions are of items that were never shown")


def random_log(organic: bool = True) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    rows: list[dict[str, Any]] = []
    for session in range(70):
        time = 0
        for request in range(int(rng.integers(0, 4))):
            size = int(rng.choice([1, 4, 5, 7]))
            for place, item in enumerate(rng.permutation(60)[:size]):
                row = {"session_id": session, "timestamp": time, "request_id": f"{session}-{request}"}
                row |= {"position": place if rng.random() < 0.9 else None, "item_id": int(item)}
                row |= {"response": str(rng.choice(["skip", "click"])), "organic": False}
                row |= {"position": 0} if request == 2 else {}  # the place of the page
                rows.append(row | {"propensity": float(rng.choice([0.5, 0.2, 1.0])) if rng.random() < 0.3 else None})
            time += 1
        for _ in range(int(rng.integers(0, 3)) if organic else 0):
            time += 1
            row = {"session_id": session, "timestamp": time, "request_id": None, "position": None, "item_id": 99}
            rows.append(row | {"response": str(rng.choice(["skip", "click"])), "organic": True, "propensity": None})
    return rows


def test_the_counts_are_those_of_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_log()
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(tmp_path / "log.parquet")
    seen: list[LogCounts] = []
    monkeypatch.setattr(checking, "warnings_of", lambda counts: seen.append(counts) or [])
    summary = check(Log(tmp_path / "log.parquet"), RESPONSES).summary
    slates: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if not row["organic"]:
            slates.setdefault(row["request_id"], []).append(row)
    shown = [row for slate in slates.values() for row in slate]
    of_session: dict[int, int] = {}
    for slate in slates.values():
        of_session[slate[0]["session_id"]] = of_session.get(slate[0]["session_id"], 0) + 1
    times = {item: sum(row["item_id"] == item for row in shown) for item in {row["item_id"] for row in shown}}
    several = [slate for slate in slates.values() if len(slate) > 1]
    long = [row for slate in slates.values() if len(slate) >= 5 for row in slate]
    every = {row["session_id"] for row in rows}
    (found,) = seen
    assert found.sessions == len(every) > len(of_session)
    assert summary["sessions_without_impressions"] == len(every) - len(of_session)
    assert found.sessions_of_one_slate == sum(count == 1 for count in of_session.values())
    assert (found.items, found.items_shown_once) == (len(times), sum(count == 1 for count in times.values()))
    assert found.impressions == summary["impressions"] == len(shown)
    assert found.positives == sum(row["response"] == "click" for row in shown)
    assert found.propensities == sum(row["propensity"] is not None for row in shown)
    assert found.slates == len(several)
    assert found.slates_with_positive == sum(any(row["response"] == "click" for row in slate) for slate in several)
    assert found.without_position == sum(row["position"] is None for slate in several for row in slate)
    known = [row["propensity"] for row in shown if row["propensity"] is not None]
    assert found.inverse_propensities == pytest.approx(sum(1 / one for one in known))
    assert found.certain == sum(one == 1 for one in known) > 0
    places = [{row["position"] for row in slate} for slate in several]
    assert found.slates_of_one_place == sum(len(one) == 1 and None not in one for one in places) > 0
    starts = {session: min(row["timestamp"] for row in rows if row["session_id"] == session) for session in every}
    late = sorted(every, key=lambda session: (starts[session], session))[len(every) - len(every) // 5 :]
    early_items = {row["item_id"] for row in shown if row["session_id"] not in late}
    of_late = [row for row in shown if row["session_id"] in late]
    assert found.late == len(of_late)
    assert found.late_unknown == sum(row["item_id"] not in early_items for row in of_late)
    assert found.clock is not None
    assert (found.clock.first, found.clock.last) == (0, max(row["timestamp"] for row in rows) * 1_000_000)
    assert found.clock.early == len(every)
    for place in range(9):
        here = [row for row in long if row["position"] == place]
        assert found.shown_by_place[place] == len(here)
        assert found.liked_by_place[place] == sum(row["response"] == "click" for row in here)
    organic = [row for row in rows if row["organic"]]
    assert found.organic_skips == sum(row["response"] == "skip" for row in organic)
    assert summary["organic"] == len(organic)
    assert summary["requests"] == len(slates)
    assert summary["responses"]["click"] == found.positives
    assert (found.tells_slates, found.mapped, found.names["position"]) == (True, True, "position")


@pytest.mark.parametrize("chunk", [7, 1_000_000])
def test_more_counts_are_those_of_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Sessions, users, first sights, times and propensities, in chunks of any size."""
    monkeypatch.setattr(sessions, "CHUNK_ROWS", chunk)
    rows = random_log()
    rng = np.random.default_rng(4)
    users = {session: str(rng.choice(["a", "b", "b", "c"])) if session % 3 else None for session in range(70)}
    day = {session: int(rng.integers(0, 3)) for session in range(70)}
    rows = [row | {"user_id": users[row["session_id"]]} for row in rows]
    rows += [row | {"position": 50} for row in rows if row["position"] == 3]  # an item once more
    rows.sort(key=lambda row: (row["session_id"], row["timestamp"]))
    for row in rows:  # some slates at once, on three days
        seconds = 5 * row["timestamp"] if row["organic"] else 5 * (row["timestamp"] // 2)
        row["timestamp"] = 86_400 * (20_000 + day[row["session_id"]]) + seconds
        if row["propensity"] == 0.2 and rng.random() < 0.2:
            row["propensity"] = 1e-4  # more than a hundredth of all that is possible
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(tmp_path / "log.parquet")
    seen: list[LogCounts] = []
    monkeypatch.setattr(checking, "warnings_of", lambda counts: seen.append(counts) or [])
    check(Log(tmp_path / "log.parquet"), RESPONSES)
    (found,) = seen
    shown = [row for row in rows if not row["organic"]]
    every = sorted({row["session_id"] for row in rows})
    slates: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for row in shown:
        slates.setdefault(row["session_id"], {}).setdefault(row["request_id"], []).append(row)

    def liked(slate: list[dict[str, Any]]) -> bool:
        return any(row["response"] == "click" for row in slate)

    assert found.sessions_without_impressions == len(every) - len(slates) > 0
    lengths = [len(one) for one in slates.values()]
    assert found.requests == sum(lengths)
    assert found.slates_of_median_session == np.median(lengths)
    unliked = [one for one in slates.values() if not any(map(liked, one.values()))]
    assert found.sessions_without_positive == len(unliked) > 0
    rate = sum(liked(slate) for one in slates.values() for slate in one.values()) / sum(lengths)
    assert found.without_positive_by_chance == pytest.approx(sum((1 - rate) ** length for length in lengths))
    first: dict[tuple[int, int], str] = {}
    for row in shown:
        first.setdefault((row["session_id"], row["item_id"]), row["response"])
    unique = {(row["session_id"], row["request_id"], row["item_id"]) for row in shown}
    assert found.repeated == len(shown) - len(unique) > 0
    assert (found.first_shown, found.first_liked) == (len(first), list(first.values()).count("click"))
    times = [[slate[0]["timestamp"] for slate in one.values()] for one in slates.values()]
    assert found.clock is not None
    assert found.clock.following == sum(lengths) - len(lengths)
    assert found.clock.at_once == sum(len(one) - len(set(one)) for one in times) > 0
    by_session = [sum(map(len, one.values())) for one in slates.values()]
    assert found.session is not None
    assert (found.session.count, found.session.of) == (max(by_session), len(shown))
    assert found.session.among == len(by_session)
    of_user = {user: sum(row["user_id"] == user for row in shown) for user in "abc"}
    assert found.user == Most("'b'", of_user["b"], sum(of_user.values()), 3)
    of_item = {item: sum(row["item_id"] == item for row in shown) for item in {row["item_id"] for row in shown}}
    assert found.item is not None
    assert (found.item.count, found.item.of) == (max(of_item.values()), found.requests)
    assert of_item[int(found.item.name)] == found.item.count
    share = found.late / len(shown)
    assert found.late_by_chance == pytest.approx(sum(count * share**count for count in of_item.values()))
    # ---- propensities: no impression counts for more than a hundredth of the most that a sum can be
    known = [row for row in shown if row["propensity"] is not None]
    cap = len(shown) * len(of_item) / 100
    capped = [min(1 / row["propensity"], cap) for row in known if of_item[row["item_id"]] > 1]
    assert found.capped_propensities == pytest.approx(sum(capped))
    sums = {item: [1 / row["propensity"] for row in known if row["item_id"] == item] for item in of_item}
    cut = {item: sum(min(one, len(shown) / 100) for one in ones) for item, ones in sums.items()}
    assert found.overshown is not None
    most = int(found.overshown.name)
    assert found.overshown.capped == pytest.approx(max(cut.values())) == pytest.approx(cut[most])
    assert (found.overshown.shown, found.overshown.inverse) == (len(sums[most]), pytest.approx(sum(sums[most])))
    begun = [min(next(iter(one.values())), key=_place) for one in slates.values()]
    begun = [row for row in begun if row["propensity"] is not None]
    inverse = [1 / row["propensity"] for row in begun]
    assert found.first_places.count == len(begun) > 10
    assert found.first_places.inverse == pytest.approx(sum(inverse))
    assert found.first_places.squares == pytest.approx(sum(one**2 for one in inverse))
    if chunk == 1_000_000:  # a day that is in two chunks counts as two
        on_day = [{row["item_id"] for row in begun if day[row["session_id"]] == one} for one in range(3)]
        each = [len(on_day[day[row["session_id"]]]) for row in begun]
        assert found.first_places.items == pytest.approx(np.mean(each))


def _place(row: dict[str, Any]) -> int:
    return -1 if row["position"] is None else row["position"]


def test_sessions_far_from_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one in a hundred, at either end, a year and more away; and times that are whole days."""
    seen: list[LogCounts] = []
    monkeypatch.setattr(checking, "warnings_of", lambda counts: seen.append(counts) or [])

    def clock(days: list[float], lasting: int = 0) -> LogPeriod:
        table = [{"session_id": n, "timestamp": int(86_400 * day)} for n, day in enumerate(days)]
        rows = [row | {"item_id": 1, "response": "skip"} for row in table]
        rows += [row | {"item_id": 2, "timestamp": row["timestamp"] + lasting} for row in rows]
        pl.DataFrame(rows).write_parquet(tmp_path / "log.parquet")
        check(Log(tmp_path / "log.parquet"), RESPONSES)
        found = seen[-1].clock
        assert found is not None
        return found

    usual = [15_000 + 0.1 * number for number in range(198)]
    assert clock([14_635, *usual, 15_300]).lone == 0  # 365 days before
    assert clock([14_634, *usual, 15_300]).lone == 1
    assert clock([14_634, *usual, 15_400]).lone == 2
    assert clock([14_633, 14_634, *usual[:197], 15_400]).lone == 3
    assert clock([14_632, 14_633, 14_634, *usual[:196], 15_400]).lone == 1  # three of 200 are not one in a hundred
    assert clock([0, *usual, 99_000]).lone == 0  # which are told as clocks that mix units and run ahead
    assert not clock(usual).whole_days
    assert clock([15_000 + number for number in range(9)]).whole_days
    assert clock([15_000.5 + number for number in range(9)]).whole_days  # of another zone
    assert not clock([15_000 + number for number in range(9)], lasting=60).whole_days  # as where midnight is a zero


def test_warnings_are_told_in_words_and_in_json(tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    pl.DataFrame(random_log(), infer_schema_length=None).write_parquet(log)
    done = run("check", log)
    assert done.returncode == 0
    assert "Warning: 99 % of" not in done.stderr
    assert "organic events are skips" in done.stderr
    told = result("check", log)
    assert told["ok"] is True
    assert {"organic skips", "no positions"} <= {one["kind"] for one in told["warnings"]}
    assert all(one["message"] in " ".join(done.stderr.split()) for one in told["warnings"])
    assert len(RULES) == 32
