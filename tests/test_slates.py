"""Diverse slates and the vectors they need, against plain loops."""

import numpy as np
import pytest

from bcd4rec.data.cooccurrence import incidence, item_vectors, varimax
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD
from bcd4rec.errors import InputError
from bcd4rec.policies import slates
from bcd4rec.policies.slates import Exploration, Spread, deviation, make_slates, slate_propensities
from bcd4rec.policies.uniform import Uniform
from bcd4rec.sim.interest_evolution import InterestEvolution
from bcd4rec.sim.rollout import policy_of

BATCH, ITEMS, WIDTH, SLATE = 5, 11, 3, 4


def unit_vectors(rng: np.random.Generator) -> np.ndarray:
    vectors = rng.standard_normal((ITEMS, WIDTH)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def penalty(scores: np.ndarray, vectors: np.ndarray, strength: float) -> Spread:
    return Spread(np.float32(strength) * deviation(scores), vectors)


def plain_slates(scores: np.ndarray, vectors: np.ndarray, strength: float) -> list[list[int]]:
    slates = []
    for row in scores.astype(np.float64):
        left = {item: value for item, value in enumerate(row) if np.isfinite(value)}
        deviation = np.std(list(left.values()))
        slate: list[int] = []
        while len(slate) < SLATE:
            best = min(left, key=lambda item: (-left[item], item))
            slate.append(best)
            del left[best]
            for item in left:
                alike = sum(float(a) * float(b) for a, b in zip(vectors[item], vectors[best], strict=True))
                left[item] -= strength * deviation * max(alike, 0.0)
        slates.append(slate)
    return slates


@pytest.mark.parametrize("strength", [0.0, 0.4, 2.5])
def test_slates_equal_a_plain_loop(strength: float) -> None:
    rng = np.random.default_rng(3)
    scores = rng.standard_normal((BATCH, ITEMS)).astype(np.float32)
    scores[1, :4] = -np.inf
    vectors = unit_vectors(rng)
    lost = penalty(scores, vectors, strength)
    slates = make_slates(scores, SLATE, Exploration(), np.random.default_rng(0), lost)
    assert slates.items.tolist() == plain_slates(scores, vectors, strength)
    assert (slates.propensities == 1).all()
    assert (slate_propensities(scores, slates.items, Exploration(), penalty(scores, vectors, strength)) == 1).all()


def test_a_pool_of_some_items_is_as_a_catalogue_without_the_others() -> None:
    rng = np.random.default_rng(6)
    vectors = unit_vectors(rng)
    pool = np.array([[1, 2, 4, 7, 8, 10], [0, 3, 4, 5, 9, PAD]], np.int32)
    scores = rng.standard_normal(pool.shape).astype(np.float32)
    scores[1, 5] = -np.inf
    whole = np.full((2, ITEMS), -np.inf, np.float32)
    for row, column in np.ndindex(pool.shape):
        if pool[row, column] != PAD:
            whole[row, pool[row, column]] = scores[row, column]
    loss = deviation(scores)
    columns = make_slates(scores, SLATE, Exploration(), rng, Spread(loss, vectors, pool)).items
    expected = make_slates(whole, SLATE, Exploration(), rng, Spread(loss, vectors)).items
    assert np.take_along_axis(pool, columns, axis=1).tolist() == expected.tolist()


@pytest.mark.parametrize("strength", [0.1, 1.0, 30.0])
def test_large_catalogues_are_as_small_ones(strength: float) -> None:
    """A few of the best items are looked at; where these lose too much, all are."""
    rng = np.random.default_rng(9)
    items = 4 * slates.POOL * SLATE + 37
    vectors = np.abs(rng.standard_normal((items, WIDTH))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = np.round(rng.standard_normal((BATCH, items)) * 4).astype(np.float32)  # with ties
    scores[2, 5:] = -np.inf
    found = make_slates(scores, SLATE, Exploration(), rng, penalty(scores, vectors, strength))
    assert found.items.tolist() == plain_slates(scores, vectors, strength)


def test_the_probability_of_a_diverse_slate_that_explores() -> None:
    rng, explores = np.random.default_rng(8), Exploration(kind="epsilon", epsilon=0.3)
    scores, vectors = rng.standard_normal((BATCH, ITEMS)).astype(np.float32), unit_vectors(rng)
    slates = make_slates(scores, SLATE, explores, rng, penalty(scores, vectors, 0.8))
    again = slate_propensities(scores, slates.items, explores, penalty(scores, vectors, 0.8))
    np.testing.assert_allclose(again, slates.propensities, rtol=1e-6)
    assert len(set(np.round(again.ravel(), 4))) > 2


def test_strength_does_not_depend_on_the_unit_of_the_scores() -> None:
    rng = np.random.default_rng(4)
    scores, vectors = rng.standard_normal((BATCH, ITEMS)).astype(np.float32), unit_vectors(rng)
    found = [
        make_slates(unit, SLATE, Exploration(), rng, penalty(unit, vectors, 0.8)).items.tolist()
        for unit in (scores, 8 * scores + 64)
    ]
    assert found[0] == found[1]
    assert found[0] != make_slates(scores, SLATE, Exploration(), rng).items.tolist()


def test_softmax_exploration_is_refused() -> None:
    scores = np.zeros((BATCH, ITEMS), np.float32)
    lost = penalty(scores, unit_vectors(np.random.default_rng(0)), 1.0)
    with pytest.raises(InputError, match="not by softmax"):
        make_slates(scores, SLATE, Exploration(kind="softmax"), np.random.default_rng(0), lost)


def test_diversity_without_vectors_is_refused() -> None:
    environment = InterestEvolution()
    with pytest.raises(InputError, match="which items are alike"):
        policy_of(Uniform(200), environment, "test").with_rule(diversity=1.0)


def test_incidence_counts_a_session_once() -> None:
    sequences = Sequences.of([[2, 2, 0], [], [3, 2]])
    assert incidence(sequences, 4).toarray().tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 1, 1]]


