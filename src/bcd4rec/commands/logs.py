"""`bcd4rec logs`: what a server has stored, as the log that `check`, `prepare` and `train` read."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bcd4rec.commands._options import Force, Json, Unanswered, as_unanswered

EPILOG = "Example:  bcd4rec logs export --database sqlite:///bcd4rec.db --out logs.parquet --since 2026-01-01"


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="What a server has shown and heard, as the next log to learn from.")
    group.command("export", epilog=EPILOG)(export)
    group.callback()(lambda: None)  # keeps the subcommand's name, although it is the only one
    app.add_typer(group, name="logs")


def export(
    database: Annotated[str, typer.Option(help="sqlite:///path, a plain path, or postgresql://user@host/name.")],
    out: Annotated[Path, typer.Option(help="Where to write the log (.parquet or .csv).")],
    since: Annotated[str | None, typer.Option(help="Only sessions that began then or later (ISO, UTC).")] = None,
    until: Annotated[str | None, typer.Option(help="Only sessions that began before (ISO, UTC).")] = None,
    policy: Annotated[str | None, typer.Option(help="Only sessions that this policy version alone served.")] = None,
    rewards: Annotated[
        str | None,
        typer.Option(help="Of several responses to an item the most rewarded counts. Default: skip=0,click=1,buy=5."),
    ] = None,
    integer_items: Annotated[bool, typer.Option("--integer-items", help="Write item ids as integers.")] = False,
    unanswered: Unanswered = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write the canonical impression log, with propensities, from the database of `bcd4rec serve`.

    An item without feedback counts as a skip. The server may go on running meanwhile.
    """
    from bcd4rec.artifacts import refuse_existing
    from bcd4rec.console import emit_json, pairs_table, progress, say, show
    from bcd4rec.data.responses import DIGINETICA, Responses
    from bcd4rec.errors import InputError
    from bcd4rec.serving.storage.export import export_log
    from bcd4rec.serving.storage.queries import Selection
    from bcd4rec.serving.storage.urls import database_of

    if out.suffix not in (".parquet", ".csv"):
        raise InputError(f"--out: found {out.name!r}, expected a name that ends in .parquet or .csv.")
    refuse_existing(out, force, inputs=[Path(database.removeprefix("sqlite:///"))])
    selection = Selection(_microseconds(since, "--since"), _microseconds(until, "--until"), policy)
    responses = Responses.from_options(rewards) if rewards is not None else DIGINETICA
    with progress() as tick:
        found = export_log(
            database_of(database),
            out,
            selection,
            responses,
            integer_items,
            force,
            tick,
            as_unanswered(unanswered) or "skip",
        )
    if json:
        emit_json(found)
    else:
        show(pairs_table(f"Exported from {found['database']}", _pairs(found)))
    say(f"The log is in {out} ({found['impressions']:,} impressions).")


def _microseconds(text: str | None, option: str) -> int | None:
    """An ISO date, or date and time; UTC where it does not say otherwise."""
    from datetime import UTC, datetime, timedelta

    from bcd4rec.errors import InputError

    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise InputError(f"{option}: found {text!r}, expected a date such as 2026-01-31 or 2026-01-31T12:00.") from None


def _pairs(found: dict[str, Any]) -> list[tuple[str, str]]:
    shown = {name: found[name] for name in ("sessions", "requests", "impressions", "organic")}
    shown |= {f"response {name}": count for name, count in found["responses"].items()}
    shown |= {"with a propensity": found["propensities"]}
    shown |= {f"dropped: {name.replace('_', ' ')}": count for name, count in found["dropped"].items()}
    return [(name, f"{count:,}") for name, count in shown.items()]
