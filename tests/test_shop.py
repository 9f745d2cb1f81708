"""The synthetic shop: its formula against plain loops, its laws against the fit, its calibration."""

import math
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import polars as pl
import pytest
from gymnasium.utils.env_checker import check_env
from pydantic import ValidationError
from scipy.special import ndtr, ndtri

import bcd4rec.sim.gym  # noqa: F401 (registers the environments)
from bcd4rec.baselines.popular import Popularity
from bcd4rec.data.states import PAD, IntArray
from bcd4rec.errors import InputError
from bcd4rec.evaluation.metrics import per_session, target_rate
from bcd4rec.policies.policy import Policy
from bcd4rec.sim.environment import ENVIRONMENTS, EnvironmentOptions
from bcd4rec.sim.rollout import policy_of, rollout, with_openings
from bcd4rec.sim.shop import Shop, length_law
from bcd4rec.sim.shop_catalogue import ShopCatalogue, category_sizes, make_catalogue
from bcd4rec.sim.shop_config import CatalogueConfig, ShopConfig, preset
from bcd4rec.workflows.comparison import contestant, default_policy

USERS, ITEMS, CATEGORIES, SLATE = 23, 61, 7, 3
SMALL = ShopConfig(
    catalogue=CatalogueConfig(items=ITEMS, categories=CATEGORIES),
    slate_size=SLATE,
    page=4,
    most_pages=5,
    wandering=0.5,
    stray=0.3,
    positive_far=0.4,
)


@pytest.fixture(scope="module")
def full() -> Shop:
    return Shop()


def small(seed: int = 3, users: int = USERS) -> Shop:
    env = Shop(SMALL)
    env.reset(users, seed)
    return env


def plain_chances(env: Shop, user: int, item: int, positives: int) -> tuple[float, float]:
    """The formula of the module's docstring, one user and one item at a time."""
    config, shelf = env.config, env.catalogue
    squares = sum((env._taste[user, axis] - shelf.places[item, axis]) ** 2 for axis in range(2))
    near = math.exp(-squares / (2 * config.taste_width**2))
    category = shelf.categories[item]
    attraction = config.stray
    if category == env._related[user]:
        attraction = config.related
    if category == env._category[user]:
        attraction = 1.0
    appeal = 1 - config.appeal_spread * (1 - shelf.rank[item])
    positive = attraction * appeal * (config.positive_far + (config.positive_near - config.positive_far) * near)
    ready = 1 - (1 - config.readiness) * config.patience**positives
    return positive, positive * config.buying * near**2 * ready


def test_responses_are_the_plain_loop() -> None:
    env = small()
    draws, left = env._draws.copy(), env._left.copy()
    gone = [{int(item)} for item in env.openings()[:, 0]]
    positives, looked = [1] * USERS, [0] * USERS
    random = np.random.default_rng(0)
    seen: set[int] = set()
    for _ in range(env.horizon):
        slates = random.integers(-1, ITEMS, (USERS, SLATE)).astype(np.int32)
        outcome = env.step(slates)
        for user in range(USERS):
            chances = [plain_chances(env, user, item, positives[user]) for item in slates[user]]
            for place, item in enumerate(slates[user].tolist()):
                expected = 0
                if item != PAD:
                    if looked[user] < left[user] and item not in gone[user]:
                        number = draws[user, looked[user]]
                        positive, buy = chances[place]
                        expected = 2 if number < buy else 1 if number < positive else 0
                    looked[user] += 1
                    gone[user].add(item)
                assert outcome.responses[user, place] == expected
                positives[user] += expected > 0
                seen.add(expected)
            assert outcome.ended[user] == (looked[user] >= left[user])
    assert seen == {0, 1, 2}


def test_the_oracle_scores_are_the_chances_of_a_buy() -> None:
    env = small()
    env.step(np.tile(np.arange(SLATE, dtype=np.int32), (USERS, 1)))
    found = env.oracle_scores()
    assert (env._positives > 1).any()
    for user, item in np.ndindex(USERS, ITEMS):
        assert found[user, item] == pytest.approx(plain_chances(env, user, item, env._positives[user])[1], rel=1e-5)
    found[:] = 0  # the caller's own
    assert env.oracle_scores().max() > 0


