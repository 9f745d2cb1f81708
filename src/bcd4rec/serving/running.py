"""The server as a process: it listens, says where, answers until it is told to stop, and leaves nothing behind."""

import contextlib
import ipaddress
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn

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


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, tell: Callable[[], None]):
        super().__init__(config)
        self._tell = tell

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._tell()


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
