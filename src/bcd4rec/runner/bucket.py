"""Results in a bucket, or wherever fsspec writes to, for workers that have no disk in common.

A result is made whole on the disk of whoever makes it, in a cache. Then its files go to the bucket, and its manifest
goes last: buckets know no renaming, so a result counts when its manifest is there. What a task needs comes from the
bucket into the cache once.
"""

import contextlib
import hashlib
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcd4rec.artifacts import MANIFEST, atomic_directory, parse_json
from bcd4rec.errors import InputError
from bcd4rec.object_store import filesystem, is_url
from bcd4rec.runner.store import BUSY, TaskStore
from bcd4rec.runner.tasks import Task

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

CACHE = "BCD4REC_CACHE"  # variable that names another folder for what has come from buckets
AT_ONCE = 16  # requests
BEAT = 20.0  # seconds between signs of life of a run
STALE = 120.0  # seconds after the last sign of life until a run counts as dead


def open_store(place: str | Path, keep_old: bool = False) -> TaskStore:
    """The store in a folder, or in a bucket that an URL names."""
    if not is_url(place):
        return TaskStore(Path(place), keep_old)
    filesystem(str(place))  # what cannot be opened says so before any work
    return BucketStore(_cache(str(place)), keep_old, url=str(place).rstrip("/"))


def _cache(url: str) -> Path:
    home = os.environ.get(CACHE) or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bcd4rec"
    return Path(home) / f"store-{hashlib.sha256(url.rstrip('/').encode()).hexdigest()[:20]}"


@dataclass(frozen=True)
class BucketStore(TaskStore):
    """`folder` is the cache of this machine."""

    url: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Elsewhere it has the cache of that machine, and a connection of its own."""
        return _again, (self.url, self.keep_old, self.codes)

    @property
    def name(self) -> str:
        return self.url

    @cached_property
    def _at(self) -> "tuple[AbstractFileSystem, str]":
        return filesystem(self.url)

    def path(self, task: Task) -> Path:
        local, remote = self._place(task), self._manifest(task)
        if remote is not None and not _same(local, remote):
            self._fetch(task, local, remote)
        return local

    def about(self, task: Task) -> dict[str, Any] | None:
        manifest = self._manifest(task)
        return None if manifest is None else parse_json(manifest, self._place(task) / MANIFEST)

    def abouts(self, tasks: Iterable[Task]) -> list[dict[str, Any] | None]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(self.about, tasks))

    def make(self, task: Task) -> float:
        seconds = super().make(task)
        self._publish(task)
        return seconds

    def _away(self, task: Task) -> str:
        return f"{self._at[1]}/{self._place(task).name}"

    def _manifest(self, task: Task) -> bytes | None:
        try:
            found: bytes = self._at[0].cat_file(f"{self._away(task)}/{MANIFEST}")
        except FileNotFoundError:
            return None
        return found

    def _fetch(self, task: Task, local: Path, manifest: bytes) -> None:
        names = [_within(name, self.name) for name in parse_json(manifest, local / MANIFEST)["files"]]
        try:
            with atomic_directory(local, force=True) as folder:
                for name in names:
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    self._at[0].get_file(f"{self._away(task)}/{name}", str(folder / name))
                (folder / MANIFEST).write_bytes(manifest)
        except InputError:
            if not _same(local, manifest):  # else another worker of this machine was quicker
                raise

    def _publish(self, task: Task) -> None:
        """Files first and the manifest last; a result of other code that is replaced stops counting before."""
        fs, away, local = self._at[0], self._away(task), self._place(task)
        if fs.exists(away):
            with contextlib.suppress(FileNotFoundError):
                fs.rm_file(f"{away}/{MANIFEST}")
            fs.rm(away, recursive=True)
        for name in [*parse_json((local / MANIFEST).read_bytes(), local)["files"], MANIFEST]:
            fs.makedirs(f"{away}/{name}".rpartition("/")[0], exist_ok=True)
            fs.put_file(str(local / name), f"{away}/{name}")

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Every run shows a claim and signs of life; whoever sees a claim of a run that lives steps back.

        Two that begin at the same moment may both step back, and never both go on. Ages are told by the clock of the
        bucket alone, by which our own claim is now.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        fs, prefix = self._at
        claims, owner = f"{prefix}/lock", f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        claim = f"{claims}/{owner}.json"
        self._show(claim, owner)
        over = threading.Event()
        beating = threading.Thread(target=self._beat, args=(claim, owner, over), daemon=True)
        try:
            now = fs.modified(claim)
            for other in fs.find(claims):
                if other.rpartition("/")[2] == f"{owner}.json":
                    continue
                with contextlib.suppress(FileNotFoundError):  # it has just ended
                    if (now - fs.modified(other)).total_seconds() < STALE:
                        raise InputError(
                            f"{BUSY.format(self.url)} One that was killed counts as dead in {STALE:.0f} s."
                        )
                    fs.rm_file(other)
            beating.start()
            yield
        finally:
            over.set()
            if beating.is_alive():
                beating.join()
            with contextlib.suppress(FileNotFoundError):
                fs.rm_file(claim)

    def _show(self, claim: str, owner: str) -> None:
        fs = self._at[0]
        fs.makedirs(claim.rpartition("/")[0], exist_ok=True)
        fs.pipe_file(claim, json.dumps({"owner": owner}).encode())

    def _beat(self, claim: str, owner: str, over: threading.Event) -> None:
        """A run that another took for dead does not claim the store again."""
        while not over.wait(BEAT):
            with contextlib.suppress(OSError):  # the network may fail a while; the results say if it stays away
                if self._at[0].exists(claim):
                    self._show(claim, owner)


def _again(url: str, keep_old: bool, codes: dict[tuple[str, ...], str]) -> BucketStore:
    return BucketStore(_cache(url), keep_old, codes, url)


def _within(name: str, store: str) -> str:
    """Whoever can write to a bucket must not write elsewhere on our disks."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InputError(f"{store} holds a result with a file {name!r} outside of its folder; remove that result.")
    return name


def _same(local: Path, manifest: bytes) -> bool:
    try:
        return (local / MANIFEST).read_bytes() == manifest
    except FileNotFoundError:
        return False
