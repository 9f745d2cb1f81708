"""MostPop by hand."""

import numpy as np
import polars as pl

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.baselines.popular import Popularity
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, States
from bcd4rec.policies.scorer import SCORERS

TRAIN = Sequences.of([[2, 0, 2], [2], [], [3, 0]])


def fit(n_items: int = 5) -> Popularity:
    policy = BASELINES["popular"]().fit(Dataset.from_sequences(TRAIN, n_items), seed=0)
    assert isinstance(policy, Popularity)
    return policy


def test_counts_positive_responses():
    scores = fit().scores(States.of([[], [1, 4]]))
    assert scores.dtype == np.float32
    assert scores.tolist() == [[2, 0, 3, 1, 0]] * 2


def test_candidates_are_scored_in_their_order():
    scores = fit().scores(States.empty(2), np.array([[2, PAD, 4], [PAD, 3, 3]], np.int32))
    assert scores.tolist() == [[3, -np.inf, 0], [-np.inf, 1, 1]]


def test_top_is_the_ranking_of_the_scores():
    items, scores = fit().top(States.of([[], [1]]), 4)
    assert items.tolist() == [[2, 0, 3, 1]] * 2, "items 1 and 4 are tied, and the lower one is listed"
    assert scores.tolist() == [[3, 2, 1, 0]] * 2
    assert fit().top(Sequences.of([[0]]), 99)[0].tolist() == [[2, 0, 3, 1, 4]]


def test_the_result_is_the_callers_to_change():
    policy = fit()
    policy.scores(States.empty(2))[:] = -1
    assert policy.scores(States.empty(1)).tolist() == [[2, 0, 3, 1, 0]]


def test_save_and_restore():
    policy = fit(6)
    assert SCORERS["popular"] is Popularity
    again = Popularity.restore(policy.settings(), policy.arrays())
    assert again.n_items == 6
    np.testing.assert_array_equal(again.scores(States.empty(1)), policy.scores(States.empty(1)))


def test_nothing_was_liked():
    rows = {"session_id": [0, 0, 1], "step": [0, 1, 0], "item_id": [5, 7, 3], "response": ["skip"] * 3}
    policy = BASELINES["popular"]().fit(Dataset.from_frame(pl.DataFrame(rows)), seed=0)
    assert policy.scores(States.of([[1]])).tolist() == [[0, 0, 0]]
