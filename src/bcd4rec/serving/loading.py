"""From a folder to a policy that a server can use, without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bcd4rec.data.responses import Responses
from bcd4rec.data.states import PAD
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Policy, Unanswered
from bcd4rec.policies.scorer import SCORERS, Scorer
from bcd4rec.serving.exporting import EXPORTED


@dataclass(frozen=True)
class Served:
    """A loaded policy, where it lies, and its version."""

    folder: Path
    policy: Policy
    version: str  # the beginning of the hash of the bundle's manifest, which holds the checksums of its files

    @property
    def method(self) -> str:
        return self.policy.name

    @property
    def vocabulary(self) -> Vocabulary:
        return self.policy.vocabulary

    @property
    def responses(self) -> Responses:
        return self.policy.responses

    def warm_up(self) -> None:
        """Ask once, so that the first request does not wait for code to be compiled or read."""
        self.vocabulary.index("")  # makes the table of names
        first = self.vocabulary.id(0)
        session = self.policy.read([], [first]).sessions
        scores = self.policy.scorer.scores(session.states)
        if np.isnan(scores).any() or not (scores > -np.inf).any():
            raise InputError(f"{self.folder} is damaged (its values are not numbers); train it anew.")
        self.policy.scorer.scores(session.states, np.array([[0, PAD]], np.int32))


def load(folder: Path, rule: dict[str, Any] | None = None, unanswered: Unanswered | None = None) -> Served:
    """`rule` and `unanswered` are what the command line says in place of the policy's own."""
    policy = bundle.load(folder, _scorer)
    policy = policy.with_rule(**rule) if rule else policy
    policy = policy.with_unanswered(unanswered) if unanswered else policy
    return Served(folder, policy, bundle.version_of(folder))


def _scorer(folder: Path, manifest: dict[str, Any]) -> Scorer:
    if manifest["scorer"] not in EXPORTED:
        return SCORERS[manifest["scorer"]].restore(manifest["settings"], bundle.read_arrays(folder / bundle.ARRAYS))
    try:
        from bcd4rec.serving.model import OnnxPolicy
    except ModuleNotFoundError as error:
        raise InputError(f"Serving a network needs {error.name}: pip install 'bcd4rec[serve]'.") from None
    return OnnxPolicy(folder, manifest["scorer"], manifest["settings"], bundle.version_of(folder))
