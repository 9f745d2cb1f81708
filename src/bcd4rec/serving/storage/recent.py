"""The records of the last minutes by session, so that a session is known before, and also without, the database."""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from bcd4rec.serving.storage.records import Impression, Record, weight

Answers = dict[tuple[str, str], int]  # (item, response) -> when it came first
KEEP = 50_000  # committed records that stay in memory, by weight


class Recent:
    """Holds each record from `add` until `keep` others were committed after it."""

    def __init__(self, keep: int = KEEP) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._slates: dict[str, dict[str, Impression]] = {}  # by session, then by request
        self._items: dict[str, tuple[str, ...]] = {}  # of each slate, by request
        self._answers: dict[str, Answers] = {}  # by request
        self._committed: deque[Record] = deque()
        self._weight = 0  # of those

    def add(self, records: Iterable[Record]) -> None:
        with self._lock:
            for record in records:
                if isinstance(record, Impression):
                    self._slates.setdefault(record.session_id, {}).setdefault(record.request_id, record)
                    self._items.setdefault(record.request_id, record.items)
                else:
                    answers = self._answers.setdefault(record.request_id, {})
                    answers.setdefault((record.item, record.response), record.time_us)

    def committed(self, records: Sequence[Record]) -> None:
        with self._lock:
            self._committed.extend(records)
            self._weight += sum(map(weight, records))
            while self._weight > self._keep:
                oldest = self._committed.popleft()
                self._weight -= weight(oldest)
                self._forget(oldest)

    def forget(self, records: Iterable[Record]) -> None:
        with self._lock:
            for record in records:
                self._forget(record)

    def _forget(self, record: Record) -> None:
        if isinstance(record, Impression):
            _remove(self._slates, record.session_id, record.request_id)
            self._items.pop(record.request_id, None)
        else:
            _remove(self._answers, record.request_id, (record.item, record.response))

    def slates(self, session_id: str, most: int | None = None) -> list[Impression]:
        """The newest of a session."""
        with self._lock:
            return list(islice(reversed(self._slates.get(session_id, {}).values()), most))[::-1]

    def items(self, requests: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Of those slates that are in memory."""
        with self._lock:
            return {request: found for request in requests if (found := self._items.get(request)) is not None}

    def answers(self, requests: Iterable[str]) -> dict[str, Answers]:
        """Of those requests that were answered."""
        with self._lock:
            return {request: dict(found) for request in requests if (found := self._answers.get(request))}

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._slates.values())) + sum(map(len, self._answers.values()))


def _remove(table: dict[str, Any], outer: str, inner: Any) -> None:
    """Take out an inner entry, and the outer one with the last of its inner ones."""
    entries = table.get(outer, {})
    entries.pop(inner, None)
    if not entries:
        table.pop(outer, None)