def test_items_of_one_taste_point_alike() -> None:
    rng = np.random.default_rng(5)
    taste = np.arange(24) % 4  # items 0, 4, 8 … are of one taste
    lists = [rng.choice(np.flatnonzero(taste == session % 4), 3, replace=False).tolist() for session in range(400)]
    vectors = item_vectors(Sequences.of(lists), 25, rank=8)
    alike = vectors[:24] @ vectors[:24].T
    same = taste[:, None] == taste[None]
    assert alike[same].mean() > 0.9
    assert alike[same].min() > 0.5
    assert alike[~same].max() < 0.1
    assert not vectors[24].any()  # never liked
    assert np.array_equal(vectors, item_vectors(Sequences.of(lists), 25, rank=8))


def test_tiny_catalogues_have_no_vectors() -> None:
    assert not item_vectors(Sequences.of([[0], [1]]), 2).any()
    assert not item_vectors(Sequences.of([]), 9).any()


def test_noise_has_no_tastes() -> None:
    rng = np.random.default_rng(6)
    lists = [rng.choice(40, 5, replace=False).tolist() for _ in range(1500)]
    assert item_vectors(Sequences.of(lists), 40).shape[1] <= 3


def test_varimax_finds_the_axes_behind_a_rotation() -> None:
    rng = np.random.default_rng(7)
    axes = np.zeros((30, 3))
    axes[np.arange(30), np.arange(30) % 3] = rng.uniform(1, 2, 30)
    turn, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    found = varimax(axes @ turn)
    assert np.allclose(np.sort(np.abs(found), axis=1), np.sort(axes, axis=1), atol=1e-3)
    assert np.allclose(found @ found.T, axes @ axes.T)


def test_the_sessions_stay_as_they_are() -> None:
    sequences = Sequences.of([[4, 2, 4, 0], [3, 1]])
    item_vectors(sequences, 5)
    assert sequences.items.tolist() == [4, 2, 4, 0, 3, 1]
    assert sequences.offsets.tolist() == [0, 4, 6]
