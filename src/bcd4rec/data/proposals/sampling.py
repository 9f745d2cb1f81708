"""The first rows of an unknown log, whatever kind of file it is, with or without a header."""

import re
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from bcd4rec.data.files import header_of, kind_of, log_files, separator_of
from bcd4rec.data.proposals.choosing import FILE
from bcd4rec.data.proposals.hints import spread_events, spread_lists
from bcd4rec.data.proposals.profiles import ISO, profile
from bcd4rec.data.proposals.proposal import LogSample, Proposal
from bcd4rec.data.proposals.words import SEEN, answer_of
from bcd4rec.data.tables import ROW, collect, scan
from bcd4rec.errors import InputError

ROWS = 50_000
DIGINETICA = "train-queries.csv"  # a folder with this file has a reader of its own
MOST_FILES, SHARED, MOST_SHOWN = 20, 2, 5  # files that are compared, columns that they share, columns that are told
DATA_LIKE = rf"^(-?\d+(\.\d+)?|\d+[/.]\d+[/.]\d+.*|{ISO[1:-1]})$"  # what stands in rows, not in headers


def sample_of(path: Path, rows: int = ROWS) -> LogSample:
    """`InputError` for what is no table."""
    files = log_files(path)
    told = file_responses(files)
    if not told:
        _refuse_strangers(path, files)
        return _head(path, files[0], rows)
    heads = [
        (_head(path, next(file for file in files if part in file.name), rows // len(told)), response)
        for part, response in told.items()
    ]
    frames = [head.frame.with_columns(pl.lit(response).alias(FILE)) for head, response in heads]
    first = heads[0][0]
    frame = pl.concat(frames, how="diagonal_relaxed")
    return LogSample(path, first.kind, frame, first.delimiter, first.names_given, files=told)


def _head(path: Path, file: Path, rows: int) -> LogSample:
    if file.stat().st_size == 0:
        raise InputError(f"{file} is empty (0 bytes); expected a log with one row per shown item or per slate.")
    kind = kind_of(file)
    separator = separator_of(file) if kind == "csv" else ""
    names = _names_for(file, separator) if kind == "csv" else ()
    table = scan(file, kind, separator or None, names)
    frame = collect(table, table.frame.drop(ROW).head(rows))
    if frame.is_empty():
        raise InputError(f"{file} has a header and no rows; expected one row per shown item or per slate.")
    return LogSample(path, kind, frame, separator, bool(names))


def _refuse_strangers(path: Path, files: Sequence[Path]) -> None:
    """Files of a folder that have next to nothing in common are no parts of one log."""
    if len(files) == 1 or (path / DIGINETICA).is_file():  # whose reader knows them all
        return
    own = {file: scan(file).columns for file in files[:MOST_FILES] if kind_of(file) != "jsonl" and file.stat().st_size}
    first = next(iter(own), None)
    if first is None:
        return
    least = min(SHARED, len(own[first]))
    other = next((file for file in own if len({*own[file]} & {*own[first]}) < least), None)
    if other is not None:
        columns = [f"{file.name} has {', '.join(own[file][:MOST_SHOWN])}" for file in (first, other)]
        raise InputError(
            f"{path}: its files are no parts of one log ({'; '.join(columns)}); name the one that tells what was shown "
            "or done, and pass one about items with --items."
        )


def file_responses(files: Sequence[Path]) -> dict[str, str]:
    """What the rows of the files of a folder are, by a word of their names, as of impressions.csv and clicks.csv;
    nothing where not all of them tell, or where they do not tell what was shown from what was liked."""
    words = [next(((one, answer) for one in _words(file) if (answer := _answer(one))), None) for file in files]
    told = dict(word for word in words if word is not None)
    both = "skip" in told.values() and len(set(told.values())) > 1
    return told if both and None not in words else {}


def _words(file: Path) -> list[str]:
    return re.findall(r"[a-z]+", file.name.split(".")[0].lower())


def _answer(word: str) -> str | None:
    """A file of views beside one of impressions holds looks."""
    found = "click" if word.removesuffix("s") in SEEN else answer_of(word)
    return found if found in ("skip", "click", "buy") else None


def item_ids(sample: LogSample, proposal: Proposal) -> pl.Series:
    """The items of the sample as texts, each once; none where the log's format is not one of columns."""
    roles, frame = proposal.map, spread_lists(spread_events(sample)).frame
    column = roles.get("item", roles.get("items", ""))
    if column not in frame.columns:
        return pl.Series([], dtype=pl.String)
    values = profile(frame[column]).values
    values = (values.explode() if values.dtype == pl.List else values).cast(pl.String)
    mark = str(proposal.options.get("mark", ""))
    return (values.str.split(mark).list.first() if mark else values).drop_nulls().unique().sort()


def _names_for(file: Path, separator: str) -> tuple[str, ...]:
    """Names for the columns of a file whose first line is a row already; none where it is a header."""
    fields = header_of(file, separator)
    rows = any(re.match(DATA_LIKE, field.strip()) for field in fields)
    return tuple(f"column{number}" for number in range(1, len(fields) + 1)) if rows else ()
