"""Who may ask, how often and how much: keys, rates, sizes and patience, before any other code sees a request."""

import hashlib
import hmac
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from bcd4rec.errors import InputError

API_VARIABLE, ADMIN_VARIABLE = "BCD4REC_API_KEYS", "BCD4REC_ADMIN_KEYS"
SHORTEST_KEY = 16


@dataclass(frozen=True)
class Limits:
    body: int = 1 << 20
    """Bytes of a request's body."""
    request_seconds: float = 10.0
    """How long a client may take to send a request, from its first byte to its last."""
    rate: float = 5_000.0
    """Requests a second of one key, or of one address where no keys are used; 0 is no limit."""
    concurrency: int = 1_000
    """Requests at once; more get status 503."""
    connections: int = 256
    """Connections of one client at once."""
    hosts: tuple[str, ...] = ()
    """Names of the server beside localhost; `*` is every name."""
    proxies: tuple[str, ...] = ()
    """Addresses or networks of reverse proxies, whose word about where a request comes from is taken."""


class Keys:
    """Secrets as hashes. Comparing takes the same time whatever was given, and whichever key it is."""

    def __init__(self, keys: list[str]):
        for key in keys:
            if len(key) < SHORTEST_KEY:
                raise InputError(f"A key has {len(key)} characters, expected at least {SHORTEST_KEY}.")
        self._digests = [_digest(key.encode("utf-8", "surrogateescape")) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def match(self, given: bytes) -> bool:
        """`given` as it came: HTTP says nothing about the encoding of a header."""
        digest, found = _digest(given), False
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def read_keys(path: Path | None, variable: str, option: str) -> Keys:
    """From a file with one key a line, or from an environment variable with keys between commas."""
    if path is None:
        return Keys([key.strip() for key in os.environ.get(variable, "").split(",") if key.strip()])
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{option} {path} cannot be read ({error}); expected a text file, one key a line.") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise InputError(f"{option} {path} holds no key; expected one a line.")
    return Keys(keys)


def read_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def read_proxies(text: str) -> tuple[str, ...]:
    """Addresses and networks between commas, in one spelling."""
    try:
        return tuple(str(ipaddress.ip_network(one, strict=False)) for one in read_list(text))
    except ValueError as error:
        raise InputError(f"--proxies: {error}; expected addresses or networks between commas.") from None


def refuse_open(keys: Keys, local: bool, open_to_all: bool) -> None:
    if not (keys or local or open_to_all):
        raise InputError(
            "--host: found an address that others reach, but no API key; set BCD4REC_API_KEYS or --api-keys, or say "
            "--open if everybody who reaches it may use it."
        )
