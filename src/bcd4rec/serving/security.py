"""Who may ask, how often and how much: keys, rates, sizes and patience, before any other code sees a request."""

import hashlib
import hmac
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
    body_seconds: float = 10.0
    """How long a client may take to send it."""
    rate: float = 5_000.0
    """Requests a second of one key, or of one address where no keys are used; 0 is no limit."""
    concurrency: int = 1_000
    """Requests at once; more get status 503."""


class Keys:
    """Secrets as hashes. Comparing takes the same time whatever was given, and whichever key it is."""

    def __init__(self, keys: list[str]):
        for key in keys:
            if len(key) < SHORTEST_KEY:
                raise InputError(f"A key has {len(key)} characters, expected at least {SHORTEST_KEY}.")
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def match(self, given: str) -> bool:
        digest, found = _digest(given), False
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(path: Path | None, variable: str, option: str) -> Keys:
    """From a file with one key a line, or from an environment variable with keys between commas."""
    if path is None:
        return Keys([key.strip() for key in os.environ.get(variable, "").split(",") if key.strip()])
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{option} {path} cannot be read ({error}); expected a text file, one key a line.") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise InputError(f"{option} {path} holds no key; expected one a line.")
    return Keys(keys)
