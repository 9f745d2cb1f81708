"""The store when things go wrong: killed writers, databases that go away and come back."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import bcd4rec
from bcd4rec.serving.storage import writer
from bcd4rec.serving.storage.database import Connection
from bcd4rec.serving.storage.store import BufferFull, Store, StoreClosed, open_store
from databases import PostgresServer, postgres_server
from test_storage import answer, slate

# Says which feedback it was told to be stored, as fast as it is told so.
UNDER_LOAD = """
import os, sys, threading
from bcd4rec.serving.storage.records import Feedback, Impression
from bcd4rec.serving.storage.store import open_store
store = open_store(sys.argv[1])
room = threading.Semaphore(2000)
def done(number):
    os.write(1, b"%d\\n" % number)
    room.release()
for number in range(10**9):
    room.acquire()
    names = f"r{number}", f"s{number // 10}", number % 10, "v", "A", number
    store.submit([Impression(*names, ("a", "b"), (0.5, None), (1.0, 2.0))])
    future = store.submit([Feedback(f"r{number}", "ab"[number % 2], "click", number)])
    future.add_done_callback(lambda _, number=number: done(number))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PING_SECONDS", 0.05)
    monkeypatch.setattr(writer, "LOCK_PATIENCE", 0.05)
    monkeypatch.setattr(writer, "LONGEST_PAUSE", 0.1)


def wait_for(condition: Callable[[], bool]) -> None:
    patience = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < patience
        time.sleep(0.01)


def stored(url: str) -> tuple[set[tuple[str, str]], set[str]]:
    """All feedback, and all slates, by a plain connection."""
    address = url.removeprefix("sqlite:///")
    connect = psycopg.connect if url.startswith("postgresql") else sqlite3.connect
    with contextlib.closing(connect(address)) as connection:  # type: ignore[operator]
        feedback = connection.execute("SELECT request_id, item FROM bcd4rec_feedback").fetchall()
        slates = connection.execute("SELECT request_id FROM bcd4rec_impressions").fetchall()
    return set(feedback), {name for (name,) in slates}


# ---- kill -9


