"""The numbers of the synthetic shop: what was fitted to real logs, what is calibrated, and what is chosen."""

from typing import Self

from pydantic import Field, model_validator

from bcd4rec.config import Config
from bcd4rec.errors import InputError


class CatalogueConfig(Config):
    """What there is to buy. The laws are fitted to Diginetica by `scripts/fit_shop.py`; see docs/shop.md."""

    items: int = Field(default=6666, ge=1, description="A: how many items there are; the paper's count.")
    categories: int = Field(default=825, ge=2, description="How many categories there are; the paper's count.")
    category_size_sigma: float = Field(
        default=1.405, ge=0, description="σ of the log-normal law of category sizes (fitted)."
    )
    category_popularity_exponent: float = Field(
        default=1.095, ge=0, description="A category of n items is wanted like n to this power (fitted)."
    )
    item_popularity_sigma: float = Field(
        default=1.167, ge=0, description="σ of the log-normal law of the items' popularity (fitted)."
    )
    seed: int = Field(default=0, ge=0, description="Which catalogue: logs of different users speak of the same items.")

    @model_validator(mode="after")
    def _enough_items(self) -> Self:
        if self.items < self.categories:
            raise ValueError(f"{self.items} items are too few for {self.categories} categories")
        return self


class ShopConfig(Config):
    """Who comes to the shop and how they answer; the defaults are the preset `single`."""

    catalogue: CatalogueConfig = Field(default_factory=CatalogueConfig, description="What there is to buy.")
    slate_size: int = Field(default=1, ge=1, description="K: how many items are shown at each step.")
    page: int = Field(default=5, ge=1, description="Users leave after whole pages of so many items (chosen).")
    most_pages: int = Field(default=6, ge=1, description="The most pages that a session has (chosen).")
    mean_pages: float = Field(
        default=2.7, ge=1, description="Mean pages per session: with the opening 14.5 items, as the paper counts."
    )
    pages_dispersion: float = Field(
        default=0.592, gt=0, description="r of the negative binomial law of session lengths (fitted)."
    )
    wandering: float = Field(
        default=0.326, ge=0, le=1, description="Share of users who also look at a related category (fitted)."
    )
    related: float = Field(
        default=0.7, ge=0, le=1, description="How much a wanderer likes the related category, the main one being 1."
    )
    stray: float = Field(
        default=0.05, ge=0, le=1, description="How much anybody likes any other category (calibrated: MostPop)."
    )
    taste_width: float = Field(
        default=1.25, gt=0, description="w: how far from a user's taste an item may lie and still please (calibrated)."
    )
    positive_near: float = Field(
        default=0.95, ge=0, le=1, description="Chance of a positive response to the very item of one's taste."
    )
    positive_far: float = Field(
        default=0.5, ge=0, le=1, description="The same for an item of the category that is far from one's taste."
    )
    appeal_spread: float = Field(
        default=0.4, ge=0, le=1, description="How much less the least popular items of a category please."
    )
    buying: float = Field(
        default=1.0, ge=0, le=1, description="Share of positive responses to the very item that are buys (calibrated)."
    )
    readiness: float = Field(
        default=0.7, ge=0, le=1, description="What that share is multiplied by before anything was looked at (chosen)."
    )
    patience: float = Field(
        default=0.5, ge=0, le=1, description="Each positive response leaves so much of the lack of readiness (chosen)."
    )

    examination: tuple[float, ...] = Field(
        default=(),
        description="Chance that the item at each place of a slate is looked at (chosen); empty: all are. What is not "
        "looked at is skipped.",
    )

    @model_validator(mode="after")
    def _possible_lengths(self) -> Self:
        if self.mean_pages > self.most_pages:
            raise ValueError(f"sessions of {self.mean_pages} pages on average cannot end after {self.most_pages}")
        if self.positive_far > self.positive_near:
            raise ValueError("positive_far must not be above positive_near")
        if self.examination and len(self.examination) != self.slate_size:
            raise ValueError(f"examination names {len(self.examination)} places, but slates have {self.slate_size}")
        if not all(0 <= chance <= 1 for chance in self.examination):
            raise ValueError("examination holds chances, from 0 to 1")
        return self

    @property
    def impressions(self) -> int:
        """The most items that a session can be shown."""
        return self.page * self.most_pages


PRESETS: dict[str, ShopConfig] = {
    "single": ShopConfig(),
    "pages": ShopConfig(slate_size=5),
    "pages-biased": ShopConfig(slate_size=5, examination=(1.0, 0.7, 0.5, 0.35, 0.25)),
}


def preset(name: str) -> ShopConfig:
    """The preset of this name; an unknown name is bad input."""
    if name not in PRESETS:
        raise InputError(f"Unknown preset {name!r} of the shop; known are {', '.join(PRESETS)}.")
    return PRESETS[name]
