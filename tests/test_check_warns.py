"""What will hurt, on raw files as a shop has them: each warning with its number, and a near twin that has none.

The shop of this page is a good log: sixty visits of four pages with five places, filled at random from 25 items with
the probability that it logs, and clicked more at the top. Nothing is warned of, and each test changes one thing.
"""

import json
import random
import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pytest

from bcd4rec.data import appending, clock_warnings, propensity_warnings, warnings
from bcd4rec.data.warnings import RULES
from markup import Structure
from test_cli import result, run, works

Row = dict[str, Any]
ROLES = {
    "session": "visit",
    "time": "ts",
    "slate": "page",
    "position": "place",
    "item": "sku",
    "category": "dept",
    "propensity": "prob",
    "response": "event",
    "user": "who",
}
RULED = "view=skip,tap=click,read=organic:click,glance=organic:skip"
VISITS, PAGES, PLACES, ITEMS = 60, 4, 5, 25
BEGAN, HOUR = 1_709_280_000, 3600  # at 8 o'clock on 2024-03-01
MIDNIGHT = BEGAN + 16 * HOUR
MODULES = (warnings, clock_warnings, propensity_warnings, appending)


def shop(visits: int = VISITS, pages: int = PAGES, places: int = PLACES) -> list[Row]:
    """A good log: nothing in it will hurt."""
    rng = random.Random(7)
    rows: list[Row] = []
    for visit in range(visits):
        for page in range(pages):
            for place, item in enumerate(rng.sample(range(ITEMS), places)):
                row: Row = {"visit": f"v{visit}", "ts": BEGAN + HOUR * visit + 30 * page, "page": f"{visit}-{page}"}
                row |= {"place": place, "sku": f"k{item:02}", "dept": f"d{item % 5}", "prob": 1 / (ITEMS - place)}
                tapped = rng.random() < 0.4 / (1 + 0.3 * place)
                rows.append(row | {"event": "tap" if tapped else "view", "who": f"u{visit // 2}"})
    return rows


def write(path: Path, rows: list[Row]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path
    frame = pl.DataFrame(rows, infer_schema_length=None)
    frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)
    return path


def mapping(without: Iterable[str] = (), **other: str) -> str:
    roles = {role: column for role, column in (ROLES | other).items() if role not in without}
    return ",".join(f"{role}={column}" for role, column in roles.items())


def warned(path: Path, rows: list[Row], columns: str = "", *more: object) -> dict[str, dict[str, Any]]:
    """What `check` warns of, by kind; the table and the JSON tell the same sentences."""
    write(path, rows)
    given = ("check", path, "--map", columns or mapping(), "--responses", RULED, *more)
    found = {one["kind"]: one for one in result(*given)["warnings"]}
    told = " ".join(works(*given).stderr.split())
    assert all(f"Warning: {one['message']}" in told for one in found.values())
    return found


def of_one_kind(path: Path, kind: str, rows: list[Row], columns: str = "", *more: object) -> tuple[float, str]:
    """The number and the sentence of the only warning."""
    found = warned(path, rows, columns, *more)
    assert list(found) == [kind]
    return found[kind]["value"], found[kind]["message"]


@pytest.fixture(params=["csv", "jsonl", "parquet"])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return tmp_path / f"shop.{request.param}"


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return tmp_path / "shop.csv"


def test_nothing_is_wrong_with_the_shop(log: Path) -> None:
    assert warned(log, shop()) == {}


# ---- responses


def test_few_clicks(csv: Path) -> None:
    def with_taps(count: int) -> list[Row]:
        rows = shop()
        for row in [row for row in rows if row["event"] == "tap"][count:]:
            row["event"] = "view"
        return rows

    value, told = of_one_kind(csv, "few positives", with_taps(99))
    assert value == 99
    assert told == "99 of 1,200 impressions have a positive response; learn from a longer period, or count more " + (
        "values of event (response) as positive."
    )
    assert warned(csv, with_taps(100)) == {}
    flags = [row | {"tapped": int(row["event"] == "tap")} for row in with_taps(99)]
    write(csv, flags)
    given = mapping(("response",), clicked="tapped")
    (found,) = result("check", csv, "--map", given)["warnings"]  # a column of yes and no
    assert "count more values of tapped (response) as positive" in found["message"]


