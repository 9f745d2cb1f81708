"""The policy that writes the shop's logs: its weights against plain loops, its draws against its weights."""

import numpy as np
import pytest
from pydantic import ValidationError

from bcd4rec.data.states import PAD, States
from bcd4rec.errors import InputError
from bcd4rec.policies.scorer import Drawing
from bcd4rec.policies.slates import Exploration, SlateRule, make_slates
from bcd4rec.sim.rollout import policy_of, rollout
from bcd4rec.sim.shop import Shop
from bcd4rec.sim.shop_behaviour import BehaviourConfig, ShopBehaviour, covisits
from bcd4rec.sim.shop_catalogue import make_catalogue
from bcd4rec.sim.shop_config import CatalogueConfig, ShopConfig

ITEMS, CATEGORIES = 37, 5
CATALOGUE = CatalogueConfig(items=ITEMS, categories=CATEGORIES)
SHELF = make_catalogue(CATALOGUE)
MIX = BehaviourConfig(explore=0.2, covisit=0.5, related=0.3)
POLICY = ShopBehaviour(SHELF, MIX)
STATES = States.of([[3, 11, 3], [], [20], [5, 6, 7, 8]], 6)


def plain_covisit(seen: int, item: int) -> float:
    """What share of the visitors of `seen` look at `item` next."""

    def near(other: int) -> float:
        apart = sum((SHELF.places[seen, axis] - SHELF.places[other, axis]) ** 2 for axis in range(2))
        return float(SHELF.popularity[other] * np.exp(-apart / (2 * MIX.blur**2)))

    own, related = SHELF.categories[seen], SHELF.related[SHELF.categories[seen]]
    if SHELF.categories[item] == own:
        mates = [near(other) for other in range(ITEMS) if SHELF.categories[other] == own]
        return (1 - MIX.related) * near(item) / sum(mates)
    if SHELF.categories[item] == related:
        others = [SHELF.popularity[other] for other in range(ITEMS) if SHELF.categories[other] == related]
        return float(MIX.related * SHELF.popularity[item] / sum(others))
    return 0.0


def plain_weight(viewed: list[int], item: int) -> float:
    if not viewed:
        return float(MIX.explore / ITEMS + (1 - MIX.explore) * SHELF.popularity[item])
    follow = sum(plain_covisit(seen, item) for seen in viewed) / len(viewed)
    return float(MIX.explore / ITEMS + MIX.popular * SHELF.popularity[item] + MIX.covisit * follow)


def viewed(row: int) -> list[int]:
    return [int(item) for item in STATES.positives[row] if item != PAD]


def test_covisits_are_shares() -> None:
    table = covisits(SHELF, MIX).toarray()
    np.testing.assert_allclose(table.sum(axis=1), 1.0)
    for seen, item in np.ndindex(ITEMS, ITEMS):
        assert table[seen, item] == pytest.approx(plain_covisit(seen, item))


def test_scores_are_the_logarithms_of_the_plain_weights() -> None:
    found = np.exp(POLICY.scores(STATES))
    for row, item in np.ndindex(len(STATES), ITEMS):
        assert found[row, item] == pytest.approx(plain_weight(viewed(row), item), rel=1e-4)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-5)


def test_candidates_have_the_scores_of_their_items() -> None:
    asked = np.array([[2, PAD, 36], [PAD, 0, 1], [12, 12, 4], [1, 0, PAD]], np.int32)
    found, every = POLICY.scores(STATES, asked), POLICY.scores(STATES)
    for row, place in np.ndindex(asked.shape):
        item = asked[row, place]
        expected = -np.inf if item == PAD else every[row, item]
        assert found[row, place] == pytest.approx(expected, rel=1e-5)


