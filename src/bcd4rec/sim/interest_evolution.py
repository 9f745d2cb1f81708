"""Users whose interests drift with what they click: the paper's Algorithm 2, for all users at once.

Every user has an interest in [−1, 1] for each category. Of a shown slate a user clicks at most one item, with
probability w_i / (Σ w + s), where w_i grows with the interest in the item's category and s is the weight of a skip.
A click moves the interest in that category: `Δ = y (1 − |I|)(1 − I)` is added with probability (1 + I)/2, else
subtracted, and the result is clipped to [−1, 1].

The preset `paper` is a calibration: the reading of Algorithm 2 that comes nearest to the paper's table 1.
"""

from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from bcd4rec.config import Config
from bcd4rec.data.origin import Origin
from bcd4rec.data.responses import RECSIM, Responses
from bcd4rec.data.states import PAD, Doubles, FloatArray, IntArray, Mask
from bcd4rec.errors import InputError
from bcd4rec.policies.slates import Unavailable
from bcd4rec.seeding import generator
from bcd4rec.sim.environment import Outcome, check_slates, describe


class InterestEvolutionConfig(Config):
    """What kind of users and items there are; the defaults are the preset `paper`."""

    categories: int = Field(default=20, ge=2, description="C: how many categories of items there are.")
    items: int = Field(default=200, ge=1, description="N: how many items the catalogue has.")
    slate_size: int = Field(default=7, ge=1, description="K: how many items a user is shown at each step.")
    horizon: int = Field(default=20, ge=1, description="How many steps every session has.")
    item_categories: Literal["even", "drawn"] = Field(
        default="even", description="Item i has category i modulo C (even), or one drawn uniformly (drawn)."
    )
    catalogue_seed: int = Field(
        default=0, description="Which catalogue: the seed of the items' categories where they are drawn."
    )
    unavailable: Unavailable = Field(
        default="liked", description="Which items of a session cannot be clicked in it again."
    )
    interest_shift: float = Field(
        default=0.0, ge=0, description="What is added to an interest before it becomes a weight."
    )
    smallest_weight: float = Field(
        default=0.02,
        ge=0,
        description="ε: a weight below it (an item's, or the skip's taken from interests) becomes it.",
    )
    skip_weight: float | None = Field(
        default=None, ge=0, description="The skip's weight; without one, it is the user's second largest interest now."
    )
    skip_scale: float = Field(default=1.0, ge=0, description="What the skip's weight is multiplied by.")
    drift: float = Field(default=0.3, ge=0, le=1, description="y: how fast a click moves the interest in a category.")

    @model_validator(mode="after")
    def _enough_items(self) -> Self:
        if self.items < max(self.slate_size, self.categories):
            raise ValueError(
                f"{self.items} items are too few for {self.categories} categories, slates of {self.slate_size}"
            )
        return self


PRESETS: dict[str, InterestEvolutionConfig] = {
    "paper": InterestEvolutionConfig(),
    "recsim": InterestEvolutionConfig(
        slate_size=3,
        item_categories="drawn",
        unavailable="nothing",
        interest_shift=1.0,
        smallest_weight=0.0,
        skip_weight=2.0,
    ),
    "literal": InterestEvolutionConfig(slate_size=3, smallest_weight=0.0, unavailable="shown"),
    "single": InterestEvolutionConfig(slate_size=1, skip_scale=0.18, unavailable="shown"),
}


def preset(name: str) -> InterestEvolutionConfig:
    """The preset of this name; an unknown name is bad input."""
    if name not in PRESETS:
        raise InputError(
            f"Unknown preset {name!r} of the interest-evolution environment; known are {', '.join(PRESETS)}."
        )
    return PRESETS[name]


