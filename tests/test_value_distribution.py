"""Value distributions: users played one by one in a plain loop, distances worked out by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.responses import RECSIM
from bcd4rec.data.schema import Log
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.data.transitions import TransitionConfig
from bcd4rec.errors import InputError
from bcd4rec.seeding import stream_seed
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig
from bcd4rec.sim.rollout import rollout
from bcd4rec.workflows.comparison import random_policy
from reproduction.value_distribution import ValueDistributions, value_distributions

USERS, GAMMA, SEED = 9, 0.8, 3
SMALL = InterestEvolutionConfig(categories=5, items=23, slate_size=4, horizon=6)


@pytest.fixture(scope="module")
def environment() -> InterestEvolution:
    return InterestEvolution(SMALL)


def dataset_of(environment: InterestEvolution, folder: Path, convention: str = "shown", shift: int = 0) -> Dataset:
    log = rollout(environment, random_policy(environment), 30, 0).with_columns(pl.col("item_id") + shift)
    log.filter(pl.col("item_id") != 4).write_parquet(folder / "log.parquet")  # the data set does not know item 4
    config = TransitionConfig.parse({"convention": convention, "gamma": GAMMA, "skips": 40}, "test")
    prepare(Log(folder / "log.parquet"), RECSIM, PrepareConfig(transitions=config), folder / "dataset")
    return Dataset.load(folder / "dataset")


class Foretold:
    """Quantiles that are written down; it remembers what it was asked."""

    def __init__(self, *values: float):
        self.values = values

    def quantiles(self, states: States, items: IntArray, count: int = 0) -> FloatArray:
        assert len(states) == len(items) == 1
        assert (states.positives == PAD).all()
        assert states.skips.shape == (1, 40)
        self.asked = int(items[0])
        return np.array([self.values], np.float32)


def play(environment: InterestEvolution, user: int, item: int, seed: int) -> list[list[float]]:
    """The rewards of each step's slate: `item` first, then what the user likes best and has not clicked."""
    environment.reset(user + 1, seed)
    clicked: set[int] = set()
    rewards = []
    for step in range(SMALL.horizon):
        interests = environment.interests[user].tolist()
        order = sorted(range(23), key=lambda one: (-np.float32(interests[environment.categories[one]]), one))
        ranked = [one for one in order if one not in clicked]
        if step == 0:
            ranked = [item, *(one for one in ranked if one != item)]
        slates = np.full((user + 1, 4), PAD, np.int32)
        slates[user] = ranked[:4]
        responses = environment.step(slates).responses[user].tolist()
        clicked |= {one for one, response in zip(ranked[:4], responses, strict=True) if response}
        rewards.append([4.0 * response for response in responses])
    return rewards


def users_of(environment: InterestEvolution, category: int, seed: int) -> list[int]:
    environment.reset(2000, seed)
    best = [max(range(5), key=lambda one: row[one]) for row in environment.interests.tolist()]
    return [user for user, favourite in enumerate(best) if favourite == category][:USERS]


def discounted(values: list[float]) -> float:
    return sum(GAMMA**step * value for step, value in enumerate(values))


@pytest.mark.parametrize("convention", ["shown", "chosen"])
def test_returns_are_those_of_users_played_one_by_one(
    convention: str, environment: InterestEvolution, tmp_path: Path
) -> None:
    dataset = dataset_of(environment, tmp_path, convention)
    policy = Foretold(1.0)
    found = value_distributions(environment, {"dqn": policy}, dataset, SEED, USERS)
    assert dataset.vocabulary.id(policy.asked) == found.item != 4
    assert len({one.category for one in found.types}) == 3
    assert found.feasible == pytest.approx(discounted([4.0] * 6))
    assert found.relative(found.feasible / 4) == pytest.approx(0.25)
    fresh = stream_seed(SEED, "value distribution", "users")
    for one in found.types:
        played = [play(environment, user, found.item, fresh) for user in users_of(environment, one.category, fresh)]
        if convention == "shown":
            items = [discounted([slate[0] for slate in steps]) for steps in played]
            slates = [discounted([sum(slate) / 4 for slate in steps]) for steps in played]
            assert sum(items) > 0
        else:
            items = slates = [discounted([max(slate) for slate in steps]) for steps in played]
        assert one.returns["item"].tolist() == pytest.approx(items)
        assert one.returns["slate"].tolist() == pytest.approx(slates)


def test_distances_are_areas_between_distribution_functions(environment: InterestEvolution, tmp_path: Path) -> None:
    dataset = dataset_of(environment, tmp_path)
    policies = {"point": Foretold(2.5), "spread": Foretold(0.0, 1.0, 4.0)}
    found = value_distributions(environment, policies, dataset, SEED, USERS)
    assert found.quantiles["spread"].tolist() == [0.0, 1.0, 4.0]
    for one in found.types:
        own = sorted(one.returns["item"].tolist())
        # Nine users against three quantiles: each stands for three users in order.
        spread = sum(abs(value - (0.0, 1.0, 4.0)[place // 3]) for place, value in enumerate(own)) / USERS
        assert one.distances["item"]["spread"] == pytest.approx(spread)
        assert one.distances["slate"]["point"] == pytest.approx(np.abs(one.returns["slate"] - 2.5).mean())


def bits(found: ValueDistributions) -> list[object]:
    returns = [array.tobytes() for one in found.types for array in one.returns.values()]
    return [found.item, [one.category for one in found.types], returns, [one.distances for one in found.types]]


def test_the_same_seed_gives_the_same_bits(environment: InterestEvolution, tmp_path: Path) -> None:
    dataset = dataset_of(environment, tmp_path)
    first, second, other = (
        value_distributions(InterestEvolution(SMALL), {"dqn": Foretold(1.0)}, dataset, seed, USERS)
        for seed in (1, 1, 2)
    )
    assert bits(first) == bits(second) != bits(other)


@pytest.mark.parametrize(
    ("network", "distinct"),
    [
        ({"evidence": False, "pretraining": "svd", "dimension": 6, "encoder": "meanpool"}, (1, 7, 200)),
        ({"evidence": True}, (1, 7, 32)),  # so many are learned; between them they are interpolated
    ],
)
def test_trained_agents_tell_as_many_quantiles_as_they_can(
    network: dict[str, Any], distinct: tuple[int, ...], environment: InterestEvolution, tmp_path: Path
) -> None:
    from bcd4rec.workflows.fitting import fit

    dataset = dataset_of(environment, tmp_path)
    quick = network | {"updates": 3, "batch_size": 8, "quantiles": 7}
    names = ("dqn", "qrdqn", "iqn")
    policies = {name: fit(name, dataset, quick).scorer for name in names}
    found = value_distributions(environment, policies, dataset, SEED, USERS)
    for name, count in zip(names, distinct, strict=True):
        values = found.quantiles[name]
        assert (np.diff(values) >= 0).all()
        assert len(np.unique(values)) >= count if count > 1 else np.ptp(values) == 0


def test_another_catalogue_is_refused(environment: InterestEvolution, tmp_path: Path) -> None:
    dataset = dataset_of(environment, tmp_path, shift=100)
    with pytest.raises(InputError, match="knows no item of this environment"):
        value_distributions(environment, {}, dataset)
