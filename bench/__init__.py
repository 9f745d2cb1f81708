"""Speed, as ratios to a named reference measured in the same run."""


class Skip(Exception):  # noqa: N818 (it is no error)
    """Raised by a benchmark that cannot run on this machine; the message says what it lacks."""
