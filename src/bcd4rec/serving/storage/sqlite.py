"""SQLite in WAL mode: one file, nothing to install."""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bcd4rec.errors import InputError
from bcd4rec.serving.storage.database import Connection, Database, Marks, Row

BATCH = 10_000  # rows fetched at once
STATEMENT_ROWS = 500  # rows inserted at once; SQLite takes 32,766 values
SYNCHRONOUS = ("full", "normal")


class SqliteConnection(Connection):
    mark = "rowid"
    shown = "EXISTS (SELECT 1 FROM json_each(i.items) AS j WHERE j.value = f.item)"

    def __init__(self, path: Path, connection: sqlite3.Connection, turns: bool = False):
        self._path, self._connection, self._turns = path, connection, turns
        self._file = _identity(path)
        self._wal = path.with_name(f"{path.name}-wal")
        self._wal_file: tuple[int, int] | None = None
        self._queue: int | None = None  # where those who write wait for their turn

    def rows(self, sql: str, *values: Any) -> list[Row]:
        return self._connection.execute(sql, values).fetchall()

    def stream(self, sql: str, *values: Any) -> Iterator[Row]:
        cursor = self._connection.execute(sql, values)
        while rows := cursor.fetchmany(BATCH):
            yield from rows

    @contextlib.contextmanager
    def transaction(self, read_only: bool = False) -> Iterator[None]:
        with self._turn() if self._turns and not read_only else contextlib.nullcontext():
            self._connection.execute("BEGIN" if read_only else "BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
        self.ping()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until those who came before have written. SQLite itself lets the others try again ever less often, so
        that of several busy workers one may wait for seconds."""
        if self._queue is None:
            self._queue = os.open(self._path.with_name(f"{self._path.name}-turn"), os.O_RDONLY | os.O_CREAT, 0o666)
        fcntl.flock(self._queue, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._queue, fcntl.LOCK_UN)

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Many rows in a statement: one for each row would give Python's lock away and wait for it each time."""
        into = f"INSERT INTO {table} ({', '.join(columns)}) VALUES"
        places = f"({', '.join('?' * len(columns))})"
        for first in range(0, len(rows), STATEMENT_ROWS):
            part = rows[first : first + STATEMENT_ROWS]
            sql = f"{into} {', '.join([places] * len(part))} ON CONFLICT DO NOTHING"
            self._connection.execute(sql, [value for row in part for value in row])

    def lock_tables(self) -> None:
        """Whoever writes holds the only lock there is."""

    def complete_tables(self) -> None:
        """SQLite counts the rows of a table itself."""

    def marks(self) -> Marks:
        """Only one process writes at a time, so that no row comes before another that was there already."""
        last = "SELECT COALESCE(MAX(rowid), 0) + 1 FROM "
        slates, feedback = (self.rows(last + table)[0][0] for table in ("bcd4rec_impressions", "bcd4rec_feedback"))
        return slates, feedback

    def ping(self) -> None:
        """A file that was removed or replaced can still be written to, but nobody will find it.

        So with the WAL, which holds what was committed last: then that is brought into the main file first.
        """
        if _identity(self._path) != self._file:
            raise FileNotFoundError(f"{self._path} was removed or replaced")
        wal = _identity(self._wal)
        self._wal_file = self._wal_file or wal
        if wal != self._wal_file:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            raise FileNotFoundError(f"{self._wal} was removed or replaced")

    def interrupt(self) -> None:
        self._connection.interrupt()

    def close(self) -> None:
        self._connection.close()
        if self._queue is not None:
            os.close(self._queue)
            self._queue = None


class Sqlite(Database):
    def __init__(self, path: Path, synchronous: str = "full"):
        if synchronous not in SYNCHRONOUS:
            raise InputError(f"--database: found synchronous={synchronous}, expected {' or '.join(SYNCHRONOUS)}.")
        self.name, self._path, self._synchronous = str(path), path, synchronous
        self._turns = False

    def take_turns(self) -> None:
        self._turns = True

    def claim(self) -> int:
        """A server knows the sessions of its file from memory, so that there can be only one."""
        lock = self._path.with_name(f"{self._path.name}-lock")
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise InputError(
                f"--database: another server uses {self._path}; choose another file, or PostgreSQL for several servers."
            ) from None
        return descriptor

    def connect(self, create: bool, patience: float) -> SqliteConnection:
        if not create and not self._path.exists():
            raise InputError(f"{self._path} does not exist; expected a database that `bcd4rec serve` wrote.")
        uri = f"{self._path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
        connection = sqlite3.connect(uri, timeout=patience, isolation_level=None, check_same_thread=False, uri=True)
        try:
            if create:
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            return SqliteConnection(self._path, connection, self._turns)
        except BaseException:
            connection.close()
            raise

    def away(self, error: BaseException) -> bool:
        return isinstance(error, sqlite3.OperationalError | OSError) or type(error) is sqlite3.DatabaseError


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
