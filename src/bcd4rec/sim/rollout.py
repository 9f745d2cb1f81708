"""Play a policy against simulated users and write what happened as a canonical impression log."""

from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bcd4rec.data.responses import Responses
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.errors import InputError
from bcd4rec.policies.policy import Memory, Policy, not_again
from bcd4rec.policies.scorer import Scorer
from bcd4rec.policies.slates import SlateRule
from bcd4rec.seeding import generator
from bcd4rec.sim.environment import Environment, Supported, catalogue, categories_sought, openings, origin_of

Candidates = Literal["all", "category"]
"""What may be recommended: every item, or those of the `category` of what the user clicked first, as a search in a city
is answered with places of that city; users who clicked nothing get all."""
MEMORY = Memory()


def as_candidates(name: str) -> Candidates:
    """The option of this name; another is bad input."""
    for known in get_args(Candidates):
        if name == known:
            return cast(Candidates, name)
    raise InputError(f"--candidates: found {name!r}, expected {' or '.join(map(repr, get_args(Candidates)))}.")


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


def policy_of(
    scorer: Scorer, environment: Environment, name: str, rule: SlateRule | None = None, memory: Memory = MEMORY
) -> Policy:
    """A policy that has learned from no log: it shows what the environment allows."""
    rule = rule or SlateRule(unavailable=environment.unavailable)
    return Policy(scorer, catalogue(environment), memory, rule, environment.responses, about={"method": name})


def rollout(
    environment: Environment,
    policy: Policy,
    users: int,
    seed: int,
    candidates: Candidates = "all",
    tick: Tick = no_tick,
) -> pl.DataFrame:
    """The log of `users` fresh sessions, sorted by session, step and position.

    The same seed gives the same users with the same luck, whatever the policy, so that policies are compared on the
    same users. Exploration has a stream of its own. What the environment does not allow is left out beside what the
    policy's rule leaves out. What the users had looked at before (`openings`) is in the first states and not in the
    log: see `with_openings`. Items have their numbers as ids: see `with_ids`. Where the environment knows its support,
    the column `outside` says which impressions lie outside of it.
    """
    if policy.n_items != environment.n_items:
        raise InputError(f"The policy knows {policy.n_items} items, but the environment has {environment.n_items}.")
    environment.reset(users, seed)
    rng = generator(seed, "exploration")
    opened = openings(environment, users)
    sessions = policy.begin(users, opened)
    forbidden = opened if environment.unavailable in ("liked", "shown") else opened[:, :0]
    alive = np.ones(users, np.bool_)
    pool = _candidates(environment, users, candidates)
    # Who has left need not be asked about; but an oracle knows all users at once, and so does who draws slates itself.
    thrifty = policy.rule.exploration.kind != "own" and not isinstance(policy.scorer, Oracle)
    parts: list[pl.DataFrame] = []
    for step in range(environment.horizon):
        tick("simulating", step / environment.horizon)
        asked = np.flatnonzero(alive) if thrifty else None
        more = None if environment.unavailable == policy.rule.unavailable else forbidden
        slates = policy.slates(sessions, environment.slate_size, rng, pool, more, asked)
        items = np.where(alive[:, None], slates.items, PAD)
        outside = environment.outside(items) if isinstance(environment, Supported) else None
        outcome = environment.step(items)
        parts.append(_rows(step, items, slates.propensities, outcome.responses, outside))
        liked = liked_of(environment.responses, outcome.responses) & (items != PAD)
        sessions = policy.after(sessions, items, liked)
        forbidden = not_again(environment.unavailable, forbidden, items, liked)
        alive &= ~outcome.ended
        if not alive.any():
            break
    return as_log(pl.concat(parts), environment)


def liked_of(responses: Responses, codes: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Which response codes are positive."""
    return np.isin(codes, [responses.code(name) for name in responses.positive])


def _candidates(environment: Environment, users: int, candidates: Candidates) -> IntArray | None:
    """(B, C) which items may be recommended to whom, ascending; None where all may."""
    if candidates == "all":
        return None
    if environment.categories is None:
        raise InputError("Candidates by category need items with categories, and these have none; choose all.")
    sought = categories_sought(environment, users)[:, None]
    allowed = (environment.categories == sought) | (sought < 0)
    pool = np.full((users, int(allowed.sum(axis=1).max())), PAD, np.int32)
    rows, items = np.nonzero(allowed)
    pool[rows, np.arange(len(rows)) - np.searchsorted(rows, np.arange(users))[rows]] = items
    return pool


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