def test_openings_are_drawn_within_the_main_category_by_popularity_and_liking() -> None:
    users = 40_000
    env = Shop(SMALL)
    env.reset(users, 0)
    env._taste[:] = (0.5, -0.3)
    category = int(np.argmax(env.catalogue.sizes))
    env._category[:] = category
    opened = env._open(np.random.default_rng(1).random(users))[:, 0]
    items = [item for item in range(ITEMS) if env.catalogue.categories[item] == category]
    weights = [env.catalogue.popularity[item] * plain_chances(env, 0, item, 0)[0] for item in items]
    shares = np.bincount(opened, minlength=ITEMS) / users
    assert shares.sum() == pytest.approx(shares[items].sum())
    np.testing.assert_allclose(shares[items], np.array(weights) / sum(weights), atol=0.01)


def test_every_opening_is_of_its_users_category(full: Shop) -> None:
    full.reset(500, 1)
    assert (full.catalogue.categories[full.openings()[:, 0]] == full._category).all()


def test_same_seed_same_users_whatever_their_number_and_the_slates() -> None:
    few, many, other = small(users=USERS), small(users=3 * USERS), small(seed=4)
    for name in ("_category", "_related", "_left", "_taste", "_draws", "_openings"):
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name)[:USERS])
        assert (getattr(few, name) != getattr(other, name)).any()
    slates = np.tile(np.arange(SLATE, dtype=np.int32), (3 * USERS, 1))
    for _ in range(4):
        one, two = few.step(slates[:USERS]), many.step(slates)
        np.testing.assert_array_equal(one.responses, two.responses[:USERS])
        slates += SLATE


def test_a_rollout_is_reproducible_to_the_bit() -> None:
    env = small()
    logs = [with_openings(rollout(env, contestant("behaviour", env), USERS, seed), env) for seed in (5, 5, 6)]
    assert logs[0].equals(logs[1])
    assert not logs[0].equals(logs[2])


def test_openings_are_in_the_first_state_and_step_zero_of_the_written_log() -> None:
    env = small()
    log = rollout(env, contestant("behaviour", env), USERS, 5)
    opened = env.openings()[:, 0]
    whole = with_openings(log, env)
    first = whole.filter(pl.col("step") == 0)
    assert first["item_id"].to_list() == opened.tolist()
    assert set(first["response"]) == {"click"}
    assert first["propensity"].null_count() == USERS
    assert first["organic"].all()
    rest = whole.filter(pl.col("step") > 0)
    assert not rest["organic"].any()
    assert rest.with_columns(pl.col("step") - 1).drop("request_id", "organic").equals(log.drop("request_id"))
    assert rest["request_id"].to_list() == [f"{user}-{step}" for user, step in rest["session_id", "step"].rows()]
    assert whole.select(pl.struct("session_id", "item_id").is_duplicated().any()).item() is False


def test_category_sizes_are_whole_and_follow_the_law() -> None:
    sizes = category_sizes(CatalogueConfig())
    assert (sizes.sum(), len(sizes), sizes.min()) == (6666, 825, 1)
    head = np.sort(sizes)[::-1][:41].sum() / 6666  # the largest 5 %
    assert head == pytest.approx(ndtr(1.405 + ndtri(0.05)), abs=0.06)


@pytest.mark.parametrize("share", [0.005, 0.02, 0.15, 0.4])
def test_item_popularity_has_the_heads_of_the_real_one(full: Shop, share: float) -> None:
    real = {0.005: 0.083, 0.02: 0.197, 0.15: 0.551, 0.4: 0.794}
    ranked = np.sort(full.catalogue.popularity)[::-1]
    assert ranked[: round(share * len(ranked))].sum() == pytest.approx(real[share], abs=0.05)


