"""Replaying a log: a policy that is replayed on its own log says exactly what it said when it wrote it."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig
from bcd4rec.data.splits import SplitConfig
from bcd4rec.data.states import PAD
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.evaluation.off_policy import replay as replaying
from bcd4rec.evaluation.off_policy.replay import Translation, logged_slates, replay
from bcd4rec.policies.policy import Memory, Policy
from bcd4rec.policies.slates import SlateRule
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig
from bcd4rec.sim.rollout import rollout, with_ids
from tests.test_policy import IDS, ITEMS, KINDS, Sums

WHOLE = PrepareConfig(split=SplitConfig(validation=0.0))


def world(unavailable: str = "nothing") -> InterestEvolution:
    return InterestEvolution(
        InterestEvolutionConfig(items=ITEMS, categories=4, slate_size=3, horizon=6, unavailable=unavailable)
    )


def policy_for(environment: InterestEvolution, **rule: Any) -> Policy:
    vectors = np.random.default_rng(0).normal(size=(ITEMS, 2)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    numbers = Vocabulary(pl.Series("item_id", range(ITEMS)))
    chosen = SlateRule.parse(rule, "test")
    return Policy(Sums(), numbers, Memory(length=3, skips=5), chosen, environment.responses, vectors)


def replayed(policy: Policy, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """All logged propensities, and those of the replay."""
    logged, found = [], []
    for slates in logged_slates(dataset):
        chances = np.ones(slates.items.shape)
        for met in replay(policy, slates, Translation(dataset.vocabulary, policy.vocabulary)):
            chances[met.rows] = np.where(met.unknown, 0.0, policy.propensities(met.sessions, met.items))
        logged.append(slates.propensities)
        found.append(chances)
    return np.concatenate(logged), np.concatenate(found)


EXPLORE = [
    {"kind": "none"},
    {"kind": "epsilon", "epsilon": 0.4},
    {"kind": "softmax", "temperature": 3.0},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after_skip", ["repeat", "exclude"])
@pytest.mark.parametrize("diversity", [0.0, 0.7])
@pytest.mark.parametrize("exploration", EXPLORE, ids=lambda one: one["kind"])
def test_a_policy_is_replayed_to_its_own_propensities(kind, after_skip, diversity, exploration, monkeypatch):
    if exploration["kind"] == "softmax" and diversity:
        pytest.skip("diverse slates do not explore by softmax")
    monkeypatch.setattr(replaying, "CELLS", 7 * ITEMS)  # chunks of seven sessions
    environment = world(kind)
    policy = policy_for(
        environment, unavailable=kind, after_skip=after_skip, diversity=diversity, exploration=exploration
    )
    log = rollout(environment, policy, 30, 3)
    dataset = Dataset.from_frame(log, environment.responses, WHOLE)
    logged, found = replayed(policy, dataset)
    np.testing.assert_array_equal(found.astype(np.float32), logged.astype(np.float32))
    assert len(logged) == log.select("session_id", "step").n_unique()


def test_items_have_other_numbers_in_the_log():
    """The log holds some of the policy's items only, under their ids, and one that the policy has never heard of."""
    environment = world()
    policy = policy_for(environment, unavailable="nothing", exploration={"kind": "epsilon", "epsilon": 0.5})
    log = rollout(environment, policy, 4, 0)
    named = Policy(policy.scorer, Vocabulary(pl.Series("item_id", IDS)), policy.memory, policy.rule, policy.responses)
    names = pl.Series(IDS).gather(log["item_id"])
    dataset = Dataset.from_frame(log.with_columns(item_id=names), environment.responses, WHOLE)
    logged, found = replayed(named, dataset)
    np.testing.assert_array_equal(found.astype(np.float32), logged.astype(np.float32))
    last = pl.col("step") == 5
    strange = log.drop("category").with_columns(
        item_id=pl.when(last & (pl.col("position") == 1)).then(pl.lit("new")).otherwise(names)
    )
    logged, found = replayed(named, Dataset.from_frame(strange, environment.responses, WHOLE))
    assert (found[5::6, 1] == 0).all()
    np.testing.assert_array_equal(found[:5].astype(np.float32), logged[:5].astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_what_nobody_recommended_is_seen(kind):
    """Sessions with organic clicks before and between slates are as the policy reads them by ids."""
    policy = policy_for(world(), unavailable=kind, after_skip="exclude")
    events = [  # step, item, response, organic
        (0, 7, "click", True),
        (0, 1, "skip", False),
        (0, 2, "skip", False),
        (1, 9, "click", True),
        (1, 3, "skip", False),
        (1, 4, "skip", False),
        (2, 5, "click", False),
        (2, 6, "skip", False),
    ]
    frame = pl.DataFrame(
        [
            {"session_id": 0, "timestamp": 10 * row, "request_id": f"{step}{organic}", "item_id": item}
            | {"response": response, "organic": organic, "propensity": None if organic else 0.5}
            for row, (step, item, response, organic) in enumerate(events)
        ],
        schema_overrides={"propensity": pl.Float64},
    )
    dataset = Dataset.from_frame(frame, {"skip": 0.0, "click": 4.0}, WHOLE)
    (slates,) = logged_slates(dataset)
    met = list(replay(policy, slates, Translation(dataset.vocabulary, policy.vocabulary)))
    positives = [one.sessions.states.positives[0].tolist() for one in met]
    assert positives == [[7, PAD, PAD], [7, 9, PAD], [7, 9, PAD]]
    assert [sorted(set(one.sessions.skipped[0].tolist()) - {PAD}) for one in met] == [[], [], [3, 4]]
    gone = {"liked": {7, 9}, "shown": {7, 1, 2, 9, 3, 4}, "recommended": {1, 2, 3, 4}, "nothing": set()}[kind]
    assert set(met[-1].sessions.unavailable[0].tolist()) - {PAD} == gone


def test_only_one_split_is_replayed():
    environment = world()
    policy = policy_for(environment, unavailable="nothing")
    log = with_ids(rollout(environment, policy, 50, 0), environment)
    dataset = Dataset.from_frame(log, environment.responses, PrepareConfig(split=SplitConfig(validation=0.2)))
    judged = np.concatenate([one.sessions for one in logged_slates(dataset, "validation")])
    assert set(dataset.sessions["split"].gather(judged)) == {"validation"}
    assert len(judged) == (dataset.sessions["split"] == "validation").sum()
