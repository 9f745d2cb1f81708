"""Counts by policy and arm that are carried on: only sessions with new records are looked at again.

Rates need the spread between sessions, so that sums over sessions of n², y² and y·n are kept: n items shown, y of them
with a response. A session that goes on changes its part of these sums, and its parts before and after are both found
from its own few records. What came since the last time is known by the database's own mark of each record.
"""

from collections import Counter
from dataclasses import dataclass, field

from bcd4rec.serving.storage import queries
from bcd4rec.serving.storage.database import Connection, Row
from bcd4rec.serving.storage.records import ArmCounts

Arm = tuple[str, str]  # policy and arm


@dataclass
class _Sums:
    sessions: int = 0
    requests: int = 0
    n: int = 0
    nn: int = 0
    y: Counter[str] = field(default_factory=Counter)
    yy: Counter[str] = field(default_factory=Counter)
    yn: Counter[str] = field(default_factory=Counter)

    def counts(self, policy: str, arm: str) -> ArmCounts:
        residuals = {}
        for name, y in self.y.items():  # exact until the division: all are integers
            squares = self.n * self.n * self.yy[name] - 2 * self.n * y * self.yn[name] + y * y * self.nn
            residuals[name] = squares / (self.n * self.n)
        return ArmCounts(policy, arm, self.sessions, self.requests, self.n, dict(sorted(self.y.items())), residuals)


class ArmCounter:
    """For one thread."""

    def __init__(self) -> None:
        self._sums: dict[Arm, _Sums] = {}
        self._seen = queries.NOTHING  # what is counted already
        self._oldest: int | None = None

    def count(self, connection: Connection) -> list[ArmCounts]:
        """Everything that the database holds by now. What was deleted meanwhile makes it begin anew."""
        with connection.transaction(read_only=True):
            marks, oldest = connection.marks(), queries.oldest(connection)
            anew = oldest != self._oldest or any(now < then for now, then in zip(marks, self._seen, strict=True))
            seen = queries.NOTHING if anew else self._seen
            arms, responses = queries.new_counts(connection, seen, marks) if marks != seen else ([], [])
        self._sums = {} if anew else self._sums
        self._add(arms, responses)
        self._seen, self._oldest = marks, oldest
        return [sums.counts(*arm) for arm, sums in sorted(self._sums.items())]

    def _add(self, arms: list[Row], responses: list[Row]) -> None:
        for policy, arm, *more in arms:
            sums, (sessions, requests, n, nn) = self._sums.setdefault((policy, arm), _Sums()), map(int, more)
            sums.sessions += sessions
            sums.requests += requests
            sums.n += n
            sums.nn += nn
        for policy, arm, name, *more in responses:
            sums, (y, yy, yn) = self._sums[policy, arm], map(int, more)
            sums.y[name] += y
            sums.yy[name] += yy
            sums.yn[name] += yn
