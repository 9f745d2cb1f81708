"""Readers: what is written in a raw format is read back unchanged; options do what they say."""

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from bcd4rec.data.checking import check
from bcd4rec.data.readers import _lists
from bcd4rec.data.readers.reader import READERS, Reading
from bcd4rec.data.schema import BadLog, Log
from bcd4rec.errors import InputError
from raw_logs import (
    Query,
    Session,
    diginetica_organic,
    diginetica_rows,
    diginetica_sessions,
    diginetica_truth,
    trivago_cities,
    trivago_events,
    trivago_truth,
    write_diginetica,
)

QUICK = settings(max_examples=25, deadline=None)
VIEWS = [
    "views of items that the session had clicked in a query",
    "views of items that a query had shown and nobody clicked",
    "views of items that the session had viewed before",
]
COLUMNS = ["session_id", "timestamp", "item_id", "response", "request_id", "position", "category"]


def read(name: str, raw: Path, **options: Any) -> tuple[pl.DataFrame, Reading]:
    """The canonical log, which `check` finds good, and the counts."""
    with tempfile.TemporaryDirectory() as spool:
        out = Path(spool) / "log.parquet"
        reading = READERS[name].parse(options, f"--format {name}").read(raw, out, Path(spool))
        assert check(Log(out)).problems == []
        return pl.read_parquet(out), reading


