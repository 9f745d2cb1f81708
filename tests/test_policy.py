"""A policy as one whole: sessions, slates and their probabilities, from Python, from disk and over HTTP."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.responses import DIGINETICA
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Memory, Policy, Sessions
from bcd4rec.policies.slates import Exploration, SlateRule
from bcd4rec.policies.uniform import Uniform
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig
from bcd4rec.sim.rollout import liked_of, rollout
from bcd4rec.workflows.comparison import random_policy
from bcd4rec.workflows.fitting import fit
from tests.serving_help import PATIENT, serving

ITEMS, SLATE, LENGTH, SKIPS = 13, 3, 4, 6
IDS = [f"i{item:02}" for item in range(ITEMS)]
KINDS = ["liked", "shown", "recommended", "nothing"]


class Sums:
    """Scores that depend on both histories, their order and the item."""

    n_items = ITEMS

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        weights = np.arange(1, 1 + states.positives.shape[1] + states.skips.shape[1])
        seen = np.concatenate([states.positives, states.skips], axis=1)
        total = (np.where(seen == PAD, 0, seen + 1) * weights).sum(axis=1, keepdims=True)
        every = ((total * 7 + np.arange(ITEMS) * (total + 5)) % 11 + np.arange(ITEMS) / 100).astype(np.float32)
        return every if candidates is None else np.take_along_axis(every, np.maximum(candidates, 0), axis=1)


def made(**rule: Any) -> Policy:
    vectors = np.random.default_rng(0).normal(size=(ITEMS, 2)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    memory = Memory(length=LENGTH, skips=SKIPS)
    chosen = SlateRule.parse(rule, "test")
    return Policy(Sums(), Vocabulary(pl.Series("item_id", IDS)), memory, chosen, DIGINETICA, vectors)


def content(items: IntArray) -> list[int]:
    return [item for item in items.tolist() if item != PAD]


SESSION = st.lists(
    st.lists(
        st.tuples(st.integers(0, ITEMS - 1), st.sampled_from(["skip", "click", "buy", None])),
        min_size=SLATE,
        max_size=SLATE,
        unique_by=lambda pair: pair[0],
    ),
    max_size=6,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=40)
@given(slates=SESSION, opening=st.lists(st.integers(0, ITEMS - 1), max_size=5))
def test_a_session_that_is_read_is_as_one_that_was_played(kind, slates, opening):
    policy = made(unavailable=kind)
    opened = np.array([opening], np.int32).reshape(1, -1)
    played = policy.begin(1, opened)
    for slate in slates:
        items = np.array([[item for item, _ in slate]], np.int32)
        liked = np.array([[response in ("click", "buy") for _, response in slate]])
        played = policy.after(played, items, liked)
    read = policy.read(
        [[(IDS[item], response) for item, response in slate] for slate in slates], [IDS[i] for i in opening]
    )
    assert read.unknown == []
    np.testing.assert_array_equal(read.sessions.states.positives, played.states.positives)
    np.testing.assert_array_equal(read.sessions.states.skips, played.states.skips)
    assert set(content(read.sessions.unavailable[0])) == set(content(played.unavailable[0]))
    assert content(read.sessions.skipped[0]) == content(played.skipped[0])


def test_what_nobody_answered_is_skipped_or_unknown():
    slates = [[("i01", None), ("i02", "click")], [("i03", None), ("i04", None)]]
    policy = made()
    read = policy.read(slates).sessions
    assert content(read.states.skips[0]) == [1, 3, 4]
    assert content(read.skipped[0]) == [3, 4]
    forgetful = Policy(policy.scorer, policy.vocabulary, Memory(length=LENGTH, skips=SKIPS, unanswered="unknown"))
    read = forgetful.read(slates).sessions
    assert content(read.states.skips[0]) == []
    assert content(read.states.positives[0]) == [2]
    assert content(read.skipped[0]) == []


def test_items_and_responses_that_the_policy_does_not_know_play_no_part():
    found = made().read([[("i01", "click"), ("x", "click"), ("i02", "wishlist")]], ["i05", "y"])
    assert (found.unknown, found.unknown_responses) == (["y", "x"], 1)
    assert content(found.sessions.states.positives[0]) == [5, 1]
    assert content(found.sessions.states.skips[0]) == []


def test_skips_that_were_told_one_after_the_other_are_one_slate():
    found = made().read([], ["i05", ("i07", "skip"), "i01", ("i02", "skip"), ("i03", "skip")]).sessions
    assert content(found.skipped[0]) == [2, 3]
    assert content(found.states.skips[0]) == [7, 2, 3]
    assert content(made().read([], [("i02", "skip"), "i01"]).sessions.skipped[0]) == []


def sessions_of(policy: Policy, count: int = 7) -> Sessions:
    rng, sessions = np.random.default_rng(1), policy.begin(count)
    for _ in range(2):
        items = rng.permuted(np.tile(np.arange(ITEMS, dtype=np.int32), (count, 1)), axis=1)[:, :SLATE]
        sessions = policy.after(sessions, items, rng.random((count, SLATE)) < 0.3)
    return sessions


@pytest.mark.parametrize("diversity", [0.0, 0.7])
@pytest.mark.parametrize("after_skip", ["repeat", "exclude"])
@pytest.mark.parametrize("kind", KINDS)
def test_slates_keep_the_rule_and_know_their_probability(kind, after_skip, diversity):
    explores = Exploration(kind="epsilon", epsilon=0.4)
    policy = made(unavailable=kind, after_skip=after_skip, diversity=diversity, exploration=explores)
    sessions = sessions_of(policy)
    candidates = np.tile(np.array([1, 2, 4, 5, 8, 9, 10, 12, PAD], np.int32), (len(sessions), 1))
    excluded = np.full((len(sessions), 1), 9, np.int32)
    for pool, out in ((None, None), (candidates, None), (None, excluded), (candidates, excluded)):
        slates = policy.slates(sessions, SLATE, np.random.default_rng(3), pool, out)
        again = policy.propensities(sessions, slates.items, pool, out)
        np.testing.assert_allclose(again, slates.propensities, rtol=1e-6)
        for row in range(len(sessions)):
            shown, gone = set(content(slates.items[row])), set(content(sessions.unavailable[row]))
            gone |= set(content(sessions.skipped[row])) if after_skip == "exclude" else set()
            gone |= {9} if out is not None else set()
            assert not shown & gone
            assert pool is None or shown <= {1, 2, 4, 5, 8, 9, 10, 12}
    impossible = np.full((len(sessions), 1), 9, np.int32)
    assert (policy.propensities(sessions, impossible, candidates, excluded) == 0).all()
    outside = np.full((len(sessions), 1), 0, np.int32)
    assert (policy.propensities(sessions, outside, candidates) == 0).all()


def test_without_a_generator_a_policy_does_not_explore():
    policy = made(exploration=Exploration(kind="epsilon", epsilon=1.0))
    sessions = sessions_of(policy)
    greedy = made().slates(sessions, SLATE)
    found = policy.slates(sessions, SLATE)
    np.testing.assert_array_equal(found.items, greedy.items)
    assert (found.propensities == 1).all()


def test_recommend():
    policy = made()
    [scores] = Sums().scores(policy.read([], ["i05", ("i07", "skip")]).sessions.states)
    scores[5] = -np.inf
    best = np.argsort(-scores, kind="stable")[:3]
    expected = [(IDS[item], pytest.approx(float(scores[item]))) for item in best]
    assert policy.recommend(["i05", ("i07", "skip")], k=3) == expected
    some = policy.recommend(["i05"], k=9, candidates=["i05", "i01", "nobody", "i11"])
    assert {item for item, _ in some} == {"i01", "i11"}
    with pytest.raises(InputError, match="None of the candidates is known"):
        policy.recommend(candidates=["nobody"])


def test_a_rule_that_makes_no_sense_is_refused():
    for changes in ({"diversity": -1.0}, {"after_skip": "forget"}, {"exploration": {"kind": "dice"}}):
        with pytest.raises(InputError, match="slate rule"):
            made().with_rule(**changes)


def test_a_saved_policy_is_the_same_policy(tmp_path):
    vocabulary = Vocabulary(pl.Series("item_id", IDS))
    rule = SlateRule(diversity=0.5, after_skip="exclude", unavailable="shown", exploration=Exploration(kind="softmax"))
    memory, about = Memory(length=3, skips=0, unanswered="unknown"), {"method": "steady", "seed": 4}
    vectors, counts = np.eye(ITEMS, 5, dtype=np.float32), np.arange(ITEMS, dtype=np.int32)
    policy = Policy(Uniform(ITEMS), vocabulary, memory, rule, DIGINETICA, vectors, counts, about)
    policy.save(tmp_path / "policy")
    found = bundle.load(tmp_path / "policy")
    assert (found.memory, found.rule, found.responses, found.about) == (memory, rule, DIGINETICA, about)
    assert found.vocabulary.ids.equals(vocabulary.ids)
    assert found.vectors is not None
    assert found.popularity is not None
    np.testing.assert_array_equal(found.vectors, vectors)
    np.testing.assert_array_equal(found.popularity, counts)
    with pytest.raises(InputError, match="exists already"):
        policy.save(tmp_path / "policy")
    policy.save(tmp_path / "policy", force=True)


USERS, STEPS = 200, 6


@pytest.fixture(scope="module")
def users() -> InterestEvolution:
    return InterestEvolution(InterestEvolutionConfig(horizon=STEPS, slate_size=4))


@pytest.fixture(scope="module", params=["response", "stan"])
def learned(request, users) -> Policy:
    dataset = Dataset.from_frame(rollout(users, random_policy(users), 300, 1), users.responses)
    return fit(request.param, dataset).whole(dataset).with_rule(diversity=0.8, after_skip="exclude")


def test_what_is_measured_is_what_is_served(learned: Policy, users: InterestEvolution, tmp_path: Path):
    """The same 200 users meet the policy in a rollout and over HTTP, where skips are left unanswered."""
    expected = rollout(users, learned, USERS, 7).sort("session_id", "step", "position")
    learned.save(tmp_path / "policy")
    users.reset(USERS, 7)
    rows: list[tuple[int, int, int, int]] = []
    with serving(tmp_path, tmp_path / "policy", "--rate", 0, environment=PATIENT) as server:
        for step in range(STEPS):
            answers = [server.recommend(session_id=f"u{user}", k=users.slate_size) for user in range(USERS)]
            slates = np.array([[one["item"] for one in answer["items"]] for answer in answers], np.int32)
            liked = liked_of(users.responses, users.step(slates).responses)
            for user in np.flatnonzero(liked.any(axis=1)):
                told = [{"item": int(item), "response": "click"} for item in slates[user][liked[user]]]
                body = {"request_id": answers[user]["request_id"], "responses": told}
                assert server.post("/v1/feedback", body).status_code == 200
            rows += [(user, step, place, int(slates[user, place])) for user, place in np.ndindex(slates.shape)]
    assert sorted(rows) == expected.select("session_id", "step", "position", "item_id").rows()
