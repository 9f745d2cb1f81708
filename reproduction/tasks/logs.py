"""Logs and their data sets: of the interest-evolution environment, of the shop, and those that somebody has."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from bcd4rec.artifacts import content_hash, read_json, write_json
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.schema import Log, default_responses
from bcd4rec.data.sessions import no_tick
from bcd4rec.data.splits import SplitConfig
from bcd4rec.errors import InputError
from bcd4rec.evaluation.metrics import per_session, target_rate
from bcd4rec.runner.store import TaskStore
from bcd4rec.runner.tasks import Task
from bcd4rec.seeding import stream_seed
from bcd4rec.sim.environment import Environment
from bcd4rec.sim.interest_evolution import InterestEvolution
from bcd4rec.sim.rollout import rollout, write_log
from bcd4rec.sim.shop import Shop
from bcd4rec.sim.shop_config import preset
from bcd4rec.sim.shop_raw import RawWriter
from bcd4rec.sim.traffic import TrafficConfig, traffic
from bcd4rec.workflows.comparison import contestant, random_policy
from bcd4rec.workflows.online import OnlineConfig, learn_online

Settings = tuple[tuple[str, Any], ...]  # of a method or a reader, in place of its defaults
CHECKPOINT_USERS = 500  # whom a checkpoint meets to be chosen


@dataclass(frozen=True)
class Checkpoints(Task):
    """An IQN that learns online from scratch with falling ε: its policy after every round, and what each gets."""

    rounds: int
    users: int
    seed: int
    settings: Settings = ()
    last_epsilon: float = 0.02
    cost: ClassVar[float] = 250.0

    @property
    def label(self) -> str:
        return f"online IQN for RecSim-2 and -3, seed {self.seed}"

    def make(self, folder: Path, store: TaskStore) -> None:
        environment = InterestEvolution()
        config = OnlineConfig(rounds=self.rounds, users=self.users, last_epsilon=self.last_epsilon)
        found = []
        for one in learn_online(environment, config, dict(self.settings), {}, self.seed):
            path = folder / f"round-{one.number + 1}"
            path.mkdir()
            one.fitted.save(one.dataset, path)
            epsilon = config.epsilon(min(one.number + 1, self.rounds - 1))  # with which it meets the next round
            player = Checkpoint(path, epsilon)
            rate = player.rate(environment, stream_seed(self.seed, "checkpoint"))
            found.append({"round": one.number + 1, "epsilon": epsilon, "rate": rate})
        write_json(folder / "rounds.json", found)


@dataclass(frozen=True)
class Checkpoint:
    """A policy with the ε it still had."""

    folder: Path
    epsilon: float

    def play(self, environment: Environment, users: int, seed: int) -> pl.DataFrame:
        policy = contestant(str(self.folder), environment)
        exploring = policy.with_rule(exploration={"kind": "epsilon", "epsilon": self.epsilon})
        return rollout(environment, exploring, users, seed)

    def rate(self, environment: Environment, seed: int) -> float:
        log = self.play(environment, CHECKPOINT_USERS, seed)
        return target_rate(per_session(log, environment.responses))

    @classmethod
    def nearest(cls, folder: Path, rate: float) -> "Checkpoint":
        best = min(read_json(folder / "rounds.json"), key=lambda one: abs(one["rate"] - rate))
        return cls(folder / f"round-{best['round']}", best["epsilon"])


@dataclass(frozen=True)
class RecSimLog(Task):
    """A log of the interest-evolution environment and its data set: of random recommendations, or of a checkpoint."""

    name: str
    sessions: int
    seed: int
    checkpoints: Checkpoints | None = None
    rate: float | None = None  # the checkpoint whose CTR is nearest
    history: str = "all"
    cost: ClassVar[float] = 8.0

    @property
    def label(self) -> str:
        return f"log of {self.name}, {self.sessions:,} sessions, seed {self.seed}"

    def behaviour(self, users: int, seed: int, store: TaskStore) -> pl.DataFrame:
        environment = InterestEvolution()
        if self.checkpoints is not None and self.rate is not None:
            chosen = Checkpoint.nearest(store.path(self.checkpoints), self.rate)
            return chosen.play(environment, users, seed)
        return rollout(environment, random_policy(environment), users, seed)

    def make(self, folder: Path, store: TaskStore) -> None:
        log = folder / "log.parquet"
        write_log(self.behaviour(self.sessions, self.seed, store), log, InterestEvolution())
        config = PrepareConfig.parse({"transitions": {"history": self.history}}, "history")
        prepare(Log(log), InterestEvolution().responses, config, folder / "dataset", self.seed)


@dataclass(frozen=True)
class ShopLog(Task):
    """Days of the synthetic shop, written as Diginetica's raw files and read by the same reader."""

    days: int
    scale: float
    seed: int
    name: str = "shop"
    cost: ClassVar[float] = 60.0

    @property
    def label(self) -> str:
        return f"log of the shop, {self.days} days, seed {self.seed}"

    def make(self, folder: Path, store: TaskStore) -> None:
        shop = Shop(preset("pages"))
        raw = folder / "raw"
        raw.mkdir()
        config = TrafficConfig(days=self.days, scale=self.scale)
        with RawWriter(raw, shop.catalogue, self.seed, origin=shop.origin) as writer:
            for day in traffic(shop, contestant("behaviour", shop), config, self.seed):
                writer.write(day)
        _prepare_raw(raw, "diginetica", {"cut": "none"}, {}, folder, self.seed)


@dataclass(frozen=True)
class RealLog(Task):
    """Raw files that somebody has, by their content."""

    name: str
    path: str
    content: str
    seed: int
    options: Settings = ()
    periods: Settings = ()
    cost: ClassVar[float] = 30.0
    here: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"log of {self.name}, seed {self.seed}"

    @classmethod
    def of(cls, name: str, path: Path, seed: int, options: Settings = (), periods: Settings = ()) -> "RealLog":
        return cls(name, str(path.absolute()), _content(path), seed, options, periods)

    def make(self, folder: Path, store: TaskStore) -> None:
        _prepare_raw(Path(self.path), self.name, dict(self.options), dict(self.periods), folder, self.seed)


@cache
def _content(path: Path) -> str:
    """A hash of a file, or of all files of a folder."""
    if path.is_file():
        return content_hash(path.parent, [path.name])
    if not path.is_dir():
        raise InputError(f"{path} does not exist; expected the raw log that was to be read.")
    return content_hash(path, [file.name for file in path.iterdir() if file.is_file()])


def _prepare_raw(
    raw: Path, name: str, options: dict[str, Any], periods: dict[str, float], folder: Path, seed: int
) -> None:
    from bcd4rec.data.readers.reader import READERS

    reader = READERS[name].parse(options, f"{name} options")
    reading = reader.read(raw, folder / "log.parquet", folder, no_tick).to_json()
    split = SplitConfig(by="time", periods=periods or reader.periods)
    config = PrepareConfig(split=split)
    log = Log(folder / "log.parquet")
    prepare(log, default_responses(log), config, folder / "dataset", seed, reading=reading)


@dataclass(frozen=True)
class PreparedLog(Task):
    """A data set that somebody has prepared, by its content."""

    path: str
    content: str
    cost: ClassVar[float] = 0.1
    here: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def label(self) -> str:
        return f"data set {self.name}"

    def make(self, folder: Path, store: TaskStore) -> None:
        (folder / "dataset").symlink_to(self.path, target_is_directory=True)


AnyLog = RecSimLog | ShopLog | RealLog | PreparedLog


def dataset_of(log: AnyLog, store: TaskStore) -> Dataset:
    return Dataset.load(store.path(log) / "dataset")