@pytest.mark.parametrize("kind", ["sqlite", "sqlite normal", "postgresql"])
def test_what_was_acknowledged_survives_kill_9(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    plain = f"sqlite:///{tmp_path}/a.db" if kind != "postgresql" else request.getfixturevalue("server").url
    url = plain + ("?synchronous=normal" if kind == "sqlite normal" else "")
    environment = os.environ | {"PYTHONPATH": str(Path(bcd4rec.__file__).parents[1])}
    acknowledged = tmp_path / "acknowledged"
    with acknowledged.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", UNDER_LOAD, url], stdout=out, env=environment)
        try:
            wait_for(lambda: acknowledged.stat().st_size > 10_000 or process.poll() is not None)
        finally:
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
    numbers = [int(line) for line in acknowledged.read_bytes().splitlines()]
    assert len(numbers) > 1000
    feedback, slates = stored(plain)
    assert {(f"r{number}", "ab"[number % 2]) for number in numbers} <= feedback
    assert {f"r{number}" for number in numbers} <= slates  # shown before it was answered, so stored before
    store = open_store(url)  # and the database still works
    store.submit([slate(0, "new", request_id="new")]).result(60)
    assert len(store.session("s0").slates) == 10
    store.close()


# ---- away and back


def while_away(store: Store, buffer: int, waiting: int = 0) -> list[object]:
    """Recommendations go on: records are taken up to the bound, sessions are known, nothing is acknowledged."""
    wait_for(lambda: not store.status().connected)
    futures = [store.submit([answer(0, "b", "click", 10)])]
    assert store.session("s").slates == [[("a", "click"), ("b", "click"), ("c", None)]]
    futures += [store.submit([slate(number, "s")]) for number in range(1, buffer)]
    connect, asking = store._database.connect, list[str]()

    def noted(create: bool, patience: float) -> Connection:
        asking.append(threading.current_thread().name)
        return connect(create, patience)

    store._database.connect = noted  # type: ignore[method-assign]
    with pytest.raises(BufferFull):
        store.submit([slate(buffer, "s")])
    store.session("s")
    store.arms()
    wait_for(lambda: len(asking) > 3)  # attempts to reconnect …
    assert set(asking) == {"bcd4rec store"}  # … of the writer: nobody else waits for the database
    status = store.status()
    assert (status.connected, status.pending, status.dropped) == (False, buffer + waiting, 1)
    assert status.last_error
    assert not any(future.done() for future in futures)
    return list(futures)


def when_back(store: Store, futures: list[object], buffer: int) -> None:
    for future in futures:
        future.result(60)  # type: ignore[attr-defined]
    wait_for(lambda: store.status().connected)
    assert store.status().pending == 0
    assert store.session("s").slates[0] == [("a", "click"), ("b", "click"), ("c", None)]
    assert len(store.session("s").slates) == buffer
    assert store.submit([slate(buffer)]).result(60) is None


def opened(url: str, buffer: int) -> Store:
    store = open_store(url, buffer=buffer)
    store.submit([slate(0), answer(0, "a", "click", 5)]).result(60)
    return store


@pytest.mark.usefixtures("quick")
def test_a_locked_file(tmp_path: Path) -> None:
    store = opened(f"{tmp_path}/a.db", 20)
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.submit([slate(0)])  # there already; tells the writer of the lock
    futures = while_away(store, 19, waiting=1)
    other.execute("ROLLBACK")
    other.close()
    when_back(store, futures, 19)
    store.close()
    assert stored(str(tmp_path / "a.db"))[1] == {f"r{number}" for number in range(20)}


@pytest.mark.usefixtures("quick")
def test_postgresql_stops_and_starts(server: PostgresServer) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS bcd4rec_storage, bcd4rec_impressions, bcd4rec_feedback")
    store = opened(server.url, 20)
    server.stop()
    try:
        futures = while_away(store, 20)
    finally:
        server.start()
    when_back(store, futures, 20)
    with psycopg.connect(server.url) as connection:  # only the connections are cut, not the server
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    store.submit([slate(21)]).result(60)
    store.close()
    assert stored(server.url)[1] == {f"r{number}" for number in range(22)}
    assert store.status().dropped == 1


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """For root every file may be written, so root becomes somebody else meanwhile."""
    before = os.geteuid()
    for file in folder.iterdir():
        file.chmod(0o444)
    os.seteuid(before or 65534)
    try:
        yield
    finally:
        os.seteuid(before)
        for file in folder.iterdir():
            file.chmod(0o666)


@pytest.mark.usefixtures("quick")
def test_a_file_that_may_not_be_written() -> None:
    with tempfile.TemporaryDirectory() as name:  # others may not enter pytest's folders
        folder = Path(name)
        folder.chmod(0o777)
        store = opened(str(folder / "a.db"), 20)
        with read_only(folder):
            assert store._writer._connection is not None
            store._writer._connection.rows("PRAGMA query_only = ON")  # makes it connect anew
            store.submit([slate(0)])
            futures = while_away(store, 19, waiting=1)
            assert "readonly" in str(store.status().last_error)
        when_back(store, futures, 19)
        store.close()
        assert stored(str(folder / "a.db"))[1] == {f"r{number}" for number in range(20)}


@pytest.mark.usefixtures("quick")
def test_a_file_that_is_removed(tmp_path: Path) -> None:
    """What is acknowledged after that is in a file that can be found."""
    folder = tmp_path / "data"
    folder.mkdir()
    store = opened(str(folder / "a.db"), 20)
    folder.rename(tmp_path / "elsewhere")
    futures = while_away(store, 20)
    assert not folder.exists()
    folder.mkdir()
    when_back(store, futures, 20)
    (folder / "a.db").unlink()
    store.submit([slate(30)]).result(60)
    assert stored(str(folder / "a.db"))[1] == {"r30"}
    store.close()


@pytest.mark.usefixtures("quick")
def test_closing_while_the_database_is_away(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    store = opened(str(folder / "a.db"), 20)
    folder.rename(tmp_path / "elsewhere")
    futures = [store.submit([slate(number), answer(number, "a", "click")]) for number in (1, 2)]
    began = time.monotonic()
    store.close(timeout=0.3)
    assert time.monotonic() - began < 60  # the database does not come back
    for future in futures:
        with pytest.raises(StoreClosed):
            future.result(60)
    assert (store.status().pending, store.status().dropped) == (0, 4)
