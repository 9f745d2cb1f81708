"""Play a policy against simulated users and write what happened as a canonical impression log."""

from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field

from bcd4rec.config import Config
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.states import HISTORY, PAD, FloatArray, IntArray, States, after_slate
from bcd4rec.errors import InputError
from bcd4rec.policies.diversity import spread
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.ranking import Drawing, Exploration, Slates, exclude, make_slates
from bcd4rec.seeding import generator
from bcd4rec.sim.environment import Environment, Supported, catalogue, categories_sought, openings, origin_of

AfterSkip = Literal["repeat", "exclude"]
Candidates = Literal["all", "category"]
Rows = NDArray[np.intp]


class RolloutConfig(Config):
    """The rules of an evaluation, the same for all policies that are compared."""

    exploration: Exploration = Field(default_factory=Exploration)
    """How slates depart from the ranking."""
    after_skip: AfterSkip = "repeat"
    """After a slate was skipped: show what the ranking says (`repeat`), or keep its items out once (`exclude`)."""
    candidates: Candidates = "all"
    """What may be recommended: every item, or those of the `category` of what the user clicked first, as a search in a
    city is answered with places of that city; users who clicked nothing get all. Policies that draw their own slates,
    as behaviour policies do, show what they show."""
    diversity: float = Field(default=0.0, ge=0)
    """λ: how much an item loses by each item like it in the same slate (see `policies.diversity`)."""
    length: int = Field(default=HISTORY, ge=1)
    """L: how many positive items a state holds."""
    skips: int = Field(default=0, ge=0)
    """S: how many skipped items a state holds."""


class Oracle:
    """Sees into the users of one environment: the upper bound that no policy from logs can pass."""

    def __init__(self, environment: Environment):
        self._environment = environment

    @property
    def n_items(self) -> int:
        return self._environment.n_items

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        scores = self._environment.oracle_scores()
        if candidates is None:
            return scores
        chosen = np.take_along_axis(scores, np.maximum(candidates, 0), axis=1)
        return np.where(candidates == PAD, np.float32(-np.inf), chosen)


def rollout(
    environment: Environment,
    policy: Policy,
    users: int,
    seed: int,
    config: RolloutConfig | None = None,
    tick: Tick = no_tick,
    vectors: FloatArray | None = None,
) -> pl.DataFrame:
    """The log of `users` fresh sessions, sorted by session, step and position.

    The same seed gives the same users with the same luck, whatever the policy, so that policies are compared on the
    same users. Exploration has a stream of its own. Diverse slates need the `vectors` (A, D) of the items.
    What the users had looked at before (`openings`) is in the first states and not in the log: see `with_openings`.
    Items have their numbers as ids: see `with_ids`. Where the environment knows its support, the column `outside` says
    which impressions lie outside of it.
    """
    config = config or RolloutConfig()
    if policy.n_items != environment.n_items:
        raise InputError(f"The policy knows {policy.n_items} items, but the environment has {environment.n_items}.")
    if config.diversity and vectors is None:
        raise InputError("Diverse slates need to know which items are alike; give a data set with --dataset.")
    environment.reset(users, seed)
    luck = generator(seed, "exploration")
    positive = [environment.responses.code(name) for name in environment.responses.positive]
    gone = openings(environment, users)  # (B, E) items that may not be recommended again
    states = after_slate(States.empty(users, config.length, config.skips), gone, gone != PAD)
    if environment.unavailable in ("nothing", "recommended"):
        gone = gone[:, :0]
    skipped = np.full((users, environment.slate_size), PAD, np.int32)  # the slate before, where all of it was skipped
    alive = np.ones(users, np.bool_)
    allowed = _allowed(environment, users, config)
    # Who has left need not be asked about; but an oracle knows all users at once, and so does who draws slates itself.
    thrifty = config.exploration.kind != "own" and not isinstance(policy, Oracle)
    parts: list[pl.DataFrame] = []
    for step in range(environment.horizon):
        tick("simulating", step / environment.horizon)
        kept_out = gone
        if config.after_skip == "exclude" and environment.unavailable != "shown":
            kept_out = np.append(gone, skipped, axis=1)
        asked = np.flatnonzero(alive) if thrifty else np.arange(users)
        slates = _slates(policy, states, asked, kept_out, allowed, environment.slate_size, config, luck, vectors)
        items = np.where(alive[:, None], slates.items, PAD)
        outside = environment.outside(items) if isinstance(environment, Supported) else None
        outcome = environment.step(items)
        parts.append(_rows(step, items, slates.propensities, outcome.responses, outside))
        liked = np.isin(outcome.responses, positive) & (items != PAD)
        states = after_slate(states, items, liked)
        if environment.unavailable != "nothing":
            gone = np.append(
                gone, np.where(liked, items, PAD) if environment.unavailable == "clicked" else items, axis=1
            )
        skipped = np.where(liked.any(axis=1, keepdims=True), PAD, items)
        alive &= ~outcome.ended
        if not alive.any():
            break
    return as_log(pl.concat(parts), environment)


