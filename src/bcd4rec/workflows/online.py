"""What an agent reaches that may try things on users: the upper line of the tables, and the source of better logs.

Users come in rounds. In each the policy so far recommends to fresh users with ε-greedy exploration, ε falling; the log
of the round joins the earlier ones, and the agent learns anew from all of them. It begins with nothing and random
recommendations, or with a data set and what that taught it.
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import Field

from bcd4rec.config import Config
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.schema import Log
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.splits import SplitConfig
from bcd4rec.data.transitions import TransitionConfig
from bcd4rec.errors import InputError
from bcd4rec.evaluation.metrics import per_session
from bcd4rec.policies.vocabulary_mapping import map_policy
from bcd4rec.seeding import stream_seed
from bcd4rec.sim.environment import Environment, catalogue
from bcd4rec.sim.rollout import Candidates, as_log, rollout, with_ids, with_openings, write_log
from bcd4rec.workflows.comparison import random_policy, with_options
from bcd4rec.workflows.fitting import Fitted, fit


class OnlineConfig(Config):
    """How an agent meets users."""

    method: str = Field(default="iqn", description="Which agent learns.")
    rounds: int = Field(default=5, ge=1, description="How many rounds of users.")
    users: int = Field(default=1000, ge=1, description="Users of a round.")
    first_epsilon: float = Field(default=1.0, ge=0, le=1, description="ε of the first round; at 1 all is random.")
    last_epsilon: float = Field(default=0.1, ge=0, le=1, description="ε of the last round; it falls to it linearly.")

    def epsilon(self, number: int) -> float:
        """Of round `number`, counted from 0."""
        return self.first_epsilon - (self.first_epsilon - self.last_epsilon) * number / max(self.rounds - 1, 1)


@dataclass(frozen=True)
class Round:
    """What one round of users said, and what was learned by its end."""

    number: int
    epsilon: float
    rate: float  # percent of the round's steps with the target response, exploration included
    log: pl.DataFrame  # of this round
    dataset: Dataset  # of all rounds so far
    fitted: Fitted


def learn_online(
    environment: Environment,
    config: OnlineConfig,
    settings: dict[str, Any],
    rule: Mapping[str, Any],
    seed: int,
    tick: Tick = no_tick,
    known: Dataset | None = None,
    candidates: Candidates = "all",
) -> Iterator[Round]:
    """Round by round. Whoever stops early has what was learned so far.

    `rule` changes the slates that the policies would make. The train split of a `known` data
    set joins the logs of all rounds, and the agent that it taught plays the first.
    """
    player, logs = random_policy(environment), list[pl.DataFrame]()
    if known is not None:
        tick("learning from the log", 0.0)
        player = map_policy(fit(config.method, known, settings, seed).whole(known), catalogue(environment))
        logs.append(logged_rows(known, environment))
    skips = known is None or known.states.skips.shape[1] > 0
    before = 0 if known is None else logs[0]["session_id"].n_unique()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(config.rounds):
            tick(f"round {number + 1} of {config.rounds}", number / config.rounds)
            epsilon = config.epsilon(number)
            exploring = with_options(player, dict(rule)).with_rule(exploration={"kind": "epsilon", "epsilon": epsilon})
            log = rollout(environment, exploring, config.users, stream_seed(seed, "online", number), candidates)
            met = per_session(log, environment.responses)
            log = with_ids(with_openings(log, environment), environment)
            log = log.with_columns(pl.col("session_id") + before + number * config.users)
            logs.append(log)
            joined = pl.concat(logs, how="diagonal")
            dataset = _prepared(joined, environment, skips, Path(folder) / str(number), seed)
            fitted = fit(config.method, dataset, settings, seed)
            rate = 100.0 * float(met["targets"].sum()) / float(met["steps"].sum())
            yield Round(number, epsilon, rate, log, dataset, fitted)
            player = map_policy(fitted.whole(dataset), catalogue(environment))


def logged_rows(dataset: Dataset, environment: Environment) -> pl.DataFrame:
    """The train split of a data set as the log of a rollout: its sessions are numbered from 0, organic events too."""
    rows = dataset.events("train")
    places = catalogue(environment).positions_of(dataset.vocabulary)
    if (unknown := np.flatnonzero(places < 0)).size:
        raise InputError(
            f"The environment does not know {unknown.size} of the data set's {len(places)} items, among them "
            f"{dataset.vocabulary.id(int(unknown[0]))!r}; give the data set that its user was learned from."
        )
    if dataset.responses.names != environment.responses.names:
        raise InputError(
            f"The data set's responses are {', '.join(dataset.responses.names)}, the environment's "
            f"{', '.join(environment.responses.names)}; give the data set that its user was learned from."
        )
    alone = pl.col("organic") | pl.col("organic").shift()
    begins = alone | (pl.col("step") != pl.col("step").shift()) | (pl.col("session") != pl.col("session").shift())
    table = rows.select(
        session_id=pl.col("session").rle_id().cast(pl.Int64),
        step=begins.fill_null(True).cast(pl.Int32).cum_sum().over("session") - 1,
        item_id=pl.Series(places).gather(rows["action"]).cast(pl.Int64),
        response="response",
        propensity=pl.col("propensity").cast(pl.Float64).fill_nan(None),
        organic="organic",
    ).with_columns(position=pl.int_range(pl.len(), dtype=pl.Int32).over("session_id", "step"))
    return with_ids(as_log(table, environment), environment)


def _prepared(log: pl.DataFrame, environment: Environment, skips: bool, folder: Path, seed: int) -> Dataset:
    """States remember skips unless those of the data set that it began with do not; they are as long as needed."""
    folder.mkdir()
    write_log(log, folder / "log.parquet", environment)
    history = TransitionConfig.parse({"history": "all" if skips else "positives"}, "history")
    config = PrepareConfig(transitions=history, split=SplitConfig(validation=0.1))
    prepare(Log(folder / "log.parquet"), environment.responses, config, folder / "dataset", seed)
    return Dataset.load(folder / "dataset")
