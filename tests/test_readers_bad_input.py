"""Raw logs with faults: one clear sentence, or a count; nothing half-written."""

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from raw_logs import Query, Session, diginetica_rows, write_diginetica
from test_cli import result, run, works

DAY = 86_400_000
FOLLOWED = "views of items that the session had clicked in a query"


def sessions() -> list[Session]:
    """Ten sessions, one every twelfth day."""
    return [
        Session(
            n, 12 * n * DAY, [Query(n, 30, {1 + n % 3: "skip", 5: "click"}), Query(100 + n, 60, {6: "buy", 7: "skip"})]
        )
        for n in range(1, 11)
    ]


@pytest.fixture
def lines() -> dict[str, list[str]]:
    return diginetica_rows(sessions())


@pytest.fixture
def raw(tmp_path: Path, lines: dict[str, list[str]]) -> Path:
    return write_diginetica(tmp_path / "raw", lines)


def refused(tmp_path: Path, *args: object) -> str:
    """The one sentence; the folder holds no more than before."""
    before = sorted(tmp_path.rglob("*"))
    done = run("prepare", *args, "--out", tmp_path / "dataset", "--logs", tmp_path / "log.parquet")
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
    return done.stderr[7:-1]


def dropped(raw: Path, tmp_path: Path, *args: object) -> dict[str, int]:
    out = tmp_path / "dataset"
    reading = result("prepare", raw, "--format", "diginetica", "--out", out, "--force", *args)["reading"]
    assert json.loads((out / "manifest.json").read_text())["reading"] == reading
    return dict(reading["dropped"])


def test_the_whole_way(raw: Path, tmp_path: Path) -> None:
    """The paper's split by default, the log kept, our counts beside the paper's."""
    log = tmp_path / "log.parquet"
    args = ("prepare", raw, "--format", "diginetica", "--set", "cut=none")
    found = result(*args, "--out", tmp_path / "a", "--logs", log)
    assert found["sessions_by_split"] == {"test": 2, "train": 2, "user": 5, "validation": 1}
    assert found["paper"]["train sessions"] == {"ours": 3, "paper": 4843}
    assert found["paper"]["train tuples"] == {"ours": 12, "paper": 70_000}
    assert found["paper"]["categories"] == {"ours": 3, "paper": 825}
    assert result("prepare", log, "--out", tmp_path / "b")["impressions"] == found["impressions"] == 40
    table = works(*args, "--out", tmp_path / "c").stdout
    assert "(4,843)" in table
    assert "read as diginetica" in table
    assert result("check", raw, "--format", "diginetica")["reading"]["kept"]["sessions"] == 10


# ---- files


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train-queries.csv", "holds what was shown; without it only the item views can be read"),
        (
            "train-clicks.csv",
            "without it no response is a click; get it, or go on without clicks: --set without=clicks",
        ),
        ("train-purchases.csv", "without it no response is a buy"),
        ("product-categories.csv", "without it items have no category"),
    ],
)
def test_a_missing_file(raw: Path, tmp_path: Path, name: str, words: str) -> None:
    (raw / name).unlink()
    sentence = refused(tmp_path, raw, "--format", "diginetica")
    assert sentence.startswith(f"{name} is missing from {raw}: ")
    assert words in sentence


@pytest.mark.parametrize("name", ["clicks", "purchases", "categories"])
def test_going_on_without_a_file(raw: Path, tmp_path: Path, name: str) -> None:
    next(raw.glob(f"*{name}.csv")).unlink()
    args = ("--format", "diginetica", "--set", f"without={name}", "--set", "cut=none")
    found = result("prepare", raw, "--out", tmp_path / "d", *args)
    lost = {"clicks": {"skip": 30, "buy": 10}, "purchases": {"skip": 20, "click": 20}}
    assert found["responses"] == lost.get(name, {"skip": 20, "click": 10, "buy": 10})
    assert (found["categories"] == 0) == (name == "categories")
    assert found["reading"]["remarks"][0].startswith("read without ")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-25])


def utf16(file: Path) -> None:
    file.write_bytes(file.read_text().encode("utf-16"))


def latin1(file: Path) -> None:
    file.write_bytes(file.read_text().replace("11,12", "caf\u00e9", 1).encode("latin-1"))


def zipped(file: Path) -> None:
    file.write_bytes(b"PK\x03\x04 and more")


def empty(file: Path) -> None:
    file.write_bytes(b"")


def page(file: Path) -> None:
    file.write_text("<!DOCTYPE html>\n<p>Please log in to download</p>\n")


