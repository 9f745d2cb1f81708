"""From a folder to a policy that a server can use, without torch, and only after it has answered."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bcd4rec.data.responses import Responses
from bcd4rec.data.states import PAD, FloatArray
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Policy, Sessions, Unanswered
from bcd4rec.policies.scorer import Scorer
from bcd4rec.serving.exporting import EXPORTED

PATIENCE = 60.0  # seconds for the first answers, in which code may have to be compiled
SHOWN = 3


@dataclass(frozen=True)
class Served:
    """A loaded policy, and the bundle it is from."""

    policy: Policy
    bundle: bundle.Bundle

    @property
    def folder(self) -> Path:
        return self.bundle.folder

    @property
    def version(self) -> str:
        return self.bundle.version

    @property
    def method(self) -> str:
        return self.policy.name

    @property
    def vocabulary(self) -> Vocabulary:
        return self.policy.vocabulary

    @property
    def responses(self) -> Responses:
        return self.policy.responses

    def warm_up(self, patience: float = PATIENCE) -> None:
        """Ask as requests will, so that a policy that cannot answer is refused and the first request need not wait."""
        failures: list[BaseException] = []

        def ask() -> None:
            try:
                with bundle.worded(self.folder):
                    self._ask()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=ask, name="bcd4rec warm up", daemon=True)
        thread.start()
        thread.join(patience)
        if thread.is_alive():
            raise InputError(f"{self.folder} did not answer within {patience:g} seconds; train a smaller policy.")
        if failures:
            raise failures[0]

    def _ask(self) -> None:
        items = self.policy.n_items
        self.vocabulary.index("")  # makes the table of names
        skip, last = self.responses.names[0], self.vocabulary.id(items - 1)
        for opening in ([], [self.vocabulary.id(0)], [(last, skip), self.vocabulary.id(0)]):
            sessions = self.policy.read([], opening).sessions
            scores = _numbers(self.policy.scorer.scores(sessions.states), (1, items))
            if items > SHOWN and not (scores > -np.inf).any():
                raise ValueError("it recommends nothing")
            some = np.array([[0, items - 1, PAD]], np.int32)
            _numbers(self.policy.scorer.scores(sessions.states, some), (1, 3))
            self._answer(sessions)

    def _answer(self, sessions: Sessions) -> None:
        """A slate with numbers that can be told and stored, and the distributions behind it."""
        slate = self.policy.slates(sessions, SHOWN)
        there = slate.items[0] != PAD
        if self.policy.n_items > SHOWN and not there.any():
            raise ValueError("it recommends nothing")
        if not np.isfinite(slate.values[:, there]).all() or not (slate.propensities[:, there] > 0).all():
            raise ValueError("values of its slates are not numbers")
        quantiles = self.policy.quantiles(sessions, slate.items[0][there])
        if not all(np.isfinite(list(one.values())).all() for one in quantiles or ()):
            raise ValueError("its quantiles are not numbers")


def _numbers(scores: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """Scores, of which −∞ says that an item must not be shown."""
    if scores.shape != shape:
        raise ValueError(f"it gives values of shape {scores.shape}, expected {shape}")
    if np.isnan(scores).any() or (scores == np.inf).any():
        raise ValueError("its values are not numbers")
    return scores


def load(folder: Path, rule: dict[str, Any] | None = None, unanswered: Unanswered | None = None) -> Served:
    """`rule` and `unanswered` are what the command line says in place of the policy's own."""
    saved = bundle.opened(folder)
    policy = bundle.policy_of(saved, _scorer)
    policy = policy.with_rule(**rule) if rule else policy
    policy = policy.with_unanswered(unanswered) if unanswered else policy
    return Served(policy, saved)


def _scorer(saved: bundle.Bundle) -> Scorer:
    if saved.manifest["scorer"] not in EXPORTED:
        return bundle.restored(saved)
    try:
        from bcd4rec.serving.model import OnnxPolicy
    except ModuleNotFoundError as error:
        raise InputError(f"Serving a network needs {error.name}: pip install 'bcd4rec[serve]'.") from None
    return OnnxPolicy(saved)
