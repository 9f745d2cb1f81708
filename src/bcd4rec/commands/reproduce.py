"""`bcd4rec reproduce`: the paper's tables and figures; the command itself is a part of the reproduction."""

import typer

from bcd4rec.commands import _checkout


def add_to(app: typer.Typer) -> None:
    _checkout.add(app, "command", "reproduce", "reproduce")
