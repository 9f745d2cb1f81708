"""Policies and scorers for another numbering of the items, against plain loops."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.policies.policy import Memory, Policy
from bcd4rec.policies.scorer import Scorer
from bcd4rec.policies.vocabulary_mapping import MappedScorer, map_policy, map_scorer


class Spy:
    """Scores that depend on the item and the state; remembers the states it was shown."""

    def __init__(self, n_items: int):
        self.n_items = n_items
        self.seen: list[States] = []

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        self.seen.append(states)
        table = np.array([[self.score(row, item) for item in range(self.n_items)] for row in states.positives.tolist()])
        if candidates is None:
            return table.astype(np.float32).reshape(len(states), self.n_items)
        padded = np.append(table, np.full((len(states), 1), -np.inf), axis=1)  # PAD reads the last column
        return np.take_along_axis(padded, candidates, axis=1).astype(np.float32)

    @staticmethod
    def score(history: list[int], item: int) -> float:
        return float(item * 10 + sum((place + 1) * one for place, one in enumerate(history) if one != PAD))


def vocabulary(ids: list[int] | list[str]) -> Vocabulary:
    return Vocabulary(pl.Series("item_id", ids, pl.Int64 if not ids or isinstance(ids[0], int) else pl.String))


def ints(rows: list[list[int]]) -> IntArray:
    return np.array(rows, np.int32)


STATES = States(ints([[4, 0, 2], [1, PAD, PAD], [PAD, PAD, PAD]]), ints([[3, 4], [0, PAD], [PAD, PAD]]))


def plain_mapping(row: list[int], learned: list[int], spoken: list[int]) -> list[int]:
    known = [learned.index(spoken[item]) for item in row if item != PAD and spoken[item] in learned]
    return known + [PAD] * (len(row) - len(known))


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[int], list[int], States]:
    learned, spoken = (sorted(draw(st.sets(st.integers(0, 9), min_size=1))) for _ in range(2))
    item = st.integers(0, len(spoken) - 1)

    def history(width: int) -> list[int]:
        content = draw(st.lists(item, max_size=width))
        return content + [PAD] * (width - len(content))

    rows = range(draw(st.integers(1, 3)))
    skips = draw(st.sampled_from([0, 2]))
    positives, passed = [history(4) for _ in rows], [history(skips) for _ in rows]
    return learned, spoken, States(ints(positives), ints(passed).reshape(len(rows), skips))


@settings(deadline=None)
@given(conversations())
def test_mapped_against_a_plain_loop(conversation):
    learned, spoken, states = conversation
    policy = Spy(len(learned))
    wrapped = MappedScorer(policy, vocabulary(learned), vocabulary(spoken))
    assert isinstance(wrapped, Scorer)
    assert wrapped.n_items == len(spoken)
    found = wrapped.scores(states)
    assert found.shape == (len(states), len(spoken))
    [seen] = policy.seen
    for row in range(len(states)):
        positives = plain_mapping(states.positives[row].tolist(), learned, spoken)
        assert seen.positives[row].tolist() == positives
        assert seen.skips[row].tolist() == plain_mapping(states.skips[row].tolist(), learned, spoken)
        for item, name in enumerate(spoken):
            expected = Spy.score(positives, learned.index(name)) if name in learned else -np.inf
            assert found[row, item] == expected


def test_mapped_candidates():
    learned, spoken = [10, 20, 30], [5, 10, 15, 30]
    wrapped = MappedScorer(Spy(3), vocabulary(learned), vocabulary(spoken))
    states = States(ints([[3, 0, 1], [2, PAD, PAD]]), ints([[], []]))
    every = wrapped.scores(states)
    asked = ints([[3, 0, PAD, 1, 3], [PAD, 2, 1, 0, 1]])
    found = wrapped.scores(states, asked)
    for row, place in np.ndindex(asked.shape):
        item = asked[row, place]
        assert found[row, place] == (-np.inf if item == PAD else every[row, item])
    assert np.isneginf(every).tolist() == [[True, False, True, False]] * 2  # 5 and 15 are not known


def test_the_scores_of_a_mapped_scorer_are_the_callers_to_change():
    wrapped = MappedScorer(Spy(3), vocabulary([1, 2, 3]), vocabulary([2, 3, 4]))
    wrapped.scores(STATES[2:])[:] = 99
    assert wrapped.scores(STATES[2:]).tolist() == [[10, 20, -np.inf]]


def test_numbers_and_their_spelling_are_the_same_items():
    wrapped = MappedScorer(Spy(3), vocabulary(["10", "7", "x"]), vocabulary([7, 8, 10]))
    assert wrapped.scores(STATES[2:]).tolist() == [[10, -np.inf, 0]]


@pytest.mark.parametrize(
    ("learned", "spoken", "same"),
    [([1, 2], [1, 2], True), (["a", "b"], ["a", "b"], True), ([1, 2], [1, 3], False), ([1, 2], [1, 2, 3], False)],
)
def test_mapping_wraps_only_what_needs_it(learned, spoken, same):
    policy = Spy(2)
    found = map_scorer(policy, vocabulary(learned), vocabulary(spoken))
    assert (found is policy) == same
    assert found.n_items == len(spoken)


def test_mapping_between_strings_and_numbers():
    found = map_scorer(Spy(2), vocabulary(["1", "2"]), vocabulary([1, 2]))
    assert found.scores(STATES[2:]).tolist() == [[0, 10]]


def policy(learned: list[int]) -> Policy:
    """Unlike vectors and counts for every item, so that none can be taken for another."""
    vectors = np.array([[item, item + 0.5] for item in learned], np.float32)
    counts = np.array([100 + item for item in learned], np.int32)
    spy = Spy(len(learned))
    return Policy(spy, vocabulary(learned), Memory(length=4), vectors=vectors, popularity=counts, about={"seed": 7})


def test_a_policy_of_the_same_items_stays_itself():
    one = policy([1, 5])
    assert map_policy(one, vocabulary([1, 5])) is one


@settings(deadline=None)
@given(st.sets(st.integers(0, 9), min_size=1), st.sets(st.integers(0, 9), min_size=1))
def test_every_part_of_a_policy_is_mapped(learned, spoken):
    learned, spoken = sorted(learned), sorted(spoken)
    one = policy(learned)
    mapped = map_policy(one, vocabulary(spoken))
    assert mapped.vocabulary.ids.to_list() == spoken
    assert mapped.n_items == len(spoken)
    assert (mapped.memory, mapped.rule, mapped.responses, mapped.about) == (
        one.memory,
        one.rule,
        one.responses,
        one.about,
    )
    for place, item in enumerate(spoken):
        known = item in learned
        assert mapped.vectors[place].tolist() == ([item, item + 0.5] if known else [0, 0])
        assert mapped.popularity[place] == (100 + item if known else 0)


def test_a_mapped_policy_recommends_what_it_did():
    one = policy([10, 20, 30, 40])
    mapped = map_policy(one, vocabulary([5, 10, 20, 40]))
    for session in ([], [10], [20, 40], [(10, "skip"), 20]):
        expected = [pair for pair in one.recommend(session, k=4) if pair[0] != 30]
        assert mapped.recommend(session, k=4) == expected
    assert mapped.recommend([5]) == mapped.recommend([])


def test_nothing_is_made_up_for_a_policy_that_does_not_know_it():
    bare = Policy(Spy(2), vocabulary([1, 2]))
    mapped = map_policy(bare, vocabulary([2, 3]))
    assert mapped.vectors is None
    assert mapped.popularity is None
