"""Files as tables: what is refused before a single row is looked at, and how ids and times are read."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from bcd4rec.data.responses import DIGINETICA
from bcd4rec.data.schema import BadLog, Log, LogOptions, LogProblem, default_responses, row_problems
from bcd4rec.errors import InputError

HEADER = "session_id,timestamp,item_id,response\n"
GOOD = HEADER + "1,5,7,skip\n1,6,8,click\n"


def csv(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def parquet(path: Path, **columns: object) -> Path:
    """A log of two rows; `columns` replace or add columns, None removes one."""
    base: dict[str, object] = {
        "session_id": [1, 1],
        "timestamp": [5, 6],
        "item_id": [7, 8],
        "response": ["skip", "click"],
    }
    pl.DataFrame({name: values for name, values in (base | columns).items() if values is not None}).write_parquet(path)
    return path


def refusal(path: Path, options: LogOptions | None = None) -> str:
    with pytest.raises(InputError) as caught:
        Log(path, options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def typed(path: Path, **options: object) -> pl.DataFrame:
    log = Log(path, LogOptions.model_validate(options))
    return pl.concat([frame.collect() for _, frame in log.frames()])


# ---- files


def test_path_that_does_not_exist(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.parquet").startswith(f"{tmp_path / 'no.parquet'} does not exist")


def test_folder_without_tables(tmp_path: Path) -> None:
    csv(tmp_path / "notes.txt", "hello")
    assert "without .parquet, .csv, .tsv, .jsonl, .ndjson files" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_file_of_no_bytes(tmp_path: Path, name: str) -> None:
    assert f"{name} is empty (0 bytes)" in refusal(csv(tmp_path / name, ""))


@pytest.mark.parametrize("text", ["hello", "PAR", "x"])
def test_file_that_is_not_parquet(tmp_path: Path, text: str) -> None:
    assert "is not a Parquet file (it starts with b" in refusal(csv(tmp_path / "a.parquet", text))


def test_a_file_under_another_name_is_known_by_its_content(tmp_path: Path) -> None:
    assert Log(csv(tmp_path / "a.txt", GOOD)).tables[0].text
    assert "is not a Parquet file" in refusal(csv(tmp_path / "b.txt", "hello"))


def test_parquet_cut_short(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "a.parquet").read_bytes()
    assert "is cut short" in refusal(csv(tmp_path / "b.parquet", whole[: len(whole) // 2]))


def test_parquet_with_a_broken_footer(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "a.parquet").read_bytes()
    assert "cannot be read as Parquet (" in refusal(csv(tmp_path / "b.parquet", whole[:4] + whole[-8:]))


def test_parquet_with_broken_pages(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "a.parquet").read_bytes()
    log = Log(csv(tmp_path / "b.parquet", whole[:4] + b"\xff" * 200 + whole[204:]))
    with pytest.raises(InputError, match=r"b.parquet is damaged \("):
        row_problems(log, DIGINETICA)


@pytest.mark.parametrize("missing", ["session_id", "item_id", "response"])
def test_missing_column(tmp_path: Path, missing: str) -> None:
    sentence = refusal(parquet(tmp_path / "a.parquet", **{missing: None}))
    assert f"a.parquet: column {missing} is missing; the columns found are " in sentence
    header = HEADER.replace(missing, "other")
    sentence = refusal(csv(tmp_path / "a.csv", header + "1,5,7,skip\n"))
    assert f"a.csv: column {missing} is missing; the columns found are {header.strip().replace(',', ', ')}" in sentence


def test_missing_time(tmp_path: Path) -> None:
    assert "column timestamp (or step) is missing" in refusal(parquet(tmp_path / "a.parquet", timestamp=None))
    assert not Log(parquet(tmp_path / "b.parquet", timestamp=None, step=[0, 1])).clock


def test_csv_without_header(tmp_path: Path) -> None:
    assert "the columns found are 1, 5, 7, skip" in refusal(csv(tmp_path / "a.csv", "1,5,7,skip\n"))
    assert "the columns found are none" in refusal(csv(tmp_path / "b.csv", "\n"))


def test_header_names_a_column_twice(tmp_path: Path) -> None:
    twice = "session_id,timestamp,item_id,item_id,response\n1,5,7,7,skip\n"
    assert "the header names column item_id twice" in refusal(csv(tmp_path / "a.csv", twice))
    other = "x,x,session_id,timestamp,item_id,response\n1,2,1,5,7,skip\n"
    assert typed(csv(tmp_path / "b.csv", other))["item_id"].to_list() == [7]


def test_columns_differ_between_files(tmp_path: Path) -> None:
    csv(tmp_path / "a.csv", GOOD)
    csv(tmp_path / "b.csv", "session_id,timestamp,item_id,response,position\n1,9,7,skip,0\n")
    sentence = refusal(tmp_path)
    assert f"{tmp_path / 'b.csv'} has the columns" in sentence
    assert str(tmp_path / "a.csv") in sentence


def test_folder_reads_its_files_in_order_of_names(tmp_path: Path) -> None:
    csv(tmp_path / "2.csv", HEADER + "3,9,7,skip\n")
    parquet(tmp_path / "1.parquet")
    csv(tmp_path / "readme.md", "not a log")
    frame = typed(tmp_path)
    assert frame["session_id"].to_list() == [1, 1, 3]
    assert frame["row"].to_list() == [1, 2, 1]


@pytest.mark.parametrize("name", ["a[1].csv", "b*.parquet", "c?.csv", "day=3.parquet"])
def test_names_that_look_like_patterns(tmp_path: Path, name: str) -> None:
    path = csv(tmp_path / name, GOOD) if name.endswith("csv") else parquet(tmp_path / name)
    csv(tmp_path / "bb.parquet", "another file that the pattern would match")
    assert len(typed(path)) == 2


def test_a_column_called_row_is_no_trouble(tmp_path: Path) -> None:
    assert typed(parquet(tmp_path / "a.parquet", row=[40, 41]))["row"].to_list() == [1, 2]
    text = "row," + HEADER + "9,1,5,7,skip\n"
    assert typed(csv(tmp_path / "a.csv", text))["row"].to_list() == [1]


# ---- CSV


def test_byte_order_mark_crlf_and_quotes(tmp_path: Path) -> None:
    text = '"session_id","timestamp",item_id,response,note\r\na,5,"x, ""y""",skip,"two\r\nlines"\r\na,6,z,click,\r\n'
    frame = typed(csv(tmp_path / "a.csv", b"\xef\xbb\xbf" + text.encode()))
    assert frame["item_id"].to_list() == ['x, "y"', "z"]
    assert frame["row"].to_list() == [1, 2]


