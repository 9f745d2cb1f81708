"""The store: takes records at once, tells sessions at once, and outlives the absences of its database."""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from bcd4rec.data.responses import DIGINETICA
from bcd4rec.errors import InputError
from bcd4rec.serving.storage import canaries, queries
from bcd4rec.serving.storage.counting import ArmCounter
from bcd4rec.serving.storage.database import Connection, Database, Row
from bcd4rec.serving.storage.patience import PATIENCE
from bcd4rec.serving.storage.recent import Answers, Recent
from bcd4rec.serving.storage.records import ORGANIC, ArmCounts, Record, StoreStatus, strongest
from bcd4rec.serving.storage.urls import database_of, without_secrets
from bcd4rec.serving.storage.writer import BufferFull, StoreClosed, Writer, words

__all__ = ["BufferFull", "Store", "StoreClosed", "StoredSession", "open_store"]

READ_PATIENCE = 0.05  # seconds that a session waits for another process's lock
COUNT_PATIENCE = 5.0
COUNT_SECONDS = max(1.0, PATIENCE)  # to wait for fresh counts; after that the last ones must do
ARMS_SECONDS, ARMS_SHARE = 1.0, 0.05  # counts are this fresh, unless counting would take more of the time than this
CLOSE_SECONDS = 10.0

log = logging.getLogger(__name__)
T = TypeVar("T")


def open_store(
    url: str,
    buffer: int = 100_000,
    retention_days: float | None = None,
    rewards: Mapping[str, float] = DIGINETICA.rewards,
    claimed: bool = False,
    awaited: bool = False,
) -> "Store":
    """Open a database, or begin one. `rewards` say which of several responses to one item is the strongest.

    `claimed`: who started this process keeps others away from the database, and shares it among several processes.
    `awaited`: answers wait for their commits.
    """
    if buffer < 1:
        raise InputError(f"--buffer: found {buffer}, expected a number of records above 0.")
    if retention_days is not None and not 0 < retention_days < 36_525:
        raise InputError(f"--retention-days: found {retention_days}, expected a number of days above 0.")
    database = database_of(url)
    try:
        return Store(database, buffer, retention_days, rewards, claimed, awaited)
    except Exception as error:
        if not database.away(error):
            raise
        sentence = f"--database: {database.name} cannot be used ({words(error)}); choose another, or mend it."
        raise InputError(without_secrets(sentence, url)) from None


class StoredSession(NamedTuple):
    """What is known of a session, oldest first."""

    opening: list[tuple[str, str]]  # what it brought along: items with responses
    slates: list[list[tuple[str, str | None]]]  # every shown item with its strongest response; None: nobody answered
    steps: int = 0  # the number of its next slate

    @property
    def known(self) -> bool:
        return bool(self.opening or self.slates)


