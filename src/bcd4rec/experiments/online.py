"""What an agent reaches that may try things on users: the upper line of the tables, and the source of better logs.

Users come in rounds. In each the policy so far recommends to fresh users with ε-greedy exploration, ε falling from 1;
the log of the round joins the earlier ones, and the agent learns anew from all of them.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from bcd4rec.config import Config
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.schema import Log
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.splits import SplitConfig
from bcd4rec.data.transitions import TransitionConfig
from bcd4rec.evaluation.metrics import per_session
from bcd4rec.experiments.comparison import Contestant, contestant, slate_vectors
from bcd4rec.experiments.fitting import Fitted, fit
from bcd4rec.policies.ranking import Exploration
from bcd4rec.policies.wrappers import speaking
from bcd4rec.seeding import stream_seed
from bcd4rec.sim.environment import Environment, catalogue
from bcd4rec.sim.rollout import RolloutConfig, rollout, with_ids, with_openings


class OnlineConfig(Config):
    """How an agent meets users."""

    method: str = Field(default="iqn", description="Which agent learns.")
    rounds: int = Field(default=5, ge=1, description="How many rounds of users.")
    users: int = Field(default=1000, ge=1, description="Users of a round.")
    last_epsilon: float = Field(default=0.1, ge=0, le=1, description="ε of the last round; it falls to it linearly.")

    def epsilon(self, number: int) -> float:
        """Of round `number`, counted from 0: everything is random at first."""
        return 1.0 - (1.0 - self.last_epsilon) * number / max(self.rounds - 1, 1)


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
    rules: RolloutConfig,
    seed: int,
    tick: Tick = no_tick,
) -> Iterator[Round]:
    """Round by round. Whoever stops early has what was learned so far."""
    player, logs = contestant("random", environment, None, seed), list[pl.DataFrame]()
    vectors = None
    with tempfile.TemporaryDirectory() as folder:
        for number in range(config.rounds):
            tick(f"round {number + 1} of {config.rounds}", number / config.rounds)
            epsilon = config.epsilon(number)
            exploring = player.rules(rules).model_copy(
                update={"exploration": Exploration(kind="epsilon", epsilon=epsilon)}
                | ({} if vectors is not None else {"diversity": 0.0})
            )
            users = stream_seed(seed, "online", number)
            log = rollout(environment, player.policy, config.users, users, exploring, vectors=vectors)
            met = per_session(log, environment.responses)
            log = with_ids(with_openings(log, environment), environment)
            log = log.with_columns(pl.col("session_id") + number * config.users)
            logs.append(log)
            dataset = _prepared(pl.concat(logs), environment, rules, Path(folder) / str(number), seed)
            fitted = fit(config.method, dataset, settings, seed)
            rate = 100.0 * float(met["targets"].sum()) / float(met["steps"].sum())
            yield Round(number, epsilon, rate, log, dataset, fitted)
            policy = speaking(fitted.policy, dataset.vocabulary, catalogue(environment))
            player = Contestant(config.method, policy, length=rules.length, skips=rules.skips)
            vectors = slate_vectors(environment, dataset) if rules.diversity else None


def _prepared(log: pl.DataFrame, environment: Environment, rules: RolloutConfig, folder: Path, seed: int) -> Dataset:
    folder.mkdir()
    log.write_parquet(folder / "log.parquet")
    history = TransitionConfig(
        length=rules.length, skips=max(rules.skips, 1), history="all" if rules.skips else "positives"
    )
    config = PrepareConfig(transitions=history, split=SplitConfig(validation=0.1))
    prepare(Log(folder / "log.parquet"), environment.responses, config, folder / "dataset", seed)
    return Dataset.load(folder / "dataset")
