"""`bcd4rec recommend`: what a policy recommends to one session."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bcd4rec.commands._options import Json

if TYPE_CHECKING:
    from bcd4rec.data.vocabulary import Vocabulary

EPILOG = "Example:  bcd4rec recommend policy/ --session 17,4,98 --top 3"


def add_to(app: typer.Typer) -> None:
    app.command("recommend", epilog=EPILOG)(recommend)


def recommend(
    policy: Annotated[Path, typer.Argument(metavar="POLICY", help="Folder made by `bcd4rec train`.")],
    session: Annotated[
        str, typer.Option(help="Positive items of the session so far, oldest first, e.g. 17,4,98.")
    ] = "",
    skipped: Annotated[
        str, typer.Option(help="Items shown and skipped, oldest first; used by policies that remember.")
    ] = "",
    top: Annotated[int, typer.Option(min=1, help="How many items.")] = 3,
    candidates: Annotated[
        Path | None, typer.Option(help="Text file with one item id a line; only these may be recommended.")
    ] = None,
    json: Json = False,
) -> None:
    """Recommend items for a session, with their values. Items of the session are not recommended again."""
    from rich.table import Table

    from bcd4rec.console import emit_json, say, show
    from bcd4rec.policies import bundle

    loaded = bundle.load(policy)
    pool = None
    unknown: list[Any] = []
    if candidates is not None:
        allowed = _candidates(candidates, loaded.vocabulary)
        pool, unknown = loaded.pool(allowed), loaded.vocabulary.encode(allowed)[1]
    skip = next(name for name in loaded.responses.names if name not in loaded.responses.positive)
    liked, passed = (_ids(text.split(","), loaded.vocabulary) for text in (session, skipped))
    reading = loaded.read([], [*liked, *((item, skip) for item in passed)])
    slate = loaded.slates(reading.sessions, top, candidates=pool)
    items = slate.items[0][slate.items[0] >= 0]
    spreads = loaded.quantiles(reading.sessions, items)
    unknown = list(dict.fromkeys([*reading.unknown, *unknown]))
    for item in unknown:
        say(f"Item {item!r} is unknown to the policy and was passed over.")
    rows: list[dict[str, Any]] = [
        {
            "item": loaded.vocabulary.id(item),
            "value": float(slate.values[0, place]),
            "quantiles": spreads[place] if spreads is not None else None,
        }
        for place, item in enumerate(items)
    ]
    if json:
        emit_json({"items": rows, "unknown": unknown, "rule": loaded.rule.model_dump(mode="json")})
        return
    table = Table(title=f"{loaded.about.get('method', policy)}. {loaded.rule.in_words()}", title_justify="left")
    for name in ("rank", "item", "value", "quantiles 10 % … 90 %"):
        table.add_column(name, justify="right")
    for rank, one in enumerate(rows, 1):
        table.add_row(str(rank), str(one["item"]), f"{one['value']:.3f}", _spread(one["quantiles"]))
    show(table)


def _ids(parts: list[str], vocabulary: "Vocabulary") -> list[str]:
    """Blanks around an id are the list's, unless the id is written with them."""
    return [part if vocabulary.index(part) is not None else part.strip() for part in parts if part.strip()]


def _spread(quantiles: dict[str, float] | None) -> str:
    return " ".join(f"{value:.2f}" for value in quantiles.values()) if quantiles else "–"


def _candidates(path: Path, vocabulary: "Vocabulary") -> list[str]:
    from bcd4rec.errors import InputError

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--candidates {path} cannot be read ({error}); expected a text file, one item id a line."
        ) from None
    items = _ids(lines, vocabulary)
    if not items:
        raise InputError(f"--candidates {path} is empty; expected one item id a line.")
    return items
