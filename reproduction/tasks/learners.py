"""What learns from a log: the user of the second domain, every method, and the agent that may explore."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bcd4rec.artifacts import write_json
from bcd4rec.evaluation.recall import recall
from bcd4rec.models.learned_user import LearnedUser
from bcd4rec.runner.store import TaskStore
from bcd4rec.runner.tasks import Task
from bcd4rec.sim.learned import Learned, LearnedConfig
from bcd4rec.sim.rollout import as_candidates
from bcd4rec.workflows.fitting import fit
from bcd4rec.workflows.online import OnlineConfig, learn_online
from bcd4rec.workflows.users import fit_user
from reproduction.tasks.logs import AnyLog, Settings, dataset_of

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
# Online learning goes on from the log, so that it need not find by chance what the log knows.
ROUNDS = OnlineConfig(rounds=4, users=2000, first_epsilon=0.3, last_epsilon=0.05)
COSTS = {
    "popular": 1.0,
    "ctr": 1.0,
    "category_popular": 1.0,
    "markov": 1.0,
    "sknn": 2.0,
    "vsknn": 2.0,
    "stan": 2.0,
    "response": 10.0,
    "item2vec": 10.0,
    "gru4rec": 40.0,
    "srgnn": 40.0,
}


@dataclass(frozen=True)
class User(Task):
    """The user that is learned from the earlier period of a log."""

    log: AnyLog
    seed: int
    settings: Settings = ()
    played: Settings = ()  # how its sessions are played
    cost: ClassVar[float] = 90.0

    @property
    def label(self) -> str:
        return f"learned user of {self.log.name}, seed {self.seed}"

    def make(self, folder: Path, store: TaskStore) -> None:
        (folder / "user").mkdir()
        fit_user(dataset_of(self.log, store), dict(self.settings), self.seed).save(folder / "user")


@dataclass(frozen=True)
class Trained(Task):
    """A method that has learned from a log, and what can be said of it from the log alone."""

    log: AnyLog
    method: str
    seed: int
    settings: Settings = ()

    @property
    def label(self) -> str:
        told = "".join(f", {name}={value}" for name, value in self.settings)
        return f"{self.method} on {self.log.name}{told}, seed {self.seed}"

    def weight(self) -> float:
        return COSTS.get(self.method, 40.0)

    def make(self, folder: Path, store: TaskStore) -> None:
        dataset = dataset_of(self.log, store)
        fitted = fit(self.method, dataset, dict(self.settings), self.seed, shared=store.shared(self))
        (folder / "policy").mkdir()
        fitted.save(dataset, folder / "policy")
        found = recall(fitted.scorer, dataset, "validation", 3, self.seed)
        q_bar = fitted.about.get("training", {}).get("q_bar")
        write_json(folder / "offline.json", {"q_bar": q_bar, "recall@3": found.interval.value})


@dataclass(frozen=True)
class TrainedOnline(Task):
    """The IQN that may try things on the users it is tested on: the upper line."""

    user: User
    rounds: int
    users: int
    seed: int
    settings: Settings = ()
    candidates: str = "all"
    cost: ClassVar[float] = 300.0

    @property
    def label(self) -> str:
        return f"online IQN on {self.user.log.name}, seed {self.seed}"

    def make(self, folder: Path, store: TaskStore) -> None:
        dataset = dataset_of(self.user.log, store)
        config = ROUNDS.model_copy(update={"rounds": self.rounds, "users": self.users})
        settings = dict(self.settings)
        user, candidates = learned_user(self.user, store), as_candidates(self.candidates)
        *_, last = learn_online(user, config, settings, {}, self.seed, known=dataset, candidates=candidates)
        (folder / "policy").mkdir()
        last.fitted.save(last.dataset, folder / "policy")


def learned_user(user: User, store: TaskStore) -> Learned:
    return Learned(LearnedUser.load(store.path(user) / "user"), LearnedConfig.parse(dict(user.played), "played"))
