"""A policy in a folder: settings and vocabulary as JSON and Parquet, arrays as safetensors. No pickle anywhere.

A bundle is complete and unchanged or it is refused: its manifest holds a checksum of every file that was saved with it,
and `export.json` of every file that `bcd4rec export` added. The version covers both.
"""

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save_file

from bcd4rec.artifacts import (
    ADDED,
    EXPORT,
    MANIFEST,
    atomic_directory,
    atomic_file,
    library_versions,
    parse_json,
    write_json,
)
from bcd4rec.data.responses import Responses
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError, printable
from bcd4rec.policies.mixture import MIXTURE, Mixture, mix
from bcd4rec.policies.policy import Memory, Policy
from bcd4rec.policies.scorer import SCORERS, Arrays, SavedScorer, Scorer
from bcd4rec.policies.slates import SlateRule

FORMAT = 3
ARRAYS, ITEMS, VECTORS = "arrays.safetensors", "vocabulary.parquet", "vectors.safetensors"
EXPORT_ANEW = "write it anew with `bcd4rec export`."
PARTS = ("new", "old")  # the folders of a mixture's policies
DEEPEST = 4  # mixtures within mixtures: 16 policies; links could make endless ones of a few folders


def save(policy: Policy, folder: Path, force: bool = False) -> None:
    """As a folder that appears whole or not at all."""
    with atomic_directory(folder, force) as partial:
        write(policy, partial)


def write(policy: Policy, folder: Path) -> None:
    """Into an existing folder."""
    if isinstance(policy, Mixture):
        _write_mixture(policy, folder)
        return
    scorer: SavedScorer = policy.scorer  # type: ignore[assignment]  # what cannot be saved has no kind
    kind = getattr(scorer, "kind", None)
    if kind is None or SCORERS[kind] is not type(scorer):
        raise ValueError(f"{type(scorer).__name__} is not registered, so it cannot be saved")
    _save_arrays(scorer.arrays(), folder / ARRAYS)
    counts = {} if policy.popularity is None else {"positives": policy.popularity}
    pl.DataFrame({"item_id": policy.vocabulary.ids} | counts).write_parquet(folder / ITEMS)
    if policy.vectors is not None:
        _save_arrays({"vectors": policy.vectors}, folder / VECTORS)
    names = [ARRAYS, ITEMS, *([VECTORS] if policy.vectors is not None else [])]
    manifest = {
        "kind": "policy",
        "format": FORMAT,
        "scorer": kind,
        "settings": scorer.settings(),
        "memory": policy.memory.model_dump(),
        "rule": policy.rule.model_dump(),
        "responses": policy.responses.model_dump(mode="json"),
        "checksums": {name: checksum(folder / name) for name in names},
        "versions": library_versions(),
        "about": policy.about,
    }
    write_json(folder / MANIFEST, manifest)


def _write_mixture(policy: Mixture, folder: Path) -> None:
    """Both policies as bundles of their own, in folders within this one."""
    if _depth(policy) > DEEPEST:
        raise InputError(f"Policies cannot be mixed more than {DEEPEST} times; train one on what they showed.")
    for name, part in zip(PARTS, policy.parts, strict=True):
        (folder / name).mkdir()
        write(part, folder / name)
    manifest = {
        "kind": "policy",
        "format": FORMAT,
        "scorer": MIXTURE,
        "settings": {},
        "share": policy.share,
        "parts": {name: checksum(folder / name / MANIFEST) for name in PARTS},
        "versions": library_versions(),
        "about": policy.about,
    }
    write_json(folder / MANIFEST, manifest)


def _depth(policy: Policy) -> int:
    return 1 + max(map(_depth, policy.parts)) if isinstance(policy, Mixture) else 0


@dataclass(frozen=True)
class Bundle:
    """An opened bundle. Its files are read whole: what is used is what was checked, whoever writes meanwhile."""

    folder: Path
    manifest: dict[str, Any]
    checksums: dict[str, str]  # of all files, by name
    trained: str  # the version before anything was added to it
    version: str  # twelve digits that change with anything in the bundle

    def read(self, name: str) -> bytes:
        """A file as it was saved."""
        data = self._file(name).read_bytes()
        if hashlib.sha256(data).hexdigest() != self.checksums[name]:
            raise ValueError(f"{name} is not the file that was saved")
        return data

    def check(self, name: str) -> None:
        """What `read` checks, of a file that is not needed."""
        if checksum(self._file(name)) != self.checksums[name]:
            raise ValueError(f"{name} is not the file that was saved")

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if Path(name).name != name or not path.is_file():
            raise ValueError(f"{name} is missing")
        return path


LoadScorer = Callable[[Bundle], Scorer]


def load(folder: Path) -> Policy:
    return policy_of(opened(folder))


