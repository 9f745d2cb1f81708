"""How many connections there are, and of whom: nobody takes all of them, and a probe always finds a place."""

import ipaddress
import resource
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache

MOST = 10_000  # open at once, most of them idle
SPARE = 32  # more, for whoever comes when all places are taken: enough to ask for the health of the server
BACKLOG = 128  # connections that the event loop may take in before any of them is counted
OWN_FILES = 64  # descriptors for everything else


@lru_cache(maxsize=10_000)
def client_of(address: str) -> str:
    """Whose address it is: of IPv6, one client has the 2⁶⁴ addresses of a network."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(known, ipaddress.IPv4Address):
        return address
    return str(known.ipv4_mapped or ipaddress.ip_network((known, 64), strict=False))


def places() -> int:
    """As many as the system's limit of open files has room for, after asking for as much of it as there is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = MOST + SPARE + BACKLOG + OWN_FILES
    if soft < needed and soft != resource.RLIM_INFINITY:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MOST if soft == resource.RLIM_INFINITY else max(1, min(needed, soft) - SPARE - BACKLOG - OWN_FILES)


class Connections:
    """Counts those that are open. Without room a newcomer gets a spare place, and the longest there loses his."""

    def __init__(self, most: int, each: int, unlimited: Callable[[str], bool] = lambda address: False):
        """`each` is the most of one client; addresses that are `unlimited`, proxies, may have them all."""
        self._most, self._each, self._unlimited = most, each, unlimited
        self._clients: dict[Hashable, str] = {}
        self._counts: Counter[str] = Counter()
        self._spare: OrderedDict[Hashable, Callable[[], None]] = OrderedDict()

    def enter(self, connection: Hashable, address: str, drop: Callable[[], None]) -> bool:
        """Whether there was room; `drop` closes a connection that has a spare place only."""
        client = client_of(address)
        full = self._counts[client] >= self._each and not self._unlimited(address)
        if full or len(self._clients) >= self._most:
            self._spare[connection] = drop
            if len(self._spare) > SPARE:
                self._spare.popitem(last=False)[1]()
            return False
        self._clients[connection] = client
        self._counts[client] += 1
        return True

    def __len__(self) -> int:
        return len(self._clients) + len(self._spare)

    def leave(self, connection: Hashable) -> None:
        self._spare.pop(connection, None)
        client = self._clients.pop(connection, None)
        if client is not None:
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]
