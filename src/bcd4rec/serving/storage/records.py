"""What the store keeps: slates as they were shown, and the answers to them. A record that exists can be exported."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bcd4rec.data.schema import YEAR_10000
from bcd4rec.errors import InputError

ORGANIC = "organic"  # policy and arm of what a session brought along, which no policy showed
UNLISTED = 0.5  # reward of a response nobody gave one, where only the order matters: above a skip, below a click


@dataclass(frozen=True, slots=True)
class Impression:
    """One slate: which items, in which order, with which probability and value, by which policy."""

    request_id: str
    session_id: str
    step: int
    policy: str
    arm: str
    time_us: int
    items: tuple[str, ...]
    propensities: tuple[float | None, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_text("impression", self.request_id, self.session_id, self.policy, self.arm, *self.items)
        _check_time(self.time_us)
        if not 0 <= self.step < 2**31:
            raise InputError(f"step: found {self.step}, expected the number of the request within its session.")
        if not len(self.items) == len(self.propensities) == len(self.values) == len(set(self.items)) > 0:
            raise InputError("items, propensities and values need one entry for each of the slate's distinct items.")
        for propensity in self.propensities:
            if propensity is not None and not 0 < propensity <= 1:
                raise InputError(f"propensities: found {propensity}, expected above 0 and at most 1, or none.")
        if not all(map(math.isfinite, self.values)):
            raise InputError("values: found NaN or infinity, expected finite numbers.")


@dataclass(frozen=True, slots=True)
class Feedback:
    """One answer to one item of a slate."""

    request_id: str
    item: str
    response: str
    time_us: int

    def __post_init__(self) -> None:
        _check_text("feedback", self.request_id, self.item, self.response)
        _check_time(self.time_us)


Record = Impression | Feedback


def weight(record: Record) -> int:
    """How much memory it takes, in records of the usual size: long slates must not count like short ones."""
    if isinstance(record, Feedback):
        return 1
    return 1 + len(record.items) // 10 + sum(map(len, record.items)) // 500


@dataclass(frozen=True)
class StoreStatus:
    """How the store is: for health pages."""

    connected: bool
    pending: int
    """Records accepted and not yet committed."""
    dropped: int
    """Records refused because the buffer was full, that no database could hold, or left behind at the end."""
    last_error: str | None
    last_commit_us: int | None


@dataclass(frozen=True)
class ArmCounts:
    """What one policy did in one arm; `responses` counts shown items by each response they got."""

    policy: str
    arm: str
    sessions: int
    requests: int
    impressions: int
    responses: dict[str, int]
    residuals: dict[str, float]
    """Σ (y − r·n)² over sessions: items shown n, those with the response y, and the share r = Σ y / Σ n."""


def strongest(answers: Iterable[tuple[str, int]], rewards: Mapping[str, float]) -> tuple[str, int]:
    """Of the (response, time) that one shown item got, the one with the largest reward, then the earliest."""
    return min(answers, key=lambda answer: (-rewards.get(answer[0], UNLISTED), answer[1], answer[0]))


def _check_text(what: str, *texts: str) -> None:
    """NUL and unpaired surrogates have no place in a database."""
    together = "".join(texts)
    if "\0" in together or not all(texts):
        raise InputError(f"{what}: found an empty text or a NUL character, expected ids and names without.")
    try:
        together.encode()
    except UnicodeEncodeError:
        raise InputError(f"{what}: found an unpaired surrogate, expected Unicode text.") from None


def _check_time(time_us: int) -> None:
    if not 0 <= time_us < YEAR_10000:
        raise InputError(f"time_us: found {time_us}, expected microseconds since 1970.")