def test_header_that_is_not_utf8(tmp_path: Path) -> None:
    text = ("caf\xe9," + HEADER + "0,1,5,7,skip\n").encode("latin-1")
    assert "the header cannot be read as UTF-8" in refusal(csv(tmp_path / "a.csv", text))


@pytest.mark.parametrize("before", [1, 3000])
def test_row_that_is_not_utf8(tmp_path: Path, before: int) -> None:
    text = (HEADER + "1,5,7,skip\n" * before + "1,6,\xe9,click\n").encode("latin-1")
    assert refusal(csv(tmp_path / "a.csv", text)) == f"{tmp_path / 'a.csv'}: row {before + 1} is not UTF-8; " + (
        "save the file as UTF-8."
    )


@pytest.mark.parametrize("header", [HEADER.strip() + ",note", "note," + HEADER.strip()])
def test_row_with_too_many_fields(tmp_path: Path, header: str) -> None:
    path = csv(tmp_path / "a.csv", header + '\n1,5,7,skip,8\n1,6,"8\n8",skip,8\n1,6,8,click,9,8\n')
    assert refusal(path) == f"{path}: row 3 has 6 fields, expected 5; quote fields that contain commas."


def test_quote_that_is_never_closed(tmp_path: Path) -> None:
    assert "row 2 is not CSV (" in refusal(csv(tmp_path / "a.csv", HEADER + '1,5,7,skip\n1,6,"8,click\n1,7,9,skip\n'))


def test_long_values_are_cut_in_messages(tmp_path: Path) -> None:
    sentence = refusal(csv(tmp_path / "a.csv", HEADER + f"1,5,{'x' * 10_000},skip\n1,6,8,skip\n"))
    assert "found 'xxx" in sentence
    assert len(sentence) < 400 + len(str(tmp_path))


# ---- ids


