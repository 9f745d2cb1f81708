"""Requests that are too long, too slow or too many: each has a bound, and none keeps others out."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import orjson
import pytest
import uvicorn
from raw import connect, request, rest_of, said_to, status_of

from bcd4rec.serving import bodies
from bcd4rec.serving.bodies import Bodies, Body, Refused
from bcd4rec.serving.connections import SPARE, Connections, client_of
from bcd4rec.serving.fast_path import Handler
from bcd4rec.serving.metrics import Metrics
from bcd4rec.serving.middleware import PROBES, Middleware
from bcd4rec.serving.protocol import CROWDED, HEAD_BYTES, BoundedProtocol
from bcd4rec.serving.security import Keys, Limits
from bcd4rec.serving.sockets import bind, listen
from bcd4rec.serving.storage.records import StoreStatus

HEAD, END = b"GET / HTTP/1.1\r\nhost: x\r\n", b"connection: close\r\n\r\n"
PATIENT, HASTY = 60.0, 0.3  # seconds for a request


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads all, and answers 204; 503 where there was no room."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 503 if CROWDED in scope else 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def ignorant(scope: Any, receive: Any, send: Any) -> None:
    """Answers before the body is there."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def talkative(scope: Any, receive: Any, send: Any) -> None:
    """Answers more than any buffer holds."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(200):
        await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@contextlib.contextmanager
def running(
    seconds: float, connections: Connections | None = None, app: Any = app, host: str = "127.0.0.1", **more: Any
) -> Iterator[int]:
    """A server in this process, with `more` of uvicorn's settings; its port."""
    doors = Connections(100, 100) if connections is None else connections
    http: Any = partial(BoundedProtocol, connections=doors, seconds=seconds)
    bound = bind(host, 0)
    listen(bound)
    server = uvicorn.Server(uvicorn.Config(app, http=http, lifespan="off", log_level="error", log_config=None, **more))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def door(limits: Limits, slow: Handler | None = None, keys: Keys | None = None) -> Middleware:
    """What stands before `app`; `slow` answers at /slow."""
    metrics = Metrics(list, lambda: StoreStatus(True, 0, 0, None, None))
    return Middleware(app, {} if slow is None else {"/slow": slow}, keys or Keys([]), Keys([]), limits, metrics)


def wait_until(holds: Callable[[], bool]) -> None:
    """However busy the machine is."""
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_head_of_a_request_is_bounded() -> None:
    with running(PATIENT) as port:
        assert status_of(said_to(port, HEAD + END)) == 204
        assert status_of(said_to(port, HEAD, b"a: b\r\n", END, pause=0.05)) == 204  # in pieces, but soon
        assert status_of(said_to(port, HEAD + b"long: " + b"a" * 60_000 + b"\r\n" + END)) == 204
        line = b"many: " + b"a" * 994 + b"\r\n"
        assert status_of(said_to(port, HEAD, *[line] * 70)) == 431
        for size in (HEAD_BYTES, 2 * HEAD_BYTES, 40 * HEAD_BYTES):  # also where all of it comes at once
            answer = said_to(port, HEAD + b"long: " + b"a" * size + b"\r\n" + END)
            assert status_of(answer) == 431
            assert answer.endswith(b'{"error":"The head of the request is too long."}')
        assert status_of(said_to(port, b"GET /" + b"a" * HEAD_BYTES + b" HTTP/1.1\r\nhost: x\r\n" + END)) == 431
        assert status_of(said_to(port, b"NONSENSE\r\n\r\n")) == 400


def test_a_long_body_is_no_long_head() -> None:
    body = b"x" * 200_000
    post = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n"
    with running(PATIENT) as port:
        for pieces in ((post, body), (post + body,), (post + body + HEAD,)):
            with connect(port) as connection:
                for piece in pieces:
                    connection.sendall(piece)
                assert status_of(connection.recv(100)) == 204
                connection.sendall(END if pieces[-1].endswith(HEAD) else HEAD + END)
                assert status_of(rest_of(connection)) == 204


def drip(port: int, first: bytes, drop: bytes) -> bytes:
    """One drop after the other, until the server has had enough."""
    with connect(port) as connection:
        connection.settimeout(0.02)
        connection.sendall(first)
        began, answer = time.monotonic(), b""
        while time.monotonic() - began < 120:
            try:
                connection.sendall(drop)
                part = connection.recv(1000)
            except TimeoutError:
                continue
            except OSError:
                return answer
            if not part:
                return answer
            answer += part
    raise AssertionError("the server did not close the connection")


