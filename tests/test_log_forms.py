"""The same log in every form that people have: text, JSON lines, packed, in folders, and with lists of items."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from test_cli import fails, result, works

COLUMNS = ("visit", "at", "page", "sku", "event")
MAP = "session=visit,time=at,slate=page,item=sku,response=event"
LISTS = "session=visit,time=at,items=shown,clicked=clicked,bought=bought"


def rows(seed: int = 0) -> list[dict[str, Any]]:
    """Visits of one to three pages with two to five items each."""
    rng = np.random.default_rng(seed)
    found = []
    for visit in range(25):
        for page in range(int(rng.integers(1, 4))):
            for item in rng.permutation(14)[: rng.integers(2, 6)]:
                event = str(rng.choice(["skip", "click", "buy"], p=[0.6, 0.3, 0.1]))
                row = (f"v{visit}", f"2024-05-{visit + 1:02d}T10:{page:02d}:00", page, f"i{item}", event)
                found.append(dict(zip(COLUMNS, row, strict=True)))
    return found


def slates(every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with one row per slate."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in every:
        key = (row["visit"], row["page"])
        slate = found.setdefault(
            key, {"visit": row["visit"], "at": row["at"], "shown": [], "clicked": [], "bought": []}
        )
        slate["shown"].append(row["sku"])
        if row["event"] != "skip":
            slate["clicked" if row["event"] == "click" else "bought"].append(row["sku"])
    return list(found.values())


def text(every: list[dict[str, Any]], separator: str) -> bytes:
    lines = [separator.join(every[0]), *(separator.join(map(str, row.values())) for row in every)]
    return ("\n".join(lines) + "\n").encode()


def json_lines(every: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in every).encode()


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def canonical(path: Path, *options: object) -> pl.DataFrame:
    kept = path.parent / f"{path.name}.kept" / "log.parquet"
    works("prepare", path, *options, "--out", kept.parent / "data", "--logs", kept)
    return pl.read_parquet(kept)


def plain(log: pl.DataFrame) -> list[tuple[Any, ...]]:
    return log.select("session_id", "timestamp", "item_id", "response").rows()


FORMS = {
    "a.csv": lambda: text(rows(), ","),
    "a.tsv": lambda: text(rows(), "\t"),
    "semicolons.csv": lambda: text(rows(), ";"),
    "bars.txt": lambda: text(rows(), "|"),
    "a.csv.gz": lambda: gzip.compress(text(rows(), ",")),
    "a.tsv.zst": lambda: zstd(text(rows(), "\t")),
    "a.jsonl": lambda: json_lines(rows()),
    "export": lambda: json_lines(rows()),
    "a.ndjson.gz": lambda: gzip.compress(json_lines(rows())),
    "a.jsonl.zst": lambda: zstd(json_lines(rows())),
    "packed-without-a-name": lambda: zstd(text(rows(), ",")),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_the_same_log(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FORMS[name]())
    log = canonical(tmp_path / name, "--map", MAP)
    expected = [(row["visit"], row["at"], row["sku"], row["event"]) for row in rows()]
    assert [(visit, f"{at:%Y-%m-%dT%H:%M:%S}", item, event) for visit, at, item, event in plain(log)] == expected
    assert log["request_id"].to_list() == [str(row["page"]) for row in rows()]


def test_canonical_logs_in_every_form(tmp_path: Path) -> None:
    names = dict(zip(COLUMNS, ("session_id", "timestamp", "request_id", "item_id", "response"), strict=True))
    every = [{names[own]: value for own, value in row.items()} for row in rows()]
    hashes = set()
    for name, data in (
        ("a.csv", text(every, ",")),
        ("a.tsv.gz", gzip.compress(text(every, "\t"))),
        ("a.jsonl.zst", zstd(json_lines(every))),
    ):
        (tmp_path / name).write_bytes(data)
        hashes.add(result("prepare", tmp_path / name, "--out", tmp_path / f"{name}.data")["content_hash"])
    pl.DataFrame(every).write_parquet(tmp_path / "a.parquet")
    hashes.add(result("prepare", tmp_path / "a.parquet", "--out", tmp_path / "data")["content_hash"])
    assert len(hashes) == 1


def test_a_folder_of_packed_files(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    half = len(rows()) // 2
    (folder / "1.csv.gz").write_bytes(gzip.compress(text(rows()[:half], ",")))
    (folder / "2.csv").write_bytes(text(rows()[half:], ","))
    (folder / "README.md").write_text("not a log")
    assert canonical(folder, "--map", MAP).height == len(rows())


# ---- one row per slate


def listed(form: str) -> tuple[str, bytes, list[str]]:
    """A file with lists, its name, and what more has to be said."""
    found = slates(rows())
    names = ("shown", "clicked", "bought")
    if form == "json":
        return "a.jsonl", json_lines(found), []
    separator = {"blanks": " ", "bars": "|", "words": " and ", "brackets": ", "}[form]
    joined = [row | {name: separator.join(row[name]) for name in names} for row in found]
    if form == "brackets":
        joined = [row | {name: f"[{row[name]}]" for name in names} for row in joined]
    return "a.tsv", text(joined, "\t"), ["--set", "list_separator=and"] if form == "words" else []


@pytest.mark.parametrize("form", ["json", "blanks", "bars", "words", "brackets", "parquet"])
def test_lists_are_the_same_log(tmp_path: Path, form: str) -> None:
    if form == "parquet":
        path, options = tmp_path / "a.parquet", []
        pl.DataFrame(slates(rows())).write_parquet(path)
    else:
        name, data, options = listed(form)
        path = tmp_path / name
        path.write_bytes(data)
    log = canonical(path, "--map", LISTS, *options)
    (tmp_path / "rows.csv").write_bytes(text(rows(), ","))
    assert plain(log) == plain(canonical(tmp_path / "rows.csv", "--map", MAP))
    places = [place for slate in slates(rows()) for place in range(len(slate["shown"]))]
    assert log["position"].to_list() == places
    numbers = log["request_id"].rle_id().unique()
    assert len(numbers) == len(slates(rows()))


def test_items_with_their_response(tmp_path: Path) -> None:
    """As news sites log: no header, `N1-0 N2-1`, a history, and a time in the American way."""
    path = tmp_path / "behaviors.tsv"
    path.write_text(
        "1\tU1\t11/15/2019 9:05:58 AM\tN9 N8 N9\tN-1-0 N2-1\n"
        "2\tU2\t11/15/2019 9:06:58 AM\t\tN3-0 N2-0\n"
        "3\tU1\t11/15/2019 9:15:58 PM\tN9 N8 N9 N2\tN3-1\n"
    )
    options = ["--set", "columns=id,who,at,before,seen", "--set", "mark=-", "--responses", "0=skip,1=click"]
    options += ["--map", "session=who,slate=id,time=at,history=before,items=seen"]
    log = canonical(path, *options, "--set", "time_format=%m/%d/%Y %I:%M:%S %p")
    assert [(a, f"{b:%H:%M}", c, d) for a, b, c, d in plain(log)] == [
        ("U1", "09:05", "N9", "click"),
        ("U1", "09:05", "N8", "click"),
        ("U1", "09:05", "N9", "click"),
        ("U1", "09:05", "N-1", "skip"),
        ("U1", "09:05", "N2", "click"),
        ("U2", "09:06", "N3", "skip"),
        ("U2", "09:06", "N2", "skip"),
        ("U1", "21:15", "N3", "click"),
    ]
    assert log["organic"].to_list() == [True] * 3 + [False] * 5


def test_a_history_opens_a_session_once_over_all_files(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    slate = {"who": "u", "before": [7], "seen": [1, 2], "hit": [2]}
    (folder / "1.jsonl").write_bytes(json_lines([slate | {"at": 10}, slate | {"at": 20}]))
    (folder / "2.jsonl").write_bytes(json_lines([slate | {"at": 30}]))
    log = canonical(folder, "--map", "session=who,time=at,history=before,items=seen,clicked=hit")
    assert log.filter("organic")["item_id"].to_list() == [7]
    assert log["request_id"].n_unique() == 3


def test_lists_of_other_things_go_with_the_items(tmp_path: Path) -> None:
    slate = {"s": 1, "t": 5, "seen": [4, 4, 9], "hit": [9, 77], "p": [0.5, 0.5, 0.25], "rank": [3, 5, 4]}
    (tmp_path / "a.jsonl").write_bytes(
        json_lines([slate | {"dest": "Rome"}, slate | {"t": 6, "seen": []} | {"p": [], "rank": []}])
    )
    mapped = "session=s,time=t,items=seen,clicked=hit,propensity=p,position=rank,request_category=dest"
    log = canonical(tmp_path / "a.jsonl", "--map", mapped)
    assert log.select("item_id", "position", "propensity", "response", "request_category").rows() == [
        (4, 3, 0.5, "skip", "Rome"),
        (9, 4, 0.25, "click", "Rome"),
    ]
    reading = result("check", tmp_path / "a.jsonl", "--map", mapped)["reading"]
    assert reading["read"] == {"slates": 2, "items": 3}
    assert reading["dropped"] == {
        "slates without items": 1,
        "places with an item that the slate has above": 1,
        "clicked items that were not in view": 3,
    }


def test_a_slate_that_is_its_own_session(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("search,hotel,did\n1,a,skip\n1,b,click\n2,a,skip\n2,c,skip\n")
    log = canonical(tmp_path / "a.csv", "--map", "session=search,slate=search,item=hotel,response=did")
    assert log["session_id"].cast(pl.String).to_list() == log["request_id"].to_list() == ["1", "1", "2", "2"]
    assert log["step"].to_list() == [0] * 4  # no time is needed
    found = result("check", tmp_path / "a.csv", "--map", "session=search,slate=search,item=hotel,response=did")
    assert (found["sessions"], found["requests"]) == (2, 2)


def test_clicks_without_a_column_of_responses(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("who,n,what\n1,0,a\n1,1,b\n2,0,a\n")
    log = canonical(tmp_path / "a.csv", "--map", "session=who,step=n,item=what", "--set", "every=click")
    assert log["response"].to_list() == ["click"] * 3
    assert "column response is missing" in fails("check", tmp_path / "a.csv", "--map", "session=who,step=n,item=what")


def test_several_categories_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("s,n,i,r,c\n1,0,a,skip,food > fruit\n1,1,b,click,tools\n")
    mapped = ("--map", "session=s,step=n,item=i,response=r,category=c", "--set", "category_separator=>")
    assert canonical(tmp_path / "a.csv", *mapped)["category"].to_list() == [["food", "fruit"], ["tools"]]


@pytest.mark.parametrize("least", [1, 8, 10])
def test_min_support(tmp_path: Path, least: int) -> None:
    (tmp_path / "a.csv").write_bytes(text(rows(), ","))
    log = canonical(tmp_path / "a.csv", "--map", MAP, "--set", f"min_support={least}")
    seen = [row["sku"] for row in rows()]
    kept = [row for row in rows() if seen.count(row["sku"]) >= least]
    assert log["item_id"].to_list() == [row["sku"] for row in kept]
    dropped = result("check", tmp_path / "a.csv", "--map", MAP, "--set", f"min_support={least}")["reading"]["dropped"]
    expected = {f"items with fewer than {least} impressions": len(set(seen)) - len({row["sku"] for row in kept})}
    expected |= {"impressions of such items alone": len(rows()) - len(kept)}
    expected |= {"sessions of such items alone": 25 - len({row["visit"] for row in kept})}
    assert dropped == {why: count for why, count in expected.items() if count}
    assert "No item has 999 impressions" in fails("check", tmp_path / "a.csv", "--map", MAP, "--set", "min_support=999")


def test_min_support_of_sequences(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 2 3\n2 3\n9\n")
    log = canonical(tmp_path / "a.txt", "--format", "sequences", "--set", "min_support=2")
    assert log["item_id"].to_list() == ["2", "3", "2", "3"] or log["item_id"].to_list() == [2, 3, 2, 3]


# ---- what is refused


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (b'{"a": 1}\n{"a":\n', [], "row 2 is not JSON"),
        (b'{"a": 1}\n[1]\n', [], "row 2 is no JSON object"),
        (json_lines(slates(rows())), ["--map", "session=visit,time=at,items=seen"], "has no column 'seen', which"),
        (json_lines(slates(rows())), ["--map", f"{LISTS},item=shown"], "keep one"),
        (
            json_lines(slates(rows())),
            ["--map", "session=visit,time=at,clicked=clicked"],
            "name the items that were shown",
        ),
        (json_lines(slates(rows())), ["--map", f"{LISTS},propensity=clicked"], "is named twice"),
        (
            json_lines([{"s": 1, "t": 2, "seen": [1, 2, 3], "hit": [], "p": [0.1, 0.2]}]),
            ["--map", "session=s,time=t,items=seen,clicked=hit,propensity=p"],
            "row 1, column p (propensity): found 2 values for 3 items",
        ),
        (
            json_lines([{"s": 1, "t": 2, "seen": "a-0 b"}]),
            ["--map", "session=s,time=t,items=seen", "--set", "mark=-", "--responses", "0=skip"],
            "row 1, column seen (items): found",
        ),
        (
            json_lines([{"s": 1, "t": "noon", "seen": [1], "hit": []}]),
            ["--map", "session=s,time=t,items=seen,clicked=hit", "--set", "time_format=%H:%M"],
            "row 1, column t (timestamp): found 'noon', expected a time as %H:%M says",
        ),
    ],
)
def test_json_lines_that_are_refused(tmp_path: Path, data: bytes, options: list[str], words: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(data)
    assert words in fails("check", tmp_path / "a.jsonl", *options)


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz"])
def test_a_packed_file_that_is_cut_short(tmp_path: Path, name: str) -> None:
    data = text(rows(), ",") if "csv" in name else json_lines(rows())
    (tmp_path / name).write_bytes(gzip.compress(data)[:-200])
    words = fails("check", tmp_path / name, "--map", MAP)
    assert "copy it again" in words


def test_names_for_another_number_of_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2,3\n")
    words = fails("check", tmp_path / "a.csv", "--map", "session=a,item=b,step=c", "--set", "columns=a,b")
    assert "has 3 columns, but 2 names were given: a, b" in words


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("v,t,i,r,c\n1,5,a,skip,x\n1,4,b,skip,x\n", "column t (timestamp)"),
        ("v,t,i,r,c\n1,5,a,skip,x\n1,5,a,skip,x\n", "column i (item_id)"),
        ("v,t,i,r,c\n1,5,a,skip,x\n1,6,a,skip,y\n", "column c (category)"),
        ("v,t,i,r,c\n1,5,a,jump,x\n1,6,a,skip,x\n", "column r (response)"),
        ("v,t,i,r,c\n1,5,,skip,x\n1,6,a,skip,x\n", "column i (item_id)"),
    ],
)
def test_errors_speak_of_your_columns(tmp_path: Path, table: str, words: str) -> None:
    (tmp_path / "a.csv").write_text(table)
    args = ("prepare", tmp_path / "a.csv", "--map", "session=v,time=t,item=i,response=r,category=c")
    assert words in fails(*args, "--out", tmp_path / "data")
