"""HTTP by hand, for what no client library would send."""

import contextlib
import socket
import time


def connect(port: int, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((host, port), timeout=120)


def said_to(port: int, *pieces: bytes, pause: float = 0.0, host: str = "127.0.0.1") -> bytes:
    """What the server answers until it closes the connection, which may be before everything was said."""
    with connect(port, host) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
        return rest_of(connection)


def rest_of(connection: socket.socket) -> bytes:
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(10_000):
            answer += part
    return answer


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """With the headers of an ordinary client, unless others are given."""
    given = {"host": "localhost", "content-length": str(len(body)), "connection": "close"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def status_of(answer: bytes) -> int:
    return int(answer[9:12])