def rows(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    """The impressions."""
    frame = frame.filter(~pl.col("organic"))
    return sorted(frame.with_columns(pl.col("timestamp").cast(pl.Int64)).select(COLUMNS).rows(), key=str)


# ---- diginetica


@QUICK
@given(diginetica_sessions(), st.sampled_from([None, 1, 2]), st.sampled_from([1, 1_000_000]))
def test_diginetica_is_read_back_unchanged(sessions: list[Session], shuffle: int | None, chunk: int) -> None:
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(_lists, "CHUNK_ROWS", chunk):
        raw = write_diginetica(Path(folder) / "raw", diginetica_rows(sessions), shuffle)
        frame, reading = read("diginetica", raw, cut="none")
        truth = diginetica_truth(sessions)
        assert rows(frame) == sorted(truth, key=str)
        assert set(reading.dropped) <= set(VIEWS)
        assert reading.kept["impressions"] == len(truth) == reading.read["impressions"]
        assert reading.kept["sessions"] == len(sessions)
        assert reading.kept["organic"] == frame.height - len(truth)
        assert reading.kept["organic"] + sum(reading.dropped.values()) == reading.read["views"]
        in_order = frame.sort("session_id", "timestamp", "position", maintain_order=True)
        assert frame.sort("session_id", maintain_order=True).equals(in_order)


@QUICK
@given(diginetica_sessions(), st.sampled_from(["last_touched", "1", "3"]))
def test_cuts(sessions: list[Session], cut: str) -> None:
    truth, everything = diginetica_truth(sessions, cut), diginetica_truth(sessions)
    assume(truth)
    with tempfile.TemporaryDirectory() as folder:
        frame, reading = read("diginetica", write_diginetica(Path(folder), diginetica_rows(sessions)), cut=cut)
    assert rows(frame) == sorted(truth, key=str)
    assert reading.dropped.get("impressions below the cut, or in such lists", 0) == len(everything) - len(truth)
    lists = {row[4] for row in everything} - {row[4] for row in truth}
    assert reading.dropped.get("lists without a touched item", 0) == len(lists)
    assert organic(frame) == sorted(diginetica_organic(sessions, {row[0] for row in truth}))
    told = sum(reading.dropped.get(why, 0) for why in [*VIEWS, "views in sessions without an impression"])
    assert reading.kept["organic"] + told == reading.read["views"]


@QUICK
@given(diginetica_sessions(), st.sampled_from([1, 1_000_000]))
def test_what_no_query_had_shown_is_organic(sessions: list[Session], chunk: int) -> None:
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(_lists, "CHUNK_ROWS", chunk):
        raw = write_diginetica(Path(folder) / "raw", diginetica_rows(sessions))
        frame, _ = read("diginetica", raw, cut="none")
        assert organic(frame) == sorted(diginetica_organic(sessions, {one.session for one in sessions}))
        nobody = frame.filter("organic")
        assert set(nobody["response"]) <= {"click"}
        assert nobody.select("request_id", "position").null_count().row(0) == (nobody.height,) * 2
        without, reading = read("diginetica", raw, cut="none", organic=False)
        columns = [name for name in frame.columns if name != "timestamp"]  # a view may tell an earlier first day
        shown = frame.filter(~pl.col("organic")).select(columns).sort("request_id", "position")
        assert without.select(columns).sort("request_id", "position").equals(shown)
        assert "views" not in reading.read
        assert reading.kept["organic"] == 0


def test_views_are_told_apart(tmp_path: Path) -> None:
    """5 is found before a query shows it; 6 is clicked; 7 is shown and not clicked; 4 is never shown; 8 too late."""
    session = Session(1, 0, [Query(1, 100, {5: "skip", 6: "click", 7: "skip"})])
    session.views = [(5, 99), (5, 100), (6, 100), (6, 900), (7, 101), (4, 50), (4, 50), (4, 200), (6, 99)]
    other = Session(2, 0, [Query(2, 10, {8: "skip"})], [(8, 3), (9, 4)])
    lines = diginetica_rows([session, other])
    lines["train-item-views.csv"].append("3;NA;5;1;2016-01-01")
    frame, reading = read("diginetica", write_diginetica(tmp_path, lines))
    assert [row[1:] for row in organic(frame)] == [
        (1_451_606_400_050_000, 4),
        (1_451_606_400_099_000, 5),
        (1_451_606_400_099_000, 6),
    ]
    assert frame["organic"].to_list() == [True, True, True, False, False]  # in the order of time
    assert reading.read["views"] == 13
    assert reading.kept["organic"] == 3
    assert {why: count for why, count in reading.dropped.items() if why.startswith("views")} == {
        "views in sessions without an impression": 3,
        "views of items that the session had clicked in a query": 3,
        "views of items that a query had shown and nobody clicked": 2,
        "views of items that the session had viewed before": 2,
    }


def test_rare_items_leave_no_session_of_organic_events_alone(tmp_path: Path) -> None:
    first = Session(1, 0, [Query(1, 100, {5: "click", 6: "skip"})], [(7, 5), (8, 6)])
    second = Session(2, 0, [Query(2, 100, {5: "click"}), Query(3, 200, {7: "click", 8: "skip"})], [(9, 5)])
    third = Session(3, 0, [Query(4, 100, {7: "click"})], [(5, 5)])
    fourth = Session(4, 0, [Query(5, 100, {4: "click"})], [(5, 5)])
    raw = write_diginetica(tmp_path, diginetica_rows([first, second, third, fourth]))
    frame, reading = read("diginetica", raw, cut="none", min_support=2)
    assert [row[::2] for row in organic(frame)] == [(1, 7), (3, 5)]
    assert reading.kept == {
        "sessions": 3,
        "impressions": 4,
        "organic": 2,
        "skip": 0,
        "click": 4,
        "buy": 0,
        "items": 2,
    }
    assert reading.dropped == {
        "views of items that the session had clicked in a query": 5,
        "items with too few impressions": 4,
        "impressions of such items alone": 3,
        "sessions of such items alone": 1,
        "organic events of such items or sessions": 3,
    }


def organic(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    found = frame.filter("organic").with_columns(pl.col("timestamp").cast(pl.Int64))
    return sorted(found.select("session_id", "timestamp", "item_id").rows())


def two_sessions() -> list[Session]:
    first = [Query(1, 10, {5: "skip", 6: "click", 7: "skip"}), Query(2, 500, {6: "buy", 5: "skip"})]
    return [Session(1, 0, first), Session(2, 86_400_000, [Query(3, 10, {8: "skip", 9: "skip"})])]


def by_query(frame: pl.DataFrame) -> dict[tuple[int, int], str]:
    return {(row[4], row[2]): row[3] for row in rows(frame)}


def test_which_impression_is_the_buy(tmp_path: Path) -> None:
    """Item 6 was clicked in query 1, shown again in query 2 and bought after both."""
    lines = diginetica_rows(two_sessions())
    raw = write_diginetica(tmp_path, lines)
    every = by_query(read("diginetica", raw, cut="none", purchase="every")[0])
    assert (every[1, 6], every[2, 6]) == ("buy", "buy")
    once = by_query(read("diginetica", raw, cut="none")[0])
    assert (once[1, 6], once[2, 6]) == ("click", "buy")
    lines["train-clicks.csv"] = ["1;10;6"]
    once = by_query(read("diginetica", write_diginetica(tmp_path, lines), cut="none")[0])
    assert (once[1, 6], once[2, 6]) == ("buy", "skip")  # the last that was clicked
    lines["train-clicks.csv"] = ["3;10;8"]
    once = by_query(read("diginetica", write_diginetica(tmp_path, lines), cut="none")[0])
    assert (once[1, 6], once[2, 6]) == ("skip", "buy")  # none was clicked: the last that was shown
    lines["train-purchases.csv"] = ["1;NA;499;2016-01-01;1;6"]
    once = by_query(read("diginetica", write_diginetica(tmp_path, lines), cut="none")[0])
    assert (once[1, 6], once[2, 6]) == ("buy", "skip")  # bought before it was shown again


def test_a_session_across_midnight_stays_in_order(tmp_path: Path) -> None:
    """It began at 23:59:59: the second query has another eventdate, and is two seconds later all the same."""
    session = Session(1, 86_399_000, [Query(1, 0, {5: "click"}), Query(2, 2000, {6: "skip", 7: "click"})])
    assert session.day(0) != session.day(2000)
    frame, _ = read("diginetica", write_diginetica(tmp_path, diginetica_rows([session])))
    assert rows(frame) == sorted(diginetica_truth([session]), key=str)
    assert frame["timestamp"].dt.to_string("%d %H:%M:%S").to_list() == ["01 00:00:00", "01 00:00:02", "01 00:00:02"]


def test_options_of_diginetica(tmp_path: Path) -> None:
    lines = diginetica_rows(two_sessions())
    raw = write_diginetica(tmp_path, lines)
    assert read("diginetica", raw, cut="none", sessions="positive")[1].dropped == {
        "sessions without a positive response": 1,
        VIEWS[0]: 2,
    }
    bought, reading = read("diginetica", raw, cut="none", sessions="bought", min_support=2)
    assert set(bought["item_id"]) == {5, 6}
    assert reading.dropped == {
        VIEWS[0]: 2,
        "sessions without a purchase": 1,
        "items with too few impressions": 1,
        "impressions of such items alone": 1,
    }
    assert reading.kept == {
        "sessions": 1,
        "impressions": 4,
        "organic": 0,
        "skip": 2,
        "click": 1,
        "buy": 1,
        "items": 2,
    }
    lines["train-queries.csv"][2] = lines["train-queries.csv"][2].replace("FALSE", "TRUE")
    raw = write_diginetica(tmp_path, lines)
    assert read("diginetica", raw, cut="none")[1].dropped == {
        "test queries, whose outcome is withheld": 1,
        VIEWS[0]: 2,
    }
    assert read("diginetica", raw, cut="none", test_queries="keep")[1].dropped == {VIEWS[0]: 2}


@pytest.mark.parametrize("header", ["sessionId;userId;itemId", "session_id;user_id;item_id"])
@pytest.mark.parametrize("name", ["train-item-views.csv", "sample_train-item-views.csv"])
def test_views_without_queries(tmp_path: Path, header: str, name: str) -> None:
    write_diginetica(tmp_path, diginetica_rows(two_sessions()))
    for file in ("train-queries.csv", "train-clicks.csv", "train-item-views.csv"):
        (tmp_path / file).unlink()
    views = "2;7;5;90;2016-03-02\n1;NA;6;700;2016-03-01\n1;NA;4;20;2016-03-01\n1;NA;4;20;2016-03-01\n"
    (tmp_path / name).write_text(f"{header};timeframe;eventdate\n{views}")
    (tmp_path / "train-purchases.csv").write_text(
        "sessionId;userId;timeframe;eventdate;ordernumber;itemId\n1;NA;800;2016-03-01;1;6\n"
    )
    frame, reading = read("diginetica", tmp_path, source="views")
    assert frame.select("session_id", "item_id", "response").rows() == [(1, 4, "click"), (1, 6, "buy"), (2, 5, "click")]
    assert frame["timestamp"].dt.to_string("%m-%d %H:%M:%S%.3f").to_list() == [
        "03-01 00:00:00.020",
        "03-01 00:00:00.700",
        "03-02 00:00:00.090",
    ]
    assert reading.dropped == {"views of the same item at the same time again": 1}


# ---- trivago


@QUICK
@given(trivago_events(), st.sampled_from(["csv", "parquet"]), st.sampled_from([1, 1_000_000]), st.randoms())
def test_trivago_is_read_back(events: list[dict[str, Any]], suffix: str, chunk: int, rng: Any) -> None:
    truth = trivago_truth(events)
    assume(truth)
    shuffled = rng.sample(events, len(events))
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(_lists, "CHUNK_ROWS", chunk):
        raw = Path(folder) / f"train.{suffix}"
        frame = pl.DataFrame(shuffled, schema_overrides={"current_filters": pl.String, "impressions": pl.String})
        frame.write_csv(raw) if suffix == "csv" else frame.write_parquet(raw)
        found, reading = read("trivago", Path(folder))
    seconds = pl.col("timestamp").cast(pl.Int64) // 1_000_000
    columns = found.select("session_id", seconds, "item_id", "response", "position")
    assert sorted(columns.rows()) == sorted(truth)
    assert reading.read["events"] == len(events)
    assert reading.kept["buy"] == reading.read["clickouts"] == found.n_unique(["session_id", "request_id"])
    assert dict(found.select("item_id", "category").unique().rows()) == trivago_cities(events)
    assert found.select("item_id", "category").n_unique() == found["item_id"].n_unique()


def test_faults_of_trivago_are_counted(tmp_path: Path) -> None:
    columns = ["session_id", "timestamp", "step", "action_type", "reference", "impressions"]
    events = [
        ("a", 100, 1, "interaction item image", "unknown", None),
        ("a", 110, 2, "clickout item", "7", "3|7"),
        ("a", 120, 3, "clickout item", None, "3|7"),
        ("a", 130, 4, "clickout item", "9", "3|7"),
        ("a", 140, 5, "clickout item", "3", None),
        ("b", 100, 1, "search for poi", "Lake", None),
    ]
    pl.DataFrame(events, schema=columns, orient="row").write_parquet(tmp_path / "events.parquet")
    frame, reading = read("trivago", tmp_path / "events.parquet")
    assert frame.select("item_id", "response").rows() == [(3, "skip"), (7, "buy"), (3, "skip"), (7, "click")]
    assert reading.dropped == {
        "sessions without a clickout": 1,
        "clickouts without a reference, whose outcome is withheld": 1,
        "clickouts without a list": 1,
        "interactions with an unknown item": 1,
        "conversions of items outside the list": 1,
    }


# ---- sequences

INTEGERS = st.lists(st.lists(st.integers(-3, 10**12), max_size=5), min_size=1, max_size=5)
WORDS = st.lists(st.lists(st.text("abcdé-", min_size=1, max_size=4), max_size=5), min_size=1, max_size=5)


@QUICK
@given(INTEGERS | WORDS, st.sampled_from([" ", ",", ";", "\t", ", ", None]))
@example([["a", "b"], [], ["b"]], None)
def test_sequences_are_read_back(sessions: list[list[Any]], separator: str | None) -> None:
    assume(any(sessions))
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / ("sessions.txt" if separator else "sessions.parquet")
        if separator:
            raw.write_text("".join(separator.join(map(str, items)) + "\n" for items in sessions), encoding="utf-8")
        else:
            pl.DataFrame({"items": sessions}).write_parquet(raw)
        frame, reading = read("sequences", raw)
    truth = [
        (session, step, item, "click") for session, items in enumerate(sessions, 1) for step, item in enumerate(items)
    ]
    assert frame.select("session_id", "step", "item_id", "response").rows() == truth
    assert reading.read["items"] == reading.kept["impressions"] == len(truth)
    assert reading.dropped.get("sessions with fewer than 1 items", 0) == sessions.count([])


def test_options_of_sequences(tmp_path: Path) -> None:
    raw = tmp_path / "s.parquet"
    pl.DataFrame({"viewed": [[1, None, 2], [3], None]}).write_parquet(raw)
    frame, reading = read("sequences", raw, column="viewed", min_length=2)
    assert frame["item_id"].to_list() == [1, 2]
    assert reading.dropped == {"items that are null": 1, "sessions with fewer than 2 items": 2}
    with pytest.raises(InputError, match="has no column 'items' but viewed; "):
        read("sequences", raw)


# ---- csv and parquet

NAMES = {
    "session": "visit id",
    "item": "sku",
    "response": "event",
    "time": "ts",
    "slate": "page",
    "position": "place",
    "category": "department",
    "propensity": "p",
}
VALUES = {"view": "skip", "press": "click", "wish": "click", "order": "buy"}


@st.composite
def impressions(draw: st.DrawFn) -> list[dict[str, Any]]:
    table = []
    strings = draw(st.booleans())
    for session in range(draw(st.integers(1, 3))):
        for page in range(draw(st.integers(1, 3))):
            for place in range(draw(st.integers(1, 3))):
                item = draw(st.integers(0, 8))
                table.append(
                    {
                        "session": f"v{session}" if strings else session,
                        "item": f'item "{item}"; a,b|' if strings else item,
                        "response": draw(st.sampled_from(sorted(VALUES))),
                        "time": 1_700_000_000 + 100 * session + 10 * page,
                        "slate": f"{page}",
                        "position": place,
                        "category": draw(st.none()) or f"c{item % 2}",
                        "propensity": draw(st.sampled_from([0.25, 1.0])),
                    }
                )
    return table


@QUICK
@given(impressions(), st.sampled_from([",", ";", "tab", "|"]), st.sampled_from(["csv", "parquet"]), st.randoms())
def test_your_own_columns_are_read_back(table: list[dict[str, Any]], delimiter: str, suffix: str, rng: Any) -> None:
    assert {"skip", "click", "buy"} == set(VALUES.values())
    frame = pl.DataFrame(table).rename(NAMES).with_columns(pl.lit("x").alias("item_id_of_another"))
    frame = frame.select(rng.sample(frame.columns, frame.width))
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / f"mine.{suffix}"
        options: dict[str, Any] = {"map": NAMES, "responses": VALUES}
        if suffix == "csv":
            options["delimiter"] = delimiter
            frame.write_csv(raw, separator="\t" if delimiter == "tab" else delimiter)
        else:
            frame.write_parquet(raw)
        found, reading = read(suffix, raw, **options)
    seconds = pl.col("timestamp").cast(pl.Int64) // 1_000_000
    order = ["session_id", "item_id", "response", seconds, "request_id", "position", "category", "propensity"]
    truth = [tuple((row | {"response": VALUES[row["response"]]}).values()) for row in table]
    assert found.select(order).rows() == truth
    assert reading.to_json() == {
        "read": {"rows": len(table)},
        "kept": {
            "impressions": len(table),
            "sessions": len({row["session"] for row in table}),
            "items": len({row["item"] for row in table}),
        },
        "dropped": {},
        "remarks": [],
    }


def test_rules_can_drop_rows(tmp_path: Path) -> None:
    raw = tmp_path / "mine.csv"
    raw.write_text("v,n,sku,event\n1,1,7,seen\n1,2,8,bot\n1,3,9,bought\n1,4,9,bot\n")
    options = {"map": {"session": "v", "step": "n", "item": "sku", "response": "event"}}
    rules = {"seen": "skip", "bought": "buy", "bot": "drop"}
    frame, reading = read("csv", raw, responses=rules, **options)
    assert frame.select("session_id", "step", "item_id", "response").rows() == [(1, 1, 7, "skip"), (1, 3, 9, "buy")]
    assert reading.dropped == {"rows with the response bot": 2}
    assert reading.read == {"rows": 4}


def test_rules_and_columns_can_say_that_nobody_recommended_it(tmp_path: Path) -> None:
    raw = tmp_path / "mine.csv"
    raw.write_text("v,n,sku,event,own\n1,1,7,seen,0\n1,2,8,read,0\n1,3,9,bought,1\n1,4,9,bot,1\n1,5,6,seen,\n")
    names = {"session": "v", "step": "n", "item": "sku", "response": "event"}
    rules = {"seen": "skip", "bought": "buy", "bot": "drop", "read": "organic:click"}
    frame, reading = read("csv", raw, responses=rules, map=names)
    assert frame.select("item_id", "response", "organic").rows() == [
        (7, "skip", False),
        (8, "click", True),
        (9, "buy", False),
        (6, "skip", False),
    ]
    assert reading.kept == {"impressions": 3, "organic": 1, "sessions": 1, "items": 4}
    assert reading.read == {"rows": 5}
    frame, reading = read("csv", raw, responses=rules, map=names | {"organic": "own"})  # either may say so
    assert frame["organic"].to_list() == [False, True, True, False]
    assert (reading.kept["impressions"], reading.kept["organic"]) == (2, 2)
    with pytest.raises(InputError, match="responses: read=organic names no response; write read=organic:click"):
        read("csv", raw, responses=rules | {"read": "organic"}, map=names)
    raw.write_text("v,n,sku,event,own\n1,1,7,seen,perhaps\n1,2,8,read,perhaps\n")
    with pytest.raises(BadLog, match=r"row 1, column own \(organic\): found 'perhaps', expected true or false"):
        read("csv", raw, responses=rules, map=names | {"organic": "own"})


def test_all_formats_are_registered_by_their_names() -> None:
    assert READERS.names() == ["csv", "diginetica", "jsonl", "parquet", "sequences", "trivago"]
    for name in READERS:
        fields = READERS[name].model_fields
        assert all(field.description for field in fields.values()), name
        assert READERS[name].__doc__
