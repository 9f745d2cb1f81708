"""Where logs lie: a path on this machine, or one in an object store, which is read as it is and never copied whole."""

from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path, PosixPath
from typing import Any, cast
from urllib.parse import unquote

from bcd4rec.errors import InputError
from bcd4rec.object_store import filesystem, is_url

NOTHING = "__HIVE_DEFAULT_PARTITION__"  # how folders of partitions name a missing value


class StoredPath(PosixPath):
    """A file or folder such as `s3://bucket/logs/day=1`: a path in all that only looks at its name, read over the net.

    Only what logs ask for is there: whether it exists, what lies under it, and its bytes.
    """

    def __str__(self) -> str:
        scheme, *inside = self.parts  # `s3:`, which pathlib has robbed of a slash
        return f"{scheme}//{'/'.join(inside)}"

    def __fspath__(self) -> str:
        return str(self)

    def exists(self, **_: Any) -> bool:
        fs, inside = filesystem(str(self))
        return bool(fs.exists(inside))

    def is_file(self, **_: Any) -> bool:
        fs, inside = filesystem(str(self))
        return bool(fs.isfile(inside))

    def is_dir(self, **_: Any) -> bool:
        fs, inside = filesystem(str(self))
        return bool(fs.isdir(inside))

    def is_symlink(self) -> bool:
        return False

    def open(self, *_: Any, **__: Any) -> Any:
        """Its bytes, to be read."""
        fs, inside = filesystem(str(self))
        return cast("BufferedReader", fs.open(inside, "rb"))

    def files(self) -> Iterator["StoredPath"]:
        """All files under it."""
        fs, inside = filesystem(str(self))
        for found in fs.find(inside):
            yield self / Path(found).relative_to(inside)


def place(text: str) -> Path:
    """What a person gives as a log: a path, `file://…`, or the URL of an object store."""
    if not is_url(text):
        return Path(text)
    scheme, _, rest = text.partition("://")
    return Path(rest) if scheme.lower() == "file" else StoredPath(f"{scheme.lower()}://{rest}")


def local(path: Path, what: str) -> Path:
    """`path`, which must be on this machine."""
    if isinstance(path, StoredPath):
        raise InputError(f"{path} is in an object store, and {what} is read on this machine alone; copy it here first.")
    return path


def in_partitions(root: Path, file: Path) -> bool:
    """Whether all folders between a log's folder and a file are those of partitions: `day=2026-01-01` or `2026/01`."""
    names = file.relative_to(root).parts
    folders = all("=" in name or name.isdigit() for name in names[:-1])
    return folders and not names[-1].startswith((".", "_"))


def partition_values(root: Path, file: Path) -> dict[str, str | None]:
    """What the folders of a file say about all its rows: {"day": "2026-01-01"} of `day=2026-01-01/part-0.parquet`."""
    pairs = (name.partition("=") for name in file.relative_to(root).parts[:-1] if "=" in name) if file != root else ()
    return {key: None if value == NOTHING else unquote(value) for key, _, value in pairs}
