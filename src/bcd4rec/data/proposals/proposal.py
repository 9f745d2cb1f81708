"""A proposal of what the columns of a log mean, and the sample it is made from; as TOML it is a mapping."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from bcd4rec.data.files import Kind
from bcd4rec.errors import printable


@dataclass(frozen=True)
class LogSample:
    """The first rows of a log; `names_given` where the file has no header, so that its columns have numbers.

    `nested` is the list of objects in each row of the file that are the rows of `frame`; `files` is what the names of
    the files of a folder say that their rows are, by a part of the name.
    """

    path: Path
    kind: Kind
    frame: pl.DataFrame
    delimiter: str = ""
    names_given: bool = False
    nested: str = ""
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    role: str
    column: str
    reason: str


@dataclass(frozen=True)
class Proposal:
    """`options` is what the TOML file of a mapping holds, `choices` says why, `doubts` what a person should look at."""

    options: dict[str, Any]
    choices: tuple[Choice, ...]
    doubts: tuple[str, ...] = ()

    @property
    def map(self) -> dict[str, str]:
        return dict(self.options.get("map", {}))

    def to_toml(self, about: str = "") -> str:
        reasons = {choice.role: printable(choice.reason) for choice in self.choices}
        lines = [f"# {printable(about)}"] if about else []
        plain = {name: value for name, value in self.options.items() if not isinstance(value, dict)}
        lines += [f"{name} = {_toml(value)}" for name, value in plain.items()]
        for name, table in self.options.items():
            if isinstance(table, dict):
                lines += ["", f"[{name}]"]
                for key, value in table.items():
                    why = reasons.get(key if name == "map" else f"{name}.{key}", "")
                    lines.append(f"{_key(key)} = {_toml(value)}" + (f"  # {why}" if why else ""))
        return "\n".join([*lines, *(f"# {printable(doubt)}" for doubt in self.doubts)]).lstrip("\n") + "\n"


def _toml(value: Any) -> str:
    """JSON writes texts, numbers and lists of them as TOML does, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else _toml(name)
