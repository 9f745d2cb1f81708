"""One thread that commits what was submitted, in groups, and waits where its database is away."""

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from bcd4rec.serving.storage import queries
from bcd4rec.serving.storage.clock import Clock
from bcd4rec.serving.storage.database import Connection, Database
from bcd4rec.serving.storage.patience import PATIENCE
from bcd4rec.serving.storage.recent import Recent
from bcd4rec.serving.storage.records import Record, StoreStatus, weight

# A commit costs as much as twenty records, so a group waits for others, and longer if the one before was large. Where
# answers wait for their commits, it waits less: who waits sends nothing new.
WAIT_SECONDS, AWAITED_SECONDS, LONGEST_WAIT = 0.0005, 0.0001, 0.005  # for each record of the one before, and at most
GROUP_RECORDS = 5_000
LOCK_PATIENCE = max(1.0, PATIENCE)  # seconds to wait for another process's lock
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between attempts to reach a database that is away
PING_SECONDS = 1.0  # how soon an idle store notices that its database is away
PRUNE_SECONDS = 600.0  # how often old records are looked for
PRUNE_SLATES, PRUNE_PAUSE = 2_000, 0.2  # how many go in one transaction, and seconds before the next of these
BORDER_SECONDS = 3_600.0  # in which at most another day's records are deleted
STALLED_SECONDS = max(1.0, PATIENCE)  # after which a database that does not answer is away
DAY_US = 86_400_000_000

log = logging.getLogger(__name__)


class BufferFull(Exception):  # noqa: N818 (what it is, not that it is an error)
    """Too many records wait for the database; these were not taken."""


class StoreClosed(Exception):  # noqa: N818
    """The store was closed before these records could be committed."""


@dataclass(frozen=True, slots=True)
class Submission:
    records: tuple[Record, ...]
    weight: int
    future: Future[None]


