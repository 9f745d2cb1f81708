"""`bcd4rec benchmark users`: every method against a user learned from an earlier period of the same log."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bcd4rec.commands._options import Candidates, Json, Seed, Users

if TYPE_CHECKING:
    from rich.table import Table

EPILOG = "Example:  bcd4rec benchmark users dataset/ --out dn/ --truth shop"


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
    candidates: Candidates = "all",
    preset: Annotated[
        str | None, typer.Option(help="How the learned user's sessions are played, as for --env learned.")
    ] = None,
    user_settings: Annotated[
        list[str] | None, typer.Option("--user-set", help="Change a setting of the learned user; may be repeated.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting of all agents; may be repeated.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """All baselines, six agents and an online agent on learned users, and on the true ones where they are known."""
    import torch

    from bcd4rec.artifacts import atomic_file, keep_to, write_json
    from bcd4rec.commands._options import make_environment
    from bcd4rec.config import parse_settings
    from bcd4rec.console import emit_json, progress, say, show
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.evaluation.metrics import rate_name
    from bcd4rec.sim.learned import LearnedConfig
    from bcd4rec.sim.rollout import as_candidates
    from reproduction import second_domain as domain

    torch.set_num_threads(1)
    data = Dataset.load(dataset)
    environment = make_environment(truth, None, None) if truth is not None else None
    among = as_candidates(candidates)
    played, of_user, of_agents = (
        LearnedConfig.from_preset(preset),
        parse_settings(user_settings),
        parse_settings(settings),
    )
    how = {"candidates": candidates, "preset": preset, "user": of_user, "agents": of_agents}
    keep_to(out, {"data": data.content_hash, "seed": seed, "rounds": rounds} | how)
    with progress() as tick:
        user = domain.learned_user(data, out / "user", seed, tick, of_user, played)
        online = domain.ROUNDS.model_copy(update={"rounds": rounds})
        folders = domain.policies(data, user, out / "policies", online, seed, tick, among, of_agents)
        learned = domain.meet(user, folders, count, seed, tick, among)
        true = domain.meet(environment, folders, count, seed, tick, among) if environment is not None else {}
    found: dict[str, Any] = {
        "rate": rate_name(data.responses),
        "seed": seed,
        "users": count,
        "data": data.content_hash,
        **how,
        "logged": dict(zip(("value", "low", "high"), domain.logged(data, "test", seed), strict=True)),
        "learned": domain.told(learned, seed),
        "true": domain.told(true, seed),
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

    from reproduction.printed import TABLE1

    rate, learned, paper = found["rate"], found["learned"], TABLE1["DN"]
    low, high = learned["behaviour"][rate], learned["oracle"][rate]
    where = "the session's category" if found["candidates"] == "category" else "all items"
    title = f"{found['users']:,} users, recommendations from {where}. Behaviour shows the log's own lists to the same "
    title += f"users; in the log of the test period they had {found['logged']['value']:.1f} %"
    if found["rank_correlation"] is not None:
        title += f". Rank correlation of learned and true users: {found['rank_correlation']:.2f}"
    table = Table(title=title)
    of, more = rate.upper(), "− behaviour"
    for name in ("method", f"{of} %", more, "C@3", "gap", "outside", "cat. %", f"true {of}", more, "paper"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for name, row in learned.items():
        true, category = found["true"].get(name), row["category_accuracy"]
        table.add_row(
            name,
            _rate(row, rate),
            _difference(row),
            f"{row['coverage@3']:.1f}",
            f"{100 * (row[rate] - low) / (high - low):.0f}" if high != low else "–",
            f"{row['outside_support']:.1f}",
            f"{category:.0f}" if category is not None else "–",
            _rate(true, rate),
            _difference(true),
            f"{paper[name][0]:.1f}" if name in paper else "–",
        )
    return table


def _rate(row: dict[str, Any] | None, rate: str) -> str:
    """With half the width of its 95 % interval."""
    return f"{row[rate]:.1f} ± {(row[f'{rate}_high'] - row[f'{rate}_low']) / 2:.1f}" if row else "–"


def _difference(row: dict[str, Any] | None) -> str:
    if row is None or row["difference"] is None:
        return "–"
    return f"{row['difference']:+.1f} [{row['difference_low']:+.1f}, {row['difference_high']:+.1f}]"
