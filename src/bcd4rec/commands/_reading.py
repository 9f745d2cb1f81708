"""Raw logs on the command line: `--format`, its options, and the canonical log that a reader makes of them."""

import contextlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bcd4rec.commands._options import open_log
from bcd4rec.config import parse_pairs, parse_settings
from bcd4rec.data.places import local, place
from bcd4rec.data.schema import BadLog, Log, LogProblem, OwnNames
from bcd4rec.errors import InputError

if TYPE_CHECKING:
    from bcd4rec.data.readers.reader import Reader
    from bcd4rec.data.sessions import Tick

LONGEST_MAPPING, LONGEST_LINE = 1 << 20, 4_000  # bytes, and characters of a line

RawPath = Annotated[
    Path,
    typer.Argument(
        metavar="LOGS",
        parser=place,
        help="A file of impressions or a folder of them, also s3://, gs:// or az://; with --format: raw logs.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Raw format: diginetica, trivago, sequences, csv (also TSV), jsonl or parquet. Default: a canonical log.",
    ),
]
Map = Annotated[
    str | None,
    typer.Option(
        "--map", help="Your columns, e.g. session=visit_id,item=sku,response=event,time=ts; or a .toml file with them."
    ),
]
ResponseRules = Annotated[
    str | None,
    typer.Option("--responses", help="Your response values, e.g. view=skip,order=buy,scroll=drop,read=organic:click."),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="An option of the format, e.g. --set cut=none; may be repeated.")
]


