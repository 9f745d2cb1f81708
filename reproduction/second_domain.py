"""The paper's second domain: what was learned from one period of a log meets a user learned from an earlier one.

Everything that takes time is a task. Where the truth is known, as in the synthetic shop, the same policies meet the
true users, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import spearmanr

from bcd4rec.data.dataset import Dataset
from bcd4rec.evaluation.statistics import RATE, Interval, difference, interval
from bcd4rec.sim.environment import ENVIRONMENTS, EnvironmentOptions, Logged
from bcd4rec.workflows.comparison import BEHAVIOUR, ORACLE, RANDOM
from reproduction.results import EvaluationRuns
from reproduction.tasks.evaluations import EvaluationRun
from reproduction.tasks.learners import AGENTS, BASELINES, ROUNDS, Trained, TrainedOnline, User
from reproduction.tasks.logs import Settings

Found = Mapping[str, EvaluationRuns]  # by method


@dataclass(frozen=True)
class SecondDomain:
    """Every method, learned from the same data set, and the users that it meets."""

    user: User
    agents: Settings = ()  # settings of all agents
    rounds: int = ROUNDS.rounds
    round_users: int = ROUNDS.users
    users: int = 1000
    candidates: str = "all"

    def runs(self, truth: str | None = None) -> dict[str, EvaluationRun]:
        """All methods on fresh users, learned or of the environment `truth`, behaviour last where it is known."""
        log, seed = self.user.log, self.user.seed
        trained: dict[str, str | Trained | TrainedOnline] = {
            name: Trained(log, name, seed, self.agents if name in AGENTS else ()) for name in (*BASELINES, *AGENTS)
        }
        online = TrainedOnline(self.user, self.rounds, self.round_users, seed, self.agents, self.candidates)
        players = {RANDOM: RANDOM, **trained, "online": online, ORACLE: ORACLE}
        if truth is None or isinstance(ENVIRONMENTS[truth](EnvironmentOptions()), Logged):
            players[BEHAVIOUR] = BEHAVIOUR
        return {
            name: EvaluationRun(truth or self.user, player, self.users, seed, self.candidates)
            for name, player in players.items()
        }


def differences(found: Found, seed: int, to: str = BEHAVIOUR) -> dict[str, Interval]:
    """Each method's rate minus that of the method called `to`, in points, session by session."""
    if to not in found:
        return {}
    return {name: difference(one.sessions, found[to].sessions, RATE, seed) for name, one in found.items() if name != to}


def as_json(found: Found, seed: int) -> dict[str, dict[str, Any]]:
    """What each method reached, with its difference to behaviour; null where there is none."""
    apart, rows = differences(found, seed), {}
    for name, one in found.items():
        value, low, high = apart.get(name, (None, None, None))
        more = {"difference": value, "difference_low": low, "difference_high": high}
        rows[name] = {"category_accuracy": None} | one.results[0] | more
    return rows


def logged(dataset: Dataset, split: str, seed: int) -> tuple[float, float, float]:
    """The rate of the target response in the log itself, over what was shown in one split, with its interval."""
    rows = dataset.transitions(split)
    target = dataset.responses.code(dataset.responses.target)
    table = pl.DataFrame({"session_id": rows.session, "target": rows.response == target})
    sessions = table.group_by("session_id", maintain_order=True).agg(steps=pl.len(), targets=pl.col("target").sum())
    found = interval(sessions, RATE, seed)
    return found.value, found.low, found.high


def rank_correlation(one: Found, other: Found) -> float:
    """Spearman's, over the methods that met both kinds of users; the oracles are different policies and left out."""
    names = [name for name in one if name in other and name != ORACLE]
    rates = [np.array([found[name].mean() for name in names]) for found in (one, other)]
    return float(spearmanr(*rates).statistic)