POST = b"POST / HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("first", "drop"),
    [
        (b"", b"\r\n"),
        (HEAD, b"a: b\r\n"),
        (HEAD + b"a: ", b"b"),
        (HEAD + b"\r\n", b"\r\n"),
        (HEAD + b"\r\n" + HEAD, b"a: b\r\n"),
        (POST + b"content-length: 100000\r\n\r\n", b"x"),
        (POST + b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (POST + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
    ids=["lines", "head", "value", "after", "second", "body", "chunks", "trailers", "body of a GET"],
)
@pytest.mark.parametrize("server", [app, ignorant], ids=["reading", "ignoring"])
def test_whatever_drips_has_one_deadline(first: bytes, drop: bytes, server: Callable[..., Any]) -> None:
    with running(HASTY, app=server) as port:
        drip(port, first, drop)


@pytest.mark.parametrize("first", [b"", HEAD, HEAD + b"\r\n" + HEAD, POST + b"content-length: 5\r\n\r\nx"])
def test_who_says_nothing_more_is_not_waited_for(first: bytes) -> None:
    with running(HASTY) as port:
        # Where the machine is too busy to say anything in time, nothing is answered; then it is said again.
        answers = (said_to(port, first) for _ in range(20 if first else 1))
        assert any(b" 408 " in answer for answer in answers) == bool(first)


def test_who_does_not_read_is_not_waited_for() -> None:
    doors = Connections(100, 100)
    with running(HASTY, doors, talkative) as port, connect(port) as connection:
        connection.sendall(HEAD + b"\r\n")
        assert connection.recv(1)
        wait_until(lambda: not len(doors))


def test_nobody_takes_all_connections() -> None:
    """More connections than a client may have find a place for a moment, where they can ask for the server's health."""
    with running(PATIENT, Connections(100, 5)) as port, contextlib.ExitStack() as held:
        idle = [held.enter_context(connect(port)) for _ in range(5 + 3 * SPARE)]
        assert status_of(said_to(port, HEAD + END)) == 503
        for connection in idle[5:][:SPARE]:
            assert rest_of(connection) == b""  # it made room
        for connection in idle[:5]:  # those that came first are still there
            connection.sendall(HEAD + END)
            assert status_of(rest_of(connection)) == 204
        assert status_of(said_to(port, HEAD + END)) == 204


def test_connections_are_counted_by_client() -> None:
    dropped: list[int] = []
    doors = Connections(most=5, each=2, unlimited=lambda address: address == "10.0.0.9")
    entered = [
        doors.enter(number, address, partial(dropped.append, number))
        for number, address in enumerate(["1.1.1.1"] * 3 + ["10.0.0.9"] * 3 + ["3.3.3.3"])
    ]
    assert entered == [True, True, False, True, True, True, False]  # two of one client, any of a proxy, five in all
    doors.leave(0)
    assert doors.enter(7, "1.1.1.1", lambda: None)
    assert not doors.enter(8, "3.3.3.3", partial(dropped.append, 8))
    before = len(doors)
    doors.leave(8)  # a spare place is given back, too
    assert len(doors) == before - 1
    for number in range(100, 100 + SPARE):
        assert not doors.enter(number, "2.2.2.2", partial(dropped.append, number))
    assert dropped == [2, 6]
    assert client_of("2001:db8::1") == client_of("2001:db8::2:3") != client_of("2001:db8:0:1::1")
    assert client_of("::ffff:1.2.3.4") == client_of("1.2.3.4") == "1.2.3.4"


def body_of(*parts: bytes) -> Body:
    left = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    left[-1]["more_body"] = False

    async def receive() -> dict[str, Any]:
        return left.pop(0)

    return Body(receive)


def test_long_bodies_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "SMALL", 10)
    monkeypatch.setattr(bodies, "SHARED", 25)
    reader, json = Bodies(20), {b"content-type": b"application/json"}
    release = asyncio.Event()

    async def slow() -> dict[str, Any]:
        await release.wait()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def talk() -> list[Any]:
        first = iter([{"type": "http.request", "body": b"x" * 15, "more_body": True}])

        async def receive() -> dict[str, Any]:
            return next(first, None) or await slow()

        waiting = asyncio.create_task(reader.read(Body(receive), json))
        await asyncio.sleep(0)
        found: list[Any] = [await reader.read(body_of(b"y" * 10), json)]
        for long in (body_of(b"y" * 10, b"y"), body_of(b"y" * 21)):
            try:
                await reader.read(long, json)
            except Refused as refused:
                found.append(refused.status)
        release.set()
        return [*found, await waiting, await reader.read(body_of(b"y" * 10, b"y"), json)]

    assert asyncio.run(talk()) == [b"y" * 10, 503, 413, b"x" * 15, b"y" * 11]


def test_a_refused_body_is_heard_before_the_end() -> None:
    """The whole sentence arrives although the client had not finished when it was refused."""
    with running(PATIENT, app=door(Limits(body=1000))) as port:
        for body in (b"x" * 1001, b"x" * 900_000):
            answer = said_to(port, request("POST", "/", body, content_type="application/json", connection="keep-alive"))
            assert status_of(answer) == 413
            assert b"connection: close" in answer
            assert orjson.loads(answer.rpartition(b"\r\n\r\n")[2]).keys() == {"error"}


def test_probes_do_not_wait_for_a_place_among_requests() -> None:
    release = asyncio.Event()

    async def slow(body: bytes) -> tuple[int, bytes]:
        await release.wait()
        return 200, body

    middleware: Any = door(Limits(concurrency=1), slow)

    async def talk() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(middleware), base_url="http://localhost") as client:
            first = asyncio.create_task(client.post("/slow", json={}))
            while not middleware._inside:
                await asyncio.sleep(0)
            asked = [await client.get(path) for path in ("/other", *PROBES)]
            release.set()
            return [one.status_code for one in (*asked, await first)]

    assert asyncio.run(talk()) == [503, 204, 204, 200]
