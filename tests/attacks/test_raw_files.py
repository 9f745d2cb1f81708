"""Files of strangers: bombs, endless lines, nests, names and cells with markup. One sentence, or a harmless page."""

import gzip
import os
import tomllib
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bcd4rec import cli
from bcd4rec.commands._reading import LONGEST_MAPPING, read_mapping
from bcd4rec.console import show
from bcd4rec.data import files
from bcd4rec.data.files import log_files
from bcd4rec.data.proposals.proposal import Choice, Proposal
from bcd4rec.data.proposals.proposing import propose
from bcd4rec.data.proposals.sampling import sample_of
from bcd4rec.data.tables import collect, scan
from bcd4rec.errors import InputError
from bcd4rec.report.page import Page, Section, Table, render
from test_cli import fails

HEADER = "session_id,item_id,timestamp,response\n"
MARKUP = "<script>alert(1)</script>"
ESCAPES = "\x1b[31m\x1b]0;title\x07\x7f"


def refused(path: Path) -> str:
    """The one sentence that `start` and all that reads logs have for it."""
    with pytest.raises(InputError) as caught:
        collect(table := scan(log_files(path)[0]), table.frame.head(10))
    with pytest.raises(InputError) as again:
        sample_of(path)
    assert str(again.value) == str(caught.value)
    return str(caught.value)


# ---- too long, too wide, too deep


@pytest.mark.parametrize("packed", ["gz", "zst"])
def test_a_packed_line_is_not_unpacked_without_end(tmp_path: Path, packed: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 1 << 20)
    read: list[int] = []
    path, part = tmp_path / f"bomb.csv.{packed}", b"a" * (1 << 20)
    with gzip.open(path, "wb") if packed == "gz" else pa.CompressedOutputStream(str(path), "zstd") as file:
        for _ in range(16):
            file.write(part)
    opened = files.open_plain

    class Counted:
        def __init__(self, file: Any):
            self._file = file

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def readline(self, size: int = -1) -> bytes:
            line: bytes = self._file.readline(size)
            read.append(len(line))
            return line

    monkeypatch.setattr(files, "open_plain", lambda path: Counted(opened(path)))
    assert "the first line has more than 1,048,576 bytes" in refused(path)
    assert max(read) == (1 << 20) + 1


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_table_of_too_many_columns(tmp_path: Path, kind: str, monkeypatch: Any) -> None:
    for module in ("bcd4rec.data.files", "bcd4rec.data.tables"):
        monkeypatch.setattr(f"{module}.MOST_COLUMNS", 50)
    path = tmp_path / f"wide.{kind}"
    for count in (50, 51):
        table = pl.DataFrame({f"c{number}": [1, 2] for number in range(count)})
        {"csv": table.write_csv, "jsonl": table.write_ndjson, "parquet": table.write_parquet}[kind](path)
        if count == 50:
            assert len(scan(path).columns) == 50
    assert "has more than 50 columns" in refused(path)


def test_one_field_that_is_longer_than_csv_allows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a" * 200_000 + ",b\n1,2\n")
    assert "the header cannot be read" in refused(tmp_path / "a.csv")


@pytest.mark.parametrize("row", ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000])
def test_nested_json_lines(tmp_path: Path, row: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"item": 1}\n' * 3 + f'{{"item": {row}}}\n')
    assert "row 4 holds lists within lists without end" in refused(path)


def test_a_footer_that_promises_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"session_id": [1], "item_id": [2]}), path)
    content = path.read_bytes()
    for size in (0, 1, 1 << 20, 0xFFFFFFF0):
        path.write_bytes(content[:-8] + size.to_bytes(4, "little") + b"PAR1")
        assert "cannot be read as Parquet" in refused(path)


def test_sentences_have_an_end() -> None:
    assert cli._short("short.") == "short."
    cut = cli._short("first " + "x" * 100_000 + " last.")
    assert len(cut) < cli.LONGEST_SENTENCE + 10
    assert cut.startswith("first ") and cut.endswith(" last.")  # noqa: PT018


