"""The canary's guard: errors, empty slates and slow answers of the new policy end it at once.

These are failures of a program and not a matter of taste, so a handful that stands out against the old arm is enough;
what a false alarm costs is a canary that has to be begun again.
"""

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

LAST = 500  # requests of each arm that are looked at
FEWEST = 5  # bad answers; one may be anybody's
WORST_SHARE = 0.02  # of bad answers that no policy may exceed …
TIMES = 3.0  # … unless the old arm has a third of them
SLOW_SECONDS = 0.25  # the slowest 5 % of answers; a page waits for it
SLOW_REQUESTS = 40  # before anything is called slow
SLOWER = 2.0  # than the old arm


class Answered(NamedTuple):
    seconds: float
    failed: bool
    empty: bool

    @property
    def fine(self) -> bool:
        return not (self.failed or self.empty or self.seconds > SLOW_SECONDS)


@dataclass
class Guard:
    """What was seen last in both arms, by this process."""

    seen: tuple[deque[Answered], deque[Answered]] = field(
        default_factory=lambda: (deque(maxlen=LAST), deque(maxlen=LAST))
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, in_new: bool, answered: Answered) -> None:
        with self._lock:
            self.seen[in_new].append(answered)

    def alarm(self) -> str | None:
        """Why the new policy must not go on."""
        with self._lock:
            old, new = map(list, self.seen)
        return (
            _bad([one.failed for one in old], [one.failed for one in new], "requests failed")
            or _bad([one.empty for one in old], [one.empty for one in new], "slates were empty")
            or _slow([one.seconds for one in old], [one.seconds for one in new])
        )


def _bad(old: list[bool], new: list[bool], what: str) -> str | None:
    before = sum(old) / len(old) if old else 0.0
    if sum(new) < FEWEST or sum(new) / len(new) <= max(WORST_SHARE, TIMES * before):
        return None
    return f"{sum(new)} of the last {len(new)} {what} in the new arm, {sum(old)} of {len(old)} in the old one"


def _slow(old: list[float], new: list[float]) -> str | None:
    if len(new) < SLOW_REQUESTS:
        return None
    (middle, slowest), (middle_before, before) = _quantiles(new), _quantiles(old)
    if slowest <= SLOW_SECONDS or (slowest <= SLOWER * before and middle <= SLOWER * middle_before):
        return None
    return f"95 % of answers took up to {1000 * slowest:.0f} ms in the new arm, {1000 * before:.0f} ms in the old one"


def _quantiles(seconds: list[float]) -> tuple[float, float]:
    """The median, and what 95 % do not exceed."""
    ordered = sorted(seconds) or [0.0]
    return ordered[len(ordered) // 2], ordered[int(0.95 * (len(ordered) - 1))]
