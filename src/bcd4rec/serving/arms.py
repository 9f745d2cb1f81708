"""Which policy answers which session: one, or two side by side with a fixed share of the sessions each."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.errors import InputError
from bcd4rec.policies.policy import Unanswered
from bcd4rec.serving.loading import load
from bcd4rec.serving.recommending import Recommender
from bcd4rec.serving.retrieval import retrieval_for


@dataclass(frozen=True)
class Arm:
    """Never changed, only replaced, so that a request that has begun ends with the policy it began with."""

    name: str
    folder: Path
    share: float
    recommender: Recommender
    rule: dict[str, Any] | None = None  # what the command line says about slates …
    unanswered: Unanswered | None = None  # … and about items that nobody answered

    @property
    def version(self) -> str:
        return self.recommender.served.version


def load_arm(
    name: str,
    folder: Path,
    share: float,
    tick: Tick = no_tick,
    rule: dict[str, Any] | None = None,
    unanswered: Unanswered | None = None,
) -> Arm:
    served = load(folder, rule, unanswered)
    served.warm_up()
    return Arm(name, folder, share, Recommender(served, retrieval_for(served, tick=tick)), rule, unanswered)


class Arms:
    """The arms by name, and the rule that assigns sessions to them."""

    def __init__(self, arms: list[Arm], seed: int = 0):
        self._arms, self._seed = tuple(arms), seed

    @property
    def all(self) -> tuple[Arm, ...]:
        return self._arms

    @property
    def rewards(self) -> dict[str, float]:
        """Of every response that one of the policies knows."""
        return {name: value for arm in self._arms for name, value in arm.recommender.served.responses.rewards.items()}

    def of(self, session_id: str) -> Arm:
        """Always the same arm for a session: a hash of its id, not a draw, decides."""
        arms = self._arms
        if len(arms) == 1:
            return arms[0]
        digest = hashlib.blake2b(f"{self._seed}/{session_id}".encode(), digest_size=8).digest()
        point = int.from_bytes(digest, "little") / 2**64
        for arm in arms[:-1]:
            if point < arm.share:
                return arm
            point -= arm.share
        return arms[-1]

    def named(self, name: str) -> Arm:
        return next(arm for arm in self._arms if arm.name == name)

    def prepare(self, name: str | None = None) -> tuple[Arm, ...]:
        """Read policies anew from their folders. The old ones answer until `take`, and go on if one cannot be read."""
        if name is not None and name not in [arm.name for arm in self._arms]:
            known = ", ".join(arm.name for arm in self._arms)
            raise InputError(f"arm: found {name!r}, expected one of {known}.")
        return tuple(
            load_arm(arm.name, arm.folder, arm.share, rule=arm.rule, unanswered=arm.unanswered)
            if name in (None, arm.name)
            else arm
            for arm in self._arms
        )

    def take(self, fresh: tuple[Arm, ...]) -> None:
        self._arms = fresh