def test_the_catalogue_is_consistent() -> None:
    shelf: ShopCatalogue = make_catalogue(CatalogueConfig(items=ITEMS, categories=CATEGORIES))
    assert shelf.popularity.sum() == pytest.approx(1.0)
    for category in range(CATEGORIES):
        members = shelf.by_category[shelf.offsets[category] : shelf.offsets[category + 1]]
        assert sorted(members) == [item for item in range(ITEMS) if shelf.categories[item] == category]
        weight = shelf.sizes[category] ** 1.095 / (shelf.sizes**1.095).sum()
        assert shelf.category_popularity[category] == pytest.approx(weight)
    assert sorted(shelf.related) == list(range(CATEGORIES))
    assert (shelf.related != np.arange(CATEGORIES)).all()


def test_lengths_have_the_mean_they_are_asked_for() -> None:
    for mean in (1.2, 2.0, 2.7):
        law = length_law(ShopConfig(mean_pages=mean))
        assert law.sum() == pytest.approx(1.0)
        assert law @ np.arange(1, 7) == pytest.approx(mean, abs=1e-6)
        ratios = law[1:] / law[:-1] * np.arange(1, 6) / (np.arange(5) + 0.592)  # constant for a negative binomial
        np.testing.assert_allclose(ratios, ratios[0])


def buy_rate(env: Shop, policy: Policy, users: int = 500) -> float:
    return target_rate(per_session(rollout(env, policy, users, 11), env.responses))


def test_calibration(full: Shop) -> None:
    """The paper: behaviour 4.1, MostPop 2.0, online 26.6 percent. Tolerances are three standard errors and more."""
    behaviour = buy_rate(full, contestant("behaviour", full), users=1500)
    popular = buy_rate(full, policy_of(Popularity(full.catalogue.popularity.astype(np.float32)), full, "popular"))
    random, oracle = (buy_rate(full, contestant(name, full)) for name in ("random", "oracle"))
    assert behaviour == pytest.approx(4.1, abs=0.8)
    assert oracle == pytest.approx(26.6, abs=3.5)
    assert random < popular < 2.8 < behaviour < oracle


def test_session_structure_is_near_the_data() -> None:
    env = Shop(preset("pages"))
    log = with_openings(rollout(env, contestant("behaviour", env), 2500, 2), env)
    liked = log.filter(pl.col("response") != "skip").group_by("session_id", "category").len("views")
    per = liked.group_by("session_id").agg(main=pl.col("views").max(), total=pl.col("views").sum())
    longer = per.filter(pl.col("total") > 1)
    assert longer["main"].sum() / longer["total"].sum() == pytest.approx(0.856, abs=0.03)
    assert len(log) / 2500 == pytest.approx(14.5, abs=0.6)


@pytest.mark.parametrize("name", ["single", "pages", "pages-biased"])
def test_presets_differ_in_the_slate_alone(name: str) -> None:
    env = ENVIRONMENTS["shop"](EnvironmentOptions(preset=name))
    assert env.slate_size == {"single": 1, "pages": 5, "pages-biased": 5}[name]
    assert env.horizon * env.slate_size == 30
    assert preset(name).model_copy(update={"slate_size": 1, "examination": ()}) == preset("single")


