"""What the synthetic shop sells: items in categories, with a popularity and a place in the space of tastes."""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from bcd4rec.data.states import Doubles, IntArray, Rows
from bcd4rec.seeding import generator
from bcd4rec.sim.shop_config import CatalogueConfig

TASTES = 2  # axes of taste: price and style


@dataclass(frozen=True)
class ShopCatalogue:
    """A items in C categories. Items are numbered at random, so that a number tells nothing about its item."""

    categories: IntArray  # (A,) the category of each item, from 0
    popularity: Doubles  # (A,) share of all interest; sums to 1
    rank: Doubles  # (A,) how popular within its category, from 0 to 1
    places: Doubles  # (A, 2) position in the space of tastes, standard normal; the first axis is the price
    related: IntArray  # (C,) the category that a category's visitors also look at
    by_category: IntArray  # (A,) items sorted by category
    offsets: Rows  # (C + 1,) category c is by_category[offsets[c]:offsets[c + 1]]

    @property
    def sizes(self) -> Rows:
        return np.diff(self.offsets)

    @property
    def category_popularity(self) -> Doubles:
        """(C,) share of the sessions that each category is the main one of."""
        return np.asarray(np.bincount(self.categories, self.popularity, len(self.related)), np.float64)


def make_catalogue(config: CatalogueConfig) -> ShopCatalogue:
    rng = generator(config.seed, "shop", "catalogue")
    sizes = category_sizes(config)
    categories = rng.permutation(np.repeat(np.arange(config.categories, dtype=np.int32), sizes))
    normal = rng.standard_normal(config.items)
    weight = np.exp(config.item_popularity_sigma * normal)
    interest = sizes**config.category_popularity_exponent / np.bincount(categories, weight)
    popularity = weight * interest[categories]
    ring = rng.permutation(config.categories).astype(np.int32)  # the next one of a random ring is the related one
    related = np.empty_like(ring)
    related[ring] = np.roll(ring, -1)
    return ShopCatalogue(
        categories=categories,
        popularity=popularity / popularity.sum(),
        rank=ndtr(normal),
        places=rng.standard_normal((config.items, TASTES)),
        related=related,
        by_category=np.argsort(categories, kind="stable").astype(np.int32),
        offsets=np.append(0, np.cumsum(sizes)),
    )


def category_sizes(config: CatalogueConfig) -> Rows:
    """(C,) the quantiles of a log-normal law, scaled and rounded so that they are at least 1 and sum to A."""
    middles = (np.arange(config.categories) + 0.5) / config.categories
    law = np.exp(config.category_size_sigma * ndtri(middles))
    spare = config.items - config.categories
    edges = np.round(np.cumsum(law) / law.sum() * spare).astype(np.int64)
    sizes: Rows = 1 + np.diff(edges, prepend=0)
    return sizes
