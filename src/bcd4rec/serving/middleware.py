"""The door of the server: an ASGI layer that checks who asks, how often and how much, and measures what passes."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from bcd4rec.serving.bodies import Bodies, Body, Receive, Refused
from bcd4rec.serving.connections import client_of
from bcd4rec.serving.fast_path import Handler
from bcd4rec.serving.hosts import Hosts
from bcd4rec.serving.metrics import Metrics
from bcd4rec.serving.protocol import CROWDED
from bcd4rec.serving.rate_limit import RateLimit
from bcd4rec.serving.security import Keys, Limits

Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

PROBES = ("/v1/health", "/v1/ready")  # answered to everybody, however full it is
OPEN = ("/", "/v1/noop")  # need no key; the page's own files neither
ADMIN = ("/v1/policy/reload",)
FILES = "/studio/"
BODILESS = ("GET", "HEAD", "OPTIONS")
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
]


class Middleware:
    """`handlers` answer the POST requests of their paths; everything else goes to `app`."""

    def __init__(
        self, app: Asgi, handlers: dict[str, Handler], keys: Keys, admin: Keys, limits: Limits, metrics: Metrics
    ):
        self._app, self._handlers, self._metrics = app, handlers, metrics
        self._keys, self._admin, self._limits = keys, admin, limits
        self._hosts, self._bodies = Hosts(limits.hosts), Bodies(limits.body)
        self._rate_limit, self._inside = RateLimit(limits.rate), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, path = time.perf_counter(), 500, scope["path"]
        handler = self._handlers.get(path) if scope["method"] == "POST" else None
        body = Body(receive)

        async def answer(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        try:
            whole = b""
            if path not in PROBES:
                whole = await self._admitted(scope, body)
            await self._answer(scope, whole, receive, answer, handler)
        except Refused as refused:
            await _send(answer, refused.status, orjson.dumps({"error": refused.sentence}), body)
        finally:
            # The router leaves its route in the scope; made-up paths are counted as one.
            route = path if handler is not None else getattr(scope.get("route"), "path", "other")
            self._metrics.request(route, status, time.perf_counter() - began)

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, send: Send, handler: Handler | None) -> None:
        if self._inside >= self._limits.concurrency and scope["path"] not in PROBES:
            raise Refused(503, "Too many requests at once; try again in a second.")
        self._inside += 1
        try:
            if handler is not None:
                await _send(send, *await handler(body))
            else:
                await self._app(scope, _replay(body, receive), send)
        finally:
            self._inside -= 1

    async def _admitted(self, scope: Scope, body: Body) -> bytes:
        """The body of a request that may come in."""
        if CROWDED in scope:
            raise Refused(503, "Too many connections; close some, or try again later.")
        head, path = dict(scope["headers"]), scope["path"]
        given = _key(head)
        known = self._keys.match(given) or self._admin.match(given)
        # Guessing keys has a rate, too.
        client = given.decode("latin-1") if known else client_of((scope.get("client") or ("unknown",))[0])
        if not self._rate_limit.allow(client):
            raise Refused(429, "Too many requests; try again in a second.")
        self._hosts.check(head, (scope.get("server") or ("",))[0])
        if path in ADMIN:
            self._check(self._admin, given, "This needs an admin key")
        elif self._keys and not known and path not in OPEN and not path.startswith(FILES):
            self._check(self._keys, given, "This needs an API key")
        return b"" if scope["method"] in BODILESS else await self._bodies.read(body, head)

    def _check(self, keys: Keys, given: bytes, sentence: str) -> None:
        if not keys:
            raise Refused(403, f"{sentence}, and the server was started without one.")
        if not given:
            raise Refused(401, f"{sentence} in the header X-API-Key or as Authorization: Bearer.")
        if not keys.match(given):
            raise Refused(403, f"{sentence}; the one that was given is not known.")


def _key(head: dict[bytes, bytes]) -> bytes:
    if given := head.get(b"x-api-key", b"").strip():
        return given
    token = head.get(b"authorization", b"")
    return token[7:].strip() if token[:7].lower() == b"bearer " else b""


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once, and then what the connection has."""
    given = False

    async def again() -> dict[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _send(send: Send, status: int, content: bytes, refused: Body | None = None) -> None:
    """An answer; one that refuses a body is the last of its connection."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    if refused is not None:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if refused is not None:
        await send({"type": "http.response.body", "body": content, "more_body": True})
        await refused.discard()
        content = b""
    await send({"type": "http.response.body", "body": content})