class TestExamination:
    CHANCES = (0.9, 0.2, 0.6)

    def biased(self, chances: tuple[float, ...], users: int = USERS) -> Shop:
        env = Shop(SMALL.model_copy(update={"examination": chances}))
        env.reset(users, 3)
        return env

    def test_what_is_not_looked_at_is_skipped_and_nothing_else_changes(self) -> None:
        slates = np.random.default_rng(0).permuted(np.tile(np.arange(ITEMS), (400, 1)), axis=1)[:, :SLATE]
        slates[::7, 1] = PAD
        plain, same, env = small(users=400), self.biased((1.0,) * SLATE, 400), self.biased(self.CHANCES, 400)
        free, also, seen = (one.step(slates.astype(np.int32)) for one in (plain, same, env))
        assert free.responses.tobytes() == also.responses.tobytes()
        kept = seen.responses != 0
        np.testing.assert_array_equal(seen.responses[kept], free.responses[kept])
        liked = free.responses != 0
        for place, chance in enumerate(self.CHANCES):
            error = math.sqrt(chance * (1 - chance) / liked[:, place].sum())
            assert kept[:, place].sum() / liked[:, place].sum() == pytest.approx(chance, abs=3.5 * error)
        np.testing.assert_array_equal(env._looked, plain._looked)
        np.testing.assert_array_equal(seen.ended, free.ended)

    def test_a_users_luck_does_not_depend_on_the_others(self) -> None:
        slates = np.tile(np.array([5, 17, 40], np.int32), (USERS, 1))
        few, many = self.biased(self.CHANCES, 9), self.biased(self.CHANCES)
        np.testing.assert_array_equal(few.step(slates[:9]).responses, many.step(slates).responses[:9])

    def test_rates_by_place_are_those_of_the_preset(self) -> None:
        """Items are drawn alike for all places, so that rates differ by examination alone."""
        env = Shop(preset("pages-biased"))
        log = rollout(env, contestant("behaviour", env), 5000, 2)
        by_place = log.group_by("position").agg((pl.col("response") != "skip").mean().alias("rate"), pl.len())
        rates = by_place.sort("position")
        assert rates["position"].to_list() == [0, 1, 2, 3, 4]
        found = rates["rate"].to_numpy() / rates["rate"][0]
        errors = found * np.sqrt(1 / (rates["rate"] * rates["len"]).to_numpy() + 1 / (rates["rate"] * rates["len"])[0])
        assert (np.abs(found - [1, 0.7, 0.5, 0.35, 0.25]) < 3.5 * errors).all()
        assert errors[1:].max() < 0.03

    def test_impossible_chances_are_refused(self) -> None:
        with pytest.raises(ValidationError, match="names 2 places, but slates have 5"):
            ShopConfig(slate_size=5, examination=(1.0, 0.5))
        with pytest.raises(ValidationError, match="from 0 to 1"):
            ShopConfig(slate_size=2, examination=(1.0, 1.5))


def test_gymnasiums_checker_passes_and_sessions_start_with_the_opening() -> None:
    env = gymnasium.make("bcd4rec/Shop-v0", preset="pages")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    observation, _ = env.reset(seed=2)
    inner = env.unwrapped._sessions.environment  # type: ignore[attr-defined]
    liked = inner.openings()[0].tolist()
    assert observation.tolist() == liked + [PAD] * 9
    terminated, total = False, 0.0
    while not terminated:
        scores = inner.oracle_scores()[0]
        scores[inner._gone[0]] = -1
        slate = np.argsort(-scores)[:5]
        observation, reward, terminated, _, info = env.step(slate)
        liked += [int(item) for item, code in zip(slate, info["responses"], strict=True) if code > 0]
        assert reward == sum({0: 0.0, 1: 1.0, 2: 5.0}[int(code)] for code in info["responses"])
        assert observation.tolist() == liked[-10:] + [PAD] * (10 - len(liked))
        total += reward
    assert total > 0


def test_bad_input_is_named(full: Shop) -> None:
    with pytest.raises(InputError, match="--env shop takes no --model"):
        ENVIRONMENTS["shop"](EnvironmentOptions(model=Path("model")))
    with pytest.raises(InputError, match="Unknown preset 'page' of the shop"):
        ENVIRONMENTS["shop"](EnvironmentOptions(preset="page"))
    with pytest.raises(ValidationError, match="too few for 9 categories"):
        CatalogueConfig(items=8, categories=9)
    with pytest.raises(ValidationError, match="cannot end after 2"):
        ShopConfig(most_pages=2)
    full.reset(2, 0)
    wrong: list[tuple[IntArray, str]] = [
        (np.zeros((2, 3), np.int32), "expected \\(2, 1\\)"),
        (np.full((2, 1), 6666, np.int32), "expected 0 to 6665"),
    ]
    for slates, message in wrong:
        with pytest.raises(InputError, match=message):
            full.step(slates)


def test_the_behaviour_policy_is_the_default_and_known_by_name(full: Shop) -> None:
    assert default_policy(full) == "behaviour"
    found = contestant("behaviour", full, None, 0)
    assert found.scorer is full.behaviour()
    assert found.rule.exploration.kind == "own"
    assert found.name == "behaviour"
    assert default_policy(ENVIRONMENTS["recsim"](EnvironmentOptions())) == "random"
