"""PostgreSQL through psycopg 3: for several servers, or one that has a database already."""

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from bcd4rec.errors import InputError
from bcd4rec.serving.storage.database import Connection, Database, Marks, Row

try:
    import psycopg
    from psycopg import conninfo
except ImportError as error:
    raise InputError(
        f"PostgreSQL needs psycopg, which is not there ({error}); install it with: pip install 'bcd4rec[postgres]'."
    ) from None

BATCH = 10_000  # rows fetched at once
TABLES_LOCK = 0x62636434  # of all bcd4rec servers that make tables at the same moment
# A server that does not answer is found out in seconds and not in the hours of the system's defaults.
TIMEOUTS = {"connect_timeout": 3, "tcp_user_timeout": 3_000, "keepalives_idle": 3, "keepalives_interval": 1}


class PostgresConnection(Connection):
    mark = "transaction"
    shown = "jsonb_exists(CAST(i.items AS jsonb), f.item)"

    def __init__(self, connection: "psycopg.Connection[Row]"):
        self._connection = connection

    def rows(self, sql: str, *values: Any) -> list[Row]:
        cursor = self._connection.execute(_own(sql), values)
        return cursor.fetchall() if cursor.description else []

    def stream(self, sql: str, *values: Any) -> Iterator[Row]:
        with self._connection.cursor("bcd4rec_stream") as cursor:
            cursor.itersize = BATCH
            cursor.execute(_own(sql), values)
            yield from cursor

    @contextlib.contextmanager
    def transaction(self, read_only: bool = False) -> Iterator[None]:
        with self._connection.transaction():
            if read_only:
                self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """One array for each column: a single statement, and a single way to the server and back."""
        arrays = [list(column) for column in zip(*rows, strict=True)]
        types = ("bigint[]" if isinstance(array[0], int) else "text[]" for array in arrays)
        places = ", ".join(f"CAST(? AS {kind})" for kind in types)
        into = f"INSERT INTO {table} ({', '.join(columns)})"
        sql = f"{into} SELECT * FROM unnest({places}) ON CONFLICT DO NOTHING"  # noqa: S608 (our names)
        self.rows(sql, *arrays)

    def lock_tables(self) -> None:
        self._connection.execute("SELECT pg_advisory_xact_lock(%s)", [TABLES_LOCK])

    def complete_tables(self) -> None:
        """Several servers write at once, so that records are known by their transactions."""
        known = "SELECT table_name FROM information_schema.columns WHERE column_name = ? AND table_schema = ANY (?)"
        schemas = self.rows("SELECT current_schemas(false)")[0][0]
        found = {name for (name,) in self.rows(known, self.mark, schemas)}
        for table in ("bcd4rec_impressions", "bcd4rec_feedback"):
            if table not in found:
                column = f"{self.mark} BIGINT NOT NULL DEFAULT CAST(CAST(pg_current_xact_id() AS text) AS bigint)"
                self.rows(f"ALTER TABLE {table} ADD COLUMN {column}")
                self.rows(f"CREATE INDEX {table}_{self.mark} ON {table} ({self.mark})")

    def marks(self) -> Marks:
        """The oldest transaction that may still write: whatever was written by an earlier one can be read now."""
        sql = "SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint)"
        oldest = self.rows(sql)[0][0]
        return oldest, oldest

    def ping(self) -> None:
        self._connection.execute("SELECT 1")

    def interrupt(self) -> None:
        """The end of its socket: nothing else reaches a thread that waits for a server that hangs."""
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self._connection.fileno())) as own,
        ):
            own.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


class Postgres(Database):
    def __init__(self, url: str):
        try:
            given = conninfo.conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            words = " ".join(str(error).split())
            raise InputError(f"--database: the PostgreSQL address cannot be read ({words}).") from None
        self._conninfo = conninfo.make_conninfo(
            url, **{key: value for key, value in TIMEOUTS.items() if key not in given}
        )
        self.name = f"PostgreSQL database {given.get('dbname', '')} at {given.get('host', 'localhost')}"

    def claim(self) -> None:
        """Several servers may share it."""

    def take_turns(self) -> None:
        """They write at the same time."""

    def connect(self, create: bool, patience: float) -> PostgresConnection:
        connection = psycopg.connect(self._conninfo, autocommit=True)
        connection.execute(f"SET lock_timeout = {int(patience * 1000)}")
        return PostgresConnection(connection)

    def away(self, error: BaseException) -> bool:
        """Everything but what is wrong with the values: a database that is full, read-only or restored comes back."""
        return isinstance(error, psycopg.Error) and not isinstance(error, psycopg.DataError | psycopg.IntegrityError)


def _own(sql: str) -> str:
    """PostgreSQL's mark for a value; our SQL has no other question marks, and no value in its text."""
    return sql.replace("?", "%s")