class Store:
    """All methods may be called from any thread; none of them waits for a write."""

    def __init__(
        self,
        database: Database,
        buffer: int,
        retention_days: float | None,
        rewards: Mapping[str, float],
        claimed: bool = False,
        awaited: bool = False,
    ):
        self._database, self.rewards = database, rewards
        self._claim = None if claimed else database.claim()
        if claimed:
            database.take_turns()
        try:
            self._open(database, buffer, retention_days, awaited)
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            os.close(claim)

    def _open(self, database: Database, buffer: int, retention_days: float | None, awaited: bool) -> None:
        self._recent = Recent()
        self._reads, self._counts = (ThreadPoolExecutor(1, f"bcd4rec {name}") for name in ("reads", "counts"))
        self._reading, self._changed = threading.Lock(), threading.Lock()
        self._reader: Connection | None = None
        self._counting: Future[None] | None = None
        self._counter: Connection | None = None
        self._arm_counter, self._arms = ArmCounter(), list[ArmCounts]()
        self._arms_due = 0.0
        refresh, lost = self._refresh_reader, self._drop_reader
        self._writer = Writer(database, self._recent, buffer, retention_days, refresh, lost, awaited)
        self._refresh_reader()

    def now_us(self) -> int:
        """The time for a record that is made now."""
        return self._writer.clock.now_us()

    def submit(self, records: Sequence[Record]) -> Future[None]:
        """Take records without waiting. The future is done once they are committed; `BufferFull` takes none."""
        return self._writer.submit(records)

    def status(self) -> StoreStatus:
        status = self._writer.status()
        return replace(status, connected=status.connected and self._reader is not None)

    def session(self, session_id: str, in_memory: bool = False) -> "StoredSession":
        """What a session was shown and how it answered.

        While the database is away, and with `in_memory`, this is what the records in memory tell.
        """
        return self.look_up(session_id, in_memory)[0]

    def slates(self, requests: Sequence[str], in_memory: bool = False) -> tuple[dict[str, tuple[str, ...]], bool]:
        """The items of these slates, as far as there are such, and whether the database was there to tell."""
        found = self._recent.items(requests)
        missing = [request for request in dict.fromkeys(requests) if request not in found]
        if not missing:
            return found, True
        rows = None if in_memory else self._read(lambda reader: queries.items_of(reader, missing))
        return found | {request: tuple(json.loads(items)) for request, items in rows or []}, rows is not None

    def in_thread(self, read: Callable[..., T], *values: Any) -> Future[T]:
        """What `session` or `slates` tell, read in a thread: nobody has to wait for it."""
        return self._reads.submit(read, *values)

    def give_up_reading(self) -> None:
        """The database took too long: until it is found again, sessions are what the records in memory tell."""
        if (reader := self._reader) is not None and self._reading.locked():
            reader.interrupt()

    def look_up(self, session_id: str, in_memory: bool = False) -> tuple["StoredSession", bool]:
        """What `session` tells, and whether the database was asked."""
        recent = self._recent.slates(session_id, queries.SESSION_SLATES)
        shown = {one.request_id: (one.step, one.time_us, one.items, one.arm) for one in recent}
        stored = None if in_memory else self._read(lambda reader: _session(reader, session_id, list(shown)))
        slates, feedback = stored or ([], [])
        shown |= {request: (*order, tuple(json.loads(items)), arm) for request, *order, items, arm in slates}
        answers = self._recent.answers(shown)
        for request, item, response, when in feedback:
            answers.setdefault(request, {})[item, response] = when
        session = StoredSession([], [], 1 + max((step for step, *_ in shown.values()), default=-1))
        for request, (*_, items, arm) in sorted(shown.items(), key=lambda one: one[1][:2]):
            given = _strongest(answers.get(request, {}), self.rewards)
            if arm == ORGANIC:
                in_time = sorted((when, items.index(item)) for item, (_, when) in given.items() if item in items)
                session.opening.extend((items[place], given[items[place]][0]) for _, place in in_time)
            else:
                session.slates.append([(item, given[item][0] if item in given else None) for item in items])
        return session, stored is not None

    def began(self, session_id: str, in_memory: bool = False) -> int | None:
        """When a session was shown its first slate."""
        times = [one.time_us for one in self._recent.slates(session_id) if one.arm != ORGANIC]
        if not in_memory and (stored := self._read(lambda reader: canaries.began(reader, session_id))) is not None:
            times.append(stored)
        return min(times, default=None)

    def connect(self, patience: float) -> Connection:
        """A connection of the caller's own."""
        return self._database.connect(create=False, patience=patience)

    def arms(self) -> list[ArmCounts]:
        """Counts by policy and arm, at most a second old unless counting takes long; the last known when away."""
        with self._changed:
            idle = self._counting is None or self._counting.done()
            if idle and time.monotonic() >= self._arms_due and self.status().connected:
                self._counting = self._counts.submit(self._count_arms)
            counting = self._counting
        if counting is not None:
            wait([counting], COUNT_SECONDS)
        return self._arms

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Commit what is pending; give up after `timeout` seconds and count what is left as dropped."""
        self._writer.close(timeout)
        self.give_up_reading()
        if (counter := self._counter) is not None:
            counter.interrupt()
        for threads in (self._reads, self._counts):
            threads.shutdown(cancel_futures=True)
        self._drop_reader()
        self._release()

    def _count_arms(self) -> None:
        began = time.monotonic()
        try:
            connection = self._database.connect(create=False, patience=COUNT_PATIENCE)
            self._counter = connection
            try:
                self._arms = self._arm_counter.count(connection)
            finally:
                self._counter = None
                connection.close()
        except Exception as error:
            if not self._database.away(error):
                raise
            log.warning("Arms could not be counted: %s", words(error))
            return
        now = time.monotonic()
        self._arms_due = now + max(ARMS_SECONDS, (now - began) / ARMS_SHARE)

    def _read(self, question: Callable[[Connection], T]) -> T | None:
        """What the database answers; None while it is away. Never connects: that could take seconds."""
        with self._reading:
            if self._reader is None:
                return None
            try:
                return question(self._reader)
            except Exception as error:
                if not self._database.away(error):
                    raise
                log.warning("Sessions are known from memory only: %s", words(error))
                self._close_reader()
                return None

    def _refresh_reader(self) -> None:
        """Called by the writing thread when the database is there."""
        if self._reader is None:
            with contextlib.suppress(Exception):
                connection = self._database.connect(create=False, patience=READ_PATIENCE)
                with self._reading:
                    self._reader = connection

    def _drop_reader(self) -> None:
        with self._reading:
            self._close_reader()

    def _close_reader(self) -> None:
        connection, self._reader = self._reader, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()


def _session(reader: Connection, session_id: str, new: list[str]) -> tuple[list[Row], list[Row]]:
    """Slates and feedback, also to the `new` slates, that the database knows."""
    slates = queries.slates_of(reader, session_id)
    requests = list(dict.fromkeys([*new, *(slate[0] for slate in slates)]))
    return slates, queries.feedback_to(reader, requests)


def _strongest(answers: Answers, rewards: Mapping[str, float]) -> dict[str, tuple[str, int]]:
    """By item its strongest response, and when it came."""
    by_item: dict[str, list[tuple[str, int]]] = {}
    for (item, response), when in answers.items():
        by_item.setdefault(item, []).append((response, when))
    return {item: strongest(given, rewards) for item, given in by_item.items()}
