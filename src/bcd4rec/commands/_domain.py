"""`bcd4rec benchmark users`: every method against a user learned from an earlier period of the same log."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bcd4rec.commands._options import Json, Seed, Users

if TYPE_CHECKING:
    from rich.table import Table

EPILOG = "Example:  bcd4rec benchmark users dataset/ --out dn/ --truth shop"
PAPER = {  # buy rates of the paper's table 1
    "popular": 2.0,
    "sknn": 2.0,
    "stan": 2.0,
    "gru4rec": 4.2,
    "srgnn": 3.1,
    "dqn": 4.8,
    "bcq": 13.3,
    "qrdqn": 14.9,
    "qrbcq": 15.3,
    "iqn": 23.5,
    "bcd4rec": 24.1,
    "behaviour": 4.1,
    "online": 26.6,
}


def users(
    dataset: Annotated[
        Path, typer.Argument(metavar="DATASET", help="A data set with the periods user, train and test.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the run. A run that was stopped continues there.")],
    truth: Annotated[
        str | None, typer.Option(help="The environment that wrote the log, where it is known: shop.")
    ] = None,
    count: Users = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of users that the online agent may try things on.")] = 4,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """All baselines, six agents and an online agent on learned users, and on the true ones where they are known."""
    import torch

    from bcd4rec.artifacts import atomic_file, write_json
    from bcd4rec.commands._options import make_environment
    from bcd4rec.console import emit_json, progress, say, show
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.evaluation.metrics import rate_name
    from bcd4rec.experiments import second_domain as domain
    from bcd4rec.experiments.online import OnlineConfig

    torch.set_num_threads(1)
    data = Dataset.load(dataset)
    environment = make_environment(truth, None, None) if truth is not None else None
    domain.keep_to(out, {"data": data.content_hash, "seed": seed, "rounds": rounds})
    with progress() as tick:
        user = domain.learned_user(data, out / "user", seed, tick)
        online = OnlineConfig(rounds=rounds)
        folders = domain.policies(data, user, out / "policies", online, seed, tick)
        learned = domain.meet(user, folders, count, seed, tick)
        true = {}
        if environment is not None:
            true = domain.meet(environment, folders, count, seed, tick)
            true["behaviour"] = domain.behaviour(environment, count, seed)
    found: dict[str, Any] = {
        "rate": rate_name(data.responses),
        "seed": seed,
        "users": count,
        "data": data.content_hash,
        "logged": dict(zip(("value", "low", "high"), domain.logged(data, "test", seed), strict=True)),
        "learned": {name: row.to_json() for name, row in learned.items()},
        "true": {name: row.to_json() for name, row in true.items()},
        "rank_correlation": domain.rank_correlation(learned, true) if true else None,
    }
    with atomic_file(out / "results.json", force=True) as path:
        write_json(path, found)
    if json:
        emit_json(found)
    else:
        show(_table(found))
        say(f"The results are in {out / 'results.json'}, the policies in {out / 'policies'}.")


def _table(found: dict[str, Any]) -> "Table":
    from rich.table import Table

    rate = found["rate"]
    low, high = found["logged"]["value"], found["learned"]["oracle"][rate]
    title = f"{found['users']:,} users; gaps from the log's own {low:.1f} % (test period) to the learned user's oracle"
    if found["rank_correlation"] is not None:
        title += f"; rank correlation of learned and true users {found['rank_correlation']:.2f}"
    table = Table(title=title)
    columns = ("method", f"{rate.upper()} %", "C@3", "gap", "outside", "cat. %", f"true {rate.upper()}", "paper")
    for name in columns:
        table.add_column(name, justify="left" if name == "method" else "right")
    for name in [*found["learned"], *(["behaviour"] if found["true"] else [])]:
        row, true = found["learned"].get(name), found["true"].get(name)
        gap = f"{100 * (row[rate] - low) / (high - low):.0f}" if row and high != low else "–"
        table.add_row(
            name,
            _rate(row, rate),
            f"{row['coverage@3']:.1f}" if row else "–",
            gap,
            f"{row['outside_support']:.1f}" if row else "–",
            f"{(row or true)['category_accuracy']:.0f}" if (row or true)["category_accuracy"] is not None else "–",
            _rate(true, rate),
            f"{PAPER[name]:.1f}" if name in PAPER else "–",
        )
    return table


def _rate(row: dict[str, Any] | None, rate: str) -> str:
    """With half the width of its 95 % interval."""
    return f"{row[rate]:.1f} ± {(row[f'{rate}_high'] - row[f'{rate}_low']) / 2:.1f}" if row else "–"
