"""From a folder to a policy that a server can use, without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bcd4rec.artifacts import MANIFEST, content_hash
from bcd4rec.data.responses import DIGINETICA, Responses
from bcd4rec.data.states import HISTORY, PAD, IntArray, States
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Policy
from bcd4rec.serving.arrays import ARRAYS
from bcd4rec.serving.exporting import EXPORTED

FILES = [MANIFEST, ARRAYS, "vocabulary.parquet"]


@dataclass(frozen=True)
class Served:
    """A loaded policy and all that is needed to speak about it."""

    folder: Path
    policy: Policy
    vocabulary: Vocabulary
    popularity: IntArray | None
    manifest: dict[str, Any]
    version: str  # the beginning of the hash of the bundle's files
    responses: Responses
    length: int  # L
    skips: int  # S

    @property
    def method(self) -> str:
        return str(self.manifest.get("method", self.manifest["policy"]))

    def states(self, liked: list[int], skipped: list[int]) -> States:
        """(1, L) and (1, S): the state of one session."""
        return States(_row(liked, self.length), _row(skipped, self.skips))

    def warm_up(self) -> None:
        """Ask once, so that the first request does not wait for code to be compiled or read."""
        states = self.states([0], [0])
        self.policy.scores(states)
        self.policy.scores(states, states.positives[:, :1])


def _row(items: list[int], width: int) -> IntArray:
    """(1, width) the last items, padded; for one session a list is faster than `States.of`."""
    recent = items[-width:] if width else []
    return np.array([recent + [PAD] * (width - len(recent))], np.int32)


def version_of(folder: Path) -> str:
    return content_hash(folder, FILES)[:12]


def load(folder: Path) -> Served:
    manifest = bundle.read_manifest(folder)
    with bundle.worded(folder):
        version = version_of(folder)
        vocabulary, popularity = bundle.read_items(folder)
        policy = _policy(folder, manifest, version)
        bundle.refuse_other_size(policy, vocabulary)
        vocabulary.index("")  # makes the table of names now and not within the first request
        history = manifest.get("history", {})
        responses = Responses.parse(manifest["responses"], str(folder)) if "responses" in manifest else DIGINETICA
        length, skips = int(history.get("length", HISTORY)), int(history.get("skips", 0))
    return Served(folder, policy, vocabulary, popularity, manifest, version, responses, length, skips)


def _policy(folder: Path, manifest: dict[str, Any], version: str) -> Policy:
    if manifest["policy"] not in EXPORTED:
        return bundle.load(folder).policy
    try:
        from bcd4rec.serving.model import OnnxPolicy
    except ModuleNotFoundError as error:
        raise InputError(f"Serving a network needs {error.name}: pip install 'bcd4rec[serve]'.") from None
    return OnnxPolicy(folder, manifest["policy"], manifest["settings"], version)
