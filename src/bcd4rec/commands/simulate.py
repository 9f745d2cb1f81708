"""`bcd4rec simulate`: a policy meets simulated users, and the log is written."""

import time
from pathlib import Path
from typing import Annotated

import typer

from bcd4rec.commands._options import AfterSkip, DataSet, Diversity, Env, Force, Json, Model, Preset, Seed, Users

EPILOG = (
    "Example:  bcd4rec simulate --env recsim --preset paper --policy random --users 2000 --logs out.parquet; "
    "or days of a shop:  bcd4rec simulate --env shop --days 150 --seed 0 --raw raw/"
)


def add_to(app: typer.Typer) -> None:
    app.command("simulate", epilog=EPILOG)(simulate)


def simulate(
    env: Env = "recsim",
    preset: Preset = None,
    model: Model = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Who recommends: random, oracle, a baseline such as popular, a policy's folder, or behaviour, who "
            "writes the shop's logs or replays those of a learned user. Default: behaviour there, elsewhere random."
        ),
    ] = None,
    dataset: DataSet = None,
    users: Users = 2000,
    epsilon: Annotated[float, typer.Option(help="ε: share of places filled at random.", min=0.0, max=1.0)] = 0.0,
    temperature: Annotated[
        float | None, typer.Option(help="Draw places by softmax of the scores over this temperature.")
    ] = None,
    after_skip: AfterSkip = None,
    diversity: Diversity = None,
    logs: Annotated[Path | None, typer.Option(help="Where to write the log (.parquet or .csv).")] = None,
    days: Annotated[
        int | None, typer.Option(min=1, help="Simulate days of traffic, with a clock, instead of --users.")
    ] = None,
    scale: Annotated[float, typer.Option(help="Sessions per day in times of the paper's Diginetica data.")] = 1.0,
    raw: Annotated[
        Path | None, typer.Option(help="Folder for the six raw files in Diginetica's formats (--env shop, --days).")
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Play a policy against simulated users; write the canonical impression log with exact propensities."""
    from bcd4rec.artifacts import atomic_file, refuse_existing
    from bcd4rec.commands._options import make_environment
    from bcd4rec.commands._traffic import simulate_days
    from bcd4rec.commands.evaluate import slate_options
    from bcd4rec.config import OPTIONS
    from bcd4rec.console import emit_json, pairs_table, progress, say, show
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.errors import InputError
    from bcd4rec.evaluation.summary import summarise
    from bcd4rec.policies.slates import Exploration
    from bcd4rec.sim.rollout import rollout, with_ids, with_openings, write_log
    from bcd4rec.workflows.comparison import contestant, default_policy, with_options

    if logs is not None:
        if logs.suffix not in (".parquet", ".csv"):
            raise InputError(f"--logs: found {logs.name!r}, expected a name that ends in .parquet or .csv.")
        refuse_existing(logs, force, inputs=[model, dataset, raw, Path(policy) if policy else None])
    if raw is not None:
        if env != "shop":
            raise InputError(f"--raw: found --env {env}, expected --env shop, which has prices and names of items.")
        refuse_existing(raw, force, "raw", [model, dataset, logs])
        days = days or 150
    if epsilon and temperature is not None:
        raise InputError("--epsilon and --temperature are two ways to explore; give one of them.")
    rule = slate_options(after_skip, diversity)
    if epsilon:
        rule["exploration"] = Exploration.parse({"kind": "epsilon", "epsilon": epsilon}, OPTIONS)
    elif temperature is not None:
        rule["exploration"] = Exploration.parse({"kind": "softmax", "temperature": temperature}, OPTIONS)
    if days is not None and env == "shop" and preset is None:
        preset = "pages"  # logs are lists of items, as in the data; policies are tried with one item at a time
    environment = make_environment(env, preset, model)
    data = Dataset.load(dataset) if dataset else None
    player = with_options(contestant(policy or default_policy(environment), environment, data, seed), rule)
    if days is not None:
        simulate_days(environment, player, days, scale, seed, logs, raw, force, json)
        return
    with progress() as tick:
        began = time.perf_counter()
        log = rollout(environment, player, users, seed, tick=tick)
        seconds = time.perf_counter() - began
    found = summarise(player.name, log, environment.responses, environment.n_items, seed)
    log = with_ids(with_openings(log, environment), environment)
    if logs is not None:
        with atomic_file(logs, force) as partial:
            log.write_csv(partial) if logs.suffix == ".csv" else write_log(log, partial, environment)
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
                *([("outside the user's support", f"{found.outside.text()} %")] if found.outside else []),
                ("steps", f"{found.steps:,} ({found.steps / seconds:,.0f} per second)"),
            ],
        )
    )
    if logs is not None:
        organic = int(log["organic"].sum()) if "organic" in log.columns else 0
        told = f" and {organic:,} organic events" if organic else ""
        say(f"The log is in {logs} ({len(log) - organic:,} impressions{told}).")
