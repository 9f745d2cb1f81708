"""`--on-decision`: a command that gets the decision as JSON on its input, or an address that it is sent to."""

import http.client
import json
import os
import shlex
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from bcd4rec.errors import InputError
from bcd4rec.serving.hosts import LOCAL
from bcd4rec.serving.security import ADMIN_VARIABLE, API_VARIABLE
from bcd4rec.serving.worker import COUNTS_VARIABLE

SECONDS = 30.0
OURS = (API_VARIABLE, ADMIN_VARIABLE, COUNTS_VARIABLE)  # of the environment; no command needs them
OPTION = "--on-decision"
Hook = Callable[[dict[str, Any]], None]


class HookFailed(Exception):  # noqa: N818 (what it is, not that it is an error)
    """The command or the address did not take it; the words say why, without the address."""


def hook_of(text: str) -> Hook:
    """Refused here, before anything runs, if it can never work."""
    if "://" in text:
        return _webhook(text)
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise InputError(f"{OPTION}: the command cannot be read ({error}); close its quotes.") from None
    if not command or shutil.which(command[0]) is None:
        found = command[0] if command else ""
        raise InputError(f"{OPTION}: found the program {found!r}, which is not there; expected one, or https://….")
    return lambda decision: _run(command, decision)


def _webhook(address: str) -> Hook:
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError as error:
        raise InputError(f"{OPTION}: the address cannot be read ({error}); expected https://….") from None
    if any(letter.isspace() or not letter.isprintable() for letter in address) or not address.isascii():
        raise InputError(f"{OPTION}: found an address with blanks or letters beyond ASCII; write them as %20.")
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOCAL)):
        raise InputError(f"{OPTION}: found an address with {parts.scheme}://, expected https:// (or http://localhost).")
    return lambda decision: _post(address, decision)


def _run(command: list[str], decision: dict[str, Any]) -> None:
    environment = {name: text for name, text in os.environ.items() if name not in OURS}
    try:
        done = subprocess.run(  # noqa: S603 (what who starts the server wrote, and no shell)
            command,
            input=json.dumps(decision),
            text=True,
            timeout=SECONDS,
            env=environment,
            stdout=subprocess.DEVNULL,  # ours may be read by a script
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HookFailed(f"{command[0]}: {type(error).__name__}") from None
    if done.returncode:
        raise HookFailed(f"{command[0]} ended with exit code {done.returncode}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Another address may be anybody's."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(address: str, decision: dict[str, Any]) -> None:
    request = urllib.request.Request(  # noqa: S310 (http and https alone get here)
        address, json.dumps(decision).encode(), {"content-type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=SECONDS):
            pass
    except urllib.error.HTTPError as error:
        raise HookFailed(f"the address answered with status {error.code}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise HookFailed(f"the address cannot be reached ({type(error).__name__})") from None
