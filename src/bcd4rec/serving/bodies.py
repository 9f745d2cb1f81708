"""The body of a request: whole, if it is JSON, not too long, and there is memory for it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

Receive = Callable[[], Awaitable[dict[str, Any]]]

SMALL = 1 << 16  # bytes for which there always is room
SHARED = 1 << 28  # bytes of all longer bodies that are in memory at once
LINGER_BYTES, LINGER_SECONDS = 1 << 21, 1.0  # of a body that nobody wants: a client hears only after it has spoken


class Refused(Exception):  # noqa: N818
    def __init__(self, status: int, sentence: str):
        self.status, self.sentence = status, sentence


class Body:
    """What comes from one client."""

    def __init__(self, receive: Receive):
        self._receive, self._done = receive, False

    async def part(self) -> bytes:
        message = await self._receive()
        self._done = not message.get("more_body", False)
        if message["type"] == "http.disconnect":
            raise Refused(400, "The body ended too soon.")
        return bytes(message.get("body", b""))

    @property
    def done(self) -> bool:
        return self._done

    async def discard(self) -> None:
        """Read on for a moment: closing at once would take the answer from a client that is still writing."""
        size = 0
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while not self._done and size < LINGER_BYTES:
                    size += len(await self.part())
        except (TimeoutError, Refused):
            return


class Bodies:
    """Reads bodies of at most `limit` bytes, and keeps no more of the long ones at once than there is room for."""

    def __init__(self, limit: int):
        self._limit, self._long = limit, 0

    async def read(self, body: Body, head: dict[bytes, bytes]) -> bytes:
        self._check(head)
        parts, size = [], 0
        taken = 0  # bytes of this one among the shared ones
        try:
            while not body.done:
                parts.append(await body.part())
                size += len(parts[-1])
                if size > self._limit:
                    raise Refused(413, f"The body is longer than {self._limit:,} bytes.")
                if size > SMALL:
                    taken, before = size, taken
                    self._long += taken - before
                    if self._long > SHARED:
                        raise Refused(503, "Too many long requests at once; try again in a second.")
        finally:
            self._long -= taken
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check(self, head: dict[bytes, bytes]) -> None:
        """A page of another site can send forms and plain text to us, but not JSON."""
        if head.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            raise Refused(415, "The body is not JSON with the header content-type: application/json.")
        length = head.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self._limit:
            raise Refused(413, f"The body is longer than {self._limit:,} bytes.")
