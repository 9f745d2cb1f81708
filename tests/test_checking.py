"""`check`: every kind of defect is found in both formats and named with file, row and column; the summary is right."""

from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bcd4rec.data import sessions
from bcd4rec.data.checking import LogReport, check
from bcd4rec.data.responses import Responses
from bcd4rec.data.schema import BadLog, Log, LogOptions
from bcd4rec.data.sessions import SessionIndex

RESPONSES = Responses(rewards={"skip": 0, "click": 1, "buy": 5})
FORMATS = ("parquet", "csv")


def rows() -> list[dict[str, Any]]:
    """Two sessions of two slates with two places each, without a fault."""
    return [
        {
            "session_id": session,
            "timestamp": 1_700_000_000 + 100 * session + 10 * slate,
            "item_id": 4 * session + 2 * slate + position,
            "response": "click" if position else "skip",
            "request_id": slate,
            "position": position,
            "category": "even" if position == 0 else "odd",
            "propensity": 0.5,
        }
        for session in (0, 1)
        for slate in (0, 1)
        for position in (0, 1)
    ]


def write(path: Path, table: list[dict[str, Any]], drop: tuple[str, ...] = ()) -> Path:
    frame = pl.DataFrame(table, infer_schema_length=None, strict=False).drop(drop)
    frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)
    return path


def report(path: Path, responses: Responses | None = RESPONSES, **options: Any) -> LogReport:
    return check(Log(path, LogOptions.model_validate(options)), responses)


def problems(path: Path, **options: Any) -> dict[str, str]:
    found = report(path, **options)
    assert found.summary == {}
    assert found.to_json()["ok"] is False
    return {problem.kind: problem.sentence for problem in found.problems}


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_good_log_has_no_problems(tmp_path: Path, suffix: str) -> None:
    found = report(write(tmp_path / f"a.{suffix}", rows()))
    assert found.problems == []
    assert found.to_json()["ok"] is True


# (what is put where, kind of the problem, what the message says after file, row and column)
DEFECTS: list[tuple[str, Any, str, str]] = [
    ("session_id", None, "null", "found nothing, expected a value in every row"),
    ("item_id", None, "null", "found nothing, expected a value in every row"),
    ("timestamp", None, "null", "found nothing, expected a value in every row"),
    ("response", None, "null", "found nothing, expected a value in every row"),
    ("request_id", None, "null", "found nothing, expected a value in every row"),
    ("response", "like", "unknown response", "found 'like', expected one of skip, click, buy; give every response a"),
    ("response", "Click", "unknown response", "found 'Click', expected one of skip, click, buy"),
    ("timestamp", 1_700_000_000_000, "type", "found '1700000000000', expected an ISO date and time"),
    ("propensity", float("nan"), "propensity", "found 'NaN', expected a probability above 0 and at most 1"),
    ("propensity", 0.0, "propensity", "found '0.0', expected a probability above 0 and at most 1"),
    ("propensity", -0.25, "propensity", "found '-0.25', expected a probability above 0 and at most 1"),
    ("propensity", 1.5, "propensity", "found '1.5', expected a probability above 0 and at most 1"),
    ("propensity", float("inf"), "propensity", "found 'inf', expected a probability above 0 and at most 1"),
    ("position", -1, "position", "found '-1', expected a place in the slate, counted from 0"),
    ("category", "odd", "two categories", "found 'odd' for item 6, which had 'even' before, expected one category"),
]


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(("column", "value", "kind", "words"), DEFECTS)
@pytest.mark.parametrize("folder", [False, True])
def test_defects(tmp_path: Path, suffix: str, column: str, value: Any, kind: str, words: str, folder: bool) -> None:
    """Row 7 of the log, which is row 3 of the second file of a folder."""
    table = rows()
    table[6][column] = value
    if kind == "two categories":
        table[6]["item_id"], table[0] = 6, table[0] | {"item_id": 6}
    if folder:
        write(tmp_path / f"1.{suffix}", table[:4])
        path, row = write(tmp_path / f"2.{suffix}", table[4:]), 3
    else:
        path, row = write(tmp_path / f"log.{suffix}", table), 7
    found = problems(tmp_path if folder else path)
    assert found.keys() == {kind}
    assert found[kind].startswith(f"{path}, row {row}, column {column}: {words}")


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [
        ("timestamp", "yesterday", "an ISO date and time"),
        ("position", "first", "an integer"),
        ("position", "1.5", "an integer"),
        ("propensity", "half", "a number"),
        ("step", "two", "an integer"),
    ],
)
def test_text_where_numbers_belong(tmp_path: Path, suffix: str, column: str, text: str, expected: str) -> None:
    table = [row | {"step": 0} for row in rows()]
    table[3][column] = text
    for row in table:
        row[column] = str(row[column])
    path = write(tmp_path / f"log.{suffix}", table)
    assert problems(path)["type"].startswith(f"{path}, row 4, column {column}: found '{text}', expected {expected}")