class Writer:
    """`refresh` is called whenever the database was found to be there, and `lost` when it was not.

    `awaited`: nobody is answered before the commit.
    """

    def __init__(
        self,
        database: Database,
        recent: Recent,
        buffer: int,
        retention_days: float | None,
        refresh: Callable[[], None],
        lost: Callable[[], None],
        awaited: bool = False,
    ):
        self._database, self._recent, self._buffer = database, recent, buffer
        self._wait = AWAITED_SECONDS if awaited else WAIT_SECONDS
        self._retention_days, self._refresh, self._forsake = retention_days, refresh, lost
        self._changed = threading.Condition()  # guards the fields down to _closing
        self._queue: deque[Submission] = deque()
        self._pending = self._weight = self._dropped = 0
        self._connected = True
        self._last_error: str | None = None
        self._last_commit_us: int | None = None
        self._closing = False
        self._abandoned = threading.Event()
        self._connection: Connection | None = self._connect()  # from here on the thread's own
        self.clock = Clock(queries.newest(self._connection))
        self._busy_since: float | None = None  # when the thread began what it asks of the database
        self._border_us: int | None = None  # what is older is deleted
        self._next_border = 0.0
        self._last_group = 0  # records
        self._next_prune = 0.0 if retention_days is not None else math.inf
        self._thread = threading.Thread(target=self._run, name="bcd4rec store", daemon=True)
        self._thread.start()

    # ---- for any thread

    def submit(self, records: Sequence[Record]) -> Future[None]:
        submission = Submission(tuple(records), sum(map(weight, records)), Future())
        submission.future.set_running_or_notify_cancel()  # what may be committed already cannot be cancelled
        with self._changed:
            if self._closing:
                raise StoreClosed("The store is closed.")
            if self._weight + submission.weight > self._buffer:
                self._dropped += len(submission.records)
                raise BufferFull(f"{self._pending:,} of {self._buffer:,} records wait for the database.")
            self._queue.append(submission)
            self._pending += len(submission.records)
            self._weight += submission.weight
            self._recent.add(submission.records)
            self._changed.notify()
        return submission.future

    def status(self) -> StoreStatus:
        since = self._busy_since
        answers = since is None or time.monotonic() - since < STALLED_SECONDS
        with self._changed:
            connected = self._connected and answers
            return StoreStatus(connected, self._pending, self._dropped, self._last_error, self._last_commit_us)

    def close(self, timeout: float) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        self._abandoned.set()
        self._thread.join(timeout)

    # ---- for the writing thread

    def _run(self) -> None:
        while (group := self._next_group()) is not None:
            if group:
                self._settle(group)
            if not group or time.monotonic() >= self._next_prune:
                self._look_after()
        self._disconnect()

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        self._busy_since = time.monotonic()
        try:
            yield
        finally:
            self._busy_since = None

    def _next_group(self) -> list[Submission] | None:
        """Submissions to commit together; none after a while without any, and None at the end."""
        with self._changed:
            if not self._queue and not self._closing:
                self._changed.wait(PING_SECONDS)
            if not self._queue:
                return None if self._closing else []
            closing = self._closing
        if not closing:
            time.sleep(min(LONGEST_WAIT, self._wait * self._last_group))
        group: list[Submission] = []
        with self._changed:
            count = 0
            while self._queue and count < GROUP_RECORDS:
                group.append(self._queue.popleft())
                count += len(group[-1].records)
        self._last_group = count
        return group

    def _settle(self, group: list[Submission]) -> None:
        """Commit a group, however long it takes; what cannot be stored at all fails alone."""
        pause = FIRST_PAUSE
        while not self._abandoned.is_set():
            try:
                self._commit(group)
                return
            except Exception as error:
                if not self._database.away(error):
                    self._settle_apart(group, error)
                    return
                self._lost(error)
            self._abandoned.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        for submission in group:
            self._fail(submission, StoreClosed("The store was closed while its database was away."))

    def _settle_apart(self, group: list[Submission], error: Exception) -> None:
        if len(group) == 1:
            self._fail(group[0], error)
            return
        for submission in group:
            self._settle([submission])

    def _commit(self, group: list[Submission]) -> None:
        records = [record for submission in group for record in submission.records]
        with self._asking():
            queries.write(self._connected_or_again(), records)
        self._recent.committed(records)
        self._found()
        with self._changed:
            self._pending -= len(records)
            self._weight -= sum(submission.weight for submission in group)
            self._last_commit_us = time.time_ns() // 1000
        for submission in group:
            submission.future.set_result(None)

    def _fail(self, submission: Submission, error: Exception) -> None:
        self._recent.forget(submission.records)
        with self._changed:
            self._pending -= len(submission.records)
            self._weight -= submission.weight
            self._dropped += len(submission.records)
            self._last_error = words(error)
        log.warning("%d records were not stored: %s", len(submission.records), words(error))
        submission.future.set_exception(error)

    def _look_after(self) -> None:
        """What is done between groups: is the database there, and is anything too old?"""
        try:
            with self._asking():
                self._connected_or_again().ping()
            self._found()
            self._prune()
        except Exception as error:
            self._lost(error)

    def _prune(self) -> None:
        """A batch of what is older than the retention; again soon while there is more."""
        if self._retention_days is None or time.monotonic() < self._next_prune:
            return
        connection = self._connected_or_again()
        more = queries.prune(connection, self._border(connection, self._retention_days), PRUNE_SLATES)
        self._next_prune = time.monotonic() + (PRUNE_PAUSE if more else PRUNE_SECONDS)

    def _border(self, connection: Connection, retention_days: float) -> int:
        """Up to where to delete: a day more each hour, so that a wrong clock is noticed before all is gone."""
        wanted = self.clock.now_us() - int(retention_days * DAY_US)
        if self._border_us is None or time.monotonic() >= self._next_border:
            oldest = queries.oldest(connection)
            self._border_us = wanted if oldest is None else min(wanted, oldest + DAY_US)
            self._next_border = time.monotonic() + BORDER_SECONDS
        return self._border_us

    # ---- the connection

    def _connect(self) -> Connection:
        connection = self._database.connect(create=True, patience=LOCK_PATIENCE)
        try:
            queries.create_tables(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connected_or_again(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    def _found(self) -> None:
        with self._changed:
            back, self._connected = not self._connected, True
        if back:
            log.warning("The database %s is back.", self._database.name)
        self._refresh()

    def _lost(self, error: Exception) -> None:
        with self._changed:
            gone, self._connected = self._connected, False
            self._last_error = words(error)
        if gone:
            log.warning("The database %s is away: %s", self._database.name, words(error))
        self._forsake()
        self._disconnect()


def words(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
