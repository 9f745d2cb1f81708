"""Commands of the paper's reproduction, which lies beside the package in a checkout and is not installed with it."""

import sys
from importlib import import_module
from pathlib import Path

import typer

import bcd4rec
from bcd4rec.errors import InputError

SENTENCE = (
    "`bcd4rec {name}` belongs to the paper's reproduction, which is not installed with the package; "
    "get the source, run `pip install -e '.[train]'` in it, and try again."
)


def add(app: typer.Typer, module: str, name: str, full: str) -> None:
    """The function `name` of `reproduction.<module>`, or a command called the same that says how to get it."""
    root = str(Path(bcd4rec.__file__).parents[2])
    if root not in sys.path and (Path(root) / "reproduction" / "studies.toml").is_file():
        sys.path.append(root)
    try:
        found = import_module(f"reproduction.{module}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("reproduction"):
            raise
        _add_sentence(app, name, full)
        return
    app.command(name, epilog=found.EPILOG)(getattr(found, name))


def _add_sentence(app: typer.Typer, name: str, full: str) -> None:
    @app.command(
        name,
        help="Needs the source of the project: the paper's reproduction is not installed with the package.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def absent(context: typer.Context) -> None:
        raise InputError(SENTENCE.format(name=full))