def test_twenty_clicks_in_five_thousand_sessions(tmp_path: Path) -> None:
    def rows(clicks: int) -> list[Row]:
        """Two items in each of 5,000 sessions, one after the other."""
        table = [
            {"visit": n // 2, "ts": BEGAN + n, "sku": n % 50, "event": "view", "prob": 0.02} for n in range(10_000)
        ]
        for row in table[: 100 * clicks : 100]:
            row["event"] = "tap"
        return table

    columns = mapping(("slate", "position", "category", "user"))
    value, told = of_one_kind(tmp_path / "shop.parquet", "few positives", rows(20), columns)
    assert value == 20
    assert told.startswith("20 of 10,000 impressions have a positive response; ")
    assert warned(tmp_path / "shop.parquet", rows(100), columns) == {}


def test_no_skips(log: Path) -> None:
    rows = [row | {"event": "tap"} for row in shop()]
    value, told = of_one_kind(log, "no skips", rows)
    assert value == 1200
    assert told.startswith("all 1,200 impressions are positive, so no rate can be learned, only which item comes next")
    rows[10]["event"] = "view"
    assert "no skips" not in warned(log, rows)


def test_a_log_of_clicked_pages_alone(log: Path) -> None:
    rows = shop()
    pages = {row["page"]: [one for one in rows if one["page"] == row["page"]] for row in rows}
    untouched = [page for page in pages.values() if all(row["event"] == "view" for row in page)]
    assert len(untouched) > 20
    for page in untouched:
        page[2]["event"] = "tap"
    value, told = of_one_kind(log, "only clicked slates", rows)
    assert value == 240  # 60 visits of 4 pages
    assert told.startswith("all 240 slates of several items have a positive response, so the log was filtered; add the")
    untouched[3][2]["event"] = "view"
    assert warned(log, rows) == {}


def test_a_log_of_clicked_visits_alone(csv: Path) -> None:
    """Sixty visits of two pages, one of which is clicked: at random a quarter of them had no click at all."""
    rows = shop(pages=2)
    for row in rows:
        visit, page = map(int, row["page"].split("-"))
        row["event"] = "tap" if page == visit % 2 and row["place"] < 2 else "view"
    value, told = of_one_kind(csv, "only clicked sessions", rows)
    assert value == pytest.approx(15)  # 60 / 4
    assert told.startswith("all sessions have a positive response, where by chance 15 of 60 had none, so the log was")
    for row in rows[:10]:
        row["event"] = "view"
    assert warned(csv, rows) == {}


def test_a_stream_of_events(csv: Path) -> None:
    """What was shown is a row, and what was clicked another, five seconds later."""
    rows = shop()
    stream = [row | {"event": "view"} for row in rows]
    stream += [row | {"ts": row["ts"] + 5} for row in rows if row["event"] == "tap"]
    stream.sort(key=lambda row: row["ts"])
    taps = len(stream) - len(rows)
    value, told = of_one_kind(csv, "event stream", stream)
    assert value == 0
    met = len({(row["visit"], row["sku"]) for row in rows})
    by_chance = f"{met * taps / len(stream):,.0f}"
    assert told.startswith(
        f"0 of {taps} positive responses are to an item's first row in its session, by chance {by_chance}, so that "
        "showing and clicking are rows of their own; make one row of both (--set attribution=true), with the last "
        "event (response), "
    )
    assert warned(csv, rows) == {}
    assert warned(csv, stream, "", "--set", "attribution=true") == {}


def test_items_that_stand_on_a_page_twice(log: Path) -> None:
    """As a join makes them that finds two rows of an item, with places that are counted afterwards."""

    def rows(copies: int) -> list[Row]:
        last = [row for row in shop() if row["place"] == PLACES - 1][:copies]
        copied = [*shop(), *(row | {"place": PLACES} for row in last)]
        return sorted(copied, key=lambda row: (row["ts"], row["place"]))

    value, told = of_one_kind(log, "repeated items", rows(64))
    assert value == 64
    assert told.startswith("64 of 1,264 impressions are of an item that stands in the same slate already; leave the ")
    assert warned(log, rows(63)) == {}  # 63 of 1,263 are less than a twentieth


# ---- sessions, users, items


def test_a_session_column_with_three_values(log: Path) -> None:
    def rows(values: int) -> list[Row]:
        return [row | {"visit": f"v{int(row['visit'][1:]) % values}"} for row in shop()]

    value, told = of_one_kind(log, "few sessions", rows(3), mapping(("user",)))
    assert value == 3
    assert told == "the log has 3 sessions; check that visit (session_id) tells visits apart."
    assert warned(log, rows(20), mapping(("user",))) == {}


def test_sessions_of_one_page(log: Path) -> None:
    value, told = of_one_kind(log, "sessions of one slate", shop(), mapping(("user",), session="page"))
    assert value == 1
    assert told.startswith("100 % of the sessions have one slate, ")
    assert told.endswith("; take a longer unit as session than page (session_id), such as a visit or a day.")


def test_sessions_that_are_no_visits(tmp_path: Path) -> None:
    def rows(slates: int) -> list[Row]:
        rng, table = random.Random(3), []
        for country in range(20):
            for step in range(slates):
                row = {"country": f"c{country}", "ts": BEGAN + 10 * step, "sku": rng.randrange(25), "prob": 0.04}
                table.append(row | {"event": "tap" if rng.random() < 0.2 else "view"})
        return table

    columns = mapping(("slate", "position", "category", "user"), session="country")
    value, told = of_one_kind(tmp_path / "shop.parquet", "long sessions", rows(501), columns)
    assert value == 501
    assert told.startswith("half of the sessions have 501 slates and more, which is no visit; take a shorter unit as ")
    assert "than country (session_id)" in told
    assert warned(tmp_path / "shop.parquet", rows(500), columns) == {}


def test_a_robot(log: Path) -> None:
    def rows(pages: int) -> list[Row]:
        bot = [row | {"visit": "bot", "page": f"b{row['page']}"} for row in shop()[: 5 * pages]]
        return [row | {"who": row["visit"]} for row in [*shop(), *bot]]

    value, told = of_one_kind(log, "one session", rows(100))
    assert value == pytest.approx(500 / 1700)
    assert told.startswith("one of 61 sessions, 'bot', has 29 % of the impressions; leave it out if it is a robot, or ")
    assert "a value of visit (session_id) for all that is not known" in told
    assert warned(log, rows(60)) == {}  # 300 of 1,500 are a fifth


def test_a_user_who_stands_for_all_that_are_not_known(log: Path) -> None:
    def rows(who: str | None) -> list[Row]:
        """Of 60 visits 40 are nobody's."""
        return [row | {"who": who if int(row["visit"][1:]) < 40 else row["visit"]} for row in shop()]

    value, told = of_one_kind(log, "one user", rows("NA"))
    assert value == pytest.approx(2 / 3)
    assert told == "user 'NA' has 67 % of the impressions, and no user is in two splits; leave who (user_id) empty " + (
        "where the user is not known, and robots out."
    )
    assert warned(log, rows(None)) == {}
    assert list(warned(log, [row | {"who": "me"} for row in shop()])) == ["one user"]


def test_sessions_without_impressions(csv: Path) -> None:
    def rows(visits: int) -> list[Row]:
        """Sixty visits, and others that only read."""
        read = {"page": None, "place": None, "prob": None, "sku": "k01", "dept": "d1", "event": "read", "who": None}
        return shop() + [{"visit": f"r{visit}", "ts": BEGAN + visit} | read for visit in range(visits)]

    value, told = of_one_kind(csv, "sessions without impressions", rows(31))
    assert value == pytest.approx(31 / 91)
    assert told.startswith("34 % of the sessions have no impression, only organic events, which teach no rates; add")
    assert warned(csv, rows(30)) == {}


def test_organic_skips(csv: Path) -> None:
    rows = shop()
    for row in rows[:3]:
        row["event"] = "glance"
    value, told = of_one_kind(csv, "organic skips", rows)
    assert (value, told.partition(",")[0]) == (3, "3 organic events are skips")
    for row in rows[:3]:
        row["event"] = "read"
    assert warned(csv, rows) == {}


def test_a_banner_on_every_page(log: Path) -> None:
    def rows(pages: int) -> list[Row]:
        table = shop()
        last = [row for row in table if row["place"] == PLACES - 1][:pages]
        return sorted(
            [*table, *(row | {"place": 5, "sku": "ad", "dept": "ads", "prob": 1.0, "event": "view"} for row in last)],
            key=lambda row: (row["ts"], row["place"]),
        )

    value, told = of_one_kind(log, "item everywhere", rows(216))
    assert value == pytest.approx(0.9)  # 216 of 240 pages
    assert told.startswith("item 'ad' is in 90 % of the slates, ")
    assert warned(log, rows(215)) == {}


def with_new_items(items: int) -> list[Row]:
    """Twenty-five items that return, and some that stand on one page each, early in the log."""
    rows = shop()
    for number, row in enumerate([row for row in rows if row["place"] == 4][:items]):
        row |= {"sku": f"n{number:02}", "dept": "new"}
    return rows


def test_items_seen_once(log: Path) -> None:
    value, told = of_one_kind(log, "items shown once", with_new_items(26))
    assert value == pytest.approx(26 / 51)
    assert told.startswith("51 % of the items were shown once, too little to learn about them; take a longer period")
    assert warned(log, with_new_items(25)) == {}


def test_items_that_come_and_go(log: Path) -> None:
    def rows(*places: int) -> list[Row]:
        """The last twelve of sixty visits show other items in these places."""
        table = shop()
        for row in table:
            if int(row["visit"][1:]) >= 48 and row["place"] in places:
                row |= {"sku": f"n{row['place']}", "dept": "new"}
        return table

    value, told = of_one_kind(log, "new items", rows(3, 4))
    assert value == pytest.approx(2 / 5)
    assert told.startswith("40 % of the impressions of the last fifth of the sessions are of items never shown before")
    assert told.endswith("; train on a late period, and often, or items come and go too quickly.")
    assert warned(log, rows(4)) == {}  # a fifth


def test_a_log_that_is_short_for_its_items(csv: Path) -> None:
    """Items do not come and go, there are just many: the warning says to take more of the same."""
    rng = random.Random(5)
    rows = [row | {"sku": f"k{rng.randrange(2000)}", "dept": None, "prob": 1 / 2000} for row in shop()]
    rows = list({(row["page"], row["sku"]): row for row in rows}.values())
    found = warned(csv, rows)
    assert list(found) == ["items shown once", "new items"]
    assert found["new items"]["message"].endswith(
        "; as many as by chance: take a longer period, or leave rare items out."
    )


# ---- slates and positions


def test_rows_of_a_moment_that_nobody_calls_a_page(log: Path) -> None:
    value, told = of_one_kind(log, "slates not told", shop(), mapping(("slate",)))
    assert value == pytest.approx(16 / 19)  # of the 19 rows that follow another in a visit, 3 begin a page
    assert told.startswith("84 % of the rows have the ts (timestamp) of the row before in their session, and each is a")
    assert told.endswith("name the column that tells slates (--map slate=COLUMN, which may be the one of the time).")
    assert warned(log, shop(), mapping(slate="ts")) == {}


def test_no_positions(log: Path) -> None:
    value, told = of_one_kind(log, "no positions", shop(), mapping(("position",)))
    assert value == 1200
    assert told.startswith("1,200 impressions in slates of several items have no position; log the place of each item")
    assert told.endswith(", or name its column with --map position=COLUMN.")
    rows = shop()
    for row in rows[20:27]:
        row["place"] = None
    value, told = of_one_kind(log, "no positions", rows)
    assert value == 7
    assert told == "7 impressions in slates of several items have no place (position); log the place of each item, " + (
        "counted from 0."
    )


def test_pages_whose_items_all_have_one_position(log: Path) -> None:
    def rows(pages: int) -> list[Row]:
        names = [row["page"] for row in shop() if row["place"] == 0][:pages]
        return [row | {"place": 0 if row["page"] in names else row["place"]} for row in shop()]

    value, told = of_one_kind(log, "one position", rows(120))
    assert value == 120
    assert told.startswith("in 120 of 240 slates all items have the same place (position); log the place of each item")
    assert warned(log, rows(119)) == {}


def clicked_by_place(*taps: int) -> list[Row]:
    """So many taps at each place, spread over the pages."""
    rows = shop()
    for place, count in enumerate(taps):
        here = [row for row in rows if row["place"] == place]
        for number, row in enumerate(here):
            row["event"] = "tap" if number * count % len(here) < count else "view"
    assert [sum(row["event"] == "tap" and row["place"] == place for row in rows) for place in range(5)] == list(taps)
    return rows


def test_all_clicks_at_one_place(log: Path) -> None:
    value, told = of_one_kind(log, "one clicked position", clicked_by_place(0, 190, 10, 0, 0))
    assert value == pytest.approx(0.95)
    assert told.startswith("95 % of the positive responses in long slates are at place (position) 1; log which item")
    assert warned(log, clicked_by_place(0, 189, 11, 0, 0)) == {}


def test_places_that_do_not_matter(log: Path) -> None:
    rows = clicked_by_place(120, 120, 120, 120, 120)
    value, told = of_one_kind(log, "positions without meaning", rows)
    assert value == pytest.approx(1)
    assert told.startswith(
        "the rate of positive responses does not depend on place (position) (p = 1.00), as if places"
    )
    assert warned(log, clicked_by_place(180, 150, 120, 90, 60)) == {}
    assert warned(log, clicked_by_place(99, 99, 99, 99, 99)) == {}  # too few to tell


# ---- propensities


def test_no_propensities(log: Path) -> None:
    value, told = of_one_kind(log, "no propensities", shop(), mapping(("propensity",)))
    assert value == 0
    assert told.startswith(
        "none of 1,200 impressions has a propensity, without which no new policy can be judged by it"
    )
    assert told.endswith("each item was shown, or name its column with --map propensity=COLUMN.")


def test_propensities_with_gaps(log: Path) -> None:
    rows = shop()
    for row in rows[100:107]:
        row["prob"] = None
    value, told = of_one_kind(log, "missing propensities", rows)
    assert value == 7
    assert told.startswith(
        "7 of 1,200 impressions have no prob (propensity), and by a log with gaps no policy is judged"
    )


def test_propensities_that_are_all_one(log: Path) -> None:
    rows = [row | {"prob": 1.0} for row in shop()]
    value, told = of_one_kind(log, "certain propensities", rows)
    assert value == 1200
    assert told.startswith(
        "all 1,200 propensities are 1, as if each of the 25 items had no other in its place; log the"
    )
    assert told.endswith(" in prob (propensity).")
    rows[5]["prob"] = 0.5
    assert warned(log, rows) == {}


def test_the_probability_of_the_whole_page(log: Path) -> None:
    whole = 1 / (25 * 24 * 23 * 22 * 21)
    value, told = of_one_kind(log, "small propensities", [row | {"prob": whole} for row in shop()])
    assert value == pytest.approx(25 * 24 * 23 * 22 * 21, rel=1e-6)
    assert told.startswith(
        "1 / prob (propensity) is 6,375,600 on average, which with 25 items can hardly be above 25; "
    )
    assert warned(log, [row | {"prob": 1 / 49} for row in shop()]) == {}


def test_an_item_shown_more_often_than_its_propensity_says(log: Path) -> None:
    """A twenty-fifth is logged for every item, but one of them is on top of most pages."""

    def rows(pages: int) -> list[Row]:
        table = [row | {"prob": 0.04} for row in shop()]
        tops = [row for row in table if row["place"] == 0]
        for row in table:
            row["sku"] = "k25" if row["sku"] == "k00" else row["sku"]
        for row in tops[:pages]:
            row["sku"] = "k00"
        return [row | {"dept": f"d{int(row['sku'][1:]) % 5}"} for row in table]

    value, told = of_one_kind(log, "overshown item", rows(205))
    assert value == pytest.approx(205 / 1200)
    assert told.startswith("item 'k00' makes 17.1 % of the impressions, where its prob (propensity) is 0.04; log the ")
    assert warned(log, rows(195)) == {}


def test_propensities_that_contradict_what_is_shown_first(log: Path) -> None:
    """A hundred and twenty visits, 24 a day, each of which begins with another item."""

    def rows(chance: float) -> list[Row]:
        table = shop(visits=120)
        for row in table:
            visit = int(row["visit"][1:])
            row["ts"] += 16 * HOUR  # from midnight on
            if row["page"].endswith("-0") and row["place"] == 0:
                row |= {"sku": f"k{visit % 24:02}", "dept": f"d{visit % 24 % 5}", "prob": chance}
        pages: dict[tuple[str, str], Row] = {}
        for row in table:
            pages.setdefault((row["page"], row["sku"]), row)
        return list(pages.values())

    value, told = of_one_kind(log, "large propensities", rows(0.5))
    assert value == pytest.approx(2)
    assert told.startswith(
        "1 / prob (propensity) is 2.0 on average where sessions begin, as if so many items could stand in the first "
        "place, but 24 did on the same day; log each item's probability "
    )
    assert warned(log, rows(0.08)) == {}  # 1 / 0.08 is more than half of 24
    counted = [row | {"nth": int(row["page"].split("-")[1])} for row in rows(0.5)]
    _, told = of_one_kind(log, "large propensities", counted, mapping(("time",), step="nth"))
    assert "but 24 did in sessions nearby; " in told


# ---- clocks


def test_a_clock_that_stands(log: Path) -> None:
    rows = [row | {"ts": BEGAN} for row in shop()]
    value, told = of_one_kind(log, "clock stands", rows)
    assert value == 60
    assert told.startswith("all rows of 60 sessions have the same time in ts (timestamp), so nothing comes before any")
    assert told.endswith("(--map time=COLUMN).")
    copied = [row | {"ts": BEGAN + number // 30} for number, row in enumerate(rows)]  # thirty rows a second
    value, told = of_one_kind(log, "clock stands", copied)
    assert told.startswith("all rows of 60 sessions have times within 39 seconds in ts (timestamp), so nothing comes")
    copied[-1]["ts"] += 60
    assert "clock stands" not in warned(log, copied)


def test_a_clock_that_runs_ahead(csv: Path) -> None:
    def rows(days: float) -> list[Row]:
        table = shop()
        table[-1]["ts"] = int(time.time() + days * 86_400)
        return table

    value, told = of_one_kind(csv, "clock ahead", rows(3))
    assert value == pytest.approx(3, abs=0.01)
    assert told.startswith("the last row is 3 days in the future by ts (timestamp); mend the clock, or name its unit ")
    assert warned(csv, rows(0.5)) == {}


def test_units_of_time(log: Path) -> None:
    def rows(visits: int) -> list[Row]:
        """Milliseconds, but for the last visits."""
        return [row | {"ts": row["ts"] * (1 if int(row["visit"][1:]) >= VISITS - visits else 1000)} for row in shop()]

    value, told = of_one_kind(log, "clock units", rows(2), "", "--time-unit", "ms")
    assert value == 2
    assert told == "2 of 60 sessions begin before 1980; ts (timestamp) mixes units, or clocks: use one."
    value, told = of_one_kind(log, "clock units", rows(60), "", "--time-unit", "ms")
    assert value == 60
    assert told == "60 of 60 sessions begin before 1980; name the unit of ts (timestamp) with --time-unit."
    assert warned(log, rows(0), "", "--time-unit", "ms") == {}


def test_visits_years_apart_from_all_others(csv: Path) -> None:
    def rows(days: int) -> list[Row]:
        """The first of a hundred visits, as of a clock that was set back."""
        table = shop(visits=100)
        return [row | {"ts": row["ts"] - days * 86_400 * (row["visit"] == "v0")} for row in table]

    value, told = of_one_kind(csv, "lone sessions", rows(370))
    assert value == 1
    assert told.startswith("1 of 100 sessions begin a year or more apart from all others; mend the clock of ts (times")
    assert warned(csv, rows(300)) == {}


def test_times_that_are_whole_days(log: Path) -> None:
    def rows(form: str) -> list[Row]:
        return [row | {"ts": datetime.fromtimestamp(row["ts"], UTC).strftime(form)} for row in shop()]

    value, told = of_one_kind(log, "order not told", rows("%Y-%m-%d"))
    assert value == pytest.approx(1)
    assert told == (
        "100 % of the slates that follow another have its ts (timestamp) (all times are whole days), so the order of "
        "rows in the file decides what came first; log finer times, or name a column that counts with --map "
        "step=COLUMN."
    )
    assert warned(log, rows("%Y-%m-%d %H:%M:%S")) == {}
    began = [row | {"ts": BEGAN + HOUR * int(row["visit"][1:])} for row in shop()]  # the session's time in each row
    value, told = of_one_kind(log, "order not told", began)
    assert "whole days" not in told
    counted = [row | {"nth": int(row["page"].split("-")[1])} for row in began]
    assert warned(log, counted, mapping(("time",), step="nth")) == {}


def test_a_folder_whose_days_stand_in_another_order(tmp_path: Path) -> None:
    """Visits are put in the order of time, and one that goes on in an earlier file is refused."""
    folder = tmp_path / "days"
    folder.mkdir()
    rows = shop()
    write(folder / "1.csv", rows[600:])
    write(folder / "2.csv", rows[:600])
    given = ("check", folder, "--map", mapping(), "--responses", RULED)
    found = result(*given)
    assert found["warnings"] == []
    assert found["days"]["first"] == "2024-03-01T08:00:00"
    write(folder / "1.csv", rows[590:])
    write(folder / "2.csv", rows[:590])
    refused = run(*given)
    assert refused.returncode == 2
    assert f"Error: {folder}, column ts (timestamp): found item" in refused.stderr
    assert result(*given, "--sort")["warnings"] == []


# ---- prepare


def prepared(file: Path, rows: list[Row], out: Path, *more: object) -> dict[str, dict[str, Any]]:
    write(file, rows)
    given = ("prepare", file, "--map", mapping(), "--responses", RULED, "--out", out, "--force", *more)
    found = {one["kind"]: one for one in result(*given)["warnings"]}
    told = " ".join(works(*given).stderr.split())
    assert all(f"Warning: {one['message']}" in told for one in found.values())
    return found


def test_test_items_that_are_unknown(log: Path, tmp_path: Path) -> None:
    def rows(*places: int) -> list[Row]:
        """The third day, from visit 40 on, shows other items in these places."""
        table = shop()
        for row in table:
            if int(row["visit"][1:]) >= 40 and row["place"] in places:
                row |= {"sku": f"n{row['place']}", "dept": "new"}
        return table

    by_day = ("--split", "time", "--periods", "train=2,test=2", "--validation", 0)
    (found,) = prepared(log, rows(0, 4), tmp_path / "data", *by_day).values()
    assert (found["kind"], found["value"]) == ("unknown items", pytest.approx(2 / 5))
    assert found["message"].startswith("40 % of the test and validation impressions are of items that were never shown")
    assert prepared(log, rows(4), tmp_path / "data", *by_day) == {}


def test_more_tags_than_models_look_at(csv: Path, tmp_path: Path) -> None:
    def rows(tags: int) -> list[Row]:
        """Three items have so many categories, which all of them share."""
        many = "|".join(f"t{number}" for number in range(tags))
        return [row | {"dept": many if row["sku"] in ("k01", "k02", "k03") else "t0"} for row in shop()]

    given = ("--set", "category_separator=|")
    (found,) = prepared(csv, rows(18), tmp_path / "data", *given).values()
    assert (found["kind"], found["value"]) == ("many tags", 6)  # two of each
    assert found["message"].startswith(
        "Column dept (category): 3 items have more than 16 values that others have, too;"
    )
    assert prepared(csv, rows(16), tmp_path / "data", *given) == {}


def test_days_that_are_added_in_another_order(tmp_path: Path) -> None:
    days = [shop()[:600], shop()[600:]]

    def added(first: int) -> list[dict[str, Any]]:
        for number, day in enumerate(days):
            write(tmp_path / f"{number}.csv", day)
        given, data = ("--map", mapping(), "--responses", RULED), tmp_path / f"data{first}"
        works("prepare", tmp_path / f"{first}.csv", *given, "--split", "hash", "--out", data)
        found: list[dict[str, Any]] = result("prepare", tmp_path / f"{1 - first}.csv", *given, "--append", data)[
            "warnings"
        ]
        return found

    assert added(0) == []
    (found,) = added(1)
    assert (found["kind"], found["value"]) == ("late sessions", 0.5)
    assert found["message"].startswith(
        "30 of 60 sessions begin before others that were there when they were added and "
    )


# ---- logs that are good


def own_columns(file: Path, out: Path) -> Path:
    """A simulated log as somebody else would have it."""
    names = {"session_id": "visit", "timestamp": "ts", "step": "nth", "request_id": "page", "position": "place"}
    names |= {"item_id": "sku", "category": "dept", "propensity": "prob", "response": "event", "organic": "own"}
    frame = pl.read_csv(file)
    answers = pl.col("response").replace({"skip": "view", "click": "tap", "buy": "order"})
    frame.with_columns(answers).rename({name: own for name, own in names.items() if name in frame.columns}).write_csv(
        out
    )
    return out


@pytest.mark.parametrize(
    "world",
    [
        ("--env", "shop", "--preset", "pages-biased", "--users", 2000),
        ("--env", "shop", "--preset", "single", "--days", 12),
        ("--env", "recsim", "--preset", "single", "--users", 300),
        ("--env", "recsim", "--policy", "popular", "--epsilon", 0.1, "--users", 150),
        ("--env", "recsim", "--policy", "stan", "--temperature", 0.1, "--users", 150),
    ],
    ids=["pages of a shop", "days of a shop", "feed", "popular items", "softmax"],
)
def test_simulated_logs_are_good(tmp_path: Path, world: tuple[object, ...]) -> None:
    works("simulate", *world, "--seed", 1, "--logs", tmp_path / "log.csv")
    file = own_columns(tmp_path / "log.csv", tmp_path / "own.csv")
    header = file.open().readline().strip().split(",")
    roles = ROLES | {"step": "nth", "organic": "own"}
    columns = ",".join(f"{role}={own}" for role, own in roles.items() if own in header)
    assert result("check", file, "--map", columns, "--responses", "view=skip,tap=click,order=buy")["warnings"] == []


def drawn(
    path: Path, decide: Callable[[np.random.Generator, int], tuple[int, float]], sessions: int, steps: int
) -> list[str]:
    """Kinds of warnings of a feed whose logger draws items and says with which probability, session by session."""
    rng, rows = np.random.default_rng(11), []
    for visit in range(sessions):
        for step in range(steps):
            item, chance = decide(rng, visit)
            row = {"visit": visit, "ts": MIDNIGHT + 600 * visit + 20 * step, "sku": item, "prob": chance}
            rows.append(row | {"event": "tap" if rng.random() < 0.2 else "view"})
    return list(warned(path, rows, mapping(("slate", "position", "category", "user"))))


def test_loggers_that_are_right(tmp_path: Path) -> None:
    """Random ones, those that explore a little, and those whose items change from day to day."""
    path = tmp_path / "feed.parquet"

    def uniform(rng: np.random.Generator, visit: int) -> tuple[int, float]:
        return int(rng.integers(40)), 1 / 40

    def explores(rng: np.random.Generator, visit: int) -> tuple[int, float]:
        """One item of 40 nearly always."""
        item = int(rng.integers(40)) if rng.random() < 0.05 else 0
        return item, 0.05 / 40 + 0.95 * (item == 0)

    def rarely(rng: np.random.Generator, visit: int) -> tuple[int, float]:
        """Forty items, and in one of fifty times one of a million."""
        if rng.random() < 0.02:
            return 1000 + int(rng.integers(1_000_000)), 0.02 / 1_000_000
        return int(rng.integers(40)), 0.98 / 40

    def of_the_day(rng: np.random.Generator, visit: int) -> tuple[int, float]:
        """Twenty items, all others tomorrow."""
        return int(rng.integers(20)) + 20 * (visit // 144), 1 / 20

    def of_the_person(rng: np.random.Generator, visit: int) -> tuple[int, float]:
        """Each has another favourite, and sometimes anything."""
        favourite = visit % 40
        item = int(rng.integers(40)) if rng.random() < 0.3 else favourite
        return item, 0.3 / 40 + 0.7 * (item == favourite)

    assert drawn(path, uniform, 300, 5) == []
    assert drawn(path, explores, 300, 5) == ["item everywhere"]
    assert drawn(path, rarely, 300, 5) == []
    assert drawn(path, of_the_day, 600, 3) == []
    assert drawn(path, of_the_person, 300, 5) == []


def test_a_few_of_a_million_items(tmp_path: Path) -> None:
    """Shown with one in a million, as they were drawn: a short log, with propensities that are right."""
    found = drawn(tmp_path / "feed.parquet", lambda rng, visit: (int(rng.integers(1_000_000)), 1e-6), 300, 5)
    assert found == ["items shown once", "new items"]


# ---- start


def test_the_page_of_start_tells_them(tmp_path: Path) -> None:
    """All that is wrong with one file, in the words of its own columns."""
    rows = [row | {"place": None if row["page"].endswith("-3") else row["place"]} for row in shop()]
    for row in rows[:7]:
        row["prob"] = None
    rows = [row | {"who": "unknown"} if int(row["visit"][1:]) < 14 else row for row in rows]
    bot = [row | {"visit": "bot", "who": "bot", "page": f"b{row['page']}", "prob": 0.04} for row in shop()[:500]]
    file, out = write(tmp_path / "shop.csv", [*rows, *bot]), tmp_path / "out"
    with mock.patch("bcd4rec.commands._stages.AGENT", "ctr"):
        told = result("start", file, "--yes", "--out", out)
    kinds = [one["kind"] for one in told["check"]["warnings"]]
    assert kinds == ["one session", "no positions", "missing propensities"]
    page = Structure((out / "start.html").read_text()).text
    for one in told["check"]["warnings"]:
        assert one["message"] in page
    assert "300 impressions in slates of several items have no place (position)" in page
    assert "7 of 1,700 impressions have no prob (propensity)" in page
    assert "one of 61 sessions, 'bot', has 29 % of the impressions" in page
    assert "visit (session_id)" in page


def test_the_page_of_a_thin_log_tells_them(tmp_path: Path) -> None:
    """JSON lines of a page each, dates without times, three sessions."""
    pages: dict[str, Row] = {}
    for row in shop():
        day = datetime.fromtimestamp(row["ts"], UTC).strftime("%Y-%m-%d")
        page = {"visit": f"v{int(row['visit'][1:]) % 3}", "page": row["page"], "date": day, "shown": [], "clicked": []}
        found = pages.setdefault(row["page"], page)
        found["shown"].append(row["sku"])
        found["clicked"] += [row["sku"]] if row["event"] == "tap" and len(pages) % 4 == 0 else []
    file, out = write(tmp_path / "pages.jsonl", list(pages.values())), tmp_path / "out"
    with mock.patch("bcd4rec.commands._stages.AGENT", "ctr"):
        told = result("start", file, "--yes", "--out", out)
    found = {one["kind"]: one["message"] for one in told["check"]["warnings"]}
    assert list(found) == ["few sessions", "few positives", "no propensities", "order not told"]
    text = Structure((out / "start.html").read_text()).text
    assert all(message in text for message in found.values())
    assert "the log has 3 sessions; check that visit (session_id) tells visits apart" in text
    assert "count more values of clicked (response) as positive" in text
    assert "have its date (timestamp) (all times are whole days)" in text


# ---- all of them


def test_every_warning_has_a_file_here() -> None:
    mine = Path(__file__).read_text(encoding="utf-8")
    sources = [Path(module.__file__ or "").read_text(encoding="utf-8") for module in MODULES]
    kinds = [kind for source in sources for kind in re.findall(r'Warned\(\s*"([^"]+)"', source)]
    assert len(kinds) == len(RULES) + 3  # of `prepare`: unknown items, many tags, late sessions
    assert [kind for kind in kinds if f'"{kind}"' not in mine] == []
