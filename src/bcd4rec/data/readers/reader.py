"""What a reader is: options as a config, and `read`, which writes the canonical log and says what it dropped."""

from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from bcd4rec.config import Config
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.registry import Registry


@dataclass
class Reading:
    """What became of the raw rows, by name. Nothing is left out without a count."""

    read: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def drop(self, why: str, count: int) -> None:
        if count:
            self.dropped[why] = self.dropped.get(why, 0) + count

    def to_json(self) -> dict[str, Any]:
        return {"read": self.read, "kept": self.kept, "dropped": self.dropped, "remarks": self.remarks}


class Reader(Config):
    """A subclass's docstring says which files it takes; its fields are the options of `--set`."""

    periods: ClassVar[dict[str, float]] = {}
    """Days of the split by time that is the default for this format; empty for a split by session."""
    paper: ClassVar[dict[str, int]] = {}
    """Counts of the paper for this data, to be printed beside ours."""

    @abstractmethod
    def read(self, raw: Path, out: Path, spool: Path, tick: Tick = no_tick) -> Reading:
        """Write the canonical log of `raw` to the Parquet file `out`; `spool` is a folder for temporary files."""


# A module named like the format registers a Reader: `--format trivago` is readers/trivago.py.
READERS: Registry[type[Reader]] = Registry("format", "bcd4rec.data.readers")
