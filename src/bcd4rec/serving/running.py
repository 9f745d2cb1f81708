"""The server as a process: it listens, says where, answers until it is told to stop, and leaves nothing behind."""

import contextlib
import socket
import sys
from collections.abc import Callable

import uvicorn

from bcd4rec.errors import InputError
from bcd4rec.serving.middleware import Asgi
from bcd4rec.serving.protocol import BoundedHead

KEEP_ALIVE = 30
SHUTDOWN_SECONDS = 10
CONNECTIONS = (
    10_000  # open at once, most of them idle; how many requests are answered at once is the middleware's to say
)
SWITCH_SECONDS = 0.0005  # how long a request waits for the thread that writes to the database; Python's own is 5 ms


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        raise InputError(f"--host {host} --port {port} cannot be used ({error.strerror or error}).") from None
    bound.listen(2048)
    return bound


def address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, tell: Callable[[], None]):
        super().__init__(config)
        self._tell = tell

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._tell()


def run(app: Asgi, bound: socket.socket, tell: Callable[[], None]) -> None:
    """Serve until a signal comes; `tell` is called once requests are answered."""
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        limit_concurrency=CONNECTIONS,
        http=BoundedHead,
        ws="none",
    )
    sys.setswitchinterval(SWITCH_SECONDS)
    with contextlib.suppress(KeyboardInterrupt):  # being told to stop is no failure
        _Server(config, tell).run(sockets=[bound])
