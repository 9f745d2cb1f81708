"""A policy in a folder: settings and vocabulary as JSON and Parquet, arrays as safetensors. No pickle anywhere."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bcd4rec.artifacts import MANIFEST, library_versions, read_json, write_json
from bcd4rec.data.states import IntArray
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.policies.policy import Policy
from bcd4rec.registry import Registry

FORMAT = 2
Arrays = dict[str, NDArray[Any]]

# What reading files that were changed or cut short raises, from the libraries and from `restore`.
UNREADABLE = (OSError, LookupError, TypeError, ValueError, RuntimeError, SafetensorError, pl.exceptions.PolarsError)


class SavedPolicy(Policy, Protocol):
    """A policy that can be written and read back. Its kind is the name of the module that defines it."""

    def settings(self) -> dict[str, Any]:
        """All that is not an array, as JSON values."""
        ...

    def arrays(self) -> Arrays: ...

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: Arrays) -> Self:
        """The inverse of `settings` and `arrays`: scores are identical, bit for bit."""
        ...


KINDS: Registry[type[SavedPolicy]] = Registry(
    "kind of policy", "bcd4rec.policies", "bcd4rec.baselines", "bcd4rec.agents"
)


@dataclass(frozen=True)
class Bundle:
    """A loaded policy with the vocabulary it speaks."""

    policy: SavedPolicy
    vocabulary: Vocabulary
    manifest: dict[str, Any]
    popularity: IntArray | None = None  # (A,) positive responses in the training sessions, if the bundle has them


def save(
    policy: SavedPolicy,
    kind: str,
    vocabulary: Vocabulary,
    folder: Path,
    about: dict[str, Any],
    popularity: IntArray | None = None,
) -> None:
    """Write into an existing folder. `about` is kept in the manifest: method, config, metrics, data hash, seed."""
    if KINDS[kind] is not type(policy):
        raise ValueError(f"{type(policy).__name__} is not registered as kind {kind!r}")
    arrays = {name: np.asarray(array, order="C") for name, array in policy.arrays().items()}
    save_file(arrays, folder / "arrays.safetensors")
    counts = {} if popularity is None else {"positives": popularity}
    pl.DataFrame({"item_id": vocabulary.ids} | counts).write_parquet(folder / "vocabulary.parquet")
    said = {"kind": "policy", "format": FORMAT, "policy": kind, "settings": policy.settings()}
    write_json(folder / MANIFEST, said | {"versions": library_versions()} | about)


def load(folder: Path) -> Bundle:
    manifest = read_manifest(folder)
    with worded(folder):
        vocabulary, popularity = read_items(folder)
        arrays = load_file(folder / "arrays.safetensors")
        policy = KINDS[manifest["policy"]].restore(manifest["settings"], arrays)
        refuse_other_size(policy, vocabulary)
    return Bundle(policy, vocabulary, manifest, popularity)


def read_manifest(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; expected a policy made by `bcd4rec train`.")
    manifest = read_json(folder / MANIFEST)
    if isinstance(manifest, dict) and manifest.get("kind") == "user":
        raise InputError(f"{folder} is a learned user and not a policy; it plays with --env learned --model {folder}.")
    if not isinstance(manifest, dict) or manifest.get("kind") != "policy" or manifest.get("format") != FORMAT:
        raise InputError(f"{folder} is not a policy of format {FORMAT}; make it with `bcd4rec train`.")
    return manifest


def read_items(folder: Path) -> tuple[Vocabulary, IntArray | None]:
    """The catalogue, and how many positive responses each item had if the bundle tells."""
    table = pl.read_parquet(folder / "vocabulary.parquet")
    counts = table["positives"].cast(pl.Int32).to_numpy() if "positives" in table.columns else None
    return Vocabulary(table["item_id"]), counts


def refuse_other_size(policy: Policy, vocabulary: Vocabulary) -> None:
    if policy.n_items != len(vocabulary):
        raise ValueError(f"the policy has {policy.n_items} items, its vocabulary {len(vocabulary)}")


@contextlib.contextmanager
def worded(folder: Path) -> Iterator[None]:
    """Whatever reading a damaged bundle raises becomes one sentence."""
    try:
        yield
    except UNREADABLE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{folder} is damaged ({reason}); train it anew with `bcd4rec train`.") from None
