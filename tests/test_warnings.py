"""What `check` warns about: each rule just before and just after its bound, and the counts from a log by a loop."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import chi2_contingency

from bcd4rec.data import checking
from bcd4rec.data.checking import check
from bcd4rec.data.responses import Responses
from bcd4rec.data.schema import Log
from bcd4rec.data.warnings import (
    DAY,
    RULES,
    LogCounts,
    LogPeriod,
    positions_without_meaning,
    unknown_items,
    warnings_of,
)
from test_cli import result, run

RESPONSES = Responses(rewards={"skip": 0, "click": 1, "buy": 5})
YEAR = 365 * DAY
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
    certain=300,
    slates_of_one_place=100,
    late=2400,
    late_unknown=100,
    clock=LogPeriod(first=40 * YEAR, last=41 * YEAR, now=50 * YEAR, early=0),
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
            {"inverse_propensities": 12_000 * 100.0},
            {"inverse_propensities": 12_000 * 101.0},
            101,
            "1 / propensity is 101 on average, which with 50 items",
        ),
        (
            "clock stands",
            {"clock": LogPeriod(40 * YEAR, 40 * YEAR + 1, 50 * YEAR, 0)},
            {"clock": LogPeriod(40 * YEAR, 40 * YEAR, 50 * YEAR, 0)},
            300,
            "all rows of 300 sessions have the same time",
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
            "2 of 300 sessions begin before 1980; units are mixed",
        ),
        (
            "clock units",
            {"clock": None},
            {"clock": LogPeriod(1, 2, 50 * YEAR, 300)},
            300,
            "300 of 300 sessions begin before 1980; name the unit of the time with --time-unit",
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
    assert len(RULES) == 17
