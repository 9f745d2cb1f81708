"""The time of records: that of the machine, but never backwards, and without the machine's jumps."""

import logging
import threading
import time

JUMP_US = 1_000_000  # what a clock may be corrected by at once
DRIFT = 0.001  # and for each second since it was last asked
HOUR_US = 3_600_000_000

log = logging.getLogger(__name__)
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine sleeps


def steady_us() -> int:
    return time.clock_gettime_ns(_STEADY) // 1000


class Clock:
    """Follows small corrections. After a jump it goes on as if there had been none, until the process ends: sessions
    keep their order, and nothing becomes old from one moment to the next."""

    def __init__(self, newest_us: int | None = None):
        """`newest_us` of the records from before; those of a clock that was far ahead are no reason to follow it."""
        self._lock = threading.Lock()
        self._asked, wall = steady_us(), time.time_ns() // 1000
        self._offset, self._jumped = wall - self._asked, False
        self._last = newest_us if newest_us is not None and newest_us < wall + HOUR_US else 0

    def now_us(self) -> int:
        with self._lock:
            steady = steady_us()
            offset = time.time_ns() // 1000 - steady
            jump = abs(offset - self._offset) > JUMP_US + DRIFT * (steady - self._asked)
            if not jump:
                self._offset = offset
            elif not self._jumped:
                seconds = (offset - self._offset) / 1e6
                log.warning("The machine's clock jumped by %+.0f s; records go on by the time before.", seconds)
            self._jumped, self._asked = jump, steady
            self._last = max(steady + self._offset, self._last + 1)
            return self._last
