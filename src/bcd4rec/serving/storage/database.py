"""What a database must be able to do; the SQL itself is in `queries`, once for all of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

Row = tuple[Any, ...]
Marks = tuple[int, int]  # of slates and of feedback: all records with a lower mark are there


class Connection(ABC):
    """One open connection, used by one thread at a time."""

    shown: ClassVar[str]
    """SQL that is true where `f.item` is one of the JSON list `i.items`."""

    mark: ClassVar[str]
    """The column of slates and feedback that tells in which order they came."""

    @abstractmethod
    def rows(self, sql: str, *values: Any) -> list[Row]:
        """All rows of a query; `?` stands for a value."""

    @abstractmethod
    def stream(self, sql: str, *values: Any) -> Iterator[Row]:
        """The rows of a query, within a transaction, without holding them all."""

    @abstractmethod
    def transaction(self, read_only: bool = False) -> AbstractContextManager[None]:
        """Commit at the end, roll back on an exception; what is read inside is of one moment."""

    @abstractmethod
    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Insert all rows in one statement; those that are there already stay as they are."""

    @abstractmethod
    def lock_tables(self) -> None:
        """Within a transaction: nobody else makes tables meanwhile."""

    @abstractmethod
    def complete_tables(self) -> None:
        """Within a transaction: add what this database needs beside the tables of all."""

    @abstractmethod
    def marks(self) -> Marks:
        """Below these, nothing will come any more; within a transaction that reads."""

    @abstractmethod
    def ping(self) -> None:
        """Raise when what was written through this connection would not be found again."""

    @abstractmethod
    def interrupt(self) -> None:
        """From another thread: what waits for the database on this connection fails now."""

    @abstractmethod
    def close(self) -> None: ...


class Database(ABC):
    """Where to connect to, and how its failures are read."""

    name: str
    """For people; without a password."""

    @abstractmethod
    def claim(self) -> int | None:
        """Refuse a database that another server has for itself, and keep others away.

        They are kept away until every copy of the returned descriptor is closed; None where several may share it.
        """

    @abstractmethod
    def take_turns(self) -> None:
        """Other processes of the same server write, too, and none of them should have to wait for long."""

    @abstractmethod
    def connect(self, create: bool, patience: float) -> Connection:
        """A new connection, which waits at most `patience` seconds for locks; `create` makes what is not there."""

    @abstractmethod
    def away(self, error: BaseException) -> bool:
        """Is this about the database, and worth another try, rather than about what was to be written?"""
