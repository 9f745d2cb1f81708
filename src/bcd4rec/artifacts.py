"""Output that appears whole or not at all, beside what others wrote and never in its place."""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bcd4rec.errors import InputError
from bcd4rec.renaming import exchange, rename_new

MANIFEST = "manifest.json"  # every folder we write has one, with its kind and the names of its files
# Files of a policy that its manifest may not name: it was saved into a folder by hand, or they were added later.
ADDED = ("model.onnx", "quantiles.onnx", "behaviour.onnx", "retrieval.faiss", "retrieval.json")
POLICY = ("arrays.safetensors", "vocabulary.parquet", *ADDED)
EXPORT = "export.json"  # names what was added

WORKSHOP = re.compile(r"\.bcd4rec-[0-9a-f]{12}|\..+\.(partial|scratch)-[0-9a-f]{12}")  # names of temporary folders
LIBRARIES = ("bcd4rec", "numpy", "polars", "safetensors", "torch")  # whose versions a bundle names


def refuse_existing(path: Path, force: bool, kind: str | None = None, inputs: Iterable[Path | None] = ()) -> None:
    """Stop before any work is done when `path` is taken and `--force` was not given, or may not be replaced at all.

    `kind` is the manifest's where `path` will be a folder; `inputs` are what the same command reads or writes besides.
    """
    if os.path.lexists(path) and not force:
        raise InputError(f"{path} exists already; choose another name or pass --force to replace it.")
    for given in inputs:
        if given is not None and real(given).is_relative_to(real(path)):
            raise InputError(f"{path} would replace {given}, which the same command uses; choose another name.")
    parent = real(path).parent
    if parent.exists() and not parent.is_dir():
        raise InputError(f"{parent} is a file, so {path.name} cannot be written into it; choose another folder.")
    if kind is not None:
        _refuse_foreign(path, kind)
    if not force and any(_busy(one) for one in parent.glob(_pattern(path))):
        raise InputError(f"Another run is writing {path}; wait for it or choose another name.")


def real(path: Path) -> Path:
    """Where a path leads: a link stays a link, and what it names is replaced."""
    return Path(os.path.realpath(path))


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_file(path: Path, force: bool = False) -> Iterator[Path]:
    """A name in a temporary folder beside `path` that is renamed to `path` when the block ends without an exception."""
    refuse_existing(path, force)
    if path.is_dir():
        raise InputError(f"{path} is a folder, expected a file name; choose another name.")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a device or a pipe, expected a file name; choose another name.")
    with _workshop(path) as workshop:
        made = workshop / real(path).name
        yield made
        _share(made, workshop)
        if force:
            os.replace(made, real(path))
        else:
            _appear(made, path)


@contextlib.contextmanager
def atomic_directory(path: Path, force: bool = False) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place when the block ends without an exception.

    With `force` it replaces a folder of the same kind that holds nothing but what was written so.
    """
    refuse_existing(path, force)
    _refuse_foreign(path)
    with _workshop(path) as workshop:
        made = workshop / real(path).name
        made.mkdir()
        yield made
        _list_files(made)
        for one in (made, *made.rglob("*")):
            _share(one, workshop)
        if force and path.exists():
            _refuse_foreign(path, read_json(made / MANIFEST).get("kind"))
            exchange(made, real(path))
        else:
            _appear(made, path)


@contextlib.contextmanager
def scratch(beside: Path | None) -> Iterator[Path]:
    """A temporary folder beside an output, where there must be room, or else in the system's place."""
    if beside is None:
        with tempfile.TemporaryDirectory(prefix="bcd4rec-") as folder:
            yield Path(folder)
    else:
        with _workshop(beside, "scratch") as workshop:
            yield workshop


@contextlib.contextmanager
def sole_run(folder: Path) -> Iterator[None]:
    """Fill a folder step by step, as long as no other run does; what killed ones have left in it is removed first."""
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(real(folder)) as free:
        if free is False:
            raise InputError(f"Another run is writing {folder}; wait for it or choose another name.")
        for left in workshops(folder):
            _remove_left(left)
        yield


def workshops(folder: Path) -> list[Path]:
    """The temporary folders in which outputs are made, of runs that go on and of killed ones."""
    return [one for one in folder.iterdir() if WORKSHOP.fullmatch(one.name)]


