"""The paper's second domain: what was learned from one period of a log meets a user learned from an earlier one.

Everything that takes time is kept in the run's folder (the user, every policy), so that a run that was stopped goes on
where it was. Where the truth is known, as in the synthetic shop, the same policies meet the true users, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import spearmanr

from bcd4rec.artifacts import atomic_directory
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.evaluation.metrics import category_accuracy, per_session
from bcd4rec.evaluation.statistics import RATE, Interval, difference, interval
from bcd4rec.evaluation.summary import Evaluation, summarise
from bcd4rec.experiments.comparison import BEHAVIOUR, ORACLE, RANDOM, contestant
from bcd4rec.experiments.fitting import fit
from bcd4rec.experiments.online import OnlineConfig, learn_online
from bcd4rec.experiments.users import fit_user
from bcd4rec.models.learned_user import LearnedUser
from bcd4rec.policies.policy import Policy
from bcd4rec.seeding import stream_seed
from bcd4rec.sim.environment import Environment, Logged
from bcd4rec.sim.learned import Learned, LearnedConfig
from bcd4rec.sim.rollout import Candidates, rollout, with_openings

BASELINES = (
    "popular",
    "ctr",
    "category_popular",
    "markov",
    "sknn",
    "vsknn",
    "stan",
    "item2vec",
    "gru4rec",
    "srgnn",
    "response",
)
AGENTS = ("dqn", "bcq", "qrdqn", "qrbcq", "iqn", "bcd4rec")
ONLINE = "online"
# Online learning goes on from the log, so that it need not find by chance what the log knows.
ROUNDS = OnlineConfig(rounds=4, users=2000, first_epsilon=0.3, last_epsilon=0.05)


def learned_user(
    dataset: Dataset,
    folder: Path,
    seed: int,
    tick: Tick = no_tick,
    settings: dict[str, Any] | None = None,
    played: LearnedConfig | None = None,
) -> Learned:
    """The user of the earlier period, learned now or in an earlier run, with its sessions `played` so."""
    if not folder.is_dir():
        found = fit_user(dataset, settings or {}, seed, tick)
        with atomic_directory(folder) as partial:
            found.save(partial)
    return Learned(LearnedUser.load(folder), played)


def policies(
    dataset: Dataset,
    user: Learned,
    folder: Path,
    rounds: OnlineConfig,
    seed: int,
    tick: Tick = no_tick,
    candidates: Candidates = "all",
    settings: dict[str, Any] | None = None,
) -> dict[str, Path]:
    """The folder of every method's policy, learned now or in an earlier run.

    `candidates` are those of the evaluation, which the online agent obeys, too; `settings` are the agents'.
    """
    settings = settings or {}
    names = [*BASELINES, *AGENTS, ONLINE]
    for number, name in enumerate(names):
        tick(f"learning {name}", number / len(names))
        if (folder / name).is_dir():
            continue
        if name == ONLINE:
            *_, last = learn_online(user, rounds, settings, {}, seed, known=dataset, candidates=candidates)
            fitted, data = last.fitted, last.dataset
        else:
            fitted, data = fit(name, dataset, settings if name in AGENTS else {}, seed), dataset
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_directory(folder / name) as partial:
            fitted.save(data, partial)
    return {name: folder / name for name in names}


@dataclass(frozen=True)
class Row:
    """One method against one kind of user."""

    evaluation: Evaluation
    category_accuracy: float | None  # percent; None where items have no categories
    sessions: pl.DataFrame | None = None  # `per_session` of what it showed

    def to_json(self) -> dict[str, Any]:
        return self.evaluation.to_json() | {"category_accuracy": self.category_accuracy}


def meet(
    environment: Environment,
    folders: Mapping[str, Path],
    users: int,
    seed: int,
    tick: Tick = no_tick,
    candidates: Candidates = "all",
) -> dict[str, Row]:
    """Every policy on the same fresh users of `environment`, with its behaviour policy where it has one."""
    rows: dict[str, Row] = {}
    for number, name in enumerate([RANDOM, *folders, ORACLE]):
        tick(f"meeting users: {name}", number / (len(folders) + 2))
        player = contestant(str(folders.get(name, name)), environment, None, seed)
        rows[name] = _row(name, player, environment, users, seed, candidates)
    if isinstance(environment, Logged):
        rows[BEHAVIOUR] = behaviour(environment, users, seed)
    return rows


def behaviour(environment: Environment, users: int, seed: int) -> Row:
    """The policy that writes the logs of an environment that has one; for a learned user the log's own lists."""
    return _row(BEHAVIOUR, contestant(BEHAVIOUR, environment), environment, users, seed)


def differences(rows: Mapping[str, Row], seed: int, to: str = BEHAVIOUR) -> dict[str, Interval]:
    """Each method's rate minus that of the method called `to`, in points, session by session."""
    tables = {name: row.sessions for name, row in rows.items() if row.sessions is not None}
    if to not in tables:
        return {}
    return {name: difference(table, tables[to], RATE, seed) for name, table in tables.items() if name != to}


def told(rows: Mapping[str, Row], seed: int) -> dict[str, dict[str, Any]]:
    """The rows as JSON, each with its difference to behaviour; null where there is none."""
    found = differences(rows, seed)
    table = {}
    for name, row in rows.items():
        value, low, high = found.get(name, (None, None, None))
        table[name] = row.to_json() | {"difference": value, "difference_low": low, "difference_high": high}
    return table


def _row(
    name: str, policy: Policy, environment: Environment, users: int, seed: int, candidates: Candidates = "all"
) -> Row:
    log = rollout(environment, policy, users, stream_seed(seed, "evaluation"), candidates)
    found = summarise(name, log, environment.responses, environment.n_items, seed)
    sessions = per_session(log, environment.responses)
    if environment.categories is None:
        return Row(found, None, sessions)
    opened = with_openings(log, environment).filter(pl.col("step") == 0)
    first = opened.group_by("session_id", maintain_order=True).first()
    return Row(found, category_accuracy(log, first), sessions)


def logged(dataset: Dataset, split: str, seed: int) -> tuple[float, float, float]:
    """The rate of the target response in the log itself, over what was shown in one split, with its interval."""
    rows = dataset.transitions(split)
    target = dataset.responses.code(dataset.responses.target)
    table = pl.DataFrame({"session_id": rows.session, "target": rows.response == target})
    sessions = table.group_by("session_id", maintain_order=True).agg(steps=pl.len(), targets=pl.col("target").sum())
    found = interval(sessions, RATE, seed)
    return found.value, found.low, found.high


def rank_correlation(one: Mapping[str, Row], other: Mapping[str, Row]) -> float:
    """Spearman's, over the methods that met both kinds of users; the oracles are different policies and left out."""
    names = [name for name in one if name in other and name != ORACLE]
    rates = [np.array([rows[name].evaluation.rate.value for name in names]) for rows in (one, other)]
    return float(spearmanr(*rates).statistic)
