"""How long answers wait for the database."""

import os
import re

from bcd4rec.errors import InputError


def _patience() -> float:
    """Seconds to wait for the database; then feedback is only "accepted", and sessions are as in memory."""
    given = os.environ.get("BCD4REC_PATIENCE", "0.25")
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", given):
        raise InputError(f"BCD4REC_PATIENCE: found {given!r}, expected seconds to wait for the database, such as 0.25.")
    return float(given)


PATIENCE = _patience()
