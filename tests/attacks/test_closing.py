"""How connections end: whoever does not read, does not finish or does not leave keeps no place for ever."""

import asyncio
import logging
from collections.abc import Hashable
from typing import Any

import pytest
from raw import connect, rest_of, said_to, status_of
from test_requests import END, HEAD, PATIENT, POST, running, wait_until

from bcd4rec.serving import protocol
from bcd4rec.serving.connections import Connections
from bcd4rec.serving.protocol import HEAD_BYTES

SOON = 0.05  # seconds, where a test waits for something to be given up


class Doors(Connections):
    """Remembers who came."""

    def __init__(self) -> None:
        super().__init__(100, 100)
        self.came: list[Any] = []

    def enter(self, connection: Hashable, *given: Any) -> bool:
        self.came.append(connection)
        return super().enter(connection, *given)


class Unread:
    """Answers until some of the answer has to wait in memory, but less than would stop it."""

    def __init__(self, doors: Doors, seconds: float):
        self._doors, self._seconds, self.left = doors, seconds, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        (one,) = self._doors.came
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not one.transport.get_write_buffer_size():
            await send({"type": "http.response.body", "body": b"x" * 10_000, "more_body": True})
        assert one._stalled is None
        one._seconds, self.left = self._seconds, one.transport.get_write_buffer_size()
        await send({"type": "http.response.body", "body": b""})


def test_an_idle_connection_with_an_unread_answer_is_closed() -> None:
    doors = Doors()
    app = Unread(doors, PATIENT)
    with running(PATIENT, doors, app, timeout_keep_alive=SOON) as port, connect(port) as connection:
        connection.sendall(HEAD + b"\r\n")
        wait_until(lambda: bool(doors.came) and not len(doors))
        assert app.left


def test_a_last_answer_that_nobody_reads_is_given_up() -> None:
    doors = Doors()
    app = Unread(doors, SOON)
    with running(PATIENT, doors, app) as port, connect(port) as connection:
        connection.sendall(HEAD + END)
        wait_until(lambda: bool(doors.came) and not len(doors))
        assert app.left


class Slow:
    """Begins its answer, or not; ends it when it is told to."""

    def __init__(self, begins: bool):
        self._begins = begins
        self.heard: list[str] = []
        self.called, self.ends = 0, asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.called += 1
        if self._begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        while (heard := await receive())["type"] != "http.disconnect" and heard["more_body"]:
            pass
        self.heard.append(heard["type"])
        await self.ends.wait()
        if not self._begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"late"})


def too_late(doors: Doors) -> None:
    """The time for the request has passed."""
    (one,) = doors.came
    wait_until(lambda: one._deadline is not None)
    one.loop.call_soon_threadsafe(one._too_late)


UNFINISHED = POST + b"content-length: 5\r\n\r\nx"


def test_an_answer_that_has_begun_is_cut_and_not_mixed_with_another() -> None:
    doors = Doors()
    app = Slow(begins=True)
    with running(PATIENT, doors, app) as port, connect(port) as connection:
        connection.sendall(UNFINISHED)
        begun = connection.recv(1)
        too_late(doors)
        answer = begun + rest_of(connection)
        assert status_of(answer) == 200
        assert b"408" not in answer
        app.ends.set()


def test_who_was_asked_first_is_not_answered_for_the_second() -> None:
    """A 408 would be taken for the answer to the first request."""
    doors = Doors()
    app = Slow(begins=False)
    with running(PATIENT, doors, app) as port, connect(port) as connection:
        connection.sendall(HEAD + b"\r\n" + UNFINISHED)
        wait_until(lambda: bool(doors.came) and bool(doors.came[0].pipeline))
        too_late(doors)
        assert rest_of(connection) == b""
        app.ends.set()


@pytest.mark.parametrize("end", [b"NONSENSE\r\n\r\n", HEAD + b"long: " + b"a" * HEAD_BYTES + b"\r\n\r\n"])
@pytest.mark.parametrize("before", [1, 2, 3])
def test_nonsense_behind_requests_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture, before: int, end: bytes
) -> None:
    doors = Doors()
    app = Slow(begins=False)
    with running(PATIENT, doors, app) as port, connect(port) as connection:
        connection.sendall((HEAD + b"\r\n") * before + end)
        wait_until(lambda: bool(doors.came) and doors.came[0]._refused and bool(app.called))
        (one,) = doors.came
        one.loop.call_soon_threadsafe(app.ends.set)
        assert b"late" not in rest_of(connection)
        wait_until(lambda: not one.tasks)
    assert app.called == 1
    assert not failures(caplog)


def test_who_leaves_behind_requests_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    doors = Doors()
    app = Slow(begins=False)
    with running(PATIENT, doors, app) as port:
        with connect(port) as connection:
            connection.sendall((HEAD + b"\r\n") * 3)
            wait_until(lambda: bool(app.heard))
        wait_until(lambda: not len(doors))
        (one,) = doors.came
        one.loop.call_soon_threadsafe(app.ends.set)
        wait_until(lambda: not one.tasks)
    assert app.called == 1
    assert not failures(caplog)


def failures(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was refused may stay for long."""
    monkeypatch.setattr(protocol, "LINGER_SECONDS", PATIENT)


@pytest.mark.usefixtures("patient")
def test_nothing_follows_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a late answer to the same request, nor an attempt to give one; and nobody waits for the rest of it."""
    doors = Doors()
    app = Slow(begins=False)
    with running(PATIENT, doors, app) as port, connect(port) as connection:
        connection.sendall(UNFINISHED)
        wait_until(lambda: bool(app.called))
        too_late(doors)
        wait_until(lambda: app.heard == ["http.disconnect"])
        assert len(doors) == 1  # it was told, although the client is still there
        (one,) = doors.came
        one.loop.call_soon_threadsafe(app.ends.set)
        answer = rest_of(connection)
        assert status_of(answer) == 408
        assert b"late" not in answer
        wait_until(lambda: not one.tasks)
    assert not failures(caplog)


def test_who_was_refused_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LINGER_SECONDS", SOON)
    doors = Doors()
    with running(PATIENT, doors) as port, connect(port) as connection:
        connection.sendall(b"NONSENSE\r\n\r\n")
        wait_until(lambda: bool(doors.came) and not len(doors))


@pytest.mark.usefixtures("patient")
def test_who_was_refused_may_read_why() -> None:
    with running(PATIENT) as port:
        assert status_of(said_to(port, b"NONSENSE\r\n\r\n" + b"x" * 1_000_000)) == 400
