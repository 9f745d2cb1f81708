"""A policy in a folder: settings and vocabulary as JSON and Parquet, arrays as safetensors. No pickle anywhere.

A bundle is complete and unchanged or it is refused: its manifest holds a checksum of every other file.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save_file

from bcd4rec.artifacts import MANIFEST, atomic_directory, library_versions, read_json, write_json
from bcd4rec.data.responses import Responses
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.policies.mixture import MIXTURE, Mixture, mix
from bcd4rec.policies.policy import Memory, Policy
from bcd4rec.policies.scorer import SCORERS, Arrays, SavedScorer, Scorer
from bcd4rec.policies.slates import SlateRule

FORMAT = 3
ARRAYS, ITEMS, VECTORS = "arrays.safetensors", "vocabulary.parquet", "vectors.safetensors"
PARTS = ("new", "old")  # the folders of a mixture's policies

# What reading files that were changed or cut short raises, from the libraries and from `restore`.
UNREADABLE = (OSError, LookupError, TypeError, ValueError, RuntimeError, SafetensorError, pl.exceptions.PolarsError)
LoadScorer = Callable[[Path, dict[str, Any]], Scorer]


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


def _load_mixture(folder: Path, manifest: dict[str, Any], load_scorer: LoadScorer | None) -> Policy:
    with worded(folder):
        refuse_changed_parts(folder, manifest["parts"])
        new, old = (load(folder / name, load_scorer) for name in PARTS)
        return replace(mix(new, old, float(manifest["share"])), about=manifest["about"])


def refuse_changed_parts(folder: Path, parts: dict[str, str]) -> None:
    """The policies of a mixture must be those that it was saved with."""
    for name in PARTS:
        if checksum(folder / name / MANIFEST) != parts[name]:
            raise ValueError(f"{name} is not the policy that was saved")


def load(folder: Path, load_scorer: LoadScorer | None = None) -> Policy:
    """`load_scorer(folder, manifest)` may bring another form of the same scorer, as servers do."""
    manifest = read_manifest(folder)
    if manifest.get("scorer") == MIXTURE:
        return _load_mixture(folder, manifest, load_scorer)
    with worded(folder):
        refuse_changed(folder, {name: manifest["checksums"][name] for name in (ARRAYS, ITEMS)} | manifest["checksums"])
        if VECTORS not in manifest["checksums"] and (folder / VECTORS).exists():
            raise ValueError(f"{VECTORS} was not saved with it")
        table = pl.read_parquet(folder / ITEMS)
        counts = table["positives"].cast(pl.Int32).to_numpy() if "positives" in table.columns else None
        policy = Policy(
            (load_scorer or _restored)(folder, manifest),
            Vocabulary(table["item_id"]),
            Memory.parse(manifest["memory"], "memory"),
            SlateRule.parse(manifest["rule"], "rule"),
            Responses.parse(manifest["responses"], "responses"),
            read_arrays(folder / VECTORS)["vectors"] if VECTORS in manifest["checksums"] else None,
            counts,
            manifest["about"],
        )
        if policy.vectors is not None and len(policy.vectors) != policy.n_items:
            raise ValueError(f"{VECTORS} is of {len(policy.vectors)} items, the policy of {policy.n_items}")
    return policy


def _restored(folder: Path, manifest: dict[str, Any]) -> Scorer:
    return SCORERS[manifest["scorer"]].restore(manifest["settings"], read_arrays(folder / ARRAYS))


def read_arrays(path: Path) -> Arrays:
    """Into memory, so that whoever overwrites the file changes nothing that is in use."""
    return load_arrays(path.read_bytes())


def _save_arrays(arrays: Arrays, path: Path) -> None:
    save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, path)


def refuse_changed(folder: Path, files: dict[str, str]) -> None:
    """All of these files must be there, as they were saved."""
    for name, expected in files.items():
        if Path(name).name != name or checksum(folder / name) != expected:
            raise ValueError(f"{name} is not the file that was saved")


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def version_of(folder: Path) -> str:
    """Twelve digits that change with anything a bundle holds, since the manifest holds the checksums."""
    return checksum(folder / MANIFEST)[:12]


def read_manifest(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; expected a policy made by `bcd4rec train`.")
    manifest = read_json(folder / MANIFEST)
    if isinstance(manifest, dict) and manifest.get("kind") == "user":
        raise InputError(f"{folder} is a learned user and not a policy; it plays with --env learned --model {folder}.")
    if not isinstance(manifest, dict) or manifest.get("kind") != "policy" or manifest.get("format") != FORMAT:
        raise InputError(f"{folder} is not a policy of format {FORMAT}; make it with `bcd4rec train`.")
    return manifest


@contextlib.contextmanager
def worded(folder: Path) -> Iterator[None]:
    """Whatever reading a damaged bundle raises becomes one sentence."""
    try:
        yield
    except InputError:
        raise
    except UNREADABLE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{folder} is damaged ({reason}); train it anew with `bcd4rec train`.") from None