@dataclass(frozen=True)
class RawLog:
    """What the command line says about a raw log; without a format it is a canonical one."""

    path: Path
    format: str | None
    map: str | None
    responses: str | None
    settings: list[str] | None
    time_unit: str
    string_ids: bool
    sort: bool

    @property
    def name(self) -> str | None:
        """The format: as given, as the mapping's file says, or by the first file where a mapping asks for one."""
        if self.format is not None or (self.map is None and self.responses is None):
            return self.format
        if self.map is not None and self.map.endswith(".toml") and (told := read_mapping(Path(self.map)).get("format")):
            return str(told)
        from bcd4rec.data.files import kind_of, log_files

        return kind_of(log_files(self.path)[0])

    def item_name(self, reader: "Reader | None") -> str:
        """What the user calls an item's id."""
        return str(getattr(reader, "map", {}).get("item_id", "item_id"))

    @property
    def whole_folders(self) -> bool:
        """Whether all files of a folder are read, whatever their names."""
        return self.name in ("csv", "jsonl", "parquet")

    def inputs(self) -> list[Path]:
        """What an output must never replace."""
        return [self.path, *([Path(self.map)] if self.map is not None and self.map.endswith(".toml") else [])]

    def reader(self) -> "Reader | None":
        """The reader with its options; None for a canonical log."""
        if self.name is None:
            if self.settings:
                raise InputError("--set changes options of a raw format; name it with --format.")
            return None
        from bcd4rec.data.readers.reader import READERS

        kind = READERS[self.name]
        values: dict[str, Any] = self._mapping() | parse_settings(self.settings)
        given = {"time_unit": self.time_unit if self.time_unit != "s" else None, "string_ids": self.string_ids or None}
        for field, value in given.items():
            if value is not None and field not in kind.model_fields:
                raise InputError(f"--{field.replace('_', '-')} is not for --format {self.name}, which knows its types.")
            values |= {field: value} if value is not None else {}
        return kind.parse(values, f"--format {self.name}")

    def _mapping(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if self.map is not None:
            values = (
                read_mapping(Path(self.map)) if self.map.endswith(".toml") else {"map": parse_pairs(self.map, "--map")}
            )
        values.pop("format", None)
        if self.responses is not None:
            values["responses"] = parse_pairs(self.responses, "--responses")
        return values

    @contextlib.contextmanager
    def canonical(
        self,
        reader: "Reader | None",
        tick: "Tick",
        keep: Path | None = None,
        force: bool = False,
        out: Path | None = None,
    ) -> Iterator[tuple[Log, dict[str, Any] | None]]:
        """The canonical log, and what the reader did. The log of a reader is temporary unless `keep` names a file.

        Temporary files stand beside `keep` or `out`, where there must be room, or else in the system's place.
        """
        if reader is None:
            if keep is not None:
                raise InputError("--logs keeps the log that a reader makes; name a raw format with --format.")
            yield open_log(self.path, self.time_unit, self.string_ids, self.sort), None
            return
        if not self.whole_folders:
            local(self.path, f"--format {self.name}")
        if not self.path.exists():
            raise InputError(f"{self.path} does not exist; expected raw logs of the format {self.name}.")
        from bcd4rec.artifacts import scratch

        with scratch(keep or out) as spool:
            log = spool / "log.parquet"
            reading = reader.read(self.path, log, spool, tick).to_json()
            log = _kept(log, keep, force)
            about = {"format": self.name, "options": reader.model_dump(mode="json")} | reading
            with _worded(log, self.path):
                yield open_log(log, "s", False, self.sort).called(self.own_names(reader, reading)), about

    def own_names(self, reader: "Reader", reading: dict[str, Any]) -> OwnNames:
        """How messages about the canonical log speak of the raw one."""
        from bcd4rec.data.files import log_files
        from bcd4rec.data.readers._columns import ColumnsReader

        if not isinstance(reader, ColumnsReader):
            return OwnNames(numbered=False, mapped=False)
        names = dict(reader.map)
        touched = next((names[name] for name in ("clicked", "bought") if name in names), names.get("items"))
        names = ({"item_id": names["items"]} if "items" in names else {}) | names
        names = ({"response": touched} if touched is not None else {}) | names
        for option, column in (("row_sessions", "session_id"), ("row_order", "step"), ("files", "response")):
            names |= {column: option} if getattr(reader, option) else {}
        every_row = not (reading["dropped"] or reader.nested or "items" in names)
        return OwnNames(names, reader.responses, every_row and len(log_files(self.path)) == 1)


def _kept(log: Path, keep: Path | None, force: bool) -> Path:
    from bcd4rec.artifacts import atomic_file

    if keep is None:
        return log
    with atomic_file(keep, force) as partial:
        log.rename(partial)
    return keep


@contextlib.contextmanager
def _worded(log: Path, name: Path) -> Iterator[None]:
    """Problems of a temporary log are told by the name of the raw one."""
    try:
        yield
    except BadLog as bad:
        raise BadLog([renamed(problem, log, name) for problem in bad.problems]) from None
    except InputError as error:
        raise InputError(str(error).replace(str(log), str(name))) from None


def renamed(problem: LogProblem, log: Path, name: Path) -> LogProblem:
    return LogProblem(problem.kind, problem.sentence.replace(str(log), str(name)), problem.count)


def read_mapping(path: Path, option: str = "--map") -> dict[str, Any]:
    """A mapping's file. Its length is bounded before it is parsed: a key with a dot behind every letter takes memory
    by the square of its length."""
    if not path.is_file():
        raise InputError(f"{option}: {path} does not exist or is no file; expected a TOML file with a table [map].")
    try:
        text = path.read_text(encoding="utf-8") if path.stat().st_size <= LONGEST_MAPPING else ""
        if not text or max(map(len, text.splitlines())) > LONGEST_LINE:
            raise InputError(
                f"{option}: {path} is empty or longer than a mapping; expected TOML of at most {LONGEST_MAPPING:,} "
                f"bytes, and lines of {LONGEST_LINE:,}."
            )
        found = tomllib.loads(text)
    except RecursionError:
        raise InputError(f"{option}: {path} holds lists within lists without end; expected a table [map].") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{option}: {path} is not TOML ({error}).") from None
    for name in ("map", "responses"):
        if not isinstance(found.get(name, {}), dict):
            raise InputError(f"{option}: {path} has {name} = {found[name]!r:.60}, expected a table [{name}].")
    return found


def organic_told(counts: dict[str, Any]) -> str:
    """What nobody recommended, in words."""
    return f"{counts['organic']:,}; {counts['sessions_without_impressions']:,} sessions have nothing else"


def reading_pairs(reading: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows of a table for people."""

    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{count:,} {what}" for what, count in counts.items()) or "nothing"

    pairs = [(f"read as {reading['format']}", listed(reading["read"])), ("kept", listed(reading["kept"]))]
    pairs += [
        ("dropped by the reader" if not number else "", f"{count:,} {why}")
        for number, (why, count) in enumerate(reading["dropped"].items())
    ]
    return pairs + [("remark", remark) for remark in reading["remarks"]]