def test_text_in_step_when_it_is_the_clock(tmp_path: Path) -> None:
    table = [row | {"step": str(number)} for number, row in enumerate(rows())]
    table[5]["step"] = "x"
    path = write(tmp_path / "log.csv", table, drop=("timestamp",))
    assert problems(path)["type"] == f"{path}, row 6, column step: found 'x', expected an integer."


def test_fractions_in_step_and_position(tmp_path: Path) -> None:
    table = [row | {"position": row["position"] + 0.5 * (number == 2)} for number, row in enumerate(rows())]
    path = write(tmp_path / "log.parquet", table)
    assert problems(path)["type"] == f"{path}, row 3, column position: found '0.5', expected an integer."


def test_integers_beyond_64_bits_in_parquet(tmp_path: Path) -> None:
    frame = pl.DataFrame(rows()).with_columns(pl.Series("item_id", [*range(7), 2**63], dtype=pl.UInt64))
    frame.write_parquet(tmp_path / "log.parquet")
    assert (
        "row 8, column item_id: found '9223372036854775808', expected an integer below 2^63"
        in (problems(tmp_path / "log.parquet")["type"])
    )
    assert report(tmp_path / "log.parquet", string_ids=True).problems == []


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_header_without_rows(tmp_path: Path, suffix: str) -> None:
    frame = pl.DataFrame(rows()).clear()
    path = tmp_path / f"log.{suffix}"
    frame.write_csv(path) if suffix == "csv" else frame.write_parquet(path)
    assert problems(path) == {"empty": f"{path} has a header but no rows; expected impressions."}
    write(tmp_path / f"other.{suffix}", rows())
    assert problems(tmp_path).keys() == {"empty"}


def test_column_of_nulls_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "log.parquet", [row | {"session_id": None} for row in rows()])
    assert problems(path)["null"].startswith(f"{path}, row 1, column session_id: found nothing")
    path = write(tmp_path / "log.csv", [row | {"item_id": None} for row in rows()])
    assert problems(path)["null"].endswith("(8 such rows).")


