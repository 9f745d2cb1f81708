"""The mediocre policy that writes the shop's logs: popularity mixed with co-visits, drawn with exact propensities.

Every place of a slate is drawn from what was not shown yet, item j with a weight of

    w_j = explore / A + popular · popularity_j + covisit · mean over the items v viewed so far of covisits[v, j]

where `covisits[v]` is what other visitors of v looked at: items of v's category by popularity and, weakly, by how near
they are to v, and items of the related category. Nothing in it knows the user at hand.
"""

from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from scipy.sparse import csr_array

from bcd4rec.config import Config
from bcd4rec.data.states import PAD, Doubles, FloatArray, IntArray, States
from bcd4rec.errors import InputError
from bcd4rec.sim.shop_catalogue import ShopCatalogue


class BehaviourConfig(Config):
    """How the three parts of the behaviour policy are mixed (calibrated to the paper's buy rate of 4.1 %)."""

    explore: float = Field(default=0.1, gt=0, le=1, description="Share of the places that show just any item.")
    covisit: float = Field(default=0.3, ge=0, le=1, description="Share of the places that follow what was viewed.")
    blur: float = Field(default=2.0, gt=0, description="How far apart two items may be and still be co-visited.")
    related: float = Field(default=0.12, ge=0, le=1, description="Share of co-visits in the related category (fitted).")

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.explore + self.covisit > 1:
            raise ValueError("explore and covisit together must not be above 1")
        return self

    @property
    def popular(self) -> float:
        return 1.0 - self.explore - self.covisit


class ShopBehaviour:
    """Scores are the logarithms of w, so that a softmax at temperature 1 draws by w; `slates` does so faster."""

    def __init__(self, catalogue: ShopCatalogue, config: BehaviourConfig | None = None):
        self.config = config or BehaviourConfig()
        self._popularity = catalogue.popularity
        self._covisits = covisits(catalogue, self.config)
        rows = np.repeat(np.arange(self.n_items), np.diff(self._covisits.indptr))
        self._keys = rows * self.n_items + self._covisits.indices  # ascending, to look entries up
        self._covisit_edges = np.cumsum(self._covisits.data)  # item v's row fills the stretch from v to v + 1
        self._popularity_edges = np.cumsum(self._popularity)

    @property
    def n_items(self) -> int:
        return len(self._popularity)

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        if candidates is not None:
            with np.errstate(divide="ignore"):
                return np.log(self._weights(states, candidates)).astype(np.float32)
        rows, places = np.nonzero(states.positives != PAD)
        share = 1.0 / np.maximum(states.lengths, 1)[rows]
        viewed = csr_array((share, (rows, states.positives[rows, places])), shape=(len(states), self.n_items))
        weights = (viewed @ self._covisits).toarray() * self.config.covisit
        weights += self._prior(states)[:, None] * self._popularity + self.config.explore / self.n_items
        return np.asarray(np.log(weights), np.float32)

    def draw(
        self, states: States, unavailable: IntArray, k: int, rng: np.random.Generator
    ) -> tuple[IntArray, FloatArray]:
        """Items (B, K) that are not among `unavailable` (B, E), which holds no item twice, and their propensities."""
        if unavailable.shape[1] + k > self.n_items:
            raise InputError(f"Of {self.n_items} items {unavailable.shape[1]} were shown; {k} more cannot be drawn.")
        items = np.full((len(states), k), PAD, np.int32)
        propensities = np.ones((len(states), k), np.float32)
        taken = np.concatenate([unavailable, items], axis=1)
        mass = self._weights(states, unavailable).sum(axis=1)  # (B,) what cannot be drawn any more
        for place in range(k):
            drawn = self._draw(states, taken, rng)
            weight = self._weights(states, drawn[:, None])[:, 0]
            items[:, place] = taken[:, unavailable.shape[1] + place] = drawn
            propensities[:, place] = weight / (1.0 - mass)
            mass += weight
        return items, propensities

    def _prior(self, states: States) -> Doubles:
        """(B,) the share of popularity; where nothing was viewed it has the co-visits' share as well."""
        return self.config.popular + np.where(states.lengths == 0, self.config.covisit, 0.0)

    def _weights(self, states: States, items: IntArray) -> Doubles:
        """(B, E) w of some items; 0 for `PAD`."""
        viewed = states.positives.astype(np.int64)[:, :, None]  # (B, L, 1)
        wanted = viewed * self.n_items + items[:, None, :]  # (B, L, E)
        found = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        there = (self._keys[found] == wanted) & (viewed != PAD) & (items[:, None, :] != PAD)
        follow = np.where(there, self._covisits.data[found], 0.0).sum(axis=1) / np.maximum(states.lengths, 1)[:, None]
        prior = self._prior(states)[:, None] * self._popularity[items] + self.config.explore / self.n_items
        return np.where(items == PAD, 0.0, prior + self.config.covisit * follow)

    def _draw(self, states: States, taken: IntArray, rng: np.random.Generator) -> IntArray:
        """(B,) one item for each state, drawn by w until it is none of `taken` (B, E)."""
        drawn = np.full(len(states), PAD, np.int32)
        missing = np.arange(len(states))
        while len(missing):
            tried = self._draw_any(states[missing], rng)
            fresh = ~(taken[missing] == tried[:, None]).any(axis=1)
            drawn[missing[fresh]] = tried[fresh]
            missing = missing[~fresh]
        return drawn

    def _draw_any(self, states: States, rng: np.random.Generator) -> IntArray:
        """(B,) one item for each state, drawn by w."""
        part, place, item = rng.random((3, len(states)))
        uniform = (item * self.n_items).astype(np.int32)
        popular = _find(self._popularity_edges, item)
        last = np.maximum((place * states.lengths).astype(np.int64), 0)
        viewed = states.positives[np.arange(len(states)), last]
        follow = self._covisits.indices[_find(self._covisit_edges, np.maximum(viewed, 0) + item)]
        covisit = (part < self.config.explore + self.config.covisit) & (viewed != PAD)
        drawn = np.where(part < self.config.explore, uniform, np.where(covisit, follow, popular))
        return drawn.astype(np.int32)


def _find(edges: Doubles, draws: Doubles) -> NDArray[np.intp]:
    return np.minimum(np.searchsorted(edges, draws, "right"), len(edges) - 1)


def covisits(catalogue: ShopCatalogue, config: BehaviourConfig) -> csr_array:
    """(A, A) by row: what the other items are that the visitors of an item look at, as shares that sum to 1."""
    rows, columns, shares = [], [], []
    for category in range(len(catalogue.related)):
        items = _members(catalogue, category)
        related = _members(catalogue, int(catalogue.related[category]))
        apart = ((catalogue.places[items, None] - catalogue.places[None, items]) ** 2).sum(axis=2)
        near = catalogue.popularity[items] * np.exp(apart / (-2.0 * config.blur**2))
        elsewhere = np.broadcast_to(catalogue.popularity[related], (len(items), len(related)))
        for others, weights, share in ((items, near, 1.0 - config.related), (related, elsewhere, config.related)):
            rows.append(np.repeat(items, len(others)))
            columns.append(np.tile(others, len(items)))
            shares.append((share * weights / weights.sum(axis=1, keepdims=True)).ravel())
    parts = np.concatenate(shares), (np.concatenate(rows), np.concatenate(columns))
    table = csr_array(parts, shape=(len(catalogue.categories),) * 2)
    table.sort_indices()
    return table


def _members(catalogue: ShopCatalogue, category: int) -> IntArray:
    return catalogue.by_category[catalogue.offsets[category] : catalogue.offsets[category + 1]]
