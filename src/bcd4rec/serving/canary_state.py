"""The canary's books: which session belongs to which arm, which ones were counted, and what that led to.

A session is given to the new arm where a number between 0 and 1, made of its id, is below the share of the moment in
which it began. It is watched for a fixed time from its first slate; then it counts once, in the order in which
sessions began, with the share it was given by. So whether and when a session counts depends on the clock alone and on
nothing that an arm can change, and the confidence sequence holds at every moment.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from bcd4rec.config import Config
from bcd4rec.evaluation.canary import Canary, CanaryConfig, Decision
from bcd4rec.evaluation.session_rewards import SessionReward
from bcd4rec.serving.storage.canaries import Position, WatchedSession

OLD, NEW, EXTERNAL = "old", "new", "external"  # names of arms
NOTICE_US = 2_000_000  # a new share holds from so much later on, when every server knows of it
GRACE_US = 10_000_000  # around a new share: a request takes time, and clocks differ
POINTS = 240  # of the plot
Reason = Literal["sessions", "guard", "replaced"]


class CanarySettings(Config):
    """All that the decision depends on. The same settings are the same canary, also after a restart."""

    old: str
    """Version of the policy in the old arm, or `external`."""
    new: str
    """Version of the policy in the new arm."""
    rule: CanaryConfig
    """When it ends."""
    shares: tuple[float, ...] = Field(min_length=1)
    """Share of the sessions for the new arm; several are a ramp."""
    ramp_sessions: int = Field(default=100, ge=1)
    """Counted sessions of the new arm after which a ramp goes on to its next share."""
    session_minutes: float = Field(default=30.0, gt=0, le=100_000)
    """How long a session is watched, from its first slate on."""
    reward: SessionReward
    """What a session is worth."""
    seed: int = 0
    """Another seed is another canary, with other sessions in the new arm."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for share in self.shares:
            if not 0.0 < share < 1.0:
                raise ValueError(f"--share: found {share:g}, expected a number between 0 and 1, e.g. 0.1")
        if list(self.shares) != sorted(set(self.shares)):
            found = ",".join(f"{share:g}" for share in self.shares)
            raise ValueError(f"--ramp: found {found}, expected shares that rise, e.g. 0.05,0.2,0.5")
        return self

    @cached_property
    def id(self) -> str:
        return hashlib.blake2b(self.model_dump_json().encode(), digest_size=8).hexdigest()

    @property
    def old_arm(self) -> str:
        return EXTERNAL if self.old == EXTERNAL else OLD

    @property
    def window_us(self) -> int:
        return int(self.session_minutes * 60e6)

    def point(self, session_id: str) -> float:
        """Between 0 and 1, always the same for a session and evenly spread over sessions."""
        digest = hashlib.blake2b(f"{self.id}/{session_id}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") / 2**64


class Since(NamedTuple):
    """A share, and from when on it holds for sessions that begin."""

    time_us: int
    share: float


class SequencePoint(NamedTuple):
    """Of the plot: what was known after so many sessions."""

    sessions: int
    low: float
    high: float
    difference: float | None
    time_us: int


class Ended(NamedTuple):
    decision: Decision
    reason: Reason
    sentence: str
    time_us: int


@dataclass
class CanaryState:
    """What is stored; the same JSON gives the same state to the bit."""

    canary: Canary
    schedule: list[Since]
    position: Position
    left_out: int = 0
    """Sessions that began when nobody could be sure of their share, or that another version served."""
    history: list[SequencePoint] = field(default_factory=list)
    ended: Ended | None = None
    told: bool = False
    """Whether --on-decision was done with."""
    tries: int = 0
    telling_until_us: int = 0

    @classmethod
    def begin(cls, settings: CanarySettings, now_us: int) -> Self:
        return cls(Canary(settings.rule), [Since(now_us, settings.shares[0])], (now_us, ""))

    def share_at(self, time_us: int) -> float | None:
        """The share that a session which begins then is given by; None before the canary began."""
        return next((since.share for since in reversed(self.schedule) if since.time_us <= time_us), None)

    def in_new(self, settings: CanarySettings, session_id: str, began_us: int) -> bool:
        share = self.share_at(began_us)
        return share is not None and settings.point(session_id) < share

    def add(self, settings: CanarySettings, sessions: Iterable[WatchedSession], now_us: int) -> None:
        """Count the next sessions, in their order, until there is a decision."""
        for session in sessions:
            if self.ended is not None:
                break
            self.position = (session.began_us, session.session_id)
            if not self._countable(settings, session):
                self.left_out += 1
                continue
            share = self.share_at(session.began_us)
            assert share is not None  # noqa: S101 (countable)
            decision = self.canary.add(session.arm == NEW, settings.reward.of(session.rewards), share)
            self._ramp(settings, now_us)
            self._remember(now_us, always=decision is not None)
            if decision is not None:
                self.end(decision, "sessions", self.canary.sentence(), now_us)

    def _countable(self, settings: CanarySettings, session: WatchedSession) -> bool:
        """Left out by when it began alone, or because no server of this canary began it."""
        grace = min(GRACE_US, settings.window_us)
        began = session.began_us
        if self.share_at(began) is None or any(abs(began - since.time_us) < grace for since in self.schedule[1:]):
            return False
        in_new = self.in_new(settings, session.session_id, began)
        expected = (NEW, settings.new) if in_new else (settings.old_arm, settings.old)
        return (session.arm, session.policy) == expected

    def _ramp(self, settings: CanarySettings, now_us: int) -> None:
        """Decided by sessions that were counted, and only for those that have not begun."""
        steps = len(self.schedule)
        if steps < len(settings.shares) and self.canary.sequence.new >= steps * settings.ramp_sessions:
            self.schedule.append(Since(now_us + NOTICE_US, settings.shares[steps]))

    def _remember(self, now_us: int, always: bool) -> None:
        """A point of the plot for each session at first, and for ever fewer of them later."""
        sessions = self.canary.sequence.sessions
        every = 1 << max(0, (sessions // POINTS).bit_length())
        if not always and sessions % every:
            return
        old, new = self.canary.means
        difference = new - old if old is not None and new is not None else None
        self.history = [point for point in self.history if point.sessions % every == 0]
        self.history.append(SequencePoint(sessions, *self.canary.interval, difference, now_us))

    def end(self, decision: Decision, reason: Reason, sentence: str, now_us: int) -> None:
        """Only once."""
        if self.ended is None:
            self.canary.decision = decision
            self.ended = Ended(decision, reason, sentence, now_us)

    def to_json(self) -> dict[str, Any]:
        return {
            "canary": self.canary.to_json(),
            "schedule": self.schedule,
            "position": self.position,
            "left_out": self.left_out,
            "history": self.history,
            "ended": self.ended,
            "told": self.told,
            "tries": self.tries,
            "telling_until_us": self.telling_until_us,
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self:
        return cls(
            Canary.from_json(state["canary"]),
            [Since(*one) for one in state["schedule"]],
            (state["position"][0], state["position"][1]),
            state["left_out"],
            [SequencePoint(*one) for one in state["history"]],
            Ended(*state["ended"]) if state["ended"] is not None else None,
            state["told"],
            state["tries"],
            state["telling_until_us"],
        )
