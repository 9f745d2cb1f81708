"""What is stored: databases that hang or are taken away, clocks that jump, addresses with passwords."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bcd4rec.errors import InputError
from bcd4rec.serving.arms import Arms, load_arm
from bcd4rec.serving.messages import RecommendRequest
from bcd4rec.serving.service import Service
from bcd4rec.serving.storage import clock, queries, writer
from bcd4rec.serving.storage import store as store_module
from bcd4rec.serving.storage.clock import HOUR_US, Clock
from bcd4rec.serving.storage.counting import ArmCounter
from bcd4rec.serving.storage.records import Feedback, Impression
from bcd4rec.serving.storage.sqlite import Sqlite
from bcd4rec.serving.storage.store import open_store
from bcd4rec.serving.storage.urls import database_of, without_secrets
from databases import PostgresServer, postgres_server
from serving_help import quantile_policy, saved, serving
from test_storage_away import read_only, wait_for


def slate(number: int, session: str = "s", time_us: int = 1_000_000) -> Impression:
    return Impression(f"r{number}", session, number, "v", "a", time_us, ("7", "8"), (1.0, 1.0), (0.0, 0.0))


# ---- passwords

SECRET = "hush%21/hush"  # noqa: S105


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://anna:{SECRET}@127.0.0.1:1/shop",
        f"postgresql://anna:{SECRET}@127.0.0.1:port/shop",
        f"postgresql://anna@127.0.0.1:1/shop?password={SECRET}",
        f"postgresql://anna@127.0.0.1:1/shop?pass=x&password={SECRET}",
        f"postgres:/anna:{SECRET}@host/shop",
        f"mysql://anna:{SECRET}@host/shop",
        f"host=127.0.0.1 password='{SECRET}'",
    ],
)
def test_passwords_are_never_told(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        open_store(url)
    for secret in (SECRET, "hush"):
        assert secret not in str(refused.value)
        assert secret not in without_secrets(url, url)
    assert without_secrets("/data/store.sqlite", "/data/store.sqlite") == "/data/store.sqlite"


def test_a_password_is_not_told_in_the_form_that_the_database_knows() -> None:
    told = without_secrets("no user anna with s!cret", "postgresql://anna:s%21cret@127.0.0.1/shop")
    assert told == "no user anna with ***"


def test_what_a_database_says_of_a_password_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slash in it makes the rest of it the name of a database; and servers repeat what they were given."""
    url = "postgresql://anna:s%21cret/h%21dden@127.0.0.1:1/shop"
    with pytest.raises(InputError) as refused:
        open_store(url)
    assert not [word for word in ("cret", "dden") if word in str(refused.value)]
    assert "dden" not in database_of("postgresql://127.0.0.1/h%21dden?password=h%21dden").name

    def connect(self: Any, **_: Any) -> Any:
        raise OSError(f"no database for {url} or s!cret")

    monkeypatch.setattr(Sqlite, "connect", connect)
    monkeypatch.setattr(store_module, "database_of", lambda _: Sqlite(Path("unused.db")))
    monkeypatch.setattr(Sqlite, "claim", lambda _: None)
    with pytest.raises(InputError, match=r"no database for .*\*\*\*.* or \*\*\*") as refused:
        open_store(url)
    assert not [word for word in ("cret", "dden") if word in str(refused.value)]


def test_a_server_says_where_it_stores_without_the_password(tmp_path: Path) -> None:
    folder = saved(quantile_policy("meanpool", "implicit"), tmp_path / "policy")
    with postgres_server() as database:
        url = database.url.replace("bcd4rec@", "bcd4rec:hush%21hush@")
        with serving(tmp_path, folder, "--database", url) as server:
            server.recommend(session_id="anna")
            told = json.dumps(server.first)
            database.stop()
            wait_for(lambda: server.client.get("/v1/health").json()["status"] == "degraded")
            database.start()
            wait_for(lambda: server.client.get("/v1/health").json()["status"] == "ok")
            assert "hush" not in told + server.said
            assert "***" in told


# ---- one server, one file