def _pattern(path: Path, what: str = "partial") -> str:
    name = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in real(path).name)
    return f".{name}.{what}-*"


@contextlib.contextmanager
def _workshop(path: Path, what: str = "partial") -> Iterator[Path]:
    """A folder beside `path`, locked as long as this process lives; what killed ones have left is removed first."""
    parent = real(path).parent
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(_pattern(path, "*")):
        _remove_left(left)
    token = uuid.uuid4().hex[:12]
    unseen = parent / f".bcd4rec-{token}"  # until it is locked: nobody must take it for what a killed run has left
    unseen.mkdir()
    with _locked(unseen):
        workshop = unseen.rename(parent / f".{real(path).name}.{what}-{token}")
        try:
            yield workshop
        finally:
            remove(workshop)


def _remove_left(workshop: Path) -> None:
    """Unless the run that it belongs to goes on."""
    with _locked(workshop) as free:
        if free:
            remove(workshop)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool | None]:
    """Whether the lock of a folder was free; None where there is no folder, or its file system knows no locks."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        yield None
        return
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free: bool | None = True
        except BlockingIOError:
            free = False
        except OSError:
            free = None
        yield free
    finally:
        os.close(opened)


def _busy(workshop: Path) -> bool:
    with _locked(workshop) as free:
        return free is False


def _share(path: Path, workshop: Path) -> None:
    """The mode that any new file gets here: some libraries write for their own user alone."""
    if not path.is_symlink():
        mode = workshop.stat().st_mode & 0o777
        path.chmod(mode if path.is_dir() else mode & 0o666)


def _appear(made: Path, path: Path) -> None:
    try:
        rename_new(made, real(path))
    except FileExistsError:
        raise InputError(f"{path} was written by somebody else meanwhile; choose another name.") from None


def _list_files(folder: Path) -> None:
    """Name the files of a folder in its manifest, so that a later run knows which are ours."""
    names = sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if not one.is_dir())
    manifest = read_json(folder / MANIFEST) if MANIFEST in names else {"kind": "files"}
    write_json(folder / MANIFEST, manifest | {"files": [name for name in names if name != MANIFEST]})


def _refuse_foreign(path: Path, kind: str | None = None) -> None:
    """Refuse to replace what is no folder, not `kind`, or holds anything that was not written with its manifest."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file, expected a folder name; choose another name.")
    if not path.exists() or not any(path.iterdir()):
        return
    try:
        manifest = read_json(path / MANIFEST)
    except (InputError, OSError):
        manifest = None
    if not isinstance(manifest, dict) or "kind" not in manifest:  # other programs write a manifest.json, too
        raise InputError(f"{path} holds files that bcd4rec did not write (by its {MANIFEST}); choose another folder.")
    if kind is not None and manifest["kind"] != kind:
        raise InputError(f"{path} is a {manifest['kind']} and no {kind}; --force replaces the same kind only.")
    ours = {MANIFEST, EXPORT, *(POLICY if manifest["kind"] == "policy" else ()), *manifest.get("files", ())}
    other = sorted(str(one.relative_to(path)) for one in path.rglob("*") if not one.is_dir() or one.is_symlink())
    if foreign := [name for name in other if name not in ours]:
        raise InputError(
            f"{path} holds {foreign[0]}{' and more' if len(foreign) > 1 else ''}, which bcd4rec did not write (by its "
            f"{MANIFEST}); move it away or choose another folder."
        )


def write_json(path: Path, value: Any) -> None:
    """Readable, stable JSON: the same value gives the same bytes."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    try:
        return parse_json(path.read_bytes(), path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing; was its folder written by bcd4rec?") from None


def parse_json(data: bytes, path: Path) -> Any:
    """What `path` says."""
    try:
        return json.loads(data.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON that bcd4rec wrote ({error}); write its folder anew.") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"found {name}")  # which Python takes for a number, and JSON does not know


def content_hash(folder: Path, names: list[str]) -> str:
    """One hash over the named files' names and bytes."""
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(name.encode() + b"\0")
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def library_versions() -> dict[str, str | None]:
    """What was installed when a bundle was made."""
    return {"python": platform.python_version()} | {name: _version(name) for name in LIBRARIES}


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
