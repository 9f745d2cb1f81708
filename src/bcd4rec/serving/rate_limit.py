"""How often one client may ask."""

import time
from collections import OrderedDict

CLIENTS = 10_000  # whose rates are remembered at once


class RateLimit:
    """A bucket for each client that fills at the allowed rate and holds a second's worth."""

    def __init__(self, rate: float):
        self._rate = rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client -> (tokens, when)

    def allow(self, client: str) -> bool:
        if self._rate <= 0:
            return True
        now = time.monotonic()
        tokens, when = self._buckets.pop(client, (max(self._rate, 1.0), now))
        tokens = min(max(self._rate, 1.0), tokens + (now - when) * self._rate)
        allowed = tokens >= 1.0
        self._buckets[client] = (tokens - 1.0 if allowed else tokens, now)
        if len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        return allowed
