"""Policies side by side on the same simulated users."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.data.cooccurrence import item_vectors
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.origin import Origin
from bcd4rec.data.preparing import PrepareConfig
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.splits import SplitConfig
from bcd4rec.data.states import HISTORY, FloatArray
from bcd4rec.errors import InputError
from bcd4rec.evaluation.metrics import per_session
from bcd4rec.evaluation.summary import Curves, Evaluation, Gap, curves, summarise
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.ranking import Exploration
from bcd4rec.policies.uniform import Uniform
from bcd4rec.policies.wrappers import speaking
from bcd4rec.seeding import stream_seed
from bcd4rec.sim.environment import Environment, Logged, catalogue, origin_of
from bcd4rec.sim.rollout import Oracle, RolloutConfig, rollout, with_ids, with_openings

RANDOM, ORACLE, BEHAVIOUR = "random", "oracle", "behaviour"
NO_EXPLORATION = Exploration()
FIRST_SESSIONS = 2000  # random sessions that a baseline learns from when no data set is given


@dataclass(frozen=True)
class Contestant:
    """A policy with a name and the states it wants to see."""

    name: str
    policy: Policy
    exploration: Exploration = NO_EXPLORATION
    length: int = HISTORY
    skips: int = 0

    def rules(self, rules: RolloutConfig) -> RolloutConfig:
        """The rules of the comparison with this policy's own view of the session and its own randomness."""
        own = {"length": self.length, "skips": self.skips}
        explored = {"exploration": self.exploration} if self.exploration.kind != "none" else {}
        return rules.model_copy(update=own | explored)


def contestant(name: str, environment: Environment, dataset: Dataset | None, seed: int) -> Contestant:
    """A policy by name (`random`, `oracle`, a baseline, which is fitted now) or by the folder of its bundle.

    `behaviour` is the policy that writes the logs of an environment that has one.
    """
    if name == RANDOM:
        return Contestant(name, Uniform(environment.n_items), Exploration(kind="epsilon", epsilon=1.0))
    if name == ORACLE:
        return Contestant(name, Oracle(environment))
    if name == BEHAVIOUR and isinstance(environment, Logged):
        return Contestant(name, environment.behaviour(), Exploration(kind="own"))
    if Path(name).is_dir():
        return _from_bundle(Path(name), environment)
    if name in BASELINES:
        dataset = dataset or random_dataset(environment, seed)
        learned = BASELINES[name]().fit(dataset, seed)
        policy = speaking(learned, dataset.vocabulary, catalogue(environment))
        length, skips = dataset.states.positives.shape[1], dataset.states.skips.shape[1]
        return Contestant(name, policy, length=length, skips=skips)
    own = [BEHAVIOUR] if isinstance(environment, Logged) else []
    known = ", ".join([RANDOM, ORACLE, *own, *BASELINES])
    raise InputError(f"Unknown policy {name!r}; expected the folder of a trained policy or one of {known}.")


def refuse_foreign(names: Sequence[str], environment: Environment, dataset: Path | None) -> None:
    """Only what was learned from logs of an environment can be tried on it: elsewhere item 7 is another item."""
    expected = origin_of(environment)
    if expected is None:
        return
    folders = {name: Path(name) for name in names if Path(name).is_dir()}
    manifests = {name: bundle.read_manifest(folder) for name, folder in folders.items()}
    if dataset is not None:
        manifests[f"--dataset {dataset}"] = Dataset.load(dataset).manifest
    for name, manifest in manifests.items():
        told = manifest.get("origin")
        origin = Origin.parse(told, name) if told is not None else None
        if origin is None or not origin.fits(expected):
            found = f"was learned from {origin}" if origin else "does not tell which users it was learned from"
            raise InputError(
                f"{name} {found}, expected a Parquet log of {expected}, as `bcd4rec simulate` writes it; "
                "judge it on its own log with --log, or here all the same with --foreign."
            )


def default_policy(environment: Environment) -> str:
    """Who writes the logs of an environment unless somebody is named."""
    return BEHAVIOUR if isinstance(environment, Logged) else RANDOM


def _from_bundle(folder: Path, environment: Environment) -> Contestant:
    loaded = bundle.load(folder)
    name = str(loaded.manifest.get("method", folder.name))
    history = loaded.manifest.get("history", {})
    policy = speaking(loaded.policy, loaded.vocabulary, catalogue(environment))
    return Contestant(name, policy, length=history.get("length", HISTORY), skips=history.get("skips", 0))


def slate_vectors(environment: Environment, dataset: Dataset | None) -> FloatArray | None:
    """(A, D) which items of the environment are alike, as the train split of a data set tells; None without one."""
    if dataset is None:
        return None
    learned = item_vectors(dataset.sequences("train"), dataset.n_items)
    places = dataset.vocabulary.positions_of(catalogue(environment))
    return np.where(places[:, None] >= 0, learned[places], np.float32(0))


def random_dataset(environment: Environment, seed: int) -> Dataset:
    """How users answered random recommendations, for baselines that are to be tried without a data set."""
    random = contestant(RANDOM, environment, None, seed)
    first = stream_seed(seed, "first log")
    log = rollout(environment, random.policy, FIRST_SESSIONS, first, random.rules(RolloutConfig()))
    log = with_ids(with_openings(log, environment), environment)
    return Dataset.from_frame(log, environment.responses, PrepareConfig(split=SplitConfig(validation=0.0)), seed)


@dataclass(frozen=True)
class Comparison:
    """What the table and the plots show."""

    evaluations: list[Evaluation]
    curves: dict[str, Curves]
    sessions: dict[str, pl.DataFrame]  # `per_session` of each policy


def compare(
    environment: Environment,
    contestants: Sequence[Contestant],
    users: int,
    seed: int,
    rules: RolloutConfig,
    behaviour: str = RANDOM,
    online: str = ORACLE,
    tick: Tick = no_tick,
    vectors: FloatArray | None = None,
) -> Comparison:
    """Every policy on the same fresh users. The users of `seed` here are never those of `simulate --seed` there."""
    twice = [one.name for one in contestants if [other.name for other in contestants].count(one.name) > 1]
    if twice:
        contestants = [
            replace(one, name=f"{one.name} #{place}") if one.name in twice else one
            for place, one in enumerate(contestants, 1)
        ]
    names = [one.name for one in contestants]
    for end in (behaviour, online):
        if end not in (RANDOM, ORACLE, *names):
            raise InputError(f"The gap needs the policy {end!r}, but there are only {', '.join(names)}.")
    logs: dict[str, pl.DataFrame] = {}
    fresh = stream_seed(seed, "evaluation")
    for number, one in enumerate(contestants):

        def share(stage: str, done: float, number: int = number, name: str = one.name) -> None:
            tick(f"{stage} {name}", (number + done) / len(names))

        logs[one.name] = rollout(environment, one.policy, users, fresh, one.rules(rules), share, vectors)
    responses, n_items = environment.responses, environment.n_items
    sessions = {name: per_session(log, responses) for name, log in logs.items()}
    gap = Gap(sessions[behaviour], sessions[online]) if behaviour in logs and online in logs else None
    evaluations = [summarise(name, log, responses, n_items, seed, gap) for name, log in logs.items()]
    return Comparison(evaluations, {name: curves(log, responses, n_items) for name, log in logs.items()}, sessions)
