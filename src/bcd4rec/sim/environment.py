"""The protocol that every simulated user fulfils."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bcd4rec.config import Config
from bcd4rec.data.origin import Origin
from bcd4rec.data.responses import Responses
from bcd4rec.data.states import PAD, FloatArray, IntArray, Mask
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.policies.scorer import Scorer
from bcd4rec.policies.slates import Unavailable
from bcd4rec.registry import Registry

PRESENTATION = {"slate_size", "examination"}  # settings of how items are put before users, not of who they are


class Outcome(NamedTuple):
    """How B users answered a slate of K items."""

    responses: NDArray[np.int8]  # (B, K) response codes as in `Responses.names`
    ended: Mask  # (B,) sessions that this step was the last of


class Environment(Protocol):
    """B users at once; user b of one call is user b of the next."""

    @property
    def responses(self) -> Responses: ...
    @property
    def n_items(self) -> int: ...
    @property
    def slate_size(self) -> int: ...
    @property
    def horizon(self) -> int:
        """The largest number of steps of a session."""
        ...

    @property
    def unavailable(self) -> Unavailable:
        """Which items of this session may not be recommended again."""
        ...

    @property
    def categories(self) -> IntArray | None:
        """(A,) the category of each item, where items have one."""
        ...

    def reset(self, users: int, seed: int) -> None:
        """Draw fresh users. The same seed gives the same users and the same luck."""
        ...

    def step(self, slates: IntArray) -> Outcome:
        """Show (B, K) slates. A place with `PAD` shows nothing; users whose session ended ignore theirs."""
        ...

    def oracle_scores(self) -> FloatArray:
        """(B, A) what a policy that sees into the users would score now, in a fresh array; the upper bound."""
        ...


def check_slates(slates: IntArray, users: int, environment: Environment) -> None:
    """What `step` takes: (B, K) items of the catalogue, or `PAD`."""
    expected = (users, environment.slate_size)
    if slates.shape != expected:
        raise InputError(f"The slates have the shape {slates.shape}, expected {expected}: users × slate size.")
    if slates.size and (slates.min() < PAD or slates.max() >= environment.n_items):
        raise InputError(
            f"The slates hold items from {slates.min()} to {slates.max()}, "
            f"expected 0 to {environment.n_items - 1}, or {PAD} for an empty place."
        )


@runtime_checkable
class Opening(Protocol):
    """An environment whose users have looked at something before the first recommendation."""

    def openings(self) -> IntArray:
        """(B, E) the items that each user clicked before, oldest first, padded with `PAD`; as drawn by `reset`."""
        ...


def openings(environment: Environment, users: int) -> IntArray:
    """(B, E) what the users clicked before; E = 0 where sessions begin with nothing."""
    return environment.openings() if isinstance(environment, Opening) else np.full((users, 0), PAD, np.int32)


def categories_sought(environment: Environment, users: int) -> IntArray:
    """(B,) the category of what each user clicked first, before anything was recommended; −1 where there is none."""
    first = openings(environment, users)[:, :1]
    if environment.categories is None or not first.shape[1]:
        return np.full(users, -1, np.int32)
    codes = np.where(first == PAD, -1, environment.categories[first])[:, 0]
    return codes.astype(np.int32)


@runtime_checkable
class Logged(Protocol):
    """An environment that knows who writes its logs."""

    def behaviour(self) -> Scorer:
        """The behaviour policy's scorer, which draws its own slates."""
        ...


@runtime_checkable
class NamesItems(Protocol):
    """An environment whose items have the ids of a data set; elsewhere the ids are the items' numbers."""

    @property
    def vocabulary(self) -> Vocabulary: ...


def catalogue(environment: Environment) -> Vocabulary:
    """The ids of the items of an environment."""
    if isinstance(environment, NamesItems):
        return environment.vocabulary
    return Vocabulary(pl.Series("item_id", np.arange(environment.n_items, dtype=np.int64)))


@runtime_checkable
class Simulated(Protocol):
    """An environment that is a world of its own: what is learned from its logs can be tried on it, and on no other."""

    @property
    def origin(self) -> Origin: ...


def origin_of(environment: Environment) -> Origin | None:
    """What the logs of an environment tell about where they come from."""
    return environment.origin if isinstance(environment, Simulated) else None


def describe(env: str, config: Config, presets: Mapping[str, Config], items: int, categories: int) -> Origin:
    """The origin of logs of `env` with this configuration."""

    def users(one: Config) -> dict[str, object]:
        return one.model_dump(exclude=PRESENTATION)

    preset = next((name for name, one in presets.items() if one == config), None)
    alike = [name for name, one in presets.items() if preset is not None and users(one) == users(config)]
    return Origin(env=env, preset=preset, alike=tuple(alike) or (None,), items=items, categories=categories)


@runtime_checkable
class Supported(Protocol):
    """An environment that was learned, and knows which questions it cannot answer."""

    def outside(self, slates: IntArray) -> Mask:
        """(B, K) which of the items (B, K), if shown now, lie outside of what it was learned from."""
        ...


class EnvironmentOptions(NamedTuple):
    """What the command line can say about an environment; each takes what it needs and refuses the rest."""

    preset: str | None = None
    model: Path | None = None


# A module named like the environment registers a function that makes it: `--env recsim` is sim/recsim.py.
ENVIRONMENTS: Registry[Callable[[EnvironmentOptions], Environment]] = Registry("environment", "bcd4rec.sim")
