"""A shop that promotes some items and whose visitors look at the top of a page: who ignores places takes promotion for
appeal, and sells less to the true visitors."""

import numpy as np
import pytest

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.evaluation.metrics import per_session
from bcd4rec.evaluation.statistics import RATE, difference
from bcd4rec.policies.policy import learned_policy
from bcd4rec.policies.slates import Exploration, SlateRule
from bcd4rec.policies.vocabulary_mapping import map_policy
from bcd4rec.sim.environment import catalogue
from bcd4rec.sim.rollout import policy_of, rollout, with_ids, with_openings
from bcd4rec.sim.shop import Shop
from bcd4rec.sim.shop_config import CatalogueConfig, ShopConfig
from bcd4rec.workflows.fitting import fit


class Promotion:
    """Ranks by what items pay for, whatever people think of them."""

    def __init__(self, n_items: int):
        self.paid = np.random.default_rng(1).normal(0.0, 3.0, n_items).astype(np.float32)

    @property
    def n_items(self) -> int:
        return len(self.paid)

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        if candidates is None:
            return np.tile(self.paid, (len(states), 1))
        return np.where(candidates == PAD, np.float32(-np.inf), self.paid[candidates])


@pytest.mark.parametrize("method", ["ctr", "response"])
def test_who_ignores_places_sells_less_where_promoted_items_stand_on_top(method):
    shop = Shop(
        ShopConfig(
            slate_size=5,
            examination=(1.0, 0.6, 0.35, 0.2, 0.1),
            appeal_spread=0.9,  # items differ, and in the same way for everybody, or no place could hide it
            taste_width=4.0,
            catalogue=CatalogueConfig(items=200, categories=8),
        )
    )
    drawn = Exploration(kind="softmax", temperature=1.0)
    logger = policy_of(
        Promotion(shop.n_items), shop, "promotion", SlateRule(unavailable=shop.unavailable, exploration=drawn)
    )
    played = rollout(shop, logger, users=4000, seed=100, candidates="category")
    log = with_ids(with_openings(played, shop), shop)
    answers = []
    for known in (log, log.drop("position")):
        data = Dataset.from_frame(known, shop.responses, seed=0)
        fitted = fit(method, data, seed=0)
        policy = learned_policy(fitted.scorer, data, fitted.about).with_rule(unavailable=shop.unavailable)
        answered = rollout(shop, map_policy(policy, catalogue(shop)), users=2000, seed=999, candidates="category")
        answers.append(per_session(answered, shop.responses))
    gained = difference(*answers, RATE, seed=0)
    assert gained is not None
    assert gained.low > 0.0
