"""`--env shop`: a synthetic shop at Diginetica's scale, for all users at once.

A user comes for one category c* and has a taste u, a point in the plane of price and style. Every item i has a
category, a place z_i in that plane and a popularity. The nearer an item is to the taste, the better it is liked:

    nearness   k = exp(−|u − z_i|² / 2w²)
    liked      P(positive) = attraction · appeal_i · (far + (near − far) · k)
    bought     P(buy | positive) = buying · k² · ready,   ready = 1 − (1 − readiness) · patienceⁿ

The attraction is 1 in the main category, less in a related category for users who wander, and small elsewhere; n
counts the positive responses of the session so far. Items are answered independently of each other, so the size of
the slate changes nothing but how often the recommender learns about the user. No item is shown twice in a session.

With `examination`, the item at place p of a slate is looked at with a chance of its own, whatever the item, and
skipped if not; without it, all items are looked at.

A session opens with an item that the user has found by search and clicked: `openings`.
"""

import numpy as np
from scipy.special import gammaln, ndtri

from bcd4rec.data.origin import Origin
from bcd4rec.data.responses import DIGINETICA, Responses
from bcd4rec.data.states import PAD, Doubles, FloatArray, IntArray, Mask
from bcd4rec.errors import InputError
from bcd4rec.policies.slates import Unavailable
from bcd4rec.seeding import generator
from bcd4rec.sim.environment import (
    ENVIRONMENTS,
    Environment,
    EnvironmentOptions,
    Outcome,
    check_slates,
    describe,
)
from bcd4rec.sim.shop_behaviour import ShopBehaviour
from bcd4rec.sim.shop_catalogue import TASTES, ShopCatalogue, make_catalogue
from bcd4rec.sim.shop_config import PRESETS, ShopConfig, preset

SKIP, CLICK, BUY = (DIGINETICA.code(name) for name in ("skip", "click", "buy"))


@ENVIRONMENTS.register("shop")
def shop(options: EnvironmentOptions) -> Environment:
    if options.model is not None:
        raise InputError("--env shop takes no --model; it takes a --preset.")
    return Shop(preset(options.preset or "single"))


