"""uvicorn's HTTP protocol with two bounds it does not have: how long a request's head may be, and may take."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 1 << 16
HEAD_SECONDS = 10.0
TOO_LONG = b'{"error":"The head of the request is too long."}'


class BoundedHead(HttpToolsProtocol):
    """Costs nothing where a head comes in one piece, as nearly all do: only then no timer is needed."""

    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        self._in_head, self._head_bytes = True, 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HEAD_SECONDS, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head:
            self._no_deadline()
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES:
            self._refuse()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def _no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self) -> None:
        head = f"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: {len(TOO_LONG)}\r\n"
        self.transport.write(head.encode() + b"content-type: application/json\r\nconnection: close\r\n\r\n" + TOO_LONG)
        self.transport.close()
