"""`bcd4rec online`: an agent that may explore on simulated users."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bcd4rec.commands._options import AfterSkip, Diversity, Env, Force, Json, Model, Preset, Seed

if TYPE_CHECKING:
    from bcd4rec.workflows.online import Round

EPILOG = "Example:  bcd4rec online --env shop --rounds 5 --users 1000 --out online/"


def add_to(app: typer.Typer) -> None:
    app.command("online", epilog=EPILOG)(online)


def online(
    out: Annotated[Path, typer.Option("--out", help="Folder of the policy; it appears when training is complete.")],
    env: Env = "recsim",
    preset: Preset = None,
    model: Model = None,
    method: Annotated[str, typer.Option(help="Which agent learns.")] = "iqn",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of users; the agent learns anew after each.")] = 5,
    users: Annotated[int, typer.Option(min=1, help="Fresh users of a round.")] = 1000,
    first_epsilon: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="ε of the first round; at 1 all is random.")
    ] = 1.0,
    last_epsilon: Annotated[float, typer.Option(min=0.0, max=1.0, help="ε of the last round.")] = 0.1,
    dataset: Annotated[
        Path | None,
        typer.Option(
            help="Begin with the train split of this data set and the agent that it teaches; see --first-epsilon."
        ),
    ] = None,
    after_skip: AfterSkip = None,
    diversity: Diversity = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting of the agent; may be repeated.")
    ] = None,
    logs: Annotated[
        Path | None, typer.Option(help="Folder for the log of each round, with propensities: round-1.parquet, …")
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train an agent that may try things on simulated users: what learning from logs alone is measured against."""
    from bcd4rec.artifacts import MANIFEST, atomic_directory, refuse_existing, write_json
    from bcd4rec.commands._options import make_environment
    from bcd4rec.commands.evaluate import slate_options
    from bcd4rec.config import OPTIONS, parse_settings
    from bcd4rec.console import emit_json, progress, say, show
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.evaluation.metrics import rate_name
    from bcd4rec.sim.rollout import write_log
    from bcd4rec.workflows.online import OnlineConfig, learn_online

    refuse_existing(out, force, "policy", [logs, dataset, model])
    if logs is not None:
        refuse_existing(logs, force, "logs", [out, dataset, model])
    given = {"method": method, "rounds": rounds, "users": users}
    config = OnlineConfig.parse(given | {"first_epsilon": first_epsilon, "last_epsilon": last_epsilon}, OPTIONS)
    rule = slate_options(after_skip, diversity)
    environment = make_environment(env, preset, model)
    known = Dataset.load(dataset) if dataset is not None else None
    with progress() as tick:
        found = list(learn_online(environment, config, parse_settings(settings), rule, seed, tick, known))
    with atomic_directory(out, force) as folder:
        found[-1].fitted.save(found[-1].dataset, folder)
    if logs is not None:
        with atomic_directory(logs, force) as folder:
            for one in found:
                write_log(one.log, folder / f"round-{one.number + 1}.parquet", environment)
            write_json(folder / MANIFEST, {"kind": "logs", "env": env, "seed": seed})
    if json:
        told = [{"round": one.number + 1, "epsilon": one.epsilon, "rate": one.rate} for one in found]
        emit_json({"policy": str(out), "method": method, "env": env, "seed": seed, "rounds": told})
    else:
        show(_table(found, rate_name(environment.responses).upper()))
        say(f"The policy is in {out}. Compare it:  bcd4rec evaluate random {out} oracle --env {env}")


def _table(found: "list[Round]", rate: str) -> Any:
    from rich.table import Table

    table = Table(title="What the users of each round met")
    for name in ("round", "ε", f"{rate} %"):
        table.add_column(name, justify="right")
    for one in found:
        table.add_row(str(one.number + 1), f"{one.epsilon:.2f}", f"{one.rate:.1f}")
    return table