def test_propensities_are_those_of_drawing_without_what_is_gone() -> None:
    gone = np.array([[3, 11, PAD], [PAD, PAD, PAD], [20, 1, 2], [5, 6, 7]], np.int32)
    items, propensities = POLICY.draw(STATES, gone, 4, np.random.default_rng(0))
    for row in range(len(STATES)):
        left = {item: plain_weight(viewed(row), item) for item in range(ITEMS) if item not in gone[row]}
        for item, propensity in zip(items[row].tolist(), propensities[row], strict=True):
            assert propensity == pytest.approx(left[item] / sum(left.values()), rel=1e-5)
            del left[item]


@pytest.mark.parametrize("row", range(4))
def test_items_are_drawn_as_often_as_their_propensities_say(row: int) -> None:
    draws, k = 30_000, 2
    many = STATES[np.full(draws, row)]
    gone = np.tile(np.array([[3, 9]], np.int32), (draws, 1))
    own, _ = POLICY.draw(many, gone, k, np.random.default_rng(row))
    left = {item: plain_weight(viewed(row), item) for item in range(ITEMS) if item not in (3, 9)}
    first = np.array([left.get(item, 0.0) / sum(left.values()) for item in range(ITEMS)])
    shares = np.bincount(own[:, 0], minlength=ITEMS) / draws
    assert np.abs(shares - first).max() < 5 * np.sqrt(first.max() / draws)
    scores = POLICY.scores(many)
    scores[:, [3, 9]] = -np.inf
    softmax = make_slates(scores, k, Exploration(kind="softmax"), np.random.default_rng(1)).items
    second = [np.bincount(one[:, 1], minlength=ITEMS) / draws for one in (own, softmax)]
    assert np.abs(second[0] - second[1]).max() < 7 * np.sqrt(second[0].max() / draws)


def test_same_seed_same_slates() -> None:
    gone = np.full((4, 0), PAD, np.int32)
    one, again, other = (POLICY.draw(STATES, gone, 5, np.random.default_rng(seed))[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    assert all(len(set(slate)) == 5 for slate in one.tolist())


def test_what_cannot_be_drawn_is_refused() -> None:
    assert isinstance(POLICY, Drawing)
    gone = np.tile(np.arange(35, dtype=np.int32), (4, 1))
    assert set(POLICY.draw(STATES, gone, 2, np.random.default_rng(0))[0].ravel().tolist()) == {35, 36}
    with pytest.raises(InputError, match="3 more cannot be drawn"):
        POLICY.draw(STATES, gone, 3, np.random.default_rng(0))
    with pytest.raises(InputError, match="Only a policy that draws its slates"):
        make_slates(POLICY.scores(STATES), 2, Exploration(kind="own"), np.random.default_rng(0))
    with pytest.raises(ValidationError, match="must not be above 1"):
        BehaviourConfig(explore=0.6, covisit=0.5)


@pytest.mark.parametrize("after_skip", ["repeat", "exclude"])
def test_rollouts_log_exact_propensities(after_skip: str) -> None:
    env = Shop(ShopConfig(catalogue=CATALOGUE, slate_size=2, page=4, most_pages=3, mean_pages=2.0))
    own = Exploration(kind="own")
    rule = SlateRule(exploration=own, after_skip=after_skip, unavailable=env.unavailable)  # type: ignore[arg-type]
    log = rollout(env, policy_of(ShopBehaviour(env.catalogue, MIX), env, "behaviour", rule), 19, 4)
    opened = env.openings()[:, 0].tolist()
    for (user,), rows in log.group_by("session_id", maintain_order=True):
        liked, gone = [opened[user]], {opened[user]}  # type: ignore[index]
        for _, page in rows.group_by("step", maintain_order=True):
            now = list(liked)
            for item, response, propensity in page["item_id", "response", "propensity"].rows():
                left = sum(plain_weight(now, other) for other in range(ITEMS) if other not in gone)
                assert propensity == pytest.approx(plain_weight(now, item) / left, rel=1e-5)
                gone.add(item)
                liked += [item] if response != "skip" else []
