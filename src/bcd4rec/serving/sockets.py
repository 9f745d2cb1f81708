"""Where a server listens: addresses, and the socket that belongs to one."""

import ipaddress
import socket

from bcd4rec.errors import InputError
from bcd4rec.serving.connections import BACKLOG


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


def is_local(host: str) -> bool:
    """Whether only this machine reaches it; what is no address at all is for `listen` to refuse."""
    try:
        found = {str(one[4][0]).partition("%")[0] for one in socket.getaddrinfo(host, None)}
    except OSError:
        return True
    return all(ipaddress.ip_address(one).is_loopback for one in found)