# ---- folders


@pytest.mark.parametrize("kind", ["pipe", "loop", "device"])
def test_folders_with_more_than_files(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.csv").write_text(HEADER + "1,2,3,click\n")
    (tmp_path / "folder.csv").mkdir()
    assert log_files(tmp_path) == [tmp_path / "a.csv"]
    if kind == "pipe":
        os.mkfifo(tmp_path / "b.csv")
    else:
        (tmp_path / "b.csv").symlink_to("b.csv" if kind == "loop" else "/dev/zero")
    with pytest.raises(InputError, match=r"b\.csv is a pipe, a device or a link to nothing"):
        log_files(tmp_path)


# ---- mappings


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("map = 3", "expected a table [map]"),
        ("responses = [1]", "expected a table [responses]"),
        ("a = " + "[\n" * 5_000 + "]\n" * 5_000, "lists within lists without end"),
        (".".join(["a"] * 50_000) + " = 1", "longer than a mapping"),
        ("#" * 100 + "\n" + "x\n" * LONGEST_MAPPING, "longer than a mapping"),
        ("", "is empty"),
        ("map = \x00", "is not TOML"),
    ],
)
def test_hostile_mappings(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "map.toml").write_text(text)
    for option in ("--map", "--mapping"):
        with pytest.raises(InputError, match=option) as caught:
            read_mapping(tmp_path / "map.toml", option)
        assert words in str(caught.value)


def test_a_mapping_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "map.toml")
    (tmp_path / "a.csv").write_text(HEADER + "1,2,3,click\n")
    words = fails("start", tmp_path / "a.csv", "--mapping", tmp_path / "map.toml", "--out", tmp_path / "out")
    assert "is no file" in words
    assert not (tmp_path / "out").exists()


def test_names_cannot_write_into_a_mapping(tmp_path: Path) -> None:
    """What a file calls its columns and values stands in quotes and in comments, and nowhere else."""
    item, answer = f"item{MARKUP}{ESCAPES}", f"click{MARKUP}{ESCAPES}"
    rows = "".join(
        f"{session},{(7 * session + place) % 11},{1_700_000_000 + session},{answer if place else 'view'}\n"
        for session in range(40)
        for place in range(3)
    )
    (tmp_path / "a.csv").write_text(f"session_id,{item},timestamp,response\n{rows}")
    found = propose(sample_of(tmp_path / "a.csv"))
    assert tomllib.loads(found.to_toml()) == found.options
    forged = 'x"\nformat = "jsonl"\n[map]\nsession = "other'
    options = {"format": "csv", "map": {"item": forged}, "responses": {forged: "click"}}
    told = Proposal(options, (Choice("item", forged, f"because of {forged}"),), (f"a doubt about {forged}",))
    assert tomllib.loads(told.to_toml(f"how {forged} calls things")) == options


# ---- pages and terminals


def test_no_text_of_others_becomes_markup() -> None:
    """Wherever a page takes a text, and whatever stands in it."""
    evil = f"{MARKUP}`{MARKUP}`\"'><img src=x onerror=alert(1)>{ESCAPES}"
    table = Table([evil, evil], [[evil, evil]], caption=evil, spans=[(evil, 1)], title=evil, note=evil)
    section = Section(evil, [evil], table=table, commands=[evil], notes=[evil], mark=evil, anchor=evil)
    page = render(Page(evil, [evil], [section], banner=evil, facts=[(evil, evil)]))
    found = Seen()
    found.feed(page)
    assert not found.tags & {"script", "img", "iframe", "object", "form"}
    assert not [name for name in found.attributes if name.startswith("on")]
    assert MARKUP in unescape(page)
    assert "default-src 'none'" in page


class Seen(HTMLParser):
    """The tags and attributes that a browser would find."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_what_is_shown_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(f"In session {ESCAPES} two items")
    assert capsys.readouterr().out == "In session \\x1b[31m\\x1b]0;title\\x07\\x7f two items\n"
