"""Files of logs as bytes: found, told apart by name and content, unpacked, named with the place where they break."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import BinaryIO, Literal, cast

from bcd4rec.data.places import StoredPath, in_partitions
from bcd4rec.errors import InputError

PARQUET_MAGIC = b"PAR1"
NOT_TEXT = {  # first bytes of what people take for a CSV file
    b"\xff\xfe": "UTF-16, not UTF-8; save it as UTF-8",
    b"\xfe\xff": "UTF-16, not UTF-8; save it as UTF-8",
    b"PK": "a zip archive; unpack it first",
    b"7z": "a 7z archive; unpack it first",
    PARQUET_MAGIC: "a Parquet file; name it .parquet",
}
TAIL_BYTES = 1 << 16  # enough for the last row of a file
LONGEST_LINE = 1 << 24  # bytes of a header; a packed file of a megabyte may hold a line of gigabytes
MOST_COLUMNS = 10_000
Kind = Literal["parquet", "csv", "jsonl"]
SUFFIXES: dict[str, Kind] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
JSON = ".json"
PACKED = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}  # gzip and zstd, by the first bytes
SEPARATORS = (",", "\t", ";", "|")
WANTED = "a Parquet, CSV, TSV or JSON lines file of impressions, the text ones also as .gz or .zst"


def log_files(path: Path) -> list[Path]:
    """The files of a log: the file itself, or those of a folder whose names tell what they are, in their order.

    Folders of partitions within it are part of it, others are not.
    """
    if isinstance(path, StoredPath):
        return _stored_files(path)
    if not path.exists():
        raise InputError(f"{path} does not exist; expected {WANTED}.")
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"{path} is neither a file nor a folder; expected {WANTED}.")
    inside = sorted(file for file in path.rglob("*") if in_partitions(path, file) and not file.is_dir())
    # A .json beside other files tells about them; where there is nothing else, it is the log.
    files = [file for file in inside if suffix(file) in SUFFIXES] or [file for file in inside if suffix(file) == JSON]
    for file in files:
        if not file.is_file():
            raise InputError(f"{file} is a pipe, a device or a link to nothing; expected {WANTED}.")
    if not files:
        known = ", ".join(SUFFIXES)
        raise InputError(
            f"{path} is a folder without {known} files; name the file of impressions. Of its folders only partitions "
            "are read, such as day=2026-01-01 or 2026/01/01."
        )
    return files


def _stored_files(path: StoredPath) -> list[Path]:
    """Of an object store only Parquet is read: nothing else can be read in pieces, from where it is."""
    if path.is_file():
        if suffix(path) != ".parquet":
            raise InputError(f"{path} is no .parquet file; of an object store only these are read: copy it here first.")
        return [path]
    found = list(path.files())
    if not found:
        raise InputError(f"{path} does not exist, or holds nothing; expected a Parquet file or a folder of them.")
    files: list[Path] = sorted(file for file in found if suffix(file) == ".parquet" and in_partitions(path, file))
    if not files:
        raise InputError(
            f"{path} holds {len(found):,} files, but no .parquet file of a log, such as {found[0]}; of an object store "
            "only these are read, and of its folders only partitions, such as day=2026-01-01."
        )
    return files


def suffix(path: Path) -> str:
    """`.csv` for both a.csv and a.csv.gz."""
    return (path.with_suffix("") if path.suffix in PACKED else path).suffix.lower()


def kind_of(path: Path) -> Kind:
    """What a file holds: by its name or, where that tells nothing, by how it begins."""
    if suffix(path) in SUFFIXES:
        return SUFFIXES[suffix(path)]
    with open_plain(path) as file:
        head = file.read(1 << 12)
    if head.lstrip().startswith((b"{", b"[")):
        return "jsonl"
    return "csv" if any(one.encode() in head for one in SEPARATORS) and b"\0" not in head else "parquet"


def open_plain(path: Path) -> BinaryIO:
    """The bytes of a file, unpacked where it begins like one of gzip or zstd."""
    with path.open("rb") as file:
        head = file.read(4)
    if head.startswith(PACKED[".gz"]):
        return cast("BinaryIO", gzip.open(path))
    if head == PACKED[".zst"]:
        import pyarrow as pa  # which loads NumPy, and servers have to set its threads before that

        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return path.open("rb")


def separator_of(path: Path) -> str:
    """What stands most often in the header."""
    if suffix(path) == ".tsv":
        return "\t"
    head = first_line(path).decode("utf-8", "replace")
    return max(SEPARATORS, key=head.count)  # the first of those that are equal


def first_line(path: Path) -> bytes:
    """The header of a text file; a file that is no text is refused."""
    try:
        with open_plain(path) as file:
            head = file.readline(LONGEST_LINE + 1)
    except (OSError, EOFError) as error:
        raise InputError(f"{path} cannot be unpacked ({reason(error)}); copy it again.") from None
    if len(head) > LONGEST_LINE:
        raise InputError(f"{path}: the first line has more than {LONGEST_LINE:,} bytes; write each row in a line.")
    for magic, what in NOT_TEXT.items():
        if head.startswith(magic):
            raise InputError(f"{path} is {what}.")
    return head


def tail_of(path: Path) -> bytes:
    with open_plain(path) as file:
        if file.seekable() and not isinstance(file, gzip.GzipFile):
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read()
        tail = b""
        try:
            while part := file.read(TAIL_BYTES):
                tail = (tail + part)[-TAIL_BYTES:]
        except (OSError, EOFError) as error:
            raise InputError(f"{path} is cut short ({reason(error)}); copy it again.") from None
        return tail


def is_array(path: Path) -> bool:
    """Whether a JSON file is one array of objects in place of an object in each line."""
    with open_plain(path) as file:
        return file.read(1 << 12).lstrip().startswith(b"[")


def unreadable_line(path: Path) -> str | None:
    """Where a file stops being JSON lines."""
    row = 0
    try:
        with open_plain(path) as file:
            for row, line in enumerate(file, 1):
                if line.strip() and not isinstance(json.loads(line), dict):
                    return f'row {row} is no JSON object; write one such as {{"item": 17}} in each line'
    except RecursionError:
        return f"row {row} holds lists within lists without end; write plain values"
    except ValueError as error:
        return f"row {row} is not JSON ({error}); write one object in each line"
    except (OSError, EOFError) as error:
        return f"it ends after row {row} ({reason(error)}); copy it again"
    return None


def unreadable_row(path: Path, separator: str = ",") -> str | None:
    """Where a CSV file stops being a table, for the message of a failed scan."""
    row, width = -1, 0  # the header is row 0
    what = "commas" if separator == "," else repr(separator)
    with open_plain(path) as file:
        lines = csv.reader((line.decode("utf-8-sig") for line in file), delimiter=separator, strict=True)
        try:
            for row, fields in enumerate(lines):
                width = width or len(fields)
                if len(fields) > width:
                    return f"row {row} has {len(fields)} fields, expected {width}; quote fields that contain {what}"
        except UnicodeDecodeError:
            return f"row {row + 1} is not UTF-8; save the file as UTF-8"
        except (OSError, EOFError) as error:
            return f"it ends after row {row} ({reason(error)}); copy it again"
        except csv.Error as error:
            return f"row {row + 1} is not CSV ({error}); look for a quote that is never closed"
    return None


def header_of(path: Path, separator: str) -> list[str]:
    """The fields of the first line of a CSV file."""
    head = first_line(path)
    if head.count(separator.encode()) >= MOST_COLUMNS:
        raise too_many_columns(path)
    try:
        return next(csv.reader([head.decode("utf-8-sig")], delimiter=separator), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: the header cannot be read as UTF-8 CSV ({error}); save the file as UTF-8.") from None


def too_many_columns(path: Path) -> InputError:
    return InputError(f"{path} has more than {MOST_COLUMNS:,} columns; leave out those that are not needed.")


def reason(error: Exception) -> str:
    """The first line of somebody else's message."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
