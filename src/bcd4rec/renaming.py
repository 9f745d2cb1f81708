"""Renames that lose nothing: one that never replaces, and one that swaps without a moment in between."""

import contextlib
import ctypes
import errno
import os
from functools import cache
from pathlib import Path
from typing import Any

AT_FDCWD = -100  # paths are relative to the working directory, as usual
NOREPLACE, EXCHANGE = 1, 2
NOT_HERE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)  # the system or its file system does not know the flag


def rename_new(source: Path, target: Path) -> None:
    """Rename; FileExistsError where `target` is there already, also when somebody else was quicker by a moment."""
    if _renameat2(source, target, NOREPLACE):
        return
    if source.is_dir():
        target.mkdir()  # which takes the name or fails; an empty folder can be replaced
    else:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL))
    os.replace(source, target)


def exchange(source: Path, target: Path) -> None:
    """Swap two names at once; where the system cannot, `target` is away for as long as two renames take."""
    if _renameat2(source, target, EXCHANGE):
        return
    aside = source.with_name(f"{source.name}.old")
    os.replace(target, aside)
    try:
        os.replace(source, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.replace(aside, target)
        raise
    os.replace(aside, source)


@cache
def _system_call() -> Any:
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return call


def _renameat2(source: Path, target: Path, flag: int) -> bool:
    """Whether the system did it; it may not know how, and what it refuses is an OSError."""
    call = _system_call()
    if call is None:
        return False
    if call(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), flag) == 0:
        return True
    number = ctypes.get_errno()
    if number in NOT_HERE:
        return False
    raise OSError(number, os.strerror(number), str(target))