def commas(file: Path) -> None:
    file.write_text(file.read_text().replace(",", " ").replace(";", ","))


def longer(file: Path) -> None:
    file.write_text(file.read_text() + "1;2;3;4;5;6;7;8;9;10;11;12\n")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (cut, r"seems cut short \(the last row has \d of 10 fields\); copy or download it again"),
        (utf16, "is UTF-16, not UTF-8; save it as UTF-8"),
        (latin1, "row 1 is not UTF-8; save the file as UTF-8"),
        (zipped, "is a zip archive; unpack it first"),
        (empty, r"is empty \(0 bytes\)"),
        (page, r"column queryId is missing; the columns found, separated by ';', are <!DOCTYPE html>"),
        (commas, "column queryId is missing; the columns found, separated by ';', are queryId,sessionId"),
        (longer, "row 21 has 12 fields, expected 10"),
    ],
)
def test_a_spoilt_file(raw: Path, tmp_path: Path, spoil: Any, words: str) -> None:
    spoil(raw / "train-queries.csv")
    sentence = refused(tmp_path, raw, "--format", "diginetica")
    assert str(raw / "train-queries.csv") in sentence
    assert re.search(words, sentence), sentence


def test_a_byte_order_mark_is_read_over(raw: Path, tmp_path: Path) -> None:
    for file in raw.iterdir():
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert dropped(raw, tmp_path, "--set", "cut=none") == {FOLLOWED: 20}


def test_a_last_row_without_a_line_end_is_remarked(raw: Path, tmp_path: Path) -> None:
    file = raw / "train-clicks.csv"
    file.write_bytes(file.read_bytes().rstrip())
    found = result("check", raw, "--format", "diginetica")
    assert found["reading"]["remarks"] == [
        "train-clicks.csv ends without a line end; if it was cut short there, download it again"
    ]


def test_half_of_the_queries(raw: Path, tmp_path: Path, lines: dict[str, list[str]]) -> None:
    """Cut at the end of a row: only the clicks can tell."""
    write_diginetica(raw, lines | {"train-queries.csv": lines["train-queries.csv"][:6]})
    sentence = refused(tmp_path, raw, "--format", "diginetica")
    assert "14 of 20 clicks belong to no query of train-queries.csv that is kept; was one of the files cut" in sentence


# ---- values


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        (0, "x7", "column queryId: found 'x7', expected an integer."),
        (1, "1.5", "column sessionId: found '1.5', expected an integer or NA."),
        (3, "-1", "column timeframe: found '-1', expected milliseconds since the session began"),
        (3, "", "column timeframe: found nothing, expected milliseconds"),
        (
            5,
            "1970-01-01",
            "column eventdate: found '1970-01-01', expected a day such as 2016-05-09, from 2000 to 2099.",
        ),
        (5, "2016-02-30", "column eventdate: found '2016-02-30', expected a day"),
        (8, "5,six", ": found the item 'six', expected an integer."),
        (9, "maybe", "column is.test: found 'maybe', expected TRUE or FALSE."),
    ],
)
def test_a_wrong_value_in_queries(
    raw: Path, tmp_path: Path, lines: dict[str, list[str]], column: int, value: str, words: str
) -> None:
    fields = lines["train-queries.csv"][3].split(";")
    fields[column] = value
    lines["train-queries.csv"][3] = ";".join(fields)
    sentence = refused(tmp_path, write_diginetica(raw, lines), "--format", "diginetica")
    assert sentence.startswith(f"{raw / 'train-queries.csv'}, row 4")
    assert words in sentence


def test_a_query_twice_and_an_item_in_two_categories(raw: Path, tmp_path: Path, lines: dict[str, list[str]]) -> None:
    twice = lines | {"train-queries.csv": [*lines["train-queries.csv"], lines["train-queries.csv"][0]]}
    sentence = refused(tmp_path, write_diginetica(raw, twice), "--format", "diginetica")
    assert "train-queries.csv, row 21: found query 1 once more, expected each query once." in sentence
    torn = lines | {"product-categories.csv": ["5;1", "5;1", "6;2", "6;3"]}
    sentence = refused(tmp_path, write_diginetica(raw, torn), "--format", "diginetica")
    assert "product-categories.csv: item 6 has two categories" in sentence