def test_integers_and_strings(tmp_path: Path) -> None:
    assert typed(csv(tmp_path / "a.csv", GOOD)).schema["item_id"] == pl.Int64
    frame = typed(csv(tmp_path / "b.csv", HEADER + "s1,5,007,skip\ns2,6,1.0,click\n"))
    assert frame["session_id"].to_list() == ["s1", "s2"]
    assert frame["item_id"].to_list() == ["007", "1.0"]
    frame = typed(csv(tmp_path / "c.csv", GOOD), string_ids=True)
    assert frame["item_id"].to_list() == ["7", "8"]


@pytest.mark.parametrize("dtype", [pl.Int8, pl.UInt16, pl.Int64, pl.UInt64])
def test_integer_types_of_parquet(tmp_path: Path, dtype: pl.DataType) -> None:
    frame = typed(parquet(tmp_path / "a.parquet", item_id=pl.Series([7, 8], dtype=dtype)))
    assert frame["item_id"].to_list() == [7, 8]
    assert frame.schema["item_id"] == pl.Int64


@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical, pl.Enum(["a", "b"])])
def test_string_types_of_parquet(tmp_path: Path, dtype: pl.DataType) -> None:
    frame = typed(parquet(tmp_path / "a.parquet", item_id=pl.Series(["b", "a"], dtype=dtype)))
    assert frame["item_id"].to_list() == ["b", "a"]


@pytest.mark.parametrize("column", ["session_id", "item_id"])
def test_mixed_ids_in_a_csv(tmp_path: Path, column: str) -> None:
    rows = {"session_id": "1,5,7,skip\n2,5,7,skip\nx,5,7,skip\n", "item_id": "1,5,7,skip\n1,6,8,skip\n1,7,x,skip\n"}
    path = csv(tmp_path / "a.csv", HEADER + rows[column])
    assert f"{path}, row 3, column {column}: found 'x' among integers (1 strings, 2 integers)" in refusal(path)
    assert typed(path, string_ids=True).schema[column] == pl.String


def test_mixed_ids_between_files(tmp_path: Path) -> None:
    parquet(tmp_path / "1.parquet")
    csv(tmp_path / "2.csv", HEADER + "1,7,x,skip\n")
    sentence = refusal(tmp_path)
    assert (
        f"{tmp_path / '2.csv'}: column item_id holds strings, but {tmp_path / '1.parquet'} holds integers" in sentence
    )
    assert typed(tmp_path, string_ids=True)["item_id"].to_list() == ["7", "8", "x"]


def test_a_file_without_rows_has_ids_of_any_type(tmp_path: Path) -> None:
    csv(tmp_path / "1.csv", HEADER)
    csv(tmp_path / "2.csv", HEADER + "a,7,x,skip\n")
    assert Log(tmp_path).id_types == {"session_id": pl.String, "item_id": pl.String}


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 10**18])
def test_huge_integers(tmp_path: Path, value: int) -> None:
    frame = typed(csv(tmp_path / "a.csv", HEADER + f"1,5,7,skip\n1,6,{value},click\n"))
    assert frame["item_id"].to_list() == [7, value]


def test_integers_beyond_64_bits(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", HEADER + f"1,5,7,skip\n1,6,{2**63},click\n")
    assert f"row 2, column item_id: found '{2**63}' among integers" in refusal(path)
    assert typed(path, string_ids=True)["item_id"].to_list() == ["7", str(2**63)]


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("session_id", [1.0, 2.0], "integers or strings"),
        ("item_id", [True, False], "integers or strings"),
        ("item_id", [[1], [2]], "integers or strings"),
        ("timestamp", [True, False], "dates, numbers or ISO strings"),
        ("timestamp", [timedelta(1), timedelta(2)], "dates, numbers or ISO strings"),
        ("response", [[1], [2]], "integers or strings"),
        ("response", [b"\xff", b"skip"], "integers or strings"),
        ("request_id", [date(2024, 1, 1)] * 2, "integers or strings"),
        ("category", [{"a": 1}, {"a": 2}], "integers or strings"),
        ("position", [True, False], "integers"),
        ("step", [date(2024, 1, 1)] * 2, "integers"),
        ("propensity", [[0.5], [0.5]], "numbers"),
    ],
)
def test_types_that_no_column_may_have(tmp_path: Path, column: str, values: list[object], expected: str) -> None:
    sentence = refusal(parquet(tmp_path / "a.parquet", **{column: values}))
    assert f"a.parquet: column {column} has type " in sentence
    assert f", expected {expected}; cast it before." in sentence


