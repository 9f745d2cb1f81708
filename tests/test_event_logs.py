"""Logs of events: clicks that are rows of their own, columns of yes and no, files by their names, pauses, odd ids."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from bcd4rec.data.readers.reader import READERS, Reading
from test_cli import fails, result

Row = dict[str, Any]
START = 1_700_000_000
RULES = {"impression": "skip", "click": "click", "order": "buy", "read": "organic:click", "bot": "drop"}
NAMES = {"session": "visit", "item": "sku", "time": "ts", "response": "event"}


def read(path: Path, **options: Any) -> tuple[list[Row], Reading]:
    """The canonical rows that the reader of a file's kind makes of it."""
    kind = {".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
    first = path if path.is_file() else sorted(path.iterdir())[0]
    out = path.parent / "canonical.parquet"
    spool = path.parent / "spool"
    spool.mkdir(exist_ok=True)
    reading = READERS[kind[first.suffix]].parse(options, "test").read(path, out, spool)
    return pl.read_parquet(out).to_dicts(), reading


def stream(seed: int, slates: bool) -> list[Row]:
    """Impressions, and clicks, orders and reads that may come much later, of items shown often, once or never."""
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for visit in range(17):
        time = START + 1000 * visit
        for page in range(int(rng.integers(1, 5))):
            for place, item in enumerate(rng.permutation(9)[: rng.integers(1, 6)]):
                rows.append(_row(visit, time, item, "impression", f"p{page}", place))
            for _ in range(int(rng.integers(0, 4))):
                time += int(rng.integers(0, 3))
                event = str(rng.choice(["click", "order", "read", "bot"], p=[0.5, 0.2, 0.2, 0.1]))
                named = f"p{rng.integers(0, page + 1)}" if rng.random() < 0.5 else None
                rows.append(_row(visit, time, int(rng.integers(0, 11)), event, named, None))
            time += int(rng.integers(1, 60))
    return rows if slates else [{name: row[name] for name in row if name not in ("page", "place")} for row in rows]


def _row(visit: int, time: int, item: int, event: str, page: str | None, place: int | None) -> Row:
    return {"visit": f"v{visit}", "ts": time, "sku": f"i{item}", "event": event, "page": page, "place": place}


def attributed(rows: list[Row]) -> tuple[list[Row], int, int]:
    """The same by a loop: rows with their response, how many answers were joined, and how many stand alone."""
    found = [row | {"response": RULES[row["event"]], "rank": -1} for row in rows if row["event"] != "bot"]
    shown = [row for row in found if row["event"] == "impression"]
    joined, alone = [], 0
    for row in found:
        if row["event"] == "impression":
            continue
        mine = [one for one in shown if (one["visit"], one["sku"]) == (row["visit"], row["sku"])]
        same = [one for one in mine if row.get("page") is not None and one.get("page") == row["page"]]
        before = [one for one in mine if one["ts"] <= row["ts"]]
        latest = max((one["ts"] for one in before), default=None)
        target = (same or [one for one in before if one["ts"] == latest])[-1:]
        if not target:
            alone += 1
            row["response"] = RULES[row["event"]].removeprefix("organic:")
            continue
        joined.append(row)
        answer = RULES[row["event"]].removeprefix("organic:")
        if target[0]["response"] != "buy":
            target[0]["response"] = answer
    return [row for row in found if not any(row is one for one in joined)], len(joined), alone


def test_the_loop_knows_answers_in_the_order_of_time() -> None:
    rows = [_row(1, 5, 3, "impression", None, 0), _row(1, 6, 3, "order", None, None), _row(1, 7, 3, "click", None, 0)]
    assert [row["response"] for row in attributed(rows)[0]] == ["buy"]


@pytest.mark.parametrize("slates", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_answers_find_their_impressions_as_a_loop_does(tmp_path: Path, seed: int, slates: bool) -> None:
    rows = stream(seed, slates)
    pl.DataFrame(rows, infer_schema_length=None).write_csv(tmp_path / "log.csv")
    more = {"slate": "page", "position": "place"} if slates else {}
    found, reading = read(tmp_path / "log.csv", map=NAMES | more, responses=RULES, attribution=True)
    expected, joined, alone = attributed(rows)
    assert joined > 5
    assert alone > 5
    assert [(row["session_id"], row["item_id"], row["response"]) for row in found] == [
        (row["visit"], row["sku"], row["response"]) for row in expected
    ]
    assert [row["organic"] for row in found] == [row["event"] != "impression" for row in expected]
    bots = sum(row["event"] == "bot" for row in rows)
    assert reading.dropped == {
        "rows with the response bot": bots,
        "rows that answer an impression, which now has their response": joined,
    }
    assert f"{alone:,} of {joined + alone:,} clicks and purchases" in reading.remarks[0]
    assert reading.read["rows"] == len(rows)
    assert reading.kept["impressions"] + reading.kept["organic"] == len(expected)


@pytest.mark.parametrize("seed", range(3))
def test_repeated_rows_are_one_as_a_loop_says(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ("s", "t", "i", "p", "response")
    rows = [
        {name: int(rng.integers(0, most)) for name, most in zip(names, (2, 3, 4, 2), strict=False)}
        | {"response": str(rng.choice(["skip", "click", "buy"], p=[0.6, 0.3, 0.1]))}
        for _ in range(60)
    ]
    pl.DataFrame(rows).write_csv(tmp_path / "log.csv")
    mapping = {"session": "s", "time": "t", "item": "i", "position": "p"}
    found, reading = read(tmp_path / "log.csv", map=mapping, repeats="merge")
    expected: dict[tuple[int, ...], str] = {}
    for row in rows:
        key = (row["s"], row["t"], row["i"], row["p"])
        before = expected.get(key)
        better = row["response"] != "skip" and before != "buy"
        expected[key] = row["response"] if before is None or better else before
    told = [(row["session_id"], row["timestamp"].second, row["item_id"], row["position"]) for row in found]
    assert told == list(expected)
    assert [row["response"] for row in found] == list(expected.values())
    assert reading.dropped == {"rows that stand once more": len(rows) - len(expected)}
    assert "expected each impression once" in fails(
        "check", tmp_path / "log.csv", "--map", "session=s,time=t,item=i", "--sort"
    )
    once = tmp_path / "once.csv"
    pl.DataFrame(rows[:1]).write_csv(once)
    assert read(once, map=mapping, repeats="merge")[1].dropped == {}


def test_steps_order_answers_as_times_do(tmp_path: Path) -> None:
    rows = [{"s": 1, "n": n, "i": item, "response": event} for n, item, event in ((1, 4, "skip"), (2, 4, "click"))]
    pl.DataFrame(rows).write_csv(tmp_path / "log.csv")
    found, _ = read(tmp_path / "log.csv", map={"session": "s", "step": "n", "item": "i"}, attribution=True)
    assert [(row["response"], row["organic"]) for row in found] == [("click", False)]


def test_an_answer_before_its_impression_is_no_answer(tmp_path: Path) -> None:
    rows = [_row(1, 9, 3, "impression", None, 0), _row(1, 8, 3, "click", None, None)]
    pl.DataFrame(rows).write_csv(tmp_path / "log.csv")
    found, _ = read(tmp_path / "log.csv", map=NAMES, responses=RULES, attribution=True)
    assert [(row["response"], row["organic"]) for row in found] == [("skip", False), ("click", True)]


# ---- yes and no


FLAGS = [
    ("true", "false", "click"),
    ("1", "0", "click"),
    ("Yes", "no", "click"),
    ("0", "1", "buy"),
    ("0.0", "129.90", "buy"),
    ("1", "1", "buy"),
    ("", "", "skip"),
    ("no", "NULL", "skip"),
    ("false", "-1", "skip"),
]


def test_columns_of_yes_and_no(tmp_path: Path) -> None:
    rows = [{"s": 1, "t": place, "i": place, "c": one[0], "b": one[1]} for place, one in enumerate(FLAGS)]
    pl.DataFrame(rows).write_csv(tmp_path / "log.csv")
    names = {"session": "s", "time": "t", "item": "i", "clicked": "c", "bought": "b"}
    found, _ = read(tmp_path / "log.csv", map=names)
    assert [row["response"] for row in found] == [one[2] for one in FLAGS]
    found, _ = read(tmp_path / "log.csv", map={name: own for name, own in names.items() if name != "clicked"})
    assert [row["response"] for row in found] == [one[2].replace("click", "skip") for one in FLAGS]


def test_a_time_is_a_yes(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("s,t,i,c\n1,1,7,2024-05-01 10:00:00\n1,2,8,\n1,3,9,01.05.2024 10:00\n")
    found, _ = read(tmp_path / "log.csv", map={"session": "s", "time": "t", "item": "i", "clicked": "c"})
    assert [row["response"] for row in found] == ["click", "skip", "click"]
    times = pl.Series([None, datetime(2024, 5, 1, tzinfo=UTC).replace(tzinfo=None)])
    pl.DataFrame({"s": [1, 1], "t": [1, 2], "i": [7, 8], "c": times}).write_parquet(tmp_path / "log.parquet")
    found, _ = read(tmp_path / "log.parquet", map={"session": "s", "time": "t", "item": "i", "clicked": "c"})
    assert [row["response"] for row in found] == ["skip", "click"]


def test_typed_columns_of_yes_and_no(tmp_path: Path) -> None:
    frame = pl.DataFrame({"s": [1, 1, 2], "t": [1, 2, 3], "i": [7, 8, 9], "c": [True, None, False], "b": [0.0, 3.5, 0]})
    frame.write_parquet(tmp_path / "log.parquet")
    names = {"session": "s", "time": "t", "item": "i", "clicked": "c", "bought": "b"}
    assert [row["response"] for row in read(tmp_path / "log.parquet", map=names)[0]] == ["click", "buy", "skip"]


def test_what_is_neither_yes_nor_no(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("s,t,i,c\n1,1,7,yes\n1,2,8,maybe\n")
    told = fails("check", tmp_path / "log.csv", "--map", "session=s,time=t,item=i,clicked=c")
    assert "row 2, column c (clicked): found 'maybe', expected yes or no" in told
    told = fails("check", tmp_path / "log.csv", "--map", "session=s,time=t,item=i,clicked=c,response=c")
    assert "stands in place of response" in told or "named twice" in told


# ---- files by their names


def tables(folder: Path) -> None:
    folder.mkdir()
    shown = [{"v": 1, "t": 10 * page, "i": page + place, "p": place} for page in range(3) for place in range(2)]
    pl.DataFrame(shown).write_csv(folder / "impressions.csv")
    pl.DataFrame([{"v": 1, "t": 4, "i": 1}, {"v": 1, "t": 24, "i": 2}]).write_csv(folder / "clicks-1.csv")
    pl.DataFrame([{"v": 1, "t": 25, "i": 2, "price": 3}]).write_csv(folder / "purchases.csv")


FILES = {"impressions": "skip", "clicks": "click", "purchases": "buy"}
OF_TABLES = {"session": "v", "time": "t", "item": "i", "position": "p"}


def test_files_of_a_folder_say_what_their_rows_are(tmp_path: Path) -> None:
    tables(tmp_path / "log")
    found, _ = read(tmp_path / "log", map=OF_TABLES, files=FILES, attribution=True)
    told = sorted((row["timestamp"].second, row["item_id"], row["position"], row["response"]) for row in found)
    assert told == [
        *((0, 0, 0, "skip"), (0, 1, 1, "click")),
        *((10, 1, 0, "skip"), (10, 2, 1, "skip")),
        *((20, 2, 0, "buy"), (20, 3, 1, "skip")),
    ]


def test_a_file_that_no_name_tells(tmp_path: Path) -> None:
    tables(tmp_path / "log")
    (tmp_path / "log" / "items.csv").write_text("i,price\n1,3\n")
    mapping = tmp_path / "m.toml"
    lines = [f'{name} = "{own}"' for name, own in OF_TABLES.items()]
    files = [f'{part} = "{response}"' for part, response in FILES.items()]
    mapping.write_text("\n".join(["attribution = true", "[map]", *lines, "[files]", *files]))
    told = fails("check", tmp_path / "log", "--map", mapping)
    assert "items.csv: no entry of [files] is a part of its name" in told
    (tmp_path / "log" / "items.csv").unlink()
    assert result("check", tmp_path / "log", "--map", mapping)["responses"] == {"skip": 4, "click": 1, "buy": 1}


def test_a_stray_file_among_others(tmp_path: Path) -> None:
    tables(tmp_path / "log")
    told = fails("check", tmp_path / "log", "--map", "session=v,time=t,item=i,position=p", "--set", "every=click")
    assert "impressions.csv" not in told.partition("has no column")[0]
    (tmp_path / "log" / "purchases.csv").rename(tmp_path / "log" / "a.csv")
    told = fails("check", tmp_path / "log", "--map", "session=v,time=t,item=i,position=p", "--set", "every=click")
    assert "a.csv has no column 'p'" in told


# ---- sessions


def test_pauses_end_sessions_as_a_loop_says(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = [
        {"u": f"u{rng.integers(0, 5)}", "t": int(t), "i": int(rng.integers(0, 9))} for t in rng.integers(0, 9**5, 90)
    ]
    rows.sort(key=lambda row: row["t"])
    pl.DataFrame(rows).write_csv(tmp_path / "log.csv")
    names = {"session": "u", "time": "t", "item": "i"}
    found, reading = read(tmp_path / "log.csv", map=names, every="click", session_gap=42.5)
    last: dict[str, int] = {}
    part: dict[str, int] = {}
    expected = []
    for row in rows:
        new = row["t"] - last.get(row["u"], row["t"]) > 42.5 * 60
        part[row["u"]] = part.get(row["u"], 1) + new
        last[row["u"]] = row["t"]
        expected.append((f"{row['u']}-{part[row['u']]}", row["u"], row["i"]))
    assert [(row["session_id"], row["user_id"], row["item_id"]) for row in found] == expected
    assert reading.remarks == [
        f"5 sessions were cut into {len({one[0] for one in expected})} at pauses of more than 42.5 minutes"
    ]
    assert "needs a time" in fails(
        *("check", tmp_path / "log.csv", "--map", "session=u,step=t,item=i"),
        *("--set", "session_gap=3", "--set", "every=click"),
    )


def test_rows_in_the_order_in_which_things_happened(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    for number in range(2):
        (tmp_path / "log" / f"{number}.csv").write_text("u,i,response\n" + "".join(f"7,{i},skip\n" for i in (5, 3)))
    found, _ = read(tmp_path / "log", map={"session": "u", "item": "i"}, row_order=True)
    steps = [row["step"] for row in found]
    assert [row["item_id"] for row in found] == [5, 3, 5, 3]
    assert steps == sorted(set(steps))


def test_visits_that_are_numbered_anew_for_each_user(tmp_path: Path) -> None:
    rows = [{"who": who, "visit": visit, "t": 1, "i": 1} for who in ("a", "b") for visit in (1, 2)]
    pl.DataFrame(rows).write_csv(tmp_path / "log.csv")
    names = {"session": "who+visit", "user": "who", "time": "t", "item": "i"}
    found, _ = read(tmp_path / "log.csv", map=names, every="click")
    assert [row["session_id"] for row in found] == ["a-1", "a-2", "b-1", "b-2"]
    assert "has no column 'who+day'" in fails(
        "check", tmp_path / "log.csv", "--map", "session=who+day,time=t,item=i", "--set", "every=click"
    )


# ---- ids and empty cells


def test_whole_numbers_that_became_fractions(tmp_path: Path) -> None:
    frame = pl.DataFrame({"s": [1.0, 2.0], "t": [5.0, 6.0], "i": [17.0, 4.0], "p": [0.0, None]})
    names = {"session": "s", "time": "t", "item": "i", "position": "p"}
    frame.write_csv(tmp_path / "log.csv")
    frame.write_parquet(tmp_path / "log.parquet")
    for name in ("log.csv", "log.parquet"):
        found, _ = read(tmp_path / name, map=names, every="click", whole_ids=True)
        assert [(row["session_id"], row["item_id"], row["position"]) for row in found] == [(1, 17, 0), (2, 4, None)]
    told = fails("check", tmp_path / "log.parquet", "--map", "session=s,time=t,item=i", "--set", "every=click")
    assert "has type Float64, expected integers or strings" in told


def test_rows_without_an_item(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("s,t,i,e\n1,1,a,click\n1,2,,view\n1,3,NULL,view\n1,4,b,click\n")
    given = ("check", tmp_path / "log.csv", "--map", "session=s,time=t,item=i,response=e", "--responses", "click=click")
    assert "row 2, column i (item_id): found nothing" in fails(*given[:-1], "click=click,view=skip")
    mapping = {"session": "s", "time": "t", "item": "i", "response": "e"}
    rules = {"click": "click", "view": "skip"}
    found, reading = read(tmp_path / "log.csv", map=mapping, responses=rules, drop_without_item=True)
    assert [row["item_id"] for row in found] == ["a", "b"]
    assert reading.dropped == {"rows without i": 2}
    assert reading.read["rows"] == 4


# ---- other shapes


def events() -> Iterator[Row]:
    for session in range(4):
        rows = [{"aid": 10 * session + n, "ts": START + n, "type": ("clicks", "orders")[n == 2]} for n in range(3)]
        yield {"session": session, "events": rows if session != 2 else []}


def test_a_row_for_each_event_of_a_session(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in events()))
    names = {"session": "session", "item": "events.aid", "time": "events.ts", "response": "events.type"}
    rules = {"clicks": "click", "orders": "buy"}
    found, reading = read(tmp_path / "log.jsonl", map=names, responses=rules, nested="events")
    expected = [
        (row["session"], one["aid"], rules[one["type"]], datetime.fromtimestamp(one["ts"], UTC).replace(tzinfo=None))
        for row in events()
        for one in row["events"]
    ]
    assert [(row["session_id"], row["item_id"], row["response"], row["timestamp"]) for row in found] == expected
    assert reading.dropped == {"rows without events": 1}
    lines = [f'{name} = "{own}"' for name, own in names.items()]
    (tmp_path / "m.toml").write_text("\n".join(['nested = "steps"', "[map]", *lines]))
    told = fails("check", tmp_path / "log.jsonl", "--map", tmp_path / "m.toml")
    assert "has no list of objects 'steps' (nested)" in told


def test_yes_and_no_for_each_item_of_a_list(tmp_path: Path) -> None:
    shown = [[("a", False, False), ("b", True, False)], [("c", True, True), ("a", None, False), ("d", True, False)], []]
    rows = [
        {"s": 1, "t": n, "x": [{"id": i, "clicked": c, "bought": b} for i, c, b in one]} for n, one in enumerate(shown)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = {"session": "s", "time": "t", "items": "x.id", "clicked": "x.clicked", "bought": "x.bought"}
    found, _ = read(tmp_path / "log.jsonl", map=names)
    expected = [("buy" if b else "click" if c else "skip") for one in shown for _, c, b in one]
    assert [row["response"] for row in found] == expected


@pytest.mark.parametrize("begin", [0, 1])
def test_places_in_place_of_items(tmp_path: Path, begin: int) -> None:
    rng = np.random.default_rng(begin)
    rows, expected = [], []
    for number in range(30):
        items = [f"i{one}" for one in rng.permutation(9)[: rng.integers(1, 5)]]
        place = int(rng.integers(-1, 6))
        rows.append({"s": number, "t": 1, "shown": items, "rank": place + begin if place >= 0 else begin - 1})
        expected += [("skip", "click")[here == place] for here in range(len(items))]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = {"session": "s", "time": "t", "items": "shown", "clicked": "rank"}
    found, _ = read(tmp_path / "log.jsonl", map=names, places_from=begin)
    assert [row["response"] for row in found] == expected


def test_slates_end_where_places_begin_anew(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    rows, expected, slate = [], [], dict[int, int]()
    for _ in range(25):
        session = int(rng.integers(3))
        slate[session] = slate.get(session, -1) + 1
        for place in range(int(rng.integers(1, 5))):
            rows.append({"s": session, "t": 5, "i": len(rows), "p": place, "response": "skip"})
            expected.append((session, str(slate[session])))
    pl.DataFrame(rows).write_csv(tmp_path / "log.csv")
    names = {"session": "s", "time": "t", "item": "i", "position": "p"}
    found, _ = read(tmp_path / "log.csv", map=names, slates_by_position=True)
    assert [(row["session_id"], row["request_id"]) for row in found] == expected
    assert "needs a position and no slate" in fails(
        "check", tmp_path / "log.csv", "--map", "session=s,time=t,item=i", "--set", "slates_by_position=true"
    )


def test_rows_of_one_typed_moment_are_a_slate(tmp_path: Path) -> None:
    times = [datetime(2024, 5, 1, 10, minute, tzinfo=UTC).replace(tzinfo=None) for minute in (0, 0, 1, 1, 1)]
    pl.DataFrame({"s": [1] * 5, "t": times, "i": range(5)}).write_parquet(tmp_path / "log.parquet")
    found, _ = read(
        tmp_path / "log.parquet", map={"session": "s", "time": "t", "slate": "t", "item": "i"}, every="click"
    )
    slates = [row["request_id"] for row in found]
    assert [slates.count(one) for one in slates] == [2, 2, 3, 3, 3]


def test_one_array_is_read_as_lines_are(tmp_path: Path) -> None:
    rows = [{"s": 1, "t": n, "i": f"x{n}", "who": {"id": n}} for n in range(5)]
    (tmp_path / "log.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = {"session": "s", "time": "t", "item": "i", "user": "who.id"}
    both = [read(tmp_path / name, map=names, every="click")[0] for name in ("log.json", "log.jsonl")]
    assert both[0] == both[1]
    folder = tmp_path / "days"
    folder.mkdir()
    for name in ("monday.json", "tuesday.json"):
        (folder / name).write_text(json.dumps(rows))
    given = ("--format", "jsonl", "--map", "session=s,time=t,item=i", "--set", "every=click", "--set", "repeats=merge")
    assert result("check", folder, *given)["reading"]["read"] == {"rows": 10}
    pl.DataFrame(rows).drop("who").write_csv(folder / "log.csv")  # beside which .json files are something else
    assert result("check", folder, *("--format", "csv"), *given[2:])["reading"]["read"] == {"rows": 5}
    (tmp_path / "broken.json").write_text(json.dumps(rows)[:-9])
    told = fails("check", tmp_path / "broken.json", "--map", "session=s,time=t,item=i", "--set", "every=click")
    assert "broken.json is no JSON array of objects" in told


def test_a_response_of_several_words_for_a_whole_list(tmp_path: Path) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {"s": 1, "t": at.isoformat(), "shown": ["a", "b"], "event": "Product List Viewed"},
        {"s": 1, "t": (at + timedelta(seconds=5)).isoformat(), "shown": ["b"], "event": "Product Clicked"},
        {"s": 1, "t": (at + timedelta(seconds=9)).isoformat(), "shown": [], "event": "Page Viewed"},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rules = {"Product List Viewed": "skip", "Product Clicked": "click"}
    names = {"session": "s", "time": "t", "items": "shown", "response": "event"}
    found, reading = read(tmp_path / "log.jsonl", map=names, responses=rules, attribution=True)
    assert [(row["item_id"], row["response"], row["organic"]) for row in found] == [
        ("a", "skip", False),
        ("b", "click", False),
    ]
    assert reading.dropped["slates without items"] == 1