def test_faults_that_are_counted(raw: Path, tmp_path: Path, lines: dict[str, list[str]]) -> None:
    lines["train-clicks.csv"] += ["1;29;1", "1;40;9", "1;50;5", "999;1;5"]
    lines["train-purchases.csv"] += ["1;NA;10;2016-01-13;9;5", "77;NA;10;2016-01-13;9;5"]
    lines["train-queries.csv"] += ["500;NA;NA;5;1;2016-01-01;;0;1,2;FALSE", "501;1;NA;5;1;2016-01-01;;0;;FALSE"]
    lines["train-queries.csv"][0] = lines["train-queries.csv"][0].replace(";2,5;", ";2,5,2;")
    write_diginetica(raw, lines)
    assert dropped(raw, tmp_path, "--set", "cut=none") == {
        "queries without a session (NA)": 1,
        "queries without items": 1,
        "clicks of queries that are missing or dropped": 1,
        "clicks before their query": 1,
        "clicks on the same item of the same query again": 1,
        "clicks on items that their query did not show": 1,
        "purchases of items that were not shown before": 2,
        "places with an item that the list has above": 1,
        FOLLOWED: 20,
    }
    sentence = refused(tmp_path, raw, "--format", "diginetica", "--set", "strict=true", "--force")
    assert sentence.startswith("Found 1 clicks before their query; mend the files")


def test_without_views_nothing_is_organic(raw: Path) -> None:
    (raw / "train-item-views.csv").unlink()
    found = result("check", raw, "--format", "diginetica")["reading"]
    assert found["remarks"] == ["train-item-views.csv is missing: what sessions found by themselves is not known"]
    assert found["kept"]["organic"] == 0
    assert result("check", raw, "--format", "diginetica", "--set", "organic=false")["reading"]["remarks"] == []


def test_sessions_without_views_and_items_without_category(raw: Path, lines: dict[str, list[str]]) -> None:
    lines["train-item-views.csv"] = lines["train-item-views.csv"][:4]
    lines["product-categories.csv"] = ["5;1", "6;2"]
    write_diginetica(raw, lines)
    assert result("check", raw, "--format", "diginetica", "--set", "cut=none")["reading"]["remarks"] == [
        "8 sessions of queries have no item view; they are read all the same",
        "4 items have no category in product-categories.csv",
    ]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--set", "cat=none"], "--format diginetica: unknown key 'cat'; known keys are cut, sessions"),
        (["--set", "cut=0"], "cut is '0', expected none, last_touched or a number of places above 0"),
        (["--set", "without=queries"], "found 'queries', expected clicks, purchases or categories"),
        (["--time-unit", "ms"], "--time-unit is not for --format diginetica"),
        (["--map", "session=s"], "unknown key 'map'"),
        (["--set", "min_support=99"], "No impression is left of the raw log (dropped: "),
    ],
)
def test_options_that_make_no_sense(raw: Path, tmp_path: Path, args: list[str], words: str) -> None:
    assert words in refused(tmp_path, raw, "--format", "diginetica", *args)


def test_formats_and_places_that_do_not_exist(raw: Path, tmp_path: Path) -> None:
    assert "Unknown format 'digi'; known are csv, diginetica, jsonl, parquet" in refused(
        tmp_path, raw, "--format", "digi"
    )
    nowhere = tmp_path / "nowhere"
    for name in ("csv", "diginetica", "parquet", "sequences", "trivago"):
        assert f"{nowhere} does not exist; expected raw logs" in refused(tmp_path, nowhere, "--format", name)
    assert "name it with --format" in refused(tmp_path, raw, "--set", "cut=none")
    done = run("prepare", raw, "--out", tmp_path / "x", "--logs", tmp_path / "y.parquet")
    assert "--logs keeps the log that a reader makes; name a raw format" in done.stderr


# ---- trivago and sequences


