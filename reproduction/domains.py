"""The paper's domains: where the log comes from, and who plays the users."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import Field

from bcd4rec.config import Config
from reproduction.tasks.evaluations import AnyEvaluationRun, EvaluationRun, ObservingEvaluationRun
from reproduction.tasks.learners import Trained, TrainedOnline, User
from reproduction.tasks.logs import AnyLog, Checkpoints, RealLog, RecSimLog, Settings, ShopLog


class Sizes(Config):
    """How much is computed."""

    seeds: int = Field(ge=1, description="Runs with different logs, agents and users.")
    sessions: int = Field(ge=1, description="Sessions of a RecSim log.")
    users: int = Field(ge=1, description="Fresh users that every policy meets.")
    rounds: int = Field(ge=2, description="Rounds of the online agent that writes the logs of RecSim-2 and -3.")
    round_users: int = Field(ge=1, description="Users in each of them.")
    days: int = Field(ge=1, description="Days of the shop.")
    scale: float = Field(gt=0, description="Sessions a day, in times of the paper's data.")
    online_rounds: int = Field(ge=1, description="Rounds of the online agent on learned users.")
    online_users: int = Field(ge=1, description="Users in each of them.")
    agents: dict[str, Any] = Field(default_factory=dict, description="Settings of every agent, not its defaults.")
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Settings of some other methods.")


class Domain:
    """A column of table 1."""

    title: str
    rate: str  # CTR or BR
    worlds: tuple[str, ...] = ("learned",)  # "learned" is the only kind of user there is, where none is learned
    candidates = "all"  # or of the session's category
    user: Settings = ()  # settings of the learned user
    played: Settings = ()  # how its sessions are played
    baselines: tuple[str, ...] = ("random", "behaviour", "online", "oracle")

    def __init__(self, sizes: Sizes, source: Path | None = None):
        self.sizes, self.source = sizes, source

    @property
    def available(self) -> bool:
        return True

    @property
    def settings(self) -> Settings:
        """Of all agents."""
        return tuple(sorted(self.sizes.agents.items()))

    def log(self, seed: int, **changes: Any) -> AnyLog:
        raise NotImplementedError

    def world(self, log: AnyLog, seed: int, kind: str) -> User | RecSimLog | ShopLog:
        if kind == "true" and isinstance(log, ShopLog):
            return log
        return User(log, seed, self.user, self.played)

    def evaluated(self, player: str | Trained | TrainedOnline, log: AnyLog, seed: int, kind: str) -> EvaluationRun:
        return EvaluationRun(self.world(log, seed, kind), player, self.sizes.users, seed, self.candidates)

    def baseline(self, name: str, seed: int, kind: str, changes: dict[str, Any]) -> AnyEvaluationRun:
        """A policy that is not learned from the log: one of `baselines`."""
        log = self.log(seed, **changes)
        return self.online(log, seed, kind) if name == "online" else self.evaluated(name, log, seed, kind)

    def online(self, log: AnyLog, seed: int, kind: str) -> AnyEvaluationRun:
        """The agent that may try things on users."""
        user, sizes = User(log, seed, self.user, self.played), self.sizes
        agent = TrainedOnline(user, sizes.online_rounds, sizes.online_users, seed, self.settings, self.candidates)
        return self.evaluated(agent, log, seed, kind)


class RecSim(Domain):
    """The interest-evolution environment; the log is random's, or of an online agent's checkpoint."""

    rate = "CTR"
    baselines = ("random", "behaviour", "filter", "online", "oracle")
    behaviour_rate: float | None = None  # the paper's, whose nearest checkpoint writes the log

    def log(self, seed: int, **changes: Any) -> RecSimLog:
        sizes = self.sizes
        values: dict[str, Any] = {"sessions": sizes.sessions} | changes
        if self.behaviour_rate is not None:
            online = Checkpoints(sizes.rounds, sizes.round_users, seed, self.settings)
            values |= {"checkpoints": online, "rate": self.behaviour_rate}
        return RecSimLog(self.title, seed=seed, **values)

    def world(self, log: AnyLog, seed: int, kind: str) -> User | RecSimLog | ShopLog:
        return log if isinstance(log, RecSimLog) else super().world(log, seed, kind)

    def baseline(self, name: str, seed: int, kind: str, changes: dict[str, Any]) -> AnyEvaluationRun:
        """The filter needs no log, so it is the same for the three columns."""
        if name != "filter":
            return super().baseline(name, seed, kind, changes)
        return self.evaluated(name, RecSim1(self.sizes).log(seed), seed, kind)

    def online(self, log: AnyLog, seed: int, kind: str) -> AnyEvaluationRun:
        """As in the paper, it sees the user's interests and needs no log, so it is the same for the three columns."""
        sizes = self.sizes
        return ObservingEvaluationRun(
            RecSim1(sizes).log(seed), sizes.rounds, sizes.round_users, sizes.users, seed, self.settings
        )


class RecSim1(RecSim):
    title = "RecSim-1"


class RecSim2(RecSim):
    title, behaviour_rate = "RecSim-2", 68.3


class RecSim3(RecSim):
    title, behaviour_rate = "RecSim-3", 79.9


class SyntheticShop(Domain):
    """The synthetic shop through Diginetica's raw files; its users are learned, and the true ones are known, too."""

    title, rate, worlds = "DN (shop)", "BR", ("learned", "true")

    def log(self, seed: int, **changes: Any) -> ShopLog:
        return ShopLog(self.sizes.days, self.sizes.scale, seed)


class Real(Domain):
    """A log that the user has."""

    rate, name = "BR", ""
    options: Settings = ()
    periods: Settings = ()

    @property
    def available(self) -> bool:
        return self.source is not None

    def log(self, seed: int, **changes: Any) -> RealLog:
        return RealLog.of(self.name, self.source or Path(), seed, self.options, self.periods)


class Trivago(Real):
    """Places to stay. A search is answered with places of one city, so everybody recommends from the session's city."""

    title, name, candidates = "trivago", "trivago", "category"
    options = (("cut", "none"), ("min_support", 10))
    periods = (("user", 1.2), ("train", 0.5), ("test", 0.3))  # days, one after the other
    user = (("batch_size", 8), ("epochs", 60), ("learning_rate", 0.01), ("patience", 3), ("width", 8))
    played = (("most", 5), ("unavailable", "recommended"))


class Diginetica(Real):
    title, name = "DN (Diginetica)", "diginetica"


DOMAINS: dict[str, Callable[[Sizes, Path | None], Domain]] = {
    "recsim-1": RecSim1,
    "recsim-2": RecSim2,
    "recsim-3": RecSim3,
    "shop": SyntheticShop,
    "trivago": Trivago,
    "diginetica": Diginetica,
}
