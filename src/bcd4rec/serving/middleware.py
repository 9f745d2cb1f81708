"""The door of the server: an ASGI layer that checks keys, rate limits and sizes, and measures what passes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from bcd4rec.serving.fast_path import Handler
from bcd4rec.serving.metrics import Metrics
from bcd4rec.serving.rate_limit import RateLimit
from bcd4rec.serving.security import Keys, Limits

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/", "/v1/health", "/v1/ready", "/v1/noop")  # need no key; the page's own files neither
ADMIN = ("/v1/policy/reload",)
FILES = "/studio/"
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
]


class Refused(Exception):  # noqa: N818
    def __init__(self, status: int, sentence: str):
        self.status, self.sentence = status, sentence


class Middleware:
    """`handlers` answer the POST requests of their paths; everything else goes to `app`."""

    def __init__(
        self, app: Asgi, handlers: dict[str, Handler], keys: Keys, admin: Keys, limits: Limits, metrics: Metrics
    ):
        self._app, self._handlers, self._metrics = app, handlers, metrics
        self._keys, self._admin, self._limits = keys, admin, limits
        self._rate_limit, self._inside = RateLimit(limits.rate), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, path = time.perf_counter(), 500, scope["path"]
        handler = self._handlers.get(path) if scope["method"] == "POST" else None
        self._inside += 1

        async def answer(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        try:
            self._admit(scope)
            body = await self._body(scope, receive)
            if handler is not None:
                await _send(answer, *await handler(body))
            else:
                await self._app(scope, _replay(body, receive), answer)
        except Refused as refused:
            await _send(answer, refused.status, orjson.dumps({"error": refused.sentence}))
        finally:
            self._inside -= 1
            # The router leaves its route in the scope; made-up paths are counted together.
            route = path if handler is not None else getattr(scope.get("route"), "path", "other")
            self._metrics.request(route, status, time.perf_counter() - began)

    def _admit(self, scope: Scope) -> None:
        path, given = scope["path"], _key(scope["headers"])
        known = self._keys.match(given) or self._admin.match(given)
        client = given if known else (scope.get("client") or ("unknown",))[0]  # guessing keys has a rate, too
        if not self._rate_limit.allow(client):
            raise Refused(429, "Too many requests; try again in a second.")
        if self._inside > self._limits.concurrency:
            raise Refused(503, "Too many requests at once; try again in a second.")
        if path in ADMIN:
            self._check(self._admin, given, "This needs an admin key")
        elif self._keys and not known and path not in OPEN and not path.startswith(FILES):
            self._check(self._keys, given, "This needs an API key")

    def _check(self, keys: Keys, given: str, sentence: str) -> None:
        if not keys:
            raise Refused(403, f"{sentence}, and the server was started without one.")
        if not given:
            raise Refused(401, f"{sentence} in the header X-API-Key or as Authorization: Bearer.")
        if not keys.match(given):
            raise Refused(403, f"{sentence}; the one that was given is not known.")

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body, as long as it is short and comes soon."""
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return b""
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                return await self._read(scope, receive)
        except TimeoutError:
            raise Refused(408, "The body did not arrive in time.") from None

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        sentence = f"The body is longer than {self._limits.body:,} bytes."
        for name, value in scope["headers"]:
            if name == b"content-length" and (not value.isdigit() or int(value[:20]) > self._limits.body):
                raise Refused(413, sentence)
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "The body ended too soon.")
            parts.append(message.get("body", b""))
            size, more = size + len(parts[-1]), message.get("more_body", False)
            if size > self._limits.body:
                raise Refused(413, sentence)
        return b"".join(parts)


def _key(headers: list[tuple[bytes, bytes]]) -> str:
    for name, value in headers:
        if name == b"x-api-key":
            return value.decode("latin-1")
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip().decode("latin-1")
    return ""


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


async def _send(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