def test_two_servers_on_one_file(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    first = open_store(path)
    with pytest.raises(InputError, match="another server uses"):
        open_store(path)
    first.close()
    open_store(path).close()


def test_a_wal_that_is_removed_takes_nothing_along(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "a.db"))
    store.submit([slate(0), Feedback("r0", "7", "click", 2)]).result(60)
    for name in ("a.db-wal", "a.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)  # the store may have noticed the first
    store.submit([slate(1), Feedback("r1", "8", "click", 3)]).result(60)
    with sqlite3.connect(tmp_path / "a.db") as other:  # as after a power cut: what another process can see
        assert other.execute("SELECT COUNT(*) FROM bcd4rec_feedback").fetchone() == (2,)
    other.close()
    wait_for(lambda: store.status().connected)
    answered = [pair for shown in store.session("s").slates for pair in shown if pair[1] is not None]
    assert answered == [("7", "click"), ("8", "click")]
    store.close()
    assert sqlite3.connect(tmp_path / "a.db").execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_wal_that_others_read_takes_nothing_along(tmp_path: Path, replaced: bool) -> None:
    """While another program has the file open, closing it does not bring the WAL into it."""
    path = tmp_path / "a.db"
    store, other = open_store(str(path)), sqlite3.connect(path)
    count = "SELECT COUNT(*) FROM bcd4rec_feedback"
    store.submit([slate(0), Feedback("r0", "7", "click", 2)]).result(20)
    assert other.execute(count).fetchall() == [(1,)]
    (tmp_path / "a.db-wal").unlink()
    if replaced:
        (tmp_path / "a.db-wal").touch()
    store.submit([slate(1), Feedback("r1", "8", "click", 3)]).result(20)
    shutil.copy(path, tmp_path / "b.db")  # what is in the file itself
    with contextlib.closing(sqlite3.connect(tmp_path / "b.db")) as alone:
        assert alone.execute(count).fetchall()[0][0] >= 1
    wait_for(lambda: store.status().connected)
    store.close()
    other.close()
    with contextlib.closing(sqlite3.connect(path)) as later:
        assert later.execute(count).fetchall() == [(2,)]


def test_a_file_that_may_not_be_written_is_refused_at_the_start() -> None:
    with tempfile.TemporaryDirectory() as name:  # others may not enter pytest's folders
        folder = Path(name)
        folder.chmod(0o777)
        open_store(str(folder / "a.db")).close()
        (folder / "a.db-lock").unlink()
        with read_only(folder), pytest.raises(InputError, match="cannot be used"):
            open_store(str(folder / "a.db"))
        open_store(str(folder / "a.db")).close()


# ---- clocks


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Clocks that a test sets: `wall` shows the time, `steady` only counts; both in microseconds."""
    now = {"wall": 10**15, "steady": 5 * 10**9}
    monkeypatch.setattr(time, "time_ns", lambda: 1000 * now["wall"])
    monkeypatch.setattr(clock, "steady_us", lambda: now["steady"])
    return now


def passes(now: dict[str, int], us: int, jump: int = 0) -> None:
    now["wall"] += us + jump
    now["steady"] += us


@pytest.mark.parametrize("jump", [-HOUR_US, HOUR_US, -(10**14), 10**14])
def test_a_clock_that_jumps_is_not_followed(wall: dict[str, int], jump: int) -> None:
    one = Clock()
    assert one.now_us() == 10**15
    passes(wall, 500, jump)
    assert one.now_us() == 10**15 + 500
    assert one.now_us() == 10**15 + 501  # never the same twice
    passes(wall, 9_500)
    assert one.now_us() == 10**15 + 10_000
    passes(wall, 1_000, -jump)
    assert one.now_us() == 10**15 + 11_000


def test_small_corrections_are_followed(wall: dict[str, int]) -> None:
    one = Clock()
    passes(wall, 1_000, 400_000)
    assert one.now_us() == 10**15 + 401_000
    passes(wall, 1_000, -400_000)
    assert one.now_us() == 10**15 + 401_001  # but not backwards
    passes(wall, 10**12, 30 * 10**6)  # eleven days without a request, at 30 millionths
    assert one.now_us() == wall["wall"]


def test_a_restart_goes_on_after_the_newest_record(wall: dict[str, int]) -> None:
    assert Clock(10**15 + 5_000).now_us() == 10**15 + 5_001
    assert Clock(10**15 + 10**12).now_us() == 10**15  # of a clock that was wrong


def test_a_store_goes_on_after_its_newest_record(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "a.db"))
    newest = store.now_us() + HOUR_US // 2
    store.submit([slate(0, time_us=newest)]).result(20)
    store.close()
    store = open_store(str(tmp_path / "a.db"))
    assert newest < store.now_us() < newest + HOUR_US // 2
    store.close()


def test_a_jump_ahead_does_not_delete_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that starts with a clock ten years ahead forgets one day an hour, and not all at once."""
    monkeypatch.setattr(writer, "PRUNE_PAUSE", 0.0)
    path, day = str(tmp_path / "a.db"), writer.DAY_US
    now = time.time_ns() // 1000
    store = open_store(path)
    store.submit([slate(number, time_us=now - number * day - 5) for number in range(20)]).result(60)
    store.close()
    wall = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: wall() + 3650 * day * 1000)
    store = open_store(path, retention_days=30)
    wait_for(lambda: store._writer._next_prune > time.monotonic() + 1)
    store.close()
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT COUNT(*) FROM bcd4rec_impressions").fetchone()[0] == 19
    other.close()


