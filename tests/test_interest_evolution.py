"""The simulator against a plain loop over users, its reference figures, and where its luck comes from."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bcd4rec.data.states import PAD, IntArray
from bcd4rec.errors import InputError
from bcd4rec.seeding import generator
from bcd4rec.sim.interest_evolution import PRESETS, InterestEvolution, InterestEvolutionConfig, preset

SMALL = {  # every size differs; `drift=1` is the only way to leave [−1, 1] before clipping
    "small": InterestEvolutionConfig(categories=5, items=13, slate_size=4, horizon=6, drift=1.0),
    "scarce": InterestEvolutionConfig(
        categories=3, items=8, slate_size=2, horizon=7, unavailable="shown", skip_scale=0.1
    ),
}
CONFIGS = {**PRESETS, **SMALL}


class LoopUser:
    """One user by the five rules, step by step, in plain Python."""

    def __init__(self, config: InterestEvolutionConfig, categories: list[int], interests: list[float]):
        self.config, self.categories, self.interests = config, categories, interests
        self.gone: set[int] = set()

    def skip_weight(self) -> float:
        if self.config.skip_weight is not None:
            return self.config.skip_scale * self.config.skip_weight
        second = sorted(self.interests)[-2] + self.config.interest_shift
        return self.config.skip_scale * max(second, self.config.smallest_weight)

    def weights(self, slate: list[int]) -> list[float]:
        weights = []
        for place, item in enumerate(slate):
            if item == PAD or item in slate[:place] or item in self.gone:
                weights.append(0.0)
            else:
                interest = self.interests[self.categories[item]] + self.config.interest_shift
                weights.append(max(interest, self.config.smallest_weight))
        return weights

    def step(self, slate: list[int], choice: float, update: float) -> int | None:
        """The clicked place, or None."""
        weights = self.weights(slate)
        draw, edge, clicked = choice * (sum(weights) + self.skip_weight()), 0.0, None
        for place, weight in enumerate(weights):
            edge += weight
            if clicked is None and draw < edge:
                clicked = place
        if clicked is not None:
            self.update(self.categories[slate[clicked]], update)
        if self.config.unavailable == "shown":
            self.gone |= set(slate)
        elif self.config.unavailable == "liked" and clicked is not None:
            self.gone.add(slate[clicked])
        return clicked

    def update(self, category: int, draw: float) -> None:
        interest = self.interests[category]
        change = self.config.drift * (1 - abs(interest)) * (1 - interest)
        moved = interest + change if draw < (1 + interest) / 2 else interest - change
        self.interests[category] = min(1.0, max(-1.0, moved))


def loop_users(config: InterestEvolutionConfig, categories: IntArray, users: int, seed: int) -> list[LoopUser]:
    interests = 2 * generator(seed, "interest-evolution", "users").random((users, config.categories)) - 1
    return [LoopUser(config, categories.tolist(), row.tolist()) for row in interests]


def draws(stream: str, users: int, horizon: int, seed: int) -> NDArray[np.float64]:
    return generator(seed, "interest-evolution", stream).random((users, horizon))


def faulty_slates(config: InterestEvolutionConfig, users: int, seed: int) -> IntArray:
    """(T, B, K) slates with empty places, repeats and items from few enough to come back later."""
    shape = (config.horizon, users, config.slate_size)
    return np.random.default_rng(seed).integers(PAD, min(config.items, 12), shape, dtype=np.int32)


def answers(env: InterestEvolution, slates: IntArray, seed: int) -> NDArray[np.int8]:
    """(T, B, K) responses of a whole session to given slates."""
    env.reset(slates.shape[1], seed)
    return np.stack([env.step(slate).responses for slate in slates])


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_the_plain_loop(name: str) -> None:
    config, users, seed = CONFIGS[name], 41, 5
    env = InterestEvolution(config)
    env.reset(users, seed)
    loop = loop_users(config, env.categories, users, seed)
    choices, updates = draws("choices", users, config.horizon, seed), draws("updates", users, config.horizon, seed)
    for t, slates in enumerate(faulty_slates(config, users, seed)):
        responses = env.step(slates).responses
        for b, user in enumerate(loop):
            place = user.step(slates[b].tolist(), choices[b, t], updates[b, t])
            assert responses[b].tolist() == [int(k == place) for k in range(config.slate_size)]
        np.testing.assert_array_equal(env.interests, [user.interests for user in loop])


def test_clipping_is_reached() -> None:
    env = InterestEvolution(SMALL["small"])
    answers(env, faulty_slates(env.config, 200, 0), 0)
    assert env.interests.min() == -1.0
    assert env.interests.max() <= 1.0


@pytest.mark.parametrize("name", PRESETS)
def test_click_and_update_frequencies_are_the_stated_probabilities(name: str) -> None:
    users, env = 6000, InterestEvolution(PRESETS[name])
    env.reset(users, 3)
    slates = np.tile(np.arange(env.slate_size, dtype=np.int32), (users, 1))
    loop = loop_users(env.config, env.categories, users, 3)
    weights = np.array([user.weights(slate) for user, slate in zip(loop, slates.tolist(), strict=True)])
    skip = np.array([user.skip_weight() for user in loop])
    total = weights.sum(axis=1) + skip
    expected = np.divide(weights, total[:, None], out=np.zeros_like(weights), where=total[:, None] > 0)
    before = env.interests.copy()
    clicks = env.step(slates).responses == 1
    for k in range(env.slate_size):
        assert abs(z_score(clicks[:, k], expected[:, k])) < 4
        # Among those who clicked this very place: if both streams were one, place and direction would go together.
        rows, category = np.flatnonzero(clicks[:, k]), env.categories[k]
        rose = env.interests[rows, category] > before[rows, category]
        assert abs(z_score(rose, (1 + before[rows, category]) / 2)) < 4


def z_score(events: NDArray[np.bool_], probabilities: NDArray[np.float64]) -> float:
    return float((events - probabilities).sum() / np.sqrt((probabilities * (1 - probabilities)).sum()))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_slates_give_at_most_one_click_on_an_available_item(data: st.DataObject) -> None:
    config = SMALL[data.draw(st.sampled_from(sorted(SMALL)))]
    slate = st.lists(st.integers(PAD, config.items - 1), min_size=config.slate_size, max_size=config.slate_size)
    slates = np.array(
        data.draw(st.lists(st.lists(slate, min_size=3, max_size=3), min_size=config.horizon, max_size=config.horizon)),
        np.int32,
    )
    responses = answers(InterestEvolution(config), slates, data.draw(st.integers(0, 99)))
    assert set(np.unique(responses)) <= {0, 1}
    for b in range(slates.shape[1]):
        clicked = [int(slates[t, b, k]) for t, k in np.argwhere(responses[:, b])]
        assert responses[:, b].sum(axis=1).max() <= 1
        assert PAD not in clicked
        assert len(clicked) == len(set(clicked))


def eager(rule: str, **changes: object) -> InterestEvolution:
    """Users who click whenever something can be clicked: the skip has no weight."""
    values = {"slate_size": 2, "skip_weight": 0.0, "unavailable": rule} | changes
    env = InterestEvolution(InterestEvolutionConfig.model_validate(values))
    env.reset(50, 1)
    return env


def both(first: int, second: int) -> IntArray:
    return np.tile(np.array([first, second], np.int32), (50, 1))


@pytest.mark.parametrize(("rule", "clicks_again"), [("nothing", True), ("liked", True), ("shown", False)])
def test_availability_of_what_was_skipped(rule: str, clicks_again: bool) -> None:
    env = eager(rule)
    assert env.step(both(8, 9)).responses.any(axis=1).all()
    assert (env.step(both(8, 9)).responses.any(axis=1) == clicks_again).all()
    # Now both were clicked under "liked", both were shown under "shown", and "nothing" never tires.
    assert (env.step(both(8, 9)).responses.any(axis=1) == (rule == "nothing")).all()
    assert env.step(both(8, 7)).responses[:, 1].any()


def test_padding_and_repeats_cannot_be_clicked() -> None:
    env = eager("nothing")
    assert not env.step(both(PAD, PAD)).responses.any()
    assert (env.step(both(4, 4)).responses == [1, 0]).all()
    assert (env.step(both(PAD, 4)).responses == [0, 1]).all()
    assert not eager("liked").step(both(PAD, PAD)).responses.any()


def test_all_weights_zero_is_a_skip() -> None:
    env = eager("liked", smallest_weight=0.0)
    env._interests[:] = -0.5
    with np.errstate(all="raise"):
        assert not env.step(both(1, 2)).responses.any()
    assert (env.interests == -0.5).all()


def test_sessions_end_at_the_horizon_and_stay_ended() -> None:
    env = eager("nothing", horizon=3)
    assert [bool(env.step(both(1, 2)).ended.any()) for _ in range(2)] == [False, False]
    assert env.step(both(1, 2)).ended.all()
    before = env.interests.copy()
    late = env.step(both(1, 2))
    assert late.ended.all()
    assert not late.responses.any()
    np.testing.assert_array_equal(env.interests, before)
    env.reset(50, 2)
    assert not env.step(both(1, 2)).ended.any()


@pytest.mark.parametrize("name", CONFIGS)
def test_same_seed_same_bits(name: str) -> None:
    slates = faulty_slates(CONFIGS[name], 30, 2)
    first, again = InterestEvolution(CONFIGS[name]), InterestEvolution(CONFIGS[name])
    assert answers(first, slates, 9).tobytes() == answers(again, slates, 9).tobytes()
    assert first.interests.tobytes() == again.interests.tobytes()
    assert answers(first, slates, 9).tobytes() == answers(again, slates, 9).tobytes()  # a used environment, too
    assert answers(first, slates, 10).tobytes() != answers(again, slates, 9).tobytes()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_users_luck_depends_on_nobody_else(name: str) -> None:
    env, slates = InterestEvolution(CONFIGS[name]), faulty_slates(CONFIGS[name], 30, 2)
    everybody = answers(env, slates, 4)
    other = slates.copy()
    other[:, 10:] = faulty_slates(CONFIGS[name], 20, 3)
    np.testing.assert_array_equal(answers(env, other, 4)[:, :10], everybody[:, :10])
    np.testing.assert_array_equal(answers(env, slates[:, :10], 4), everybody[:, :10])


def test_other_slates_now_leave_the_luck_of_later_steps_alone() -> None:
    """Without drift and exclusion the past leaves no trace, so a later step must not know what was shown before."""
    config = PRESETS["recsim"].model_copy(update={"drift": 0.0})
    env, slates = InterestEvolution(config), faulty_slates(config, 60, 2)
    other = slates.copy()
    other[:10] = PAD
    expected = answers(env, slates, 4)
    changed = answers(env, other, 4)
    assert not changed[:10].any()
    np.testing.assert_array_equal(changed[10:], expected[10:])


def test_users_are_uniform_and_differ() -> None:
    env = InterestEvolution()
    env.reset(5000, 0)
    assert np.abs(env.interests).max() <= 1.0
    assert abs(env.interests.mean()) < 0.01
    assert env.interests.var() == pytest.approx(1 / 3, abs=0.01)
    assert len(np.unique(env.interests)) == env.interests.size


def test_categories() -> None:
    for name in ("paper", "literal", "single"):
        categories = InterestEvolution(PRESETS[name]).categories
        assert categories.tolist() == [item % 20 for item in range(200)]
    drawn = InterestEvolution(PRESETS["recsim"])
    drawn.reset(5, 77)
    np.testing.assert_array_equal(drawn.categories, InterestEvolution(PRESETS["recsim"]).categories)
    assert drawn.categories.min() >= 0
    assert drawn.categories.max() < 20
    assert len(set(np.bincount(drawn.categories, minlength=20))) > 1  # not ten of each
    another = InterestEvolution(PRESETS["recsim"].model_copy(update={"catalogue_seed": 1}))
    assert (another.categories != drawn.categories).any()


def test_oracle_scores_are_the_interests_now() -> None:
    env = InterestEvolution(SMALL["small"])
    answers(env, faulty_slates(env.config, 17, 0), 0)
    scores = env.oracle_scores()
    assert scores.dtype == np.float32
    assert scores.shape == (17, 13)
    for b in range(17):
        for item in range(13):
            assert scores[b, item] == np.float32(env.interests[b, item % 5])


def test_views_are_read_only() -> None:
    env = InterestEvolution()
    env.reset(2, 0)
    with pytest.raises(ValueError, match="read-only"):
        env.interests[0, 0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        env.categories[0] = 1


def test_bad_input_is_named() -> None:
    env = InterestEvolution()
    env.reset(3, 0)
    with pytest.raises(InputError, match=r"shape \(3, 6\), expected \(3, 7\)"):
        env.step(np.zeros((3, 6), np.int32))
    for item in (-2, 200):
        with pytest.raises(InputError, match="expected 0 to 199"):
            env.step(np.full((3, 7), item, np.int32))
    with pytest.raises(InputError, match="Unknown preset 'papr'"):
        preset("papr")
    with pytest.raises(InputError, match="too few"):
        InterestEvolutionConfig.parse({"items": 5}, "environment")


# The reference figures of the presets.

Scores = Callable[[InterestEvolution, np.random.Generator], NDArray[np.float64]]


def random_scores(env: InterestEvolution, rng: np.random.Generator) -> NDArray[np.float64]:
    return rng.random((len(env.interests), env.n_items))


def oracle(env: InterestEvolution, rng: np.random.Generator) -> NDArray[np.float64]:
    return env.oracle_scores().astype(np.float64)


def click_counts(env: InterestEvolution, score: Scores, users: int, seed: int) -> NDArray[np.int64]:
    """(A,) clicks by item over whole sessions in which what is no longer available is not recommended."""
    env.reset(users, seed)
    rng, rows = np.random.default_rng(seed), np.arange(users)[:, None]
    gone, counts = np.zeros((users, env.n_items), bool), np.zeros(env.n_items, np.int64)
    for _ in range(env.horizon):
        slates = np.where(gone, np.inf, -score(env, rng)).argsort(axis=1, kind="stable")
        slates = slates[:, : env.slate_size].astype(np.int32)
        clicks = env.step(slates).responses == 1
        counts += np.bincount(slates[clicks], minlength=env.n_items)
        if env.unavailable == "liked":
            gone[np.nonzero(clicks)[0], slates[clicks]] = True
        elif env.unavailable == "shown":
            gone[rows, slates] = True
    return counts


def ctr(env: InterestEvolution, score: Scores, users: int = 3000, seed: int = 1) -> float:
    return 100 * float(click_counts(env, score, users, seed).sum()) / (users * env.horizon)


@pytest.mark.parametrize(
    ("name", "score", "reference"),
    [
        ("paper", random_scores, 64.0),
        ("paper", oracle, 88.0),
        ("recsim", random_scores, 57.7),
        ("recsim", oracle, 74.2),
        ("literal", random_scores, 40.5),
        ("literal", oracle, 69.0),
        ("single", random_scores, 41.6),
        ("single", oracle, 85.6),
    ],
)
def test_reference_ctr(name: str, score: Scores, reference: float) -> None:
    assert ctr(InterestEvolution(PRESETS[name]), score) == pytest.approx(reference, abs=1.0)


def test_reference_ctr_of_a_frozen_popularity_list() -> None:
    env = InterestEvolution(PRESETS["paper"])
    popularity = click_counts(env, random_scores, 2000, 0).astype(np.float64)
    frozen = ctr(env, lambda env, rng: np.broadcast_to(popularity, (len(env.interests), env.n_items)))
    assert frozen == pytest.approx(41.7, abs=1.0)