def opened(folder: Path, exported: bool = True) -> Bundle:
    """Without `exported`, as if nothing had ever been added to it."""
    data, manifest = _manifest(folder)
    with worded(folder):
        version = hashlib.sha256(data).hexdigest()[:12]
        if manifest["scorer"] == MIXTURE:
            _refuse_changed_parts(folder, manifest["parts"])
            return Bundle(folder, manifest, {}, version, version)
        checksums = dict(manifest["checksums"])
        for name in {ARRAYS, ITEMS} - checksums.keys():
            raise ValueError(f"its {MANIFEST} has no checksum of {name}")
        if VECTORS not in checksums and (folder / VECTORS).exists():
            raise ValueError(f"{VECTORS} was not saved with it")
        found = Bundle(folder, manifest, checksums, version, version)
        for name in checksums.keys() - {ARRAYS, ITEMS, VECTORS}:
            found.check(name)
    return _with_exported(found, data) if exported and (folder / EXPORT).exists() else found


def _refuse_changed_parts(folder: Path, parts: dict[str, str]) -> None:
    """The policies of a mixture must be those that it was saved with."""
    for name in PARTS:
        path = folder / name / MANIFEST
        if not path.is_file() or checksum(path) != parts[name]:
            raise ValueError(f"{name} is not the policy that was saved")


def _with_exported(found: Bundle, manifest: bytes) -> Bundle:
    """With what was added; all of that must be there, as it was written."""
    with worded(found.folder, EXPORT_ANEW):
        if not (found.folder / EXPORT).is_file():  # reading a pipe would wait for ever
            raise ValueError(f"{EXPORT} is no file")
        data = (found.folder / EXPORT).read_bytes()
        listed = parse_json(data, found.folder / EXPORT)
        if listed["manifest"] != hashlib.sha256(manifest).hexdigest():
            raise ValueError(f"{EXPORT} is of another policy")
        if strange := sorted(listed["files"].keys() - set(ADDED)):
            raise ValueError(f"{EXPORT} lists {strange[0]}")
        version = hashlib.sha256(manifest + data).hexdigest()[:12]
        added = replace(found, checksums=found.checksums | listed["files"], version=version)
        for name in listed["files"]:
            added.check(name)
    return added


def list_exported(folder: Path, files: list[Path]) -> None:
    """Write down what was added to a bundle, so that it cannot change or vanish unnoticed."""
    listed = {"manifest": checksum(folder / MANIFEST), "files": {path.name: checksum(path) for path in files}}
    with atomic_file(folder / EXPORT, force=True) as partial:
        write_json(partial, listed)


def restored(saved: Bundle) -> Scorer:
    return SCORERS[saved.manifest["scorer"]].restore(saved.manifest["settings"], load_arrays(saved.read(ARRAYS)))


def policy_of(saved: Bundle, load_scorer: LoadScorer = restored, depth: int = 0) -> Policy:
    """`load_scorer` may bring another form of the same scorer, as servers do."""
    manifest = saved.manifest
    if manifest["scorer"] == MIXTURE:
        if depth >= DEEPEST:
            raise InputError(f"{saved.folder} is damaged (mixtures within mixtures); mix two policies anew.")
        new, old = (policy_of(opened(saved.folder / name), load_scorer, depth + 1) for name in PARTS)
        with worded(saved.folder):
            return replace(mix(new, old, float(manifest["share"])), about=manifest["about"])
    with worded(saved.folder):
        table = pl.read_parquet(io.BytesIO(saved.read(ITEMS)))
        counts = table["positives"].cast(pl.Int32).to_numpy() if "positives" in table.columns else None
        policy = Policy(
            load_scorer(saved),
            Vocabulary(table["item_id"]),
            Memory.parse(manifest["memory"], "memory"),
            SlateRule.parse(manifest["rule"], "rule"),
            Responses.parse(manifest["responses"], "responses"),
            load_arrays(saved.read(VECTORS))["vectors"] if VECTORS in saved.checksums else None,
            counts,
            manifest["about"],
        )
        if policy.vectors is not None and len(policy.vectors) != policy.n_items:
            raise ValueError(f"{VECTORS} is of {len(policy.vectors)} items, the policy of {policy.n_items}")
    return policy


def _save_arrays(arrays: Arrays, path: Path) -> None:
    save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, path)


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def version_of(folder: Path) -> str:
    return opened(folder).version


def read_manifest(folder: Path) -> dict[str, Any]:
    return _manifest(folder)[1]


def _manifest(folder: Path) -> tuple[bytes, dict[str, Any]]:
    """As it is written, and what it says."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; expected a policy made by `bcd4rec train`.")
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(f"{path} is missing; was its folder written by bcd4rec?")
    data = path.read_bytes()
    manifest = parse_json(data, path)
    if isinstance(manifest, dict) and manifest.get("kind") == "user":
        raise InputError(f"{folder} is a learned user and not a policy; it plays with --env learned --model {folder}.")
    if not isinstance(manifest, dict) or manifest.get("kind") != "policy" or manifest.get("format") != FORMAT:
        raise InputError(f"{folder} is not a policy of format {FORMAT}; make it with `bcd4rec train`.")
    return data, manifest


@contextlib.contextmanager
def worded(folder: Path, advice: str = "train it anew with `bcd4rec train`.") -> Iterator[None]:
    """Whatever a damaged bundle makes the libraries raise becomes one sentence."""
    try:
        yield
    except InputError:
        raise
    except (Exception, pl.exceptions.PanicException) as error:
        reason = printable((str(error).splitlines() or [type(error).__name__])[0])
        raise InputError(f"{folder} is damaged ({reason}); {advice}") from None
