"""The command line. Each command is a file in `commands/`; this file finds it, runs it and words its failures."""

import contextlib
import errno
import importlib
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NoReturn

from bcd4rec.errors import InputError, printable

if TYPE_CHECKING:  # `main` minds the signals first, and then imports what takes long
    import typer
    from typer.exceptions import TyperException

EXIT_BAD_INPUT = 2
INTERRUPTED = "Interrupted; no output was left half-written."
INTERRUPTIONS: list[int] = []  # signals that came while a command ran
LONGEST_SENTENCE = 4_000  # characters
TYPER_INTERRUPTED = 130  # what typer makes of a KeyboardInterrupt
# How libraries word a full disk when they lose its number; the last is NumPy's "512 requested and 64 written".
FULL_DISK = ("No space left", "File too large", "requested and")


def build(only: str | None = None) -> "typer.Typer":
    """The application with all commands, or with the one called `only`: importing less starts faster."""
    import typer

    from bcd4rec import commands
    from bcd4rec.version import __version__

    app = typer.Typer(
        name="bcd4rec",
        help="From impression logs to a better recommendation policy, shown before it ships.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    @app.callback(invoke_without_command=True)
    def version(
        context: typer.Context,
        show: bool = typer.Option(False, "--version", help="Print the version and exit."),
    ) -> None:
        if show:
            sys.stdout.write(f"bcd4rec {__version__}\n")
        elif context.invoked_subcommand is None:
            sys.stdout.write(context.get_help() + "\n")

    names = [module.name for module in pkgutil.iter_modules(commands.__path__) if not module.name.startswith("_")]
    for name in [only] if only in names else names:
        importlib.import_module(f"bcd4rec.commands.{name}").add_to(app)
    return app


def main() -> None:
    """Run, and turn every expected failure into one sentence on stderr and exit code 2."""
    _on_signals(_leave)  # nothing was begun, and an exception amid imports may become another one
    import typer
    from typer.exceptions import TyperException

    only = sys.argv[1] if len(sys.argv) > 1 else None
    try:
        app = build(only)
        _on_signals(_interrupt)
        sys.unraisablehook = _come_again
        code = app(arguments(sys.argv[1:]), prog_name="bcd4rec", standalone_mode=False)
        if code == TYPER_INTERRUPTED:
            raise KeyboardInterrupt
        sys.stdout.flush()
    except InputError as error:
        code = _fail(str(error))
    except TyperException as error:
        code = _fail(_usage(error))
    except (KeyboardInterrupt, typer.Abort):
        _leave()  # threads of libraries may hang on, or end the process in another way
    except (BrokenPipeError, SystemExit):  # typer and rich leave by SystemExit when a pipe is broken, and only then
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has gone
        code = 0
    except Exception as error:
        sentence = _system_failure(error)
        if sentence is None:
            raise
        code = _fail(sentence)
    if INTERRUPTIONS:  # was worded, but Python would end by the signal all the same if it came amid some `exec`
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0)
    sys.exit(code if isinstance(code, int) else 0)


def arguments(given: list[str]) -> list[str]:
    """As given, but `--ray` without an address means a Ray of this machine, for which the parser has no words."""
    found = []
    for word, following in zip_longest(given, given[1:], fillvalue="-"):
        found += [word, "local"] if word == "--ray" and following.startswith("-") else [word]
    return found


def _on_signals(handler: Callable[..., None]) -> None:
    """A terminated run cleans up like an interrupted one. Signals can only be set in the main thread."""
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, handler)
        signal.signal(signal.SIGTERM, handler)


def _leave(*_: Any) -> NoReturn:
    """End at once, when nothing is open any more."""
    _fail(INTERRUPTED)
    sys.stderr.flush()
    os._exit(EXIT_BAD_INPUT)


def _interrupt(number: int, *_: Any) -> None:
    INTERRUPTIONS.append(number)
    raise KeyboardInterrupt


def _come_again(lost: "sys.UnraisableHookArgs") -> None:
    """An interruption amid a callback of compiled code (numba's compiler has some) is lost there, so it comes again."""
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    later = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    later.daemon = True
    later.start()


def _fail(sentence: str) -> int:
    sys.stderr.write(f"Error: {_short(printable(sentence))}\n")
    return EXIT_BAD_INPUT


def _short(sentence: str) -> str:
    """Without the middle of what nobody would read: it may repeat the names of ten thousand columns."""
    half = LONGEST_SENTENCE // 2
    return sentence if len(sentence) <= LONGEST_SENTENCE else f"{sentence[:half]} … {sentence[-half:]}"


def _usage(error: "TyperException") -> str:
    message = " ".join(getattr(error, "format_message", lambda: str(error))().split()).rstrip(".")
    message = message.replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "bcd4rec"
    return f"{message}; see `{command} --help`."


def _system_failure(error: Exception) -> str | None:
    """A sentence for what the machine refused; None for what is a defect of ours."""
    text = str(error)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT) or any(words in text for words in FULL_DISK):
        return (
            "The disk is full or a file size limit was reached; free some space and run it again. Nothing was written."
        )
    if number in (errno.EACCES, errno.EPERM, errno.EROFS) or "Permission denied" in text:
        name = getattr(error, "filename", None)
        return f"No permission to use {name or 'the output folder'}; choose another folder."
    if isinstance(error, MemoryError):
        return "The machine has too little memory for this; use fewer users or a smaller batch."
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    return None


if __name__ == "__main__":
    main()
