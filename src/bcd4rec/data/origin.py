"""Which simulated users wrote a log: kept in the Parquet file, the data set's manifest and the policy's.

Item numbers of different worlds look alike, so that a policy learned elsewhere could be tried on users who know
nothing of its items. Logs of real users, and CSV files, have no origin.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pydantic import ValidationError

from bcd4rec.artifacts import read_json, write_json
from bcd4rec.config import Config
from bcd4rec.data.files import kind_of
from bcd4rec.data.schema import Log

KEY = "bcd4rec.origin"  # of a Parquet file's metadata
FILE = "origin.json"  # beside raw files


class Origin(Config):
    """An environment as far as a policy learned from its log has to know it."""

    env: str
    """Its name, as `--env` has it."""
    preset: str | None
    """The preset; None for a configuration of one's own."""
    alike: tuple[str | None, ...]
    """Presets with the same users and items, however these are put before them."""
    items: int
    """How many items its catalogue has."""
    categories: int
    """How many categories they are of."""

    def __str__(self) -> str:
        return f"{self.env}, preset {self.preset or 'of its own'}"

    def metadata(self) -> dict[str, str]:
        """For the Parquet file of a log."""
        return {KEY: self.model_dump_json()}

    def fits(self, other: "Origin") -> bool:
        """Whether what was learned here can be tried there."""
        here, there = ((one.env, one.items, one.categories) for one in (self, other))
        return here == there and other.preset in self.alike

    def write(self, folder: Path) -> None:
        write_json(folder / FILE, self.model_dump(mode="json"))

    @classmethod
    def beside(cls, folder: Path) -> "Origin | None":
        """The origin of a folder of raw files, where it tells one."""
        path = folder / FILE
        return cls.parse(read_json(path), str(path)) if path.is_file() else None


def origin_of_log(log: Log) -> dict[str, Any] | None:
    """What all files of a log agree on; None where one of them tells nothing or something else."""
    in_files = [table.path.is_file() and kind_of(table.path) == "parquet" for table in log.tables]  # or in memory
    told = [_told(table.path) if there else None for table, there in zip(log.tables, in_files, strict=True)]
    return told[0] if all(one == told[0] for one in told) else None


def _told(path: Path) -> dict[str, Any] | None:
    with path.open("rb") as file:
        text = (pq.read_metadata(file).metadata or {}).get(KEY.encode())
    if text is None:
        return None
    try:
        return Origin.model_validate(json.loads(text)).model_dump(mode="json")
    except (ValueError, ValidationError):
        return None  # not ours, whatever its key
