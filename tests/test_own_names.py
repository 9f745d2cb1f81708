"""What is wrong with a raw file is told in its own words: its name, its columns, its values, rows that it has."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from test_cli import fails, result, run

COLUMNS = ("visit", "ts", "page", "place", "sku", "dept", "prob", "event", "who")
MAP = "session=visit,time=ts,slate=page,position=place,item=sku,category=dept,propensity=prob,response=event,user=who"
RULES = "view=skip,tap=click,crawl=drop"


def visits() -> list[dict[str, Any]]:
    """Three visits of two pages with two places each; item k3 is of department d3, and so on."""
    return [
        {"visit": f"v{visit}", "ts": 1_700_000_000 + 100 * visit + 10 * page, "page": f"p{page}", "place": place}
        | {"sku": f"k{visit + page + place}", "dept": f"d{visit + page + place}", "prob": 0.5}
        | {"event": "tap" if place else "view", "who": f"u{visit}"}
        for visit in range(3)
        for page in range(2)
        for place in range(2)
    ]


def changed(row: int, column: str, value: Any) -> list[dict[str, Any]]:
    rows = visits()
    rows[row - 1][column] = value
    return rows


def csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    lines = [",".join(rows[0]), *(",".join("" if one is None else str(one) for one in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def of_columns(file: Path, columns: str = MAP, *more: object) -> str:
    """The sentence of `check`, which begins with the name of the file or folder."""
    told = fails("check", file, "--map", columns, *more)
    assert told.startswith(str(file))
    return told


def test_the_file_is_good_before_anything_is_changed(tmp_path: Path) -> None:
    found = result("check", csv(tmp_path / "mine.csv", visits()), "--map", MAP, "--responses", RULES)
    assert (found["ok"], found["sessions"], found["impressions"]) == (True, 3, 12)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("visit", None, "row 4, column visit (session_id): found nothing, expected a value in every row"),
        ("ts", None, "row 4, column ts (timestamp): found nothing, expected a value"),
        ("page", None, "row 4, column page (request_id): found nothing, expected a value"),
        ("sku", None, "row 4, column sku (item_id): found nothing, expected a value"),
        ("event", None, "row 4, column event (response): found nothing, expected a value"),
        ("ts", "soon", "row 4, column ts (timestamp): found 'soon', expected an ISO date and time"),
        ("ts", 10**15, "row 4, column ts (timestamp): found '1000000000000000', expected an ISO date and time"),
        ("ts", 1_600_000_000, "row 4, column ts (timestamp): found item 'k2' of session 'v0' with a time before"),
        ("event", "like", "column event (response): no rule covers 'like' (1 rows); add them to --responses"),
        ("dept", "d9", "row 6, column dept (category): found 'd2' for item 'k2', which had 'd9' before"),
        ("who", "u9", "column who (user_id): found session 'v0' with the users 'u0' and 'u9', expected one user"),
        ("prob", 1.5, "row 4, column prob (propensity): found '1.5', expected a probability above 0 and at most 1"),
        ("prob", 0, "row 4, column prob (propensity): found '0', expected a probability above 0 and at most 1"),
        ("prob", "half", "row 4, column prob (propensity): found 'half', expected a number"),
        ("place", -1, "row 4, column place (position): found '-1', expected a place in the slate, counted from 0"),
        ("place", "top", "row 4, column place (position): found 'top', expected an integer"),
        ("sku", 7, "row 4, column sku (item_id): found '7' among strings (11 strings, 1 integers); mend the row"),
        ("visit", 7, "row 4, column visit (session_id): found '7' among strings (11 strings, 1 integers)"),
    ],
)
def test_a_wrong_cell(tmp_path: Path, column: str, value: Any, words: str) -> None:
    file = csv(tmp_path / "mine.csv", changed(4, column, value))
    told = of_columns(file, MAP, "--responses", RULES)
    assert told.startswith(f"{file}, {words}")
    prepared = fails("prepare", file, "--map", MAP, "--responses", RULES, "--out", tmp_path / "data")
    assert told in prepared
    kept = tmp_path / "log.parquet"
    prepared = fails("prepare", file, "--map", MAP, "--responses", RULES, "--out", tmp_path / "data", "--logs", kept)
    assert told in prepared  # whatever else is asked for


def test_odd_ids_are_those_that_are_fewer(tmp_path: Path) -> None:
    rows = [row | {"sku": int(row["sku"][1:])} for row in visits()]
    rows[4]["sku"] = "k9"
    file = csv(tmp_path / "mine.csv", rows)
    told = of_columns(file, MAP, "--responses", RULES)
    assert told.startswith(f"{file}, row 5, column sku (item_id): found 'k9' among integers (1 strings, 11 integers)")


def test_how_a_time_is_written_can_be_said(tmp_path: Path) -> None:
    rows = [row | {"ts": "03/01/2024 08:00"} for row in visits()]
    file = csv(tmp_path / "mine.csv", rows)
    assert "(see --time-unit, --set time_format)" in of_columns(file, MAP, "--responses", RULES)
    given = ("--set", "time_format=%m/%d/%Y %H:%M")
    assert result("check", file, "--map", MAP, "--responses", RULES, *given)["ok"]
    rows[2]["ts"] = "2024-03-01"
    told = of_columns(csv(file, rows), MAP, "--responses", RULES, *given)
    assert "row 3, column ts (timestamp): found '2024-03-01', expected a time as %m/%d/%Y %H:%M says" in told


def test_values_without_rules_and_rules_without_rewards(tmp_path: Path) -> None:
    file = csv(tmp_path / "mine.csv", visits())
    told = of_columns(file)
    assert "row 1, column event (response): found 'view', expected one of skip, click, buy; give every response" in told
    assert "or say which of them your values are with --responses, e.g. VALUE=buy (12 such rows)" in told
    told = of_columns(file, MAP, "--responses", "view=skip,tap=like")
    assert "row 2, column event (response): found 'tap', which is like by --responses, expected one of skip" in told
    given = ("--responses", "view=skip,tap=like", "--rewards", "skip=0,like=2")
    assert result("check", file, "--map", MAP, *given)["responses"] == {"skip": 6, "like": 6}


@pytest.mark.parametrize("where", ["check", "prepare", "start"])
def test_rows_that_stand_twice(tmp_path: Path, where: str) -> None:
    """The row is named where the rows of the file and of the log are the same ones, and else left out."""
    rows = visits()
    once_more = [*rows[:4], rows[3], *rows[4:]]
    given = {
        "check": ("--map", MAP, "--responses", RULES),
        "prepare": ("--map", MAP, "--responses", RULES, "--out", tmp_path / "data"),
        "start": ("--mapping", tmp_path / "mine.toml", "--out", tmp_path / "out"),
    }[where]
    tables = {"map": MAP, "responses": RULES}
    lines = [f"[{name}]\n" + told.replace("=", ' = "').replace(",", '"\n') + '"\n' for name, told in tables.items()]
    (tmp_path / "mine.toml").write_text("".join(lines))
    file = csv(tmp_path / "mine.csv", once_more)
    words = "column sku (item_id): found item 'k2' of session 'v0' once more, expected each impression once"
    assert f"Error: {file}, row 5, {words}" in run(where, file, *given).stderr
    csv(file, [rows[0] | {"place": 5, "event": "crawl"}, *once_more])  # which a rule drops: row 5 was row 6
    assert f"Error: {file}, {words}" in run(where, file, *given).stderr


def test_rows_that_are_nothing_but_organic(tmp_path: Path) -> None:
    file = csv(tmp_path / "mine.csv", visits())
    told = of_columns(file, MAP, "--responses", "view=organic:click,tap=organic:click")
    assert told == f"{file}: every row is organic, expected rows of what was recommended; leave organic: out of " + (
        "--responses if it was."
    )
    csv(file, [row | {"own": 1} for row in visits()])
    told = of_columns(file, f"{MAP},organic=own", "--responses", RULES)
    assert told.endswith("; leave the column own (organic) out if it was.")
    csv(file, [row | {"own": "maybe"} for row in visits()])
    told = of_columns(file, f"{MAP},organic=own", "--responses", RULES)
    assert f"{file}, row 1, column own (organic): found 'maybe', expected true or false" in told


# ---- columns


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (MAP.replace("=sku", "=skus"), "has no column 'skus', which the mapping names for item_id; the columns found"),
        (MAP.replace("item=sku,", ""), "column item_id is missing; the columns found are visit, ts, page, place, sku"),
        (MAP.replace("time=ts,", ""), "column timestamp (or step) is missing; the columns found are visit, ts, page"),
        (MAP.replace("response=event,", ""), "column response is missing; the columns found are visit, ts, page"),
        (MAP.replace("session=visit,", ""), "column session_id is missing; the columns found are visit, ts, page"),
    ],
)
def test_missing_columns(tmp_path: Path, columns: str, words: str) -> None:
    told = of_columns(csv(tmp_path / "mine.csv", visits()), columns, "--responses", RULES)
    assert words in told
    if "is missing" in words:
        role = {"item_id": "item", "timestamp (or step)": "time", "session_id": "session"}
        named = words.partition("column ")[2].partition(" is missing")[0]
        assert f"; name yours with --map {role.get(named, named)}=COLUMN" in told


def test_parquet_columns_of_the_wrong_type(tmp_path: Path) -> None:
    file = tmp_path / "mine.parquet"
    pl.DataFrame(visits()).with_columns(pl.col("prob").alias("sku")).write_parquet(file)
    told = of_columns(file, MAP, "--responses", RULES)
    assert told == f"{file}: column sku (item_id) has type Float64, expected integers or strings; cast it before."


def test_what_prepare_misses(tmp_path: Path) -> None:
    file, out = csv(tmp_path / "mine.csv", visits()), ("--out", tmp_path / "data")
    given = ("--map", MAP.replace(",user=who", ""), "--responses", RULES)
    assert "--earlier needs a column user_id (--map user=COLUMN)" in fails(
        "prepare", file, *given, *out, "--earlier", 3
    )
    csv(file, [row | {"n": number} for number, row in enumerate(visits())])
    given = ("--map", MAP.replace("time=ts", "step=n"), "--responses", RULES)
    by_time = ("--split", "time", "--periods", "train=3")
    assert "needs a column timestamp (--map time=COLUMN)" in fails("prepare", file, *given, *out, *by_time)
    assert "needs a column timestamp (--map time=COLUMN)" in fails("prepare", file, *given, *out, "--earlier", 3)
    rows = [row | {"n": -number} for number, row in enumerate(visits())]
    told = of_columns(csv(file, rows), MAP.replace("time=ts", "step=n"), "--responses", RULES)
    assert "row 2, column n (step): found item 'k1' of session 'v0' with a time before the row above" in told


def test_a_day_that_is_added(tmp_path: Path) -> None:
    first, second, data = tmp_path / "1.csv", tmp_path / "2.csv", tmp_path / "data"
    given = ("--responses", RULES, "--map")
    prepare = ("prepare", csv(first, visits()), *given, MAP, "--split", "hash", "--validation", 0, "--out", data)
    assert run(*prepare).returncode == 0
    later = [row | {"visit": f"w{row['visit']}", "dept": "other"} for row in visits()]
    told = fails("prepare", csv(second, later), *given, MAP, "--append", data)
    assert f"{second}, column dept (category): found 'other' for item 'k0', which has 'd0' in the data set" in told
    numbered = [row | {"visit": number // 4} for number, row in enumerate(visits())]
    told = fails("prepare", csv(second, numbered), *given, MAP, "--append", data)
    assert f"{second}: column visit (session_id) holds integers, but the data set {data} has strings" in told
    counted = [row | {"visit": f"w{row['visit']}", "n": number} for number, row in enumerate(visits())]
    told = fails("prepare", csv(second, counted), *given, MAP.replace("time=ts", "step=n"), "--append", data)
    assert f"{second} orders rows by n (step), but the data set {data} by timestamp" in told
    told = fails("prepare", second, *given, f"{MAP},request_category=page".replace("slate=page,", ""), "--append", data)
    assert f"{second} has a column page (request_category), unlike the data set {data}" in told


# ---- several files, lists


def folder(tmp_path: Path, first: list[dict[str, Any]], second: list[dict[str, Any]]) -> Path:
    (tmp_path / "days").mkdir(exist_ok=True)
    csv(tmp_path / "days" / "1.csv", first)
    csv(tmp_path / "days" / "2.csv", second)
    return tmp_path / "days"


def test_files_of_a_folder(tmp_path: Path) -> None:
    """A row of the one log that all files become is a row of none of them."""
    rows = visits()
    late = [row | {"ts": row["ts"] + 1000, "page": "p9"} for row in rows[:4]]
    days = folder(tmp_path, late, rows)
    told = of_columns(days, MAP, "--responses", RULES)
    assert told.startswith(f"{days}, column ts (timestamp): found item 'k0' of session 'v0' with a time before")
    assert result("check", days, "--map", MAP, "--responses", RULES, "--sort")["sessions"] == 3
    told = of_columns(folder(tmp_path, rows[:8], rows[7:]), MAP, "--responses", RULES)
    assert told.startswith(f"{days}, column sku (item_id): found item 'k3' of session 'v1' once more")
    told = of_columns(folder(tmp_path, rows[:8], [row | {"sku": 7} for row in rows[8:]]), MAP, "--responses", RULES)
    first, second = (days / name for name in ("1.csv", "2.csv"))
    assert told.startswith(f"{first}: column sku (item_id) holds strings, but {second} holds integers; write one type")
    told = of_columns(
        folder(tmp_path, rows[:8], [row | {"event": "like"} for row in rows[8:]]), MAP, "--responses", RULES
    )
    assert told.startswith(f"{second}, column event (response): no rule covers 'like' (4 rows)")
    torn = folder(tmp_path, [row | {"organic": 0} for row in rows[:8]], rows[8:])
    told = of_columns(torn, MAP, "--responses", RULES)
    assert told.startswith(
        f"{second} has the columns visit (session_id), sku (item_id), ts (timestamp), event (response)"
    )


LISTS = "session=visit,time=ts,items=shown,clicked=tapped,position=places,propensity=probs,user=who"


def pages() -> list[dict[str, Any]]:
    return [
        {"visit": f"v{page // 2}", "ts": 1_700_000_000 + 10 * page, "shown": ["a", "b", "c"], "tapped": ["b"]}
        | {"places": [0, 1, 2], "probs": [0.5, 0.5, 0.5], "who": f"u{page // 2}"}
        for page in range(6)
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shown": ["a", None, "c"]}, "row 4, column shown (item_id): found nothing, expected a value"),
        ({"visit": None}, "row 4, column visit (session_id): found nothing, expected a value"),
        ({"places": [0, 1]}, "row 4, column places (position): found 2 values for 3 items, expected one each"),
        ({"places": [0, -1, 2]}, "row 4, column places (position): found '-1', expected a place in the slate"),
        ({"probs": [0.5, 1.5, 0.5]}, "row 4, column probs (propensity): found '1.5', expected a probability"),
        ({"ts": 1_600_000_000}, "column ts (timestamp): found item 'a' of session 'v1' with a time before the row"),
        ({"who": "u9"}, "column who (user_id): found session 'v1' with the users 'u1' and 'u9', expected one user"),
    ],
)
def test_lists(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    rows = pages()
    rows[3] |= change
    file = jsonl(tmp_path / "mine.jsonl", rows)
    assert of_columns(file, LISTS).startswith(f"{file}, {words}")


def test_a_page_that_stands_twice(tmp_path: Path) -> None:
    rows = [row | {"page": f"p{number}"} for number, row in enumerate(pages())]
    file = jsonl(tmp_path / "mine.jsonl", [*rows, rows[5]])
    told = of_columns(file, f"{LISTS},slate=page")
    assert told.startswith(f"{file}, column shown (item_id): found item 'a' of session 'v2' once more")


def test_rows_of_nested_lists_have_no_number_in_the_file(tmp_path: Path) -> None:
    events = [{"sku": f"k{number}", "event": "click", "ts": 1_700_000_000 + number} for number in range(3)]
    file = jsonl(tmp_path / "mine.jsonl", [{"visit": "v0", "events": [*events, events[2]]}])
    given = "session=visit,time=events.ts,item=events.sku,response=events.event"
    told = of_columns(file, given, "--set", "nested=events")
    assert told.startswith(f"{file}, column events.sku (item_id): found item 'k2' of session 'v0' once more")


def test_lists_of_which_nobody_knows_what_was_clicked(tmp_path: Path) -> None:
    """They are not taken for slates of which nothing was clicked."""
    file, columns = jsonl(tmp_path / "mine.jsonl", pages()), LISTS.replace("clicked=tapped,", "")
    told = of_columns(file, columns)
    assert told.startswith(f"{file}: column response is missing; the columns found are visit, who, ts, shown, places")
    assert "--map response=COLUMN (lists of items: clicked=COLUMN, bought=COLUMN), or say --set every=click" in told
    assert result("check", file, "--map", columns, "--set", "every=click")["responses"] == {"skip": 0, "click": 18}