class Shop:
    """B users who are shown slates and skip, click or buy; fulfils `Environment` and `Opening`.

    All luck is drawn in `reset`, user by user: the n-th item that a user is shown meets the user's n-th number,
    whatever the items, the other users and how many of these there are.
    """

    def __init__(self, config: ShopConfig | None = None):
        self.config = config or ShopConfig()
        self.catalogue: ShopCatalogue = make_catalogue(self.config.catalogue)
        self._appeal = 1.0 - self.config.appeal_spread * (1.0 - self.catalogue.rank)  # (A,)
        self._category_edges = np.cumsum(self.catalogue.category_popularity)  # (C,)
        self._length_edges = np.cumsum(length_law(self.config))  # (pages,)
        self._examination = np.array(self.config.examination or (1.0,) * self.config.slate_size)  # (K,)
        self._ids = self.catalogue.categories + 1  # Diginetica's category 0 means "none"
        self._ids.flags.writeable = False
        self._behaviour: ShopBehaviour | None = None
        self.reset(0, 0)

    @property
    def origin(self) -> Origin:
        return describe("shop", self.config, PRESETS, self.n_items, len(self.catalogue.sizes))

    @property
    def responses(self) -> Responses:
        return DIGINETICA

    @property
    def n_items(self) -> int:
        return self.config.catalogue.items

    @property
    def slate_size(self) -> int:
        return self.config.slate_size

    @property
    def horizon(self) -> int:
        return -(-self.config.impressions // self.config.slate_size)

    @property
    def unavailable(self) -> Unavailable:
        return "shown"

    @property
    def categories(self) -> IntArray:
        """(A,) the category of each item, counted from 1."""
        return self._ids

    def reset(self, users: int, seed: int) -> None:
        """Draw fresh users. The same seed gives the same users and the same luck."""
        who = generator(seed, "shop", "users").random((users, 4 + TASTES))
        last = self.config.catalogue.categories - 1
        self._category = np.minimum(np.searchsorted(self._category_edges, who[:, 0], "right"), last)  # (B,)
        wanders = who[:, 1] < self.config.wandering
        self._related = np.where(wanders, self.catalogue.related[self._category], PAD)  # (B,)
        pages = np.searchsorted(self._length_edges, who[:, 2], "right") + 1
        self._left = np.minimum(pages, self.config.most_pages) * self.config.page  # (B,) items still to be looked at
        self._taste = ndtri(np.maximum(who[:, 4:], 1e-12))  # (B, 2)
        self._draws = generator(seed, "shop", "answers").random((users, self.config.impressions))
        self._eyes = generator(seed, "shop", "examination").random((users, self.config.impressions))
        self._looked = np.zeros(users, np.int64)  # how many items each user has been shown
        self._users = np.arange(users)[:, None]  # (B, 1)
        self._openings = self._open(who[:, 3])
        self._gone = np.zeros((users, self.n_items), np.bool_)  # (B, A)
        self._gone[self._users, self._openings] = True
        self._positives = np.ones(users, np.int64)  # the opening
        self._oracle: FloatArray | None = None

    def openings(self) -> IntArray:
        """(B, 1) the item that each user clicked before anything was recommended."""
        return self._openings.copy()

    def behaviour(self) -> ShopBehaviour:
        """The mediocre policy that writes the shop's logs."""
        if self._behaviour is None:
            self._behaviour = ShopBehaviour(self.catalogue)
        return self._behaviour

    def step(self, slates: IntArray) -> Outcome:
        """Show (B, K) slates. Empty places, items shown before or not looked at and users who have left get a skip."""
        check_slates(slates, len(self._taste), self)
        positive, buy = self.chances(slates)
        order = np.cumsum(slates != PAD, axis=1) + self._looked[:, None] - 1  # (B, K) the how-manieth item it is
        number = np.clip(order, 0, self.config.impressions - 1)
        draws, examined = self._draws[self._users, number], self._eyes[self._users, number] < self._examination
        answered = (slates != PAD) & (order < self._left[:, None]) & self._fresh(slates) & examined
        responses = np.where(draws < buy, BUY, np.where(draws < positive, CLICK, SKIP))
        responses = np.where(answered, responses, SKIP).astype(np.int8)
        rows, places = np.nonzero(slates != PAD)
        self._gone[rows, slates[rows, places]] = True
        self._positives += (responses != SKIP).sum(axis=1)
        self._looked += (slates != PAD).sum(axis=1)
        return Outcome(responses, self._looked >= self._left)

    def chances(self, items: IntArray) -> tuple[Doubles, Doubles]:
        """(B, K) the chances of any positive response and of a buy, for items (B, K) looked at now."""
        nearness = self._nearness(items, self._taste)
        positive = self._attraction(items) * self._charm(items, nearness)
        return positive, positive * self.config.buying * nearness**2 * self._ready()[:, None]

    def oracle_scores(self) -> FloatArray:
        """(B, A) the chance of a buy now, if the item is looked at."""
        if self._oracle is None:  # readiness is the same factor for all items of a user
            every = np.broadcast_to(np.arange(self.n_items, dtype=np.int32), (len(self._taste), self.n_items))
            nearness = self._nearness(every, self._taste)
            positive = self._attraction(every) * self._charm(every, nearness)
            self._oracle = (positive * self.config.buying * nearness**2).astype(np.float32)
        return self._oracle * self._ready()[:, None].astype(np.float32)

    def _nearness(self, items: IntArray, taste: Doubles) -> Doubles:
        """(B, K) how near items (B, K) are to tastes (B, 2)."""
        places = self.catalogue.places
        squares = np.zeros(items.shape)
        for axis in range(TASTES):
            squares += (places[items, axis] - taste[:, axis, None]) ** 2
        return np.asarray(np.exp(squares / (-2.0 * self.config.taste_width**2)))

    def _charm(self, items: IntArray, nearness: Doubles) -> Doubles:
        """(B, K) the chance of a positive response where the category is right."""
        far, near = self.config.positive_far, self.config.positive_near
        return np.asarray(self._appeal[items] * (far + (near - far) * nearness))

    def _attraction(self, items: IntArray) -> Doubles:
        """(B, K) how much the users like the items' categories."""
        category = self.catalogue.categories[items]
        related = np.where(category == self._related[:, None], self.config.related, self.config.stray)
        return np.where(category == self._category[:, None], 1.0, related)

    def _ready(self) -> Doubles:
        """(B,) how ready each user is to buy."""
        lack = (1.0 - self.config.readiness) * self.config.patience**self._positives
        return np.asarray(1.0 - lack, np.float64)

    def _fresh(self, slates: IntArray) -> Mask:
        """(B, K) items that this user is shown for the first time."""
        earlier = np.tri(slates.shape[1], k=-1, dtype=np.bool_)
        repeated = ((slates[:, :, None] == slates[:, None, :]) & earlier).any(axis=2)
        fresh: Mask = ~repeated & ~self._gone[self._users, slates]
        return fresh

    def _open(self, draws: Doubles) -> IntArray:
        """(B, 1) an item of the main category, drawn by popularity and by how the user likes it."""
        if not len(draws):
            return np.empty((0, 1), np.int32)
        sizes = self.catalogue.sizes[self._category]
        ends = np.cumsum(sizes)
        within = np.arange(ends[-1]) - np.repeat(ends - sizes, sizes)
        items = self.catalogue.by_category[np.repeat(self.catalogue.offsets[self._category], sizes) + within]
        user = np.repeat(np.arange(len(draws)), sizes)
        charm = self._charm(items, self._nearness(items[:, None], self._taste[user])[:, 0])
        weight = self.catalogue.popularity[items] * charm
        starts = ends - sizes
        total = np.add.reduceat(weight, starts)
        edges = np.cumsum(weight / total[user])  # user b's items fill the stretch from b to b + 1
        chosen = np.searchsorted(edges, np.arange(len(draws)) + draws, "right")
        found: IntArray = items[np.clip(chosen, starts, ends - 1)][:, None]
        return found


def length_law(config: ShopConfig) -> Doubles:
    """(pages,) the chance of 1, 2, … pages: a negative binomial law with the fitted r, cut off, with the given mean."""
    pages = np.arange(config.most_pages)
    ways = np.exp(gammaln(pages + config.pages_dispersion) - gammaln(pages + 1.0))

    def law(success: float) -> Doubles:
        chances = ways * (1.0 - success) ** pages
        return np.asarray(chances / chances.sum())

    low, high = 1e-9, 1.0 - 1e-9
    for _ in range(60):  # the mean falls as the chance of success grows
        middle = (low + high) / 2
        low, high = (middle, high) if 1.0 + pages @ law(middle) > config.mean_pages else (low, middle)
    return law(low)
