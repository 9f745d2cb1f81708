"""A policy meets users: what every online figure comes from."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl

from bcd4rec.artifacts import write_json
from bcd4rec.evaluation.metrics import category_accuracy, gini, per_session, popularity_curve, rate_name
from bcd4rec.evaluation.summary import summarise
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.slates import SlateRule
from bcd4rec.runner.store import TaskStore
from bcd4rec.runner.tasks import Task
from bcd4rec.seeding import stream_seed
from bcd4rec.sim.belief import Believed
from bcd4rec.sim.environment import ENVIRONMENTS, Environment, EnvironmentOptions
from bcd4rec.sim.interest_evolution import InterestEvolution
from bcd4rec.sim.rollout import as_candidates, policy_of, rollout, with_openings
from bcd4rec.sim.shop import Shop
from bcd4rec.workflows.comparison import contestant
from bcd4rec.workflows.online import OnlineConfig
from reproduction.observed import learn_observed
from reproduction.tasks.learners import Trained, TrainedOnline, User, learned_user
from reproduction.tasks.logs import RecSimLog, Settings, ShopLog

RANKS = 1000  # how much of a popularity curve is kept


@dataclass(frozen=True)
class EvaluationRun(Task):
    """A policy and fresh users: per session, how often each item was shown, and a handful of numbers.

    `world` is a learned user, the log whose true users are known, or the name of an environment. `player` is random,
    oracle, behaviour, on RecSim filter (see `sim.belief`), or what was trained.
    """

    world: User | RecSimLog | ShopLog | str
    player: str | Trained | TrainedOnline
    users: int
    seed: int
    candidates: str = "all"
    cost: ClassVar[float] = 6.0

    @property
    def label(self) -> str:
        who = self.player if isinstance(self.player, str) else self.player.label
        world = self.world
        place = world.label if isinstance(world, User) else f"true users of {getattr(world, 'name', world)}"
        return f"{who} meets {place}"

    def make(self, folder: Path, store: TaskStore) -> None:
        environment = self._environment(store)
        name = self.player if isinstance(self.player, str) else self.player.label
        _write(folder, name, self._play(environment, store), environment, self.seed)

    def _environment(self, store: TaskStore) -> Environment:
        if isinstance(self.world, User):
            return learned_user(self.world, store)
        if isinstance(self.world, str):
            return ENVIRONMENTS[self.world](EnvironmentOptions())
        if isinstance(self.world, RecSimLog):
            return Believed() if self.player == "filter" else InterestEvolution()
        return Shop()

    def _play(self, environment: Environment, store: TaskStore) -> pl.DataFrame:
        fresh = stream_seed(self.seed, "evaluation")
        if self.player == "behaviour" and isinstance(self.world, RecSimLog):
            return self.world.behaviour(self.users, fresh, store)
        name = self.player if isinstance(self.player, str) else str(store.path(self.player) / "policy")
        policy = contestant("oracle" if name == "filter" else name, environment, None, self.seed)
        if self.player == "filter" and isinstance(environment, InterestEvolution):
            policy = spread_by_category(policy, environment)
        return rollout(environment, policy, self.users, fresh, as_candidates(self.candidates))


@dataclass(frozen=True)
class ObservingEvaluationRun(Task):
    """The paper's online agent of RecSim, learning from rounds of users whose interests it sees, and fresh users."""

    world: RecSimLog
    rounds: int
    round_users: int
    users: int
    seed: int
    settings: Settings = ()
    cost: ClassVar[float] = 60.0

    @property
    def label(self) -> str:
        return f"online IQN that sees interests meets users of {self.world.name}, seed {self.seed}"

    def make(self, folder: Path, store: TaskStore) -> None:
        environment = InterestEvolution()
        config = OnlineConfig(rounds=self.rounds, users=self.round_users)
        rule = SlateRule(after_skip="exclude", unavailable=environment.unavailable)
        *_, last = learn_observed(environment, config, dict(self.settings), rule, self.seed)
        policy = spread_by_category(policy_of(last.scorer, environment, "online", rule), environment)
        log = rollout(environment, policy, self.users, stream_seed(self.seed, "evaluation"))
        _write(folder, "online", log, environment, self.seed)


def spread_by_category(policy: Policy, environment: InterestEvolution) -> Policy:
    """What knows the users of RecSim but has no log to choose its rule by: a skipped slate is kept out once, and items
    lose by others of their category in the same slate (λ = 1). Without it the reference would be a lower line."""
    alike = np.eye(environment.config.categories, dtype=np.float32)[environment.categories]
    return replace(policy, vectors=alike).with_rule(diversity=1.0, after_skip="exclude")


def _write(folder: Path, name: str, log: pl.DataFrame, environment: Environment, seed: int) -> None:
    """What tables and figures need of a meeting."""
    per_session(log, environment.responses).write_parquet(folder / "sessions.parquet")
    popularity_curve(log, environment.n_items).head(RANKS).write_parquet(folder / "popularity.parquet")
    found = summarise(name, log, environment.responses, environment.n_items, seed).to_json()
    found |= {"rate": found[rate_name(environment.responses)], "gini": gini(log, environment.n_items)}
    if environment.categories is not None and not isinstance(environment, InterestEvolution):
        found["category_accuracy"] = _categories(folder, log, environment)
    write_json(folder / "result.json", found)


def _categories(folder: Path, log: pl.DataFrame, environment: Environment) -> float:
    """The category accuracy, and by category of the session's first item in a file."""
    opened = with_openings(log, environment).filter(pl.col("step") == 0)
    first = opened.group_by("session_id", maintain_order=True).first().select("session_id", "category")
    asked = first.filter(pl.col("category").is_not_null()).rename({"category": "wanted"})
    shown = log.join(asked, on="session_id").with_columns(
        right=(pl.col("category") == pl.col("wanted")).fill_null(False)
    )
    by = shown.group_by("wanted").agg(shown=pl.len(), right=pl.col("right").sum()).sort("wanted")
    by.write_parquet(folder / "categories.parquet")
    return category_accuracy(log, first)


AnyEvaluationRun = EvaluationRun | ObservingEvaluationRun
