"""A mixture of two policies: its probabilities, and that it is kept, served and replayed like any other."""

import numpy as np
import polars as pl
import pytest

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.states import PAD
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.policies import bundle
from bcd4rec.policies.mixture import Mixture, mix, mixed_propensities
from bcd4rec.policies.policy import Memory, Policy
from bcd4rec.policies.slates import Exploration, SlateRule
from bcd4rec.policies.vocabulary_mapping import map_policy
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig
from bcd4rec.sim.rollout import rollout
from bcd4rec.workflows.comparison import random_policy
from bcd4rec.workflows.fitting import fit
from tests.serving_help import serving
from tests.test_off_policy_replay import WHOLE, policy_for, replayed, world
from tests.test_policy import sessions_of


def two(**rule: object) -> tuple[Policy, Policy]:
    """Of other memories, rules and exploration."""
    environment = world()
    new = policy_for(environment, after_skip="exclude", diversity=0.5, **rule)
    old = policy_for(environment, exploration={"kind": "epsilon", "epsilon": 0.6}, **rule)
    return new, Policy(old.scorer, old.vocabulary, Memory(length=2, skips=4), old.rule, old.responses)


def test_propensities_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    old, new = rng.random((5, 3)), rng.random((5, 3))
    new[2, 1] = 0.0
    found = mixed_propensities(old, new, 0.3)
    for row in range(5):
        for place in range(3):
            assert found[row, place] == pytest.approx(0.7 * old[row, place] + 0.3 * new[row, place])


def test_slates_come_as_often_as_they_say():
    new, old = two()
    mixture = mix(new, old, 0.3)
    one = sessions_of(mixture, 1)
    many = one[np.zeros(40_000, np.int64)]
    slates = mixture.slates(many, 2, np.random.default_rng(1))
    chances = slates.propensities.prod(axis=1)
    for slate in np.unique(slates.items, axis=0):
        mine = (slates.items == slate).all(axis=1)
        assert mine.mean() == pytest.approx(chances[mine][0], abs=0.012)
    greedy = mixture.slates(one, 3).items
    np.testing.assert_array_equal(greedy, old.slates(sessions_of(old, 1), 3).items)


def test_where_only_exploration_differs_it_is_between():
    new, old = (policy_for(world(), exploration={"kind": "epsilon", "epsilon": one}) for one in (0.2, 0.6))
    between = new.with_rule(exploration={"kind": "epsilon", "epsilon": 0.5})
    sessions = sessions_of(new)
    items = old.slates(sessions, 3, np.random.default_rng(0)).items
    mixed = mix(new, old, 0.25).propensities(sessions, items)
    np.testing.assert_allclose(mixed, between.propensities(sessions, items), rtol=1e-6)


def test_a_step_after_a_step(learned):
    new, old = learned
    twice = mix(new, mix(new, old, 0.2), 0.5)
    sessions = twice.begin(40_000)
    slates = twice.slates(sessions, 2, np.random.default_rng(1))
    once = mix(new, old, 0.6).propensities(sessions, slates.items)
    np.testing.assert_allclose(slates.propensities, once, rtol=1e-5)
    chances = slates.propensities.prod(axis=1)
    for slate in np.unique(slates.items, axis=0)[:20]:
        mine = (slates.items == slate).all(axis=1)
        assert mine.mean() == pytest.approx(chances[mine][0], abs=0.012)


def test_among_candidates(learned):
    mixture = mix(*learned, 0.5)
    pool = np.array([[3, 9, 4, PAD], [7, PAD, PAD, PAD]], np.int32)
    slates = mixture.slates(mixture.begin(2), 3, np.random.default_rng(0), candidates=pool)
    assert sorted(slates.items[0].tolist()) == [3, 4, 9]
    assert slates.items[1].tolist() == [7, PAD, PAD]
    np.testing.assert_allclose(slates.propensities[:, -1], 1.0)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_mixture_is_replayed_to_its_own_propensities(share):
    environment = world("liked")
    mixture = mix(*two(unavailable="liked"), share)
    log = rollout(environment, mixture, 40, 3)
    logged, found = replayed(mixture, Dataset.from_frame(log, environment.responses, WHOLE))
    np.testing.assert_allclose(found, logged, rtol=1e-6)


def test_at_the_ends_it_is_one_of_the_two():
    new, old = two()
    sessions = sessions_of(mix(new, old, 1.0))
    items = new.slates(sessions, 3).items
    np.testing.assert_allclose(mix(new, old, 1.0).propensities(sessions, items), new.propensities(sessions, items))
    short = sessions_of(old)
    np.testing.assert_allclose(mix(new, old, 0.0).propensities(sessions, items), old.propensities(short, items))


@pytest.fixture(scope="module")
def learned() -> tuple[Policy, Policy]:
    environment = InterestEvolution(InterestEvolutionConfig(items=30, categories=5, slate_size=3, horizon=6))
    log = rollout(environment, random_policy(environment), 200, 0)
    dataset = Dataset.from_frame(log, environment.responses)
    new = fit("markov", dataset).whole(dataset)
    old = fit("ctr", dataset).whole(dataset)
    return new, old.with_rule(exploration={"kind": "epsilon", "epsilon": 0.5})


def test_it_is_kept(learned, tmp_path):
    mixture = mix(*learned, 0.2)
    mixture.save(tmp_path / "step")
    again = bundle.load(tmp_path / "step")
    assert isinstance(again, Mixture)
    assert again.share == 0.2
    sessions = mixture.begin(5)
    before, after = (one.slates(sessions, 3, np.random.default_rng(0)) for one in (mixture, again))
    np.testing.assert_array_equal(before.items, after.items)
    np.testing.assert_array_equal(before.propensities, after.propensities)
    (tmp_path / "step" / "old" / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match="old is not the policy that was saved"):
        bundle.load(tmp_path / "step")


def test_it_is_served(learned, tmp_path):
    mix(*learned, 0.5).save(tmp_path / "step")
    with serving(tmp_path, tmp_path / "step") as running:
        found = running.client.post("/v1/recommend", json={"session": [], "k": 3}).json()
    assert len(found["items"]) == 3
    assert all(0 < one["propensity"] <= 1 for one in found["items"])


def test_it_speaks_of_other_items(learned):
    mixture = mix(*learned, 0.5)
    ids = mixture.vocabulary.ids
    spoken = Vocabulary(pl.concat([pl.Series("item_id", [-5], dtype=ids.dtype), ids[3:]]))
    mapped = map_policy(mixture, spoken)
    slates = mapped.slates(mapped.begin(50), 3, np.random.default_rng(0)).items
    assert isinstance(mapped, Mixture)
    assert 0 not in slates.tolist()[0]
    assert PAD not in slates


def test_what_cannot_be_mixed():
    new, old = two()
    with pytest.raises(InputError, match="expected 0 to 1"):
        mix(new, old, 1.5)
    with pytest.raises(InputError, match="leave out the same items"):
        mix(new.with_rule(unavailable="nothing"), old.with_rule(unavailable="liked"), 0.5)
    fewer = Policy(
        random_policy(InterestEvolution()).scorer, random_policy(InterestEvolution()).vocabulary, rule=SlateRule()
    )
    with pytest.raises(InputError, match="one catalogue"):
        mix(new, fewer, 0.5)
    with pytest.raises(InputError, match="change theirs"):
        mix(new, old, 0.5).with_rule(exploration=Exploration())
