"""A made-up shop in which an item's second category decides whether it is clicked, and a third of the items are new.

`python -m tests.several_categories` measures what the second category is worth, over three seeds.
"""

import numpy as np
import polars as pl

import bcd4rec
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.states import FloatArray, States
from bcd4rec.policies.policy import Policy

ITEMS, FIRST, SECOND, SESSIONS, STEPS, PLACES = 120, 5, 8, 150, 4, 3
REWARDS = {"skip": 0.0, "click": 1.0}


class TagShop:
    """Half of the second categories are good, and the first one tells nothing."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.first, self.second = (self.rng.integers(many, size=ITEMS) for many in (FIRST, SECOND))
        good = self.rng.permutation(SECOND) < SECOND // 2
        self.chance: FloatArray = np.where(good[self.second], 0.55, 0.15)
        self.new = np.arange(ITEMS) % 3 == 0

    def datasets(self) -> dict[str, Dataset]:
        """Of one log: with all categories of an item, and with its first one alone."""
        shape, known = (SESSIONS, STEPS, PLACES), np.flatnonzero(~self.new)
        shown = self.rng.choice(known, shape)
        clicked = self.rng.random(shape) < self.chance[shown]
        session, step, _ = np.indices(shape)
        log = pl.DataFrame({"session_id": session.ravel(), "step": step.ravel(), "item_id": shown.ravel()})
        log = log.with_columns(response=pl.Series(np.where(clicked.ravel(), "click", "skip")))
        log = log.unique(["session_id", "step", "item_id"], keep="first", maintain_order=True)
        both = zip(self.first, self.second, strict=True)
        items = pl.DataFrame(
            {"item_id": np.arange(ITEMS), "categories": [[f"a{one}", f"b{other}"] for one, other in both]}
        )
        cut = items.select("item_id", pl.col("categories").list.first().alias("category"))
        return {name: Dataset.from_frame(log, REWARDS, items=told) for name, told in (("all", items), ("first", cut))}

    def auc_of_new_items(self, policy: Policy) -> float:
        """How often a new item that is clicked has the higher score than one that is not, in a fresh session."""
        scores = policy.scorer.scores(States.empty(1, 5, 5))[0]
        ids = policy.vocabulary.ids.to_numpy()
        new = np.flatnonzero(self.new[ids])
        return _auc(scores[new], self.chance[ids[new]])

    def best_auc(self) -> float:
        """Of the true chances, which no score can beat but by luck."""
        return _auc(self.chance[self.new], self.chance[self.new])


def _auc(scores: FloatArray, chance: FloatArray) -> float:
    """Over pairs of two items, the first of which is clicked with its chance and the second is not with its own."""
    pairs = chance[:, None] * (1.0 - chance[None, :])
    np.fill_diagonal(pairs, 0.0)
    higher = (scores[:, None] > scores[None, :]) + 0.5 * (scores[:, None] == scores[None, :])
    return float((pairs * higher).sum() / pairs.sum())


def main() -> None:
    for seed in range(3):
        shop = TagShop(seed)
        found = {
            f"{method} {name}": round(shop.auc_of_new_items(bcd4rec.train(method, data, **more)), 3)
            for name, data in shop.datasets().items()
            for method, more in (("response", {}), ("bcd4rec", {"settings": {"updates": 50}, "search": "none"}))
        }
        print(seed, found, "best", round(shop.best_auc(), 3))


if __name__ == "__main__":
    main()
