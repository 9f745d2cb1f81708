"""The model of a slate: plain references, what it learns from known answers, and what it must not look at."""

import math

import numpy as np
import polars as pl
import pytest

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig
from bcd4rec.data.responses import Responses
from bcd4rec.evaluation.off_policy.slate_model import (
    SlateAnswer,
    cross_fit,
    expected_outcomes,
    fit_answer,
    fit_slate_model,
    place_groups,
)

CONFIG = PrepareConfig.parse({"transitions": {"length": 4, "skips": 5}}, "test")
APPEAL = np.array([-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, -2.0, 2.0])


def log(choice: bool, sessions: int = 150, steps: int = 6, k: int = 4, seed: int = 0) -> pl.DataFrame:
    """Items with a known appeal that is halved from place to place."""
    rng = np.random.default_rng(seed)
    rows = []
    for session in range(sessions):
        for step in range(steps):
            items = rng.permutation(len(APPEAL))[:k]
            pull = np.exp(APPEAL[items]) * 0.5 ** np.arange(k)
            if choice:
                drawn = rng.choice(k + 1, p=np.append(pull, 1) / (1 + pull.sum()))
                liked = np.arange(k) == drawn
            else:
                liked = rng.random(k) < pull / (1 + pull)
            rows += [
                (session, step, place, int(item), "click" if liked[place] else "skip")
                for place, item in enumerate(items)
            ]
    return pl.DataFrame(rows, schema=["session_id", "step", "position", "item_id", "response"], orient="row")


def test_expected_answers_are_plain_sums():
    rng = np.random.default_rng(0)
    logits, shown = rng.normal(size=(5, 3)), rng.random((5, 3)) < 0.8
    places = np.array([0.1, -0.4, -0.9])
    for choice in (True, False):
        found = SlateAnswer(choice, places, 0.7).expected(logits, shown)
        for row in range(5):
            inner = [places[j] + 0.7 * logits[row, j] for j in range(3) if shown[row, j]]
            pull = sum(math.exp(u) for u in inner)
            plain = pull / (1 + pull) if choice else sum(1 / (1 + math.exp(-u)) for u in inner)
            assert found[row] == pytest.approx(plain)


def test_places_far_down_are_alike():
    assert place_groups(np.arange(14)).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 11, 11]
    assert place_groups(np.array([-1, 2, 7]), known=4).tolist() == [0, 2, 3]


@pytest.mark.parametrize("choice", [True, False])
def test_an_answer_is_found_again(choice):
    rng = np.random.default_rng(1)
    n, k = 20_000, 3
    logits = rng.normal(-0.5, 1.0, (n, k))
    true = SlateAnswer(choice, np.array([0.3, -0.2, -0.8]), 1.4)
    inner = true.places + true.slope * logits
    if choice:
        gumbel = np.column_stack([inner, np.zeros(n)]) - np.log(rng.standard_exponential((n, k + 1)))
        answered = gumbel.argmax(axis=1)[:, None] == np.arange(k)
    else:
        answered = rng.random((n, k)) < 1 / (1 + np.exp(-inner))
    found = fit_answer(logits, answered, np.ones((n, k), bool), np.tile(np.arange(k), (n, 1)))
    assert found.choice == choice
    assert found.places == pytest.approx(true.places, abs=0.08)
    assert found.slope == pytest.approx(true.slope, abs=0.08)


def test_expected_outcomes_by_hand():
    responses = Responses(rewards={"skip": 0.0, "click": 1.0, "buy": 5.0, "complain": -2.0})
    reached = np.array([[4.0], [3.5], [1.0], [0.25]])  # at least complain, skip, click, buy
    assert expected_outcomes(reached, responses)[0] == pytest.approx([0.75, 0.25, -1.0 + 0.75 + 1.25])


@pytest.mark.parametrize("choice", [True, False])
def test_slates_are_predicted_where_they_stand(choice):
    """Good items on top do better than the same items upside down, and both as often as is true."""
    dataset = Dataset.from_frame(log(choice), {"skip": 0.0, "click": 2.0}, CONFIG)
    model = fit_slate_model(dataset, seed=0)
    index = {item: row for row, item in enumerate(dataset.vocabulary.ids.to_list())}
    slates = np.array([[index[i] for i in one] for one in ([8, 6, 3, 7], [7, 3, 6, 8], [0, 1, 7, 2])], np.int32)
    states = dataset.states[dataset.transitions("train").state[:1].repeat(3)]
    found = model.outcomes(states, slates)
    for row, items in enumerate(([8, 6, 3, 7], [7, 3, 6, 8], [0, 1, 7, 2])):
        pull = np.exp(APPEAL[items]) * 0.5 ** np.arange(4)
        truth = pull.sum() / (1 + pull.sum()) if choice else (pull / (1 + pull)).sum()
        assert found[row, 0] == pytest.approx(truth, rel=0.2)
        assert found[row, 1] == pytest.approx(2 * found[row, 0])
    assert found[0, 0] > found[1, 0] > found[2, 0]


def test_no_model_has_seen_the_sessions_that_it_judges():
    """Answers of a session change nothing in what is expected of it."""
    frame = log(choice=True, sessions=60)
    turned = frame.with_columns(
        response=pl.when(pl.col("session_id") == 3).then(pl.lit("skip")).otherwise(pl.col("response"))
    )
    found = []
    for one in (frame, turned):
        dataset = Dataset.from_frame(one, {"skip": 0.0, "click": 1.0}, CONFIG)
        row = int(dataset.sessions["session_id"].index_of(3))
        fitted = cross_fit(dataset, seed=0)
        slates = np.array([[0, 1, 2, 3], [5, 6, 7, 8]], np.int32)
        empty = dataset.states[dataset.transitions("train").state[:1].repeat(2)]
        found.append(fitted.outcomes(np.array([row, row]), empty, slates))
        other = np.flatnonzero(fitted.fold != fitted.fold[row])[:1].repeat(2)
        found.append(fitted.outcomes(other, empty, slates))
    assert np.array_equal(found[0], found[2])
    assert not np.array_equal(found[1], found[3])
