"""`bcd4rec simulate`: a policy meets simulated users, and the log is written."""

import time
from pathlib import Path
from typing import Annotated

import typer

from bcd4rec.commands._options import AfterSkip, DataSet, Diversity, Env, Force, Json, Model, Preset, Seed, Users

EPILOG = "Example:  bcd4rec simulate --env recsim --preset paper --policy random --users 2000 --logs out.parquet"


def add_to(app: typer.Typer) -> None:
    app.command("simulate", epilog=EPILOG)(simulate)


def simulate(
    env: Env = "recsim",
    preset: Preset = None,
    model: Model = None,
    policy: Annotated[
        str, typer.Option(help="Who recommends: random, oracle, a baseline such as popular, or a policy's folder.")
    ] = "random",
    dataset: DataSet = None,
    users: Users = 2000,
    epsilon: Annotated[float, typer.Option(help="ε: share of places filled at random.", min=0.0, max=1.0)] = 0.0,
    temperature: Annotated[
        float | None, typer.Option(help="Draw places by softmax of the scores over this temperature.")
    ] = None,
    after_skip: AfterSkip = "repeat",
    diversity: Diversity = 0.0,
    logs: Annotated[Path | None, typer.Option(help="Where to write the log (.parquet or .csv).")] = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Play a policy against simulated users; write the canonical impression log with exact propensities."""
    from bcd4rec.artifacts import atomic_file, refuse_existing
    from bcd4rec.commands._options import make_environment
    from bcd4rec.config import OPTIONS
    from bcd4rec.console import emit_json, pairs_table, progress, say, show
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.errors import InputError
    from bcd4rec.evaluation.summary import summarise
    from bcd4rec.experiments.comparison import contestant, slate_vectors
    from bcd4rec.sim.rollout import RolloutConfig, rollout

    if logs is not None:
        if logs.suffix not in (".parquet", ".csv"):
            raise InputError(f"--logs: found {logs.name!r}, expected a name that ends in .parquet or .csv.")
        refuse_existing(logs, force)
    if epsilon and temperature is not None:
        raise InputError("--epsilon and --temperature are two ways to explore; give one of them.")
    exploration: dict[str, object] = {"kind": "none"}
    if epsilon:
        exploration = {"kind": "epsilon", "epsilon": epsilon}
    elif temperature is not None:
        exploration = {"kind": "softmax", "temperature": temperature}
    rules = RolloutConfig.parse({"after_skip": after_skip, "diversity": diversity, "exploration": exploration}, OPTIONS)
    environment = make_environment(env, preset, model)
    data = Dataset.load(dataset) if dataset else None
    player = contestant(policy, environment, data, seed)
    vectors = slate_vectors(environment, data) if diversity else None
    with progress() as tick:
        began = time.perf_counter()
        log = rollout(environment, player.policy, users, seed, player.rules(rules), tick, vectors)
        seconds = time.perf_counter() - began
    found = summarise(player.name, log, environment.responses, environment.n_items, seed)
    if logs is not None:
        with atomic_file(logs, force) as partial:
            log.write_csv(partial) if logs.suffix == ".csv" else log.write_parquet(partial)
    if json:
        emit_json(found.to_json() | {"steps_per_second": found.steps / seconds, "seed": seed, "env": env})
        return
    rate = found.rate_name.upper()
    show(
        pairs_table(
            f"{player.name} on {env}, {users:,} users",
            [
                (rate, f"{found.rate.text()} %"),
                ("C@3", f"{found.coverage.value:.1f} %"),
                ("mean return", found.mean_return.text()),
                ("steps", f"{found.steps:,} ({found.steps / seconds:,.0f} per second)"),
            ],
        )
    )
    if logs is not None:
        say(f"The log is in {logs} ({len(log):,} impressions).")