class InterestEvolution:
    """B users who are shown slates and click or skip; fulfils `Environment`.

    All luck is drawn in `reset`, user by user, from three independent streams: who the users are, what they choose
    and where their interests go. So the luck of a user depends on the seed and the user's number alone, not on the
    slates, the other users or how many of these there are: the first 200 of 2,000 users are the 200 of the same seed.
    """

    def __init__(self, config: InterestEvolutionConfig = PRESETS["paper"]):
        self.config = config
        self._categories = _item_categories(config)
        self._earlier = np.tri(config.slate_size, k=-1, dtype=np.bool_)[:, :, None]  # (K, K, 1) [i, j]: j before i
        self.reset(0, 0)

    @property
    def origin(self) -> Origin:
        return describe("recsim", self.config, PRESETS, self.config.items, self.config.categories)

    @property
    def responses(self) -> Responses:
        return RECSIM

    @property
    def n_items(self) -> int:
        return self.config.items

    @property
    def slate_size(self) -> int:
        return self.config.slate_size

    @property
    def horizon(self) -> int:
        return self.config.horizon

    @property
    def unavailable(self) -> Unavailable:
        return self.config.unavailable

    @property
    def categories(self) -> IntArray:
        """(A,) the category of each item."""
        return self._categories

    @property
    def interests(self) -> Doubles:
        """(B, C) the users' interests now: a read-only view, which the next step changes."""
        view = self._interests.view()
        view.flags.writeable = False
        return view

    def reset(self, users: int, seed: int) -> None:
        """Draw fresh users. The same seed gives the same users and the same luck."""
        steps = self.config.horizon
        self._interests = 2.0 * _uniforms(seed, "users", users, self.config.categories) - 1.0  # (B, C)
        # One row for each step, so that a step reads its luck from one piece of memory.
        self._choice_draws = _uniforms(seed, "choices", users, steps).T.copy()  # (T, B)
        self._update_draws = _uniforms(seed, "updates", users, steps).T.copy()  # (T, B)
        self._gone = np.zeros((users, self.config.items), np.bool_)  # (B, A) no longer available
        self._users = np.arange(users)[:, None]  # (B, 1)
        self._step = 0

    def step(self, slates: IntArray) -> Outcome:
        """Show (B, K) slates; after the last step of the sessions nothing is clicked any more.

        An entry that is `PAD`, repeats an earlier one of its slate or is no longer available cannot be clicked.
        """
        check_slates(slates, len(self._interests), self)
        responses = np.zeros(slates.shape, np.int8)
        if self._step < self.config.horizon:
            places = self._choose(slates)
            rows = np.flatnonzero(places < self.config.slate_size)
            responses[rows, places[rows]] = 1
            clicked = slates[rows, places[rows]]
            self._drift(rows, self._categories[clicked])
            self._withdraw(slates, rows, clicked)
            self._step += 1
        return Outcome(responses, np.full(len(slates), self._step >= self.config.horizon))

    def oracle_scores(self) -> FloatArray:
        """(B, A) the user's interest in each item's category now."""
        return self._interests.astype(np.float32).take(self._categories, axis=1)

    def _choose(self, slates: IntArray) -> NDArray[np.intp]:
        """(B,) the place of the slate that each user clicks; K is a skip."""
        weights = self._weight(self._interests[self._users, self._categories[slates]])
        weights[~self._clickable(slates)] = 0.0
        upper = weights.cumsum(axis=1)  # (B, K) the user clicks the first place whose upper edge lies above the draw
        draw = self._choice_draws[self._step] * (upper[:, -1] + self._skip_weight(self._interests))
        places: NDArray[np.intp] = (upper <= draw[:, None]).sum(axis=1)
        return places

    def _weight(self, interests: Doubles) -> Doubles:
        return np.maximum(interests + self.config.interest_shift, self.config.smallest_weight)

    def _skip_weight(self, interests: Doubles) -> Doubles:
        """(…,) of `interests` (…, C)."""
        if self.config.skip_weight is not None:
            return np.full(interests.shape[:-1], self.config.skip_scale * self.config.skip_weight)
        second = np.partition(interests, -2, axis=-1)[..., -2]
        return self.config.skip_scale * self._weight(second)

    def _clickable(self, slates: IntArray) -> Mask:
        """(B, K) entries that are items, for the first time in their slate, and still available."""
        places = np.ascontiguousarray(slates.T)  # (K, B): comparing whole places is several times faster than slates
        repeated = ((places[:, None] == places[None]) & self._earlier).any(axis=1)
        blocked: Mask = (slates == PAD) | repeated.T
        if self.config.unavailable != "nothing":
            blocked |= self._gone[self._users, slates]
        return ~blocked

    def _drift(self, rows: NDArray[np.intp], categories: IntArray) -> None:
        """Move the interest of user `rows[j]` in the clicked `categories[j]`."""
        interest = self._interests[rows, categories]
        self._interests[rows, categories] = self._moved(interest, self._update_draws[self._step, rows])

    def _moved(self, interest: Doubles, draws: Doubles) -> Doubles:
        """What becomes of interests in a category that is clicked."""
        change = self.config.drift * (1.0 - np.abs(interest)) * (1.0 - interest)
        change[draws >= (1.0 + interest) / 2.0] *= -1.0
        return np.clip(interest + change, -1.0, 1.0)

    def _withdraw(self, slates: IntArray, rows: NDArray[np.intp], clicked: IntArray) -> None:
        """Remember which items are not available any more."""
        if self.config.unavailable == "liked":
            self._gone[rows, clicked] = True
        elif self.config.unavailable != "nothing":
            users, places = np.nonzero(slates != PAD)
            self._gone[users, slates[users, places]] = True


def _uniforms(seed: int, stream: str, users: int, each: int) -> Doubles:
    """(B, each) uniform numbers in [0, 1); a user's row is the same however many users follow."""
    return generator(seed, "interest-evolution", stream).random((users, each))


def _item_categories(config: InterestEvolutionConfig) -> IntArray:
    if config.item_categories == "even":
        result = np.arange(config.items, dtype=np.int32) % config.categories
    else:
        stream = generator(config.catalogue_seed, "interest-evolution", "catalogue")
        result = stream.integers(config.categories, size=config.items, dtype=np.int32)
    result.flags.writeable = False
    return result