def test_bad_files_of_trivago(tmp_path: Path) -> None:
    columns = ["session_id", "timestamp", "step", "action_type", "reference", "impressions"]
    good = pl.DataFrame([("a", 100, 1, "clickout item", "7", "3|7")], schema=columns, orient="row")
    file = tmp_path / "t.csv"
    for change, words in (
        (pl.lit("3|x").alias("impressions"), "row 1: found the item 'x', expected an integer"),
        (pl.lit("soon").alias("timestamp"), "row 1, column timestamp: found 'soon', expected seconds since 1970"),
        (pl.lit(1_541_000_000_000).alias("timestamp"), "expected seconds since 1970"),
        (pl.lit("search for poi").alias("action_type"), "No impression is left of the raw log (dropped: 1 sessions"),
    ):
        good.with_columns(change).write_csv(file)
        assert words in refused(tmp_path, file, "--format", "trivago")
    good.drop("step").write_csv(file)
    assert "column step is missing; the columns found, separated by ','" in refused(
        tmp_path, file, "--format", "trivago"
    )
    (tmp_path / "other.csv").write_text("a\n")
    assert "other.csv, t.csv; expected train.csv" in refused(tmp_path, tmp_path, "--format", "trivago")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"1 2\n3 x 4\n", "row 2, column item_id: found 'x' among integers"),
        (b"caf\xe9\n", "line 1 is not UTF-8"),
        (b"\xff\xfe1\x00", "is UTF-16"),
        (b"\n\n", "holds no session of 1 or more items"),
    ],
)
def test_bad_sessions_of_items(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "s.txt"
    file.write_bytes(content)
    assert words in refused(tmp_path, file, "--format", "sequences")


# ---- csv


MINE = "visit,ts,sku,event\n1,1700000000,5,view\n1,1700000010,6,order\n1,1700000020,7,scroll\n1,1700000030,7,scroll\n"
MAP = "session=visit,item=sku,response=event,time=ts"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--map", f"{MAP},slate=sku"], "column 'sku' is named twice, for item_id and request_id; keep one"),
        (["--map", f"{MAP},session=sku"], "--map: 'session' is given twice"),
        (["--map", f"{MAP},session_id=sku"], "session_id is mapped twice, to 'visit' and 'sku'"),
        (["--map", f"{MAP},position=rank"], "has no column 'rank', which the mapping names for position"),
        (
            ["--map", "session=visit,item=sku,time=ts"],
            "column response is missing; the columns found are visit, ts, sku",
        ),
        (["--map", f"{MAP},colour=ts"], "unknown column 'colour'; known are session, item, time, slate"),
        (["--map", MAP, "--responses", "view=skip"], "no rule covers 'scroll' (2 rows), 'order' (1 rows); add them"),
        (["--map", MAP], "found 'view', expected one of skip, click, buy"),
        (["--map", "nowhere.toml"], "--map: nowhere.toml does not exist"),
        (["--map", MAP, "--set", "delimiter=;;"], "delimiter is ';;', expected one character"),
        (["--map", MAP, "--set", "delimiter=;"], "the columns found, separated by ';', are visit,ts,sku,event"),
    ],
)
def test_bad_mappings(tmp_path: Path, args: list[str], words: str) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(MINE)
    done = run("prepare", file, "--out", tmp_path / "dataset", *args)
    assert done.returncode == 2
    assert words in done.stderr
    assert sorted(tmp_path.iterdir()) == [file]


RULES = "view=skip,order=buy,scroll=drop"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (MINE[:-15], "seems cut short (the last row has 2 of 4 fields)"),
        (MINE.replace("6,order", ",order"), "row 2, column sku (item_id): found nothing, expected a value"),
        (MINE.replace("1700000010", "soon"), "row 2, column ts (timestamp): found 'soon', expected an ISO date"),
        (
            MINE.replace("1700000010", "1600000010"),
            "column ts (timestamp): found item 6 of session 1 with a time before",
        ),
        (MINE.replace("visit,", "sku,"), "has no column 'visit'"),
        (MINE.replace("visit,", "visit,sku,").replace("\n1", "\n1,1"), "the header names column sku twice"),
    ],
)
def test_bad_rows(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(content)
    done = run("prepare", file, "--out", tmp_path / "dataset", "--map", MAP, "--responses", RULES)
    assert done.returncode == 2
    assert words in done.stderr
    assert str(file) in done.stderr
    assert sorted(tmp_path.iterdir()) == [file]


def test_a_mapping_in_a_file_and_rows_out_of_order(tmp_path: Path) -> None:
    file, toml = tmp_path / "mine.csv", tmp_path / "mine.toml"
    file.write_text(MINE.replace("1700000010", "1600000010").replace(",", ";"))
    toml.write_text(
        'delimiter = ";"\n[map]\nsession = "visit"\nitem = "sku"\nresponse = "event"\ntime = "ts"\n'
        '[responses]\nview = "skip"\norder = "buy"\nscroll = "drop"\n'
    )
    found = result("prepare", file, "--out", tmp_path / "d", "--map", toml, "--sort", "--validation", 0)
    assert found["responses"] == {"skip": 1, "buy": 1}
    assert found["reading"]["dropped"] == {"rows with the response scroll": 2}
    toml.write_text("delimiter = ")
    assert "is not TOML" in run("prepare", file, "--out", tmp_path / "e", "--map", toml).stderr