# ---- time


NOON = int(datetime(2024, 1, 2, 12, tzinfo=UTC).timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01-02T12:00:00", NOON),
        ("2024-01-02 12:00:00", NOON),
        ("2024-01-02 12:00", NOON),
        ("2024-01-02T12:00:00.25", NOON + 250_000),
        ("2024-01-02T12:00:00.123456789", NOON + 123_456),
        ("2024-01-02T12:00:00Z", NOON),
        ("2024-01-02T14:00:00.5+02:00", NOON + 500_000),
        ("2024-01-02 07:00:00-0500", NOON),
        ("2024-01-02", NOON - 12 * 3_600_000_000),
        (str(NOON // 1_000_000), NOON),
        (f"{NOON // 1_000_000}.5", NOON + 500_000),
        ("1.7e9", 1_700_000_000_000_000),
    ],
)
def test_text_timestamps(tmp_path: Path, text: str, expected: int) -> None:
    assert typed(csv(tmp_path / "a.csv", HEADER + f"1,,7,skip\n1,{text},8,skip\n"))["time"].to_list() == [
        None,
        expected,
    ]
    assert typed(parquet(tmp_path / "a.parquet", timestamp=[text, text]))["time"].to_list() == [expected] * 2


@pytest.mark.parametrize(
    "values",
    [
        [datetime(2024, 1, 2, 12)],
        [datetime(2024, 1, 2, 12, tzinfo=UTC)],
        pl.Series([datetime(2024, 1, 2, 12)], dtype=pl.Datetime("ns")),
        pl.Series([datetime(2024, 1, 2, 13, tzinfo=ZoneInfo("Europe/Berlin"))]),
        [float(NOON // 1_000_000)],
        pl.Series([NOON // 1_000_000], dtype=pl.UInt32),
    ],
)
def test_typed_timestamps(tmp_path: Path, values: object) -> None:
    columns: dict[str, object] = {"session_id": [1], "item_id": [1], "response": ["skip"], "timestamp": values}
    assert typed(parquet(tmp_path / "a.parquet", **columns))["time"].to_list() == [NOON]


@pytest.mark.parametrize(("unit", "scale"), [("s", 1_000_000), ("ms", 1_000), ("us", 1)])
def test_time_units(tmp_path: Path, unit: str, scale: int) -> None:
    path = parquet(tmp_path / "a.parquet", timestamp=[NOON // scale, NOON // scale + 1])
    assert typed(path, time_unit=unit)["time"].to_list() == [NOON, NOON + scale]


@pytest.mark.parametrize("value", [1_704_196_800_000, 1_704_196_800_000_000_000, 2**63 - 1, 1e30, float("inf")])
def test_times_after_the_year_9999_are_no_times(tmp_path: Path, value: float) -> None:
    assert typed(parquet(tmp_path / "a.parquet", timestamp=[value, value]))["time"].to_list() == [None, None]
    assert typed(csv(tmp_path / "a.csv", HEADER + f"1,{value},7,skip\n"))["time"].to_list() == [None]


def test_whole_floats_are_integers_and_others_are_not(tmp_path: Path) -> None:
    frame = typed(parquet(tmp_path / "a.parquet", timestamp=None, step=[1.0, 1.5], position=[float("nan"), -0.0]))
    assert frame["time"].to_list() == [1, None]
    assert frame["position"].to_list() == [None, 0]


# ---- responses and problems


@pytest.mark.parametrize(
    ("seen", "names"),
    [
        (["skip", "click"], ("skip", "click")),
        (["skip", "buy"], ("skip", "buy")),
        (["click", "buy"], ("skip", "click", "buy")),
        (["skip", "skip"], ("skip", "click", "buy")),
        (["view", "like"], ("skip", "click", "buy")),
    ],
)
def test_default_responses_are_those_of_the_log(tmp_path: Path, seen: list[str], names: tuple[str, ...]) -> None:
    assert default_responses(Log(parquet(tmp_path / "a.parquet", response=seen))).names == names


def test_bad_log_says_the_first_problem_and_how_many_more() -> None:
    one, two = LogProblem("null", "First."), LogProblem("type", "Second.", 3)
    assert str(BadLog([one])) == "First."
    assert str(BadLog([one, two])).startswith("First. (1 more")
    assert two.to_json() == {"kind": "type", "count": 3, "message": "Second."}
