"""Are the returns that an agent foretells those that users bring? The paper's value distributions (appendix E).

Users of a type like one category best. All of them are in the same state s₀, a session that has just begun, and are
shown the same item a₀ in the first place, above the best six of the online policy, which sees into the users and goes
on for the rest of the session. The discounted returns of a type are one distribution; what an agent has learned about
Z(s₀, a₀) is the other, the same for all types, since from s₀ nobody can tell them apart.

An agent that learns from every shown item (`shown`) values *one shown item* a step, so there are two readings of what
a user brings. By `item` it follows one item of each slate, as the agent does: a₀, then always the first. By `slate` a
step is worth the mean reward of its items: the expectation is much the same, but most of the luck is averaged out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import wasserstein_distance

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.states import PAD, Doubles, FloatArray, IntArray, States
from bcd4rec.errors import InputError
from bcd4rec.policies.policy import Memory
from bcd4rec.seeding import generator, stream_seed
from bcd4rec.sim.environment import Environment, catalogue
from bcd4rec.sim.interest_evolution import InterestEvolution
from bcd4rec.sim.rollout import Oracle, policy_of, rollout

Unit = Literal["item", "slate"]
TYPES = 3
QUANTILES = 200  # of agents that can tell any; others may have their own number, and one value is a point mass


@runtime_checkable
class Distributional(Protocol):
    """A policy that knows more of a return than its mean."""

    def quantiles(self, states: States, items: IntArray, count: int = 0) -> FloatArray:
        """(B, N) equally likely returns of `items` (B,), in the unit of the rewards."""
        ...


@dataclass(frozen=True)
class UserType:
    """Users who like one category best. Distances (Wasserstein-1) are in the unit of the rewards."""

    category: int
    returns: Mapping[Unit, Doubles]  # (users,) each
    distances: Mapping[Unit, Mapping[str, float]]  # by agent


@dataclass(frozen=True)
class ValueDistributions:
    """Every type of users beside every agent. `feasible` is the largest return that a session can bring."""

    item: int  # a₀, as the environment numbers it
    quantiles: Mapping[str, FloatArray]  # by agent
    types: tuple[UserType, ...]
    feasible: float

    def relative(self, distance: float) -> float:
        """A distance as a share of the largest feasible return."""
        return distance / self.feasible


def value_distributions(
    environment: InterestEvolution,
    policies: Mapping[str, Distributional],
    dataset: Dataset,
    seed: int = 0,
    users: int = 50,
) -> ValueDistributions:
    """Play `users` users of three random types; the agents' items are numbered as in `dataset`, which they learned."""
    rng = generator(seed, "value distribution")
    categories = np.unique(environment.categories)
    chosen = rng.choice(categories, min(TYPES, len(categories)), replace=False)
    known = dataset.vocabulary.positions_of(catalogue(environment))  # (A,) numbers in the data set
    if (known == PAD).all():
        raise InputError("The data set knows no item of this environment; prepare it from a log of its users.")
    item = int(rng.choice(np.flatnonzero(known != PAD)))
    fresh = stream_seed(seed, "value distribution", "users")
    members = _members(environment, chosen, users, fresh)
    pool = 1 + max(int(rows.max()) for rows in members)
    begins = policy_of(BeginsWith(environment, item), environment, "oracle", memory=Memory(skips=1))
    log = rollout(environment, begins, pool, fresh)
    returns = _returns(log, environment, dataset)
    state = States.empty(1, dataset.states.positives.shape[1], dataset.states.skips.shape[1])
    asked = known[[item]]
    quantiles = {name: policy.quantiles(state, asked, QUANTILES)[0] for name, policy in policies.items()}
    types = tuple(
        _user_type(int(category), {unit: all_returns[rows] for unit, all_returns in returns.items()}, quantiles)
        for category, rows in zip(chosen, members, strict=True)
    )
    steps = dataset.gamma ** np.arange(environment.horizon)
    return ValueDistributions(item, quantiles, types, max(environment.responses.rewards.values()) * float(steps.sum()))


class BeginsWith(Oracle):
    """The online policy, made to show one item in the first place of a session's first slate."""

    def __init__(self, environment: Environment, item: int):
        super().__init__(environment)
        self._item = item

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        if candidates is not None:
            raise NotImplementedError("only whole catalogues are ranked here")
        scores = super().scores(states)
        begun = (states.positives != PAD).any(axis=1) | (states.skips != PAD).any(axis=1)
        scores[~begun, self._item] = np.inf
        return scores


def _members(environment: InterestEvolution, categories: IntArray, users: int, seed: int) -> list[NDArray[np.intp]]:
    """The first `users` users of the seed who like each of the categories best; more are drawn until all are found."""
    pool = 2 * users * environment.config.categories
    while True:
        environment.reset(pool, seed)
        favourite = environment.interests.argmax(axis=1)
        found = [np.flatnonzero(favourite == category)[:users] for category in categories]
        if all(len(rows) == users for rows in found):
            return found
        pool *= 2


def _returns(log: pl.DataFrame, environment: InterestEvolution, dataset: Dataset) -> dict[Unit, Doubles]:
    """(pool,) the discounted return of every user, by both readings of what a step is worth.

    Where the agents learn from one transition a step (`chosen`), there is only one: what the slate brought.
    """
    reward = pl.col("response").replace_strict(environment.responses.rewards, return_dtype=pl.Float64)
    steps = log.group_by("session_id", "step", maintain_order=True)
    one_a_step = dataset.manifest["config"].get("convention") == "chosen"
    worth = {
        "item": reward.max() if one_a_step else reward.sort_by("position").first(),
        "slate": reward.max() if one_a_step else reward.mean(),
    }
    table = steps.agg(**worth).with_columns(weight=pl.lit(dataset.gamma).pow("step"))
    sums = table.group_by("session_id", maintain_order=True).agg(
        (pl.col(unit) * pl.col("weight")).sum() for unit in get_args(Unit)
    )
    return {unit: sums[unit].to_numpy() for unit in get_args(Unit)}


def _user_type(category: int, returns: dict[Unit, Doubles], quantiles: Mapping[str, FloatArray]) -> UserType:
    distances = {
        unit: {name: float(wasserstein_distance(own, learned)) for name, learned in quantiles.items()}
        for unit, own in returns.items()
    }
    return UserType(category, returns, distances)
