"""By which names the server may be called: a page of another site must not talk to it through a visitor's browser."""

from collections.abc import Iterable
from functools import lru_cache

from bcd4rec.serving.bodies import Refused

LOCAL = ("localhost", "127.0.0.1", "::1")
ANY = "*"
LONGEST = 300  # bytes of a name that are looked at, and remembered


class Hosts:
    """Checks Host and Origin. The address that a connection was made to is always a name of the server: a foreign
    page can make its own name lead to it, but not the address itself."""

    def __init__(self, names: Iterable[str] = ()):
        self._names = frozenset({*LOCAL, *(name.lower() for name in names)})

    def check(self, head: dict[bytes, bytes], own: str) -> None:
        host = host_name(head.get(b"host", b"")[:LONGEST])
        if host not in self._names and host != own and ANY not in self._names:
            raise Refused(403, "The server is not known by the name in the header Host; see --allowed-hosts.")
        origin = head.get(b"origin")
        if origin is not None and (name := _origin_name(origin[:LONGEST])) not in self._names and name != host:
            raise Refused(403, "Pages of another site may not ask this server; see --allowed-hosts.")


@lru_cache(maxsize=1_000)
def host_name(host: bytes) -> str:
    """Without a port, and in one spelling."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def _origin_name(origin: bytes) -> str:
    scheme, slashes, host = origin.partition(b"://")
    return host_name(host) if slashes else scheme.decode("latin-1")
