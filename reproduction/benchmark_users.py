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
    jobs: Annotated[int, typer.Option(min=1, help="How many tasks at once, each with one thread.")] = 1,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """All baselines, six agents and an online agent on learned users, and on the true ones where they are known."""
    from bcd4rec.artifacts import atomic_file, write_json
    from bcd4rec.commands._tasks import make
    from bcd4rec.config import parse_settings
    from bcd4rec.console import emit_json, say, show
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.errors import InputError
    from bcd4rec.evaluation.metrics import rate_name
    from bcd4rec.runner.store import TaskStore
    from bcd4rec.sim.learned import LearnedConfig
    from reproduction import second_domain as domain
    from reproduction.results import EvaluationRuns
    from reproduction.tasks.learners import User
    from reproduction.tasks.logs import PreparedLog

    data, store = Dataset.load(dataset), TaskStore(out / "store")
    played = LearnedConfig.from_preset(preset).model_dump(mode="json", exclude_defaults=True)
    of_user, of_agents = parse_settings(user_settings), parse_settings(settings)
    log = PreparedLog(str(dataset.absolute()), data.content_hash)
    user = User(log, seed, tuple(of_user.items()), tuple(played.items()))
    second = domain.SecondDomain(user, tuple(of_agents.items()), rounds, users=count, candidates=candidates)
    learned, true = second.runs(), second.runs(truth) if truth is not None else {}
    failed = make([*learned.values(), *true.values()], store, jobs, None)
    if failed:
        raise InputError(f"{next(iter(failed.values()))} What is finished is kept in {out}.")
    by_learned, by_true = (
        {name: EvaluationRuns(store, [task], 1) for name, task in runs.items()} for runs in (learned, true)
    )
    how = {"candidates": candidates, "preset": preset, "user": of_user, "agents": of_agents}
    found: dict[str, Any] = {
        "rate": rate_name(data.responses),
        "seed": seed,
        "users": count,
        "data": data.content_hash,
        **how,
        "logged": dict(zip(("value", "low", "high"), domain.logged(data, "test", seed), strict=True)),
        "learned": domain.as_json(by_learned, seed),
        "true": domain.as_json(by_true, seed),
        "rank_correlation": domain.rank_correlation(by_learned, by_true) if true else None,
    }
    with atomic_file(out / "results.json", force=True) as path:
        write_json(path, found)
    if json:
        emit_json(found)
    else:
        show(_table(found))
        say(f"The results are in {out / 'results.json'}, the policies in {store.folder}.")


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
