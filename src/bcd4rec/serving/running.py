"""The server as a process: it listens, says where, answers until it is told to stop, and leaves nothing behind."""

import contextlib
import ipaddress
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn

from bcd4rec.errors import InputError
from bcd4rec.serving.connections import BACKLOG, Connections, places
from bcd4rec.serving.middleware import Asgi
from bcd4rec.serving.protocol import BoundedProtocol
from bcd4rec.serving.security import Limits

KEEP_ALIVE = 30
SHUTDOWN_SECONDS = 10
CONNECTIONS = (
    10_000  # open at once, most of them idle; how many requests are answered at once is the middleware's to say
)
SWITCH_SECONDS = 0.0005  # how long a request waits for the thread that writes to the database; Python's own is 5 ms


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        raise InputError(f"--host {host} --port {port} cannot be used ({error.strerror or error}).") from None
    return bound


def listen(bound: socket.socket) -> None:
    """From now on others are heard, and nobody else can listen here."""
    try:
        bound.listen(BACKLOG)
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise InputError(f"--host {host} --port {port} cannot be used ({error.strerror or error}).") from None


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


def is_local(host: str) -> bool:
    """Whether only this machine reaches it; what is no address at all is for `listen` to refuse."""
    try:
        found = {str(one[4][0]).partition("%")[0] for one in socket.getaddrinfo(host, None)}
    except OSError:
        return True
    return all(ipaddress.ip_address(one).is_loopback for one in found)


def _protocol(limits: Limits) -> Any:
    networks = [ipaddress.ip_network(one) for one in limits.proxies]

    def is_proxy(address: str) -> bool:
        return any(ipaddress.ip_address(address) in network for network in networks)

    connections = Connections(places(), limits.connections, is_proxy)
    return partial(BoundedProtocol, connections=connections, seconds=limits.request_seconds)


def run(app: Asgi, bound: socket.socket, tell: Callable[[], None], limits: Limits, own_log: bool = True) -> None:
    """Serve until a signal comes; `tell` is called once requests are answered.

    Without `own_log` uvicorn's words go where those of everybody else go.
    """
    log_config: dict[str, Any] | None = uvicorn.config.LOGGING_CONFIG if own_log else None
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        access_log=False,
        log_level="warning",
        log_config=log_config,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        backlog=BACKLOG,
        http=_protocol(limits),
        proxy_headers=bool(limits.proxies),
        forwarded_allow_ips=list(limits.proxies),
        ws="none",
    )
    sys.setswitchinterval(SWITCH_SECONDS)
    with contextlib.suppress(KeyboardInterrupt):  # being told to stop is no failure
        _Server(config, tell).run(sockets=[bound])