# ---- a database that hangs


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


class Stopped:
    """Every process of a PostgreSQL server, as if its machine hung: connections stay, and nothing answers."""

    def __init__(self, server: PostgresServer):
        pid = int((server._folder / "data" / "postmaster.pid").read_text().splitlines()[0])
        parent = psutil.Process(pid)
        self._pids = [pid, *(child.pid for child in parent.children(recursive=True))]

    def __enter__(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGSTOP)

    def __exit__(self, *_: Any) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGCONT)


def test_a_database_that_hangs_is_not_waited_for(
    database: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(quantile_policy("meanpool", "implicit"), tmp_path / "policy")
    store = open_store(database.url)
    service = Service(Arms([load_arm("a", folder, 1.0)]), store, local=False)
    store.submit([slate(0, "anna", store.now_us()), Feedback("r0", "7", "click", store.now_us())]).result(60)

    async def slates() -> list[dict[str, Any]]:
        asked = RecommendRequest(session_id="anna", k=22)
        return [await service.recommend(asked) for _ in range(20)]

    before = asyncio.run(slates())
    with Stopped(database):
        given_up, give_up = list[None](), store.give_up_reading
        monkeypatch.setattr(store, "give_up_reading", lambda: (given_up.append(None), give_up())[1])
        hung = asyncio.run(slates())
        assert 1 <= len(given_up) < 16  # not the patience with one request twenty times
        waiting = store.submit([slate(1, "anna", store.now_us())])
        wait_for(lambda: not store.status().connected)
        began = time.monotonic()
        store.arms()
        assert time.monotonic() - began < 60  # it hangs for longer
        assert not waiting.done()
    assert [one["items"] for one in hung] == [one["items"] for one in before]  # memory knows the session
    waiting.result(60)
    wait_for(lambda: store.status().connected)
    store.close()


def test_counting_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by who asks for the counts, nor by anybody else."""
    begun, release = threading.Event(), threading.Event()

    def count(*_: Any) -> list[Any]:
        begun.set()
        assert release.wait(300)
        return []

    monkeypatch.setattr(ArmCounter, "count", count)
    monkeypatch.setattr(store_module, "COUNT_SECONDS", 0.05)
    store = open_store(str(tmp_path / "a.db"))
    asking = threading.Thread(target=store.arms, daemon=True)
    asking.start()
    assert begun.wait(300)
    asking.join(120)
    assert not asking.is_alive()
    store.submit([slate(0)]).result(60)
    assert store.session("s").known
    release.set()
    store.close()


def test_a_write_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, write = threading.Event(), queries.write
    monkeypatch.setattr(queries, "write", lambda *given: (release.wait(300), write(*given))[1])
    monkeypatch.setattr(writer, "STALLED_SECONDS", 0.05)
    store = open_store(str(tmp_path / "a.db"))
    waiting = store.submit([slate(0)])
    wait_for(lambda: not store.status().connected)
    release.set()
    waiting.result(60)
    wait_for(lambda: store.status().connected)
    store.close()


def test_a_postgresql_that_does_not_answer_is_found_out_in_seconds() -> None:
    from psycopg.conninfo import conninfo_to_dict

    for url, seconds in (("postgresql://host/shop", 3), ("postgresql://host/shop?connect_timeout=9", 9)):
        found = conninfo_to_dict(database_of(url)._conninfo)  # type: ignore[attr-defined]
        assert (int(found["connect_timeout"]), int(found["tcp_user_timeout"])) == (seconds, 3_000)


def test_closing_does_not_wait_for_a_database_that_hangs(database: PostgresServer) -> None:
    store = open_store(database.url)
    with Stopped(database):
        store.submit([slate(5)])
        store.in_thread(store.session, "anna")
        began = time.monotonic()
        store.close(timeout=0.2)
        assert time.monotonic() - began < 60


def test_what_is_asked_of_a_table_is_known_to_both(database: PostgresServer, tmp_path: Path) -> None:
    for url in (database.url, str(tmp_path / "a.db")):
        connection = database_of(url).connect(create=True, patience=1.0)
        try:
            queries.create_tables(connection)
            connection.rows("DELETE FROM bcd4rec_feedback")
            connection.rows("DELETE FROM bcd4rec_impressions")
            assert (queries.oldest(connection), queries.newest(connection)) == (None, None)
            queries.write(connection, [slate(1, time_us=70), slate(2, time_us=90), Feedback("x", "7", "buy", 60)])
            assert (queries.oldest(connection), queries.newest(connection)) == (60, 90)
        finally:
            connection.close()
