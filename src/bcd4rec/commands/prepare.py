"""`bcd4rec prepare`: a log becomes a data set."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bcd4rec.commands._options import Force, Json, LogPath, Positive, Rewards, Seed, Sort, StringIds, Target, TimeUnit

EPILOG = "Example:  bcd4rec prepare logs.parquet --out dataset/ --rewards skip=0,click=4"


def add_to(app: typer.Typer) -> None:
    app.command("prepare", epilog=EPILOG)(prepare)


def prepare(
    logs: LogPath,
    out: Annotated[Path, typer.Option("--out", help="Folder of the data set; it appears when it is complete.")],
    rewards: Rewards = None,
    positive: Positive = None,
    target: Target = None,
    history: Annotated[
        str, typer.Option(help="What a state remembers: positives, or all (also recent skips).")
    ] = "positives",
    length: Annotated[int, typer.Option(help="L: how many positive items a state holds.")] = 10,
    skips: Annotated[int, typer.Option(help="S: how many skipped items a state holds with --history all.")] = 40,
    convention: Annotated[
        str, typer.Option(help="Transitions: every shown item (shown), or one per slate (chosen).")
    ] = "shown",
    gamma: Annotated[float, typer.Option(help="γ: the discount.")] = 0.9,
    split: Annotated[
        Literal["session", "time"], typer.Option(help="Split by session (at random) or by time (see --periods).")
    ] = "session",
    test: Annotated[float, typer.Option(help="Share of test sessions, with --split session.")] = 0.0,
    periods: Annotated[
        str | None, typer.Option(help="Days of each period, with --split time, e.g. user=60,train=30,test=30.")
    ] = None,
    validation: Annotated[float, typer.Option(help="Share of the train sessions kept for validation.")] = 0.2,
    seed: Seed = 0,
    time_unit: TimeUnit = "s",
    string_ids: StringIds = False,
    sort: Sort = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Turn an impression log into sessions, states and transitions, in streaming: logs larger than memory work."""
    from bcd4rec.artifacts import refuse_existing
    from bcd4rec.commands._options import open_log, responses_of
    from bcd4rec.config import OPTIONS, parse_numbers
    from bcd4rec.console import emit_json, progress, say, show
    from bcd4rec.data import preparing

    values: dict[str, Any] = {
        "transitions": {
            "history": history,
            "length": length,
            "skips": skips,
            "convention": convention,
            "gamma": gamma,
        },
        "split": {
            "by": split,
            "test": test,
            "periods": parse_numbers(periods, "--periods") if periods else {},
            "validation": validation,
        },
    }
    config = preparing.PrepareConfig.parse(values, OPTIONS)
    refuse_existing(out, force)
    log = open_log(logs, time_unit, string_ids, sort)
    with progress() as tick:
        manifest = preparing.prepare(log, responses_of(log, rewards, positive, target), config, out, seed, force, tick)
    if json:
        emit_json(
            {"dataset": str(out)}
            | manifest["counts"]
            | {"dropped": manifest["dropped"], "content_hash": manifest["content_hash"]}
        )
    else:
        show(_table(str(out), manifest))
        say(f"The data set is in {out}.")


def _table(path: str, manifest: dict[str, Any]) -> Any:
    from bcd4rec.console import pairs_table

    counts = manifest["counts"]
    splits = ", ".join(f"{name} {count:,}" for name, count in counts["sessions_by_split"].items())
    pairs = [
        ("sessions", f"{counts['sessions']:,} ({splits})"),
        ("impressions", f"{counts['impressions']:,}"),
        ("responses", ", ".join(f"{name} {count:,}" for name, count in counts["responses"].items())),
        ("transitions", f"{counts['transitions']:,} over {counts['states']:,} distinct states"),
        (
            "items",
            f"{counts['items']:,}" + (f" in {counts['categories']:,} categories" if counts["categories"] else ""),
        ),
        ("dropped", ", ".join(f"{count:,} {why}" for why, count in manifest["dropped"].items()) or "nothing"),
        ("content hash", manifest["content_hash"][:16]),
    ]
    return pairs_table(path, pairs)