def test_short_csv_line(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("session_id,timestamp,item_id,response\n1,5,7,skip\n1,6,8\n")
    assert problems(path)["null"].startswith(f"{path}, row 2, column response: found nothing")


@pytest.mark.parametrize("suffix", FORMATS)
def test_all_kinds_are_reported_at_once_with_their_counts(tmp_path: Path, suffix: str) -> None:
    table = rows()
    table[1]["response"], table[2]["response"] = "like", "hate"
    table[3]["propensity"] = 2.0
    found = report(write(tmp_path / f"log.{suffix}", table))
    assert [(problem.kind, problem.count) for problem in found.problems] == [("unknown response", 2), ("propensity", 1)]
    assert found.problems[0].sentence.endswith("(2 such rows).")
    assert "row 2, column response: found 'like'" in found.problems[0].sentence


def test_the_first_bad_row_is_named_in_a_long_file(tmp_path: Path) -> None:
    n = 300_000
    frame = pl.DataFrame({"session_id": range(n), "step": [0] * n, "item_id": range(n), "response": ["skip"] * n})
    bad = frame.with_columns(
        response=pl.when(pl.col("step").cum_count() >= 123_457).then(pl.lit("x")).otherwise("response")
    )
    for path in (tmp_path / "log.csv", tmp_path / "log.parquet"):
        bad.write_csv(path) if path.suffix == ".csv" else bad.write_parquet(path)
        assert f"{path}, row 123457, column response: found 'x'" in problems(path)["unknown response"]


# ---- order and repetition


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("clock", ["timestamp", "step"])
def test_time_running_backwards(tmp_path: Path, suffix: str, clock: str) -> None:
    table = [row | {"step": row["request_id"]} for row in rows()]
    table[5][clock] -= 1
    path = write(tmp_path / f"log.{suffix}", table, drop=("timestamp",) if clock == "step" else ())
    assert problems(path)["time backwards"] == (
        f"{path}, row 6, column {clock}: found item 5 of session 1 with a time before the row above, "
        "expected time in order; sort each session's rows by time, or pass --sort."
    )
    assert report(path, sort=True).problems == []


def test_time_running_backwards_between_files(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", rows()[4:])
    table = rows()[:4]
    write(tmp_path / "2.csv", [*table, rows()[7] | {"timestamp": 1_700_000_000, "position": 9}])
    sentence = problems(tmp_path)["time backwards"]
    assert sentence.startswith(f"{tmp_path / '2.csv'}, row 5, column timestamp: found item 7 of session 1 ")


def test_sessions_may_be_interleaved(tmp_path: Path) -> None:
    table = [row for pair in zip(rows()[4:], rows()[:4], strict=True) for row in pair]
    found = report(write(tmp_path / "log.csv", table))
    assert found.problems == []
    assert found.summary["sessions"] == 2


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("drop", [(), ("request_id",), ("position",), ("request_id", "position")])
def test_duplicate_rows(tmp_path: Path, suffix: str, drop: tuple[str, ...]) -> None:
    table = rows()
    path = write(tmp_path / f"log.{suffix}", [*table[:6], table[5], *table[6:]], drop)
    assert problems(path)["duplicate"] == (
        f"{path}, row 7, column item_id: found item 5 of session 1 once more, "
        "expected each impression once; remove one, or let a reader do it (--format, --set repeats=merge)."
    )


def test_duplicate_rows_in_two_files(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", rows())
    write(tmp_path / "2.parquet", [rows()[-1]])
    sentence = problems(tmp_path)["duplicate"]
    assert sentence.startswith(f"{tmp_path / '2.parquet'}, row 1, column item_id: found item 7 of session 1 once more")


def test_an_item_may_return_later_or_elsewhere(tmp_path: Path) -> None:
    table = rows()
    table[2]["item_id"] = table[0]["item_id"]  # same session, another slate
    table[4]["item_id"] = table[0]["item_id"]  # another session
    table[7] |= {"item_id": 6, "category": "even"}  # the same slate, another position
    assert report(write(tmp_path / "log.parquet", table)).problems == []


def test_problems_are_found_whatever_the_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "CHUNK_ROWS", 3)
    table = rows()
    path = write(tmp_path / "log.parquet", [*table, table[-1]])
    assert "row 9" in problems(path)["duplicate"]
    table[7]["timestamp"] -= 100
    assert "row 8" in problems(write(tmp_path / "log2.parquet", table))["time backwards"]


# ---- categories


def test_items_with_two_categories(tmp_path: Path) -> None:
    table = rows()
    table[2] |= {"item_id": 0, "category": None}  # no category says nothing
    table[4] |= {"item_id": 0, "category": "x"}
    table[5] |= {"item_id": 1, "category": "y"}
    path = write(tmp_path / "log.csv", table)
    assert problems(path)["two categories"] == (
        f"{path}, row 5, column category: found 'x' for item 0, which had 'even' before, "
        "expected one category per item, or the same several in each of its rows (2 such items)."
    )


def test_categories_of_two_files(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", rows()[:4])
    write(tmp_path / "2.csv", [rows()[4] | {"item_id": 1, "category": "x"}])
    assert problems(tmp_path)["two categories"].startswith(f"{tmp_path / '2.csv'}, row 1, column category: found 'x'")


def test_building_sessions_refuses_two_categories(tmp_path: Path) -> None:
    table = rows()
    table[2] |= {"item_id": 0, "category": "x"}
    with pytest.raises(BadLog, match="row 3, column category"):
        SessionIndex.build(Log(write(tmp_path / "log.csv", table)), RESPONSES)


# ---- the summary, by hand


@pytest.fixture
def tiny() -> list[dict[str, Any]]:
    """Session a: slates of 2 and 3; session b: one slate of 1. Items p (3×), q (2×), r (1×)."""
    day = datetime(2024, 3, 1, 23, 0)
    columns = ("session_id", "timestamp", "request_id", "item_id", "response", "category", "propensity")
    table = [
        ("a", day, "x", "p", "skip", "c", 0.5),
        ("a", day, "x", "q", "click", "d", 0.5),
        ("a", day.replace(hour=23, minute=59), "y", "p", "click", "c", None),
        ("a", day.replace(hour=23, minute=59), "y", "q", "buy", "d", 0.25),
        ("a", day.replace(hour=23, minute=59), "y", "r", "skip", None, 0.25),
        ("b", day.replace(day=3, hour=0), "x", "p", "skip", "c", None),
    ]
    return [dict(zip(columns, row, strict=True)) for row in table]


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("chunk", [1, 1_000_000])
def test_summary(
    tmp_path: Path, suffix: str, chunk: int, tiny: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "CHUNK_ROWS", chunk)
    found = report(write(tmp_path / f"log.{suffix}", tiny))
    assert found.problems == []
    summary = found.to_json()
    assert summary.pop("log") == str(tmp_path / f"log.{suffix}")
    warned = [one["kind"] for one in summary.pop("warnings")]
    expected = ["few sessions", "few positives", "only clicked slates", "no positions", "missing propensities"]
    assert warned == expected
    length, popularity = summary.pop("session_length"), summary.pop("popularity")
    assert summary.pop("rates") == pytest.approx({"skip": 50.0, "click": 100 / 3, "buy": 100 / 6})
    assert summary.pop("items_of_several_categories") == 0
    assert summary.pop("target_rate") == pytest.approx(100 / 3)  # one of three slates ended in a purchase
    assert summary.pop("propensities") == pytest.approx(100 * 4 / 6)
    assert summary == {
        "ok": True,
        "problems": [],
        "organic": 0,
        "sessions_without_impressions": 0,
        "sessions": 2,
        "items": 3,
        "categories": 2,
        "impressions": 6,
        "requests": 3,
        "slate_size": 2.0,
        "responses": {"skip": 3, "click": 2, "buy": 1},
        "target": "buy",
        "days": {"first": "2024-03-01T23:00:00", "last": "2024-03-03T00:00:00", "days": 3},
    }
    # Sessions of 2 and 1 slates.
    assert length == pytest.approx({"mean": 1.5, "p10": 1.1, "median": 1.5, "p90": 1.9, "max": 2.0})
    # Shown 3, 2, 1: the mean absolute difference over all pairs is 8/9, over twice the mean 2. Liked 2 (q), 1 (p), 0.
    assert popularity["impressions"] == pytest.approx({"gini": 8 / 9 / 4, "top_tenth": 50.0})
    assert popularity["positives"] == pytest.approx({"gini": 8 / 9 / 2, "top_tenth": 200 / 3})


def test_summary_without_slates_categories_and_clock(tmp_path: Path, tiny: list[dict[str, Any]]) -> None:
    table = [row | {"step": number} for number, row in enumerate(tiny)]
    path = write(tmp_path / "log.csv", table, drop=("timestamp", "request_id", "category", "propensity"))
    summary = report(path, None).summary
    assert (summary["requests"], summary["categories"], summary["days"], summary["propensities"]) == (6, 0, None, 0)


def test_responses_default_to_those_of_the_log(tmp_path: Path, tiny: list[dict[str, Any]]) -> None:
    path = write(tmp_path / "log.csv", tiny[:3])
    summary = report(path, None).summary
    assert summary["responses"] == {"skip": 1, "click": 2}
    assert summary["target"] == "click"


def test_string_and_integer_ids_give_the_same_summary(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", rows())
    assert report(path).summary == report(path, string_ids=True).summary


def test_sort_puts_slates_in_the_order_of_time(tmp_path: Path) -> None:
    """Slates that stand in the file the wrong way round; the summary cannot tell, the chunks can."""
    table = [*rows()[2:4], *rows()[:2]]
    path = write(tmp_path / "log.parquet", table)
    index = SessionIndex.build(Log(path, LogOptions(sort=True)), RESPONSES)
    (chunk,) = index.chunks(tmp_path)
    assert chunk["item"].to_list() == [0, 1, 2, 3]
    assert chunk["step"].to_list() == [0, 0, 1, 1]