def _allowed(environment: Environment, users: int, config: RolloutConfig) -> NDArray[np.bool_] | None:
    """(B, A) which items may be recommended to whom; None where all may."""
    if config.candidates == "all":
        return None
    if environment.categories is None:
        raise InputError("Candidates by category need items with categories, and these have none; choose all.")
    sought = categories_sought(environment, users)[:, None]
    allowed: NDArray[np.bool_] = (environment.categories == sought) | (sought < 0)
    return allowed


def _slates(
    policy: Policy,
    states: States,
    asked: Rows,
    kept_out: IntArray,
    allowed: NDArray[np.bool_] | None,
    k: int,
    config: RolloutConfig,
    luck: np.random.Generator,
    vectors: FloatArray | None,
) -> Slates:
    """Slates of all B users, of which the policy is asked about `asked` alone; those of the others mean nothing."""
    if config.exploration.kind == "own":
        if not isinstance(policy, Drawing) or config.diversity:
            raise InputError("Exploration of kind 'own' is for policies that draw their slates, without --diversity.")
        return policy.slates(states, kept_out, k, luck)
    scores = policy.scores(states[asked])
    if len(asked) < len(states):
        scores, told = np.zeros((len(states), scores.shape[1]), scores.dtype), scores
        scores[asked] = told  # the others keep their rows, because draws go by the number of users
    exclude(scores, kept_out)
    if allowed is not None:
        scores[~allowed] = -np.inf
    regard = spread(scores, vectors, config.diversity) if config.diversity and vectors is not None else None
    return make_slates(scores, k, config.exploration, luck, regard)


def with_openings(log: pl.DataFrame, environment: Environment) -> pl.DataFrame:
    """The log of the rollout just played, with what the users had clicked before as step 0 of their sessions.

    Nobody recommended these items, so they are `organic`: without propensity, no actions and not in rates; but what
    reads the log needs them to know the states.
    """
    items = openings(environment, users=0)
    if not items.shape[1]:
        return log
    responses = environment.responses
    liked = "click" if "click" in responses.positive else responses.positive[0]
    click = np.full((len(items), items.shape[1]), responses.code(liked), np.int8)
    opened = as_log(_rows(0, items, np.ones(items.shape, np.float32), click), environment)
    opened = opened.with_columns(propensity=pl.lit(None, pl.Float64), organic=pl.lit(True))
    later = pl.col("step") + 1
    moved = log.with_columns(later, pl.format("{}-{}", "session_id", later).alias("request_id"), organic=pl.lit(False))
    return pl.concat([opened, moved], how="diagonal").sort("session_id", "step", "position")


def _rows(
    step: int,
    items: IntArray,
    propensities: FloatArray,
    responses: np.ndarray[tuple[int, int], np.dtype[np.int8]],
    outside: np.ndarray[tuple[int, int], np.dtype[np.bool_]] | None = None,
) -> pl.DataFrame:
    users, places = np.nonzero(items != PAD)
    rows = pl.DataFrame(
        {
            "session_id": users.astype(np.int64),
            "step": np.full(len(users), step, np.int32),
            "position": places.astype(np.int32),
            "item_id": items[users, places].astype(np.int64),
            "response": responses[users, places],
            "propensity": propensities[users, places].astype(np.float64),
        }
    )
    return rows if outside is None else rows.with_columns(outside=outside[users, places])


def as_log(rows: pl.DataFrame, environment: Environment) -> pl.DataFrame:
    """The canonical log of rows with session_id, step, position, item_id and response as numbers, sorted."""
    names = pl.Series(environment.responses.names)
    columns: list[pl.Expr | pl.Series] = [
        pl.col("session_id"),
        pl.col("step"),
        pl.format("{}-{}", "session_id", "step").alias("request_id"),
        pl.col("position"),
        pl.col("item_id"),
        names.gather(rows["response"].cast(pl.UInt32)).alias("response"),
    ]
    if environment.categories is not None:
        category = pl.Series("category", environment.categories.astype(np.int64)).gather(rows["item_id"])
        columns.append(category.set(category < 0, None))  # an item may have none
    rest = [name for name in ("propensity", "organic", "outside") if name in rows.columns]
    return rows.select(*columns, *rest).sort("session_id", "step", "position")


def with_ids(log: pl.DataFrame, environment: Environment) -> pl.DataFrame:
    """The log of a rollout with the ids that the environment's items have in the world."""
    ids = catalogue(environment).ids.gather(log["item_id"])
    return log.with_columns(ids.alias("item_id"))


def write_log(log: pl.DataFrame, path: Path, environment: Environment) -> None:
    """As Parquet, with the environment's origin."""
    origin = origin_of(environment)
    log.write_parquet(path, metadata=origin.metadata() if origin is not None else None)
