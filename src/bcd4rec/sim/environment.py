"""The protocol that every simulated user fulfils."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.responses import Responses
from bcd4rec.data.states import FloatArray, IntArray
from bcd4rec.registry import Registry

Unavailable = Literal["clicked", "shown", "nothing"]


class Outcome(NamedTuple):
    """How B users answered a slate of K items."""

    responses: NDArray[np.int8]  # (B, K) response codes as in `Responses.names`
    ended: NDArray[np.bool_]  # (B,) sessions that this step was the last of


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


class EnvironmentOptions(NamedTuple):
    """What the command line can say about an environment; each takes what it needs and refuses the rest."""

    preset: str | None = None
    model: Path | None = None


# A module named like the environment registers a function that makes it: `--env recsim` is sim/recsim.py.
ENVIRONMENTS: Registry[Callable[[EnvironmentOptions], Environment]] = Registry("environment", "bcd4rec.sim")
