"""uvicorn's HTTP protocol with the bounds it does not have: on connections, on the head of a request, and on time."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from bcd4rec.serving.connections import Connections

HEAD_BYTES = 1 << 16
LINGER_SECONDS = 1.0  # for a last answer to be read
CROWDED = "bcd4rec.crowded"  # the key in the scope of a request for which there was no room


class BoundedProtocol(HttpToolsProtocol):
    """Costs next to nothing where a request comes in one piece, as nearly all do: only others need a timer."""

    def __init__(self, *given: Any, connections: Connections, seconds: float, **named: Any):
        super().__init__(*given, **named)
        self._doors, self._seconds = connections, seconds
        self._in_head, self._head_bytes, self._refused = True, 0, False
        self._complete = self._completed = False  # the last request; one within the bytes that came last
        self._deadline: asyncio.TimerHandle | None = None  # of the request that is arriving
        self._stalled: asyncio.TimerHandle | None = None  # of an answer that nobody reads
        self._answered: Any = None  # the request that the application has; `cycle` is the newest, which may wait

    # ---- connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._crowded = not self._doors.enter(self, self.client[0] if self.client else "", transport.abort)
        self._deadline = self.loop.call_later(self._seconds, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._doors.leave(self)
        self._met_deadline()
        self.resume_writing()
        self._listen_no_more()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Not `close`, which would wait for a client that does not read the last answer."""
        self.transport.abort()

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._answered = self.pipeline[-1][0]
        super().on_response_complete()
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self.loop.call_later(self._seconds, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self._stalled or self.loop.call_later(self._seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    # ---- one deadline for each request, from its first byte to its last

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._complete = self._completed = False
        super().data_received(data)
        if self._refused or self.transport.is_closing():
            return
        if self._in_head and not self._completed:  # nothing of it belongs to a request before
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse(431, "The head of the request is too long.")
                return
        if not self._complete and self._deadline is None:
            self._deadline = self.loop.call_later(self._seconds, self._too_late)

    def _met_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._refuse(408, "The request did not arrive in time.")

    # ---- what the parser finds

    def on_message_begin(self) -> None:
        self._met_deadline()
        self._in_head, self._head_bytes, self._complete = True, 0, False
        super().on_message_begin()
        if self._crowded:
            self.scope[CROWDED] = True  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        self._in_head = False
        if sum(len(name) + len(value) + 4 for name, value in self.headers) + len(self.url) > HEAD_BYTES:
            self._refuse(431, "The head of the request is too long.")
        elif not self._refused:
            super().on_headers_complete()
            if not self.pipeline:
                self._answered = self.cycle

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._complete = self._completed = self._in_head = True
        self._head_bytes = 0
        self._met_deadline()
        if not self._refused:
            super().on_message_complete()

    # ---- answers without the application

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, sentence: str) -> None:
        """One sentence, and the end of the connection, but not at once: then a client that is still writing would
        get a reset instead of the answer."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        unfinished = self._listen_no_more()
        if unfinished and (self._answered.response_started or self.pipeline):
            self.transport.abort()  # it would be taken for a part of another answer
            return
        body = f'{{"error":"{sentence}"}}'.encode()
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _listen_no_more(self) -> bool:
        """Whatever the application still says is for nobody; whether it had not said all.

        uvicorn tells it to the newest request only, and then writing an answer to an earlier one fails.
        """
        if self._answered is None or self._answered.response_complete:
            return False
        self._answered.disconnected = True
        self._answered.message_event.set()
        return True
