"""Output that appears whole or not at all."""

import contextlib
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bcd4rec.errors import InputError

MANIFEST = "manifest.json"  # every folder we write has one, and --force replaces only folders that have one

LIBRARIES = ("bcd4rec", "numpy", "polars", "safetensors", "torch")  # whose versions a bundle names


def refuse_existing(path: Path, force: bool) -> None:
    """Stop before any work is done when `path` is taken and `--force` was not given."""
    if path.exists() and not force:
        raise InputError(f"{path} exists already; choose another name or pass --force to replace it.")
    parent = path.absolute().parent
    if parent.exists() and not parent.is_dir():
        raise InputError(f"{parent} is a file, so {path.name} cannot be written into it; choose another folder.")


def _partial(path: Path) -> Path:
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.parent / f".{path.name}.partial-{os.getpid()}"


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_file(path: Path, force: bool = False) -> Iterator[Path]:
    """A temporary name beside `path` that is renamed to `path` when the block ends without an exception."""
    refuse_existing(path, force)
    if path.is_dir():
        raise InputError(f"{path} is a folder, expected a file name; choose another name.")
    partial = _partial(path)
    try:
        yield partial
        os.replace(partial, path)
    finally:
        remove(partial)


def _ours(folder: Path) -> bool:
    """Other programs write a manifest.json too, but not with a `kind`."""
    try:
        manifest = read_json(folder / MANIFEST)
    except (InputError, OSError):
        return False
    return isinstance(manifest, dict) and "kind" in manifest


@contextlib.contextmanager
def atomic_directory(path: Path, force: bool = False) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place when the block ends without an exception."""
    refuse_existing(path, force)
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file, expected a folder name; choose another name.")
    if path.exists() and any(path.iterdir()) and not _ours(path):
        raise InputError(f"{path} holds files that bcd4rec did not write (by its {MANIFEST}); choose another folder.")
    partial = _partial(path)
    remove(partial)
    partial.mkdir()
    old = partial.with_name(partial.name + ".old")
    try:
        yield partial
        if path.exists():
            os.replace(path, old)
        os.replace(partial, path)
    except BaseException:
        if old.exists() and not path.exists():
            os.replace(old, path)
        raise
    finally:
        remove(partial)
        remove(old)


def write_json(path: Path, value: Any) -> None:
    """Readable, stable JSON: the same value gives the same bytes."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is missing; was its folder written by bcd4rec?") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not JSON ({error}); write its folder anew.") from None


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
