"""Rankings and slates against plain loops; propensities against exact probabilities and against frequencies."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import chisquare

from bcd4rec.data.states import PAD, FloatArray
from bcd4rec.policies import ranking
from bcd4rec.policies.ranking import exclude, top, top_scored
from bcd4rec.policies.slates import Exploration, Slates, make_slates, slate_propensities

INF = math.inf
GREEDY = Exploration()
EPSILON = Exploration(kind="epsilon", epsilon=0.3)
SOFTMAX = Exploration(kind="softmax", temperature=0.7)
EXPLORATIONS = {
    "greedy": GREEDY,
    "epsilon": EPSILON,
    "epsilon 0": Exploration(kind="epsilon", epsilon=0.0),
    "epsilon 1": Exploration(kind="epsilon", epsilon=1.0),
    "softmax": SOFTMAX,
    "softmax, cold": Exploration(kind="softmax", temperature=0.01),
}
every_exploration = pytest.mark.parametrize("exploration", EXPLORATIONS.values(), ids=EXPLORATIONS.keys())

# Few distinct values, so that ties are common; −inf and NaN are items that cannot be shown.
SCORES = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 23)),
    elements=st.sampled_from([-INF, math.nan, -2.5, -1.0, 0.0, 0.25, 3.0]),
)


def plain_top(row: list[float], k: int) -> list[int]:
    """Take the best item k times over; the first of equals is met first."""
    found: list[int] = []
    for _ in range(min(k, len(row))):
        best = PAD
        for item, score in enumerate(row):
            if item in found or math.isnan(score) or score == -INF:
                continue
            if best == PAD or score > row[best]:
                best = item
        found.append(best)
    return found


def plain_probability(row: list[float], above: list[int], item: int, exploration: Exploration) -> float:
    """The probability of `item` in the place under the items `above`."""
    left = [one for one, score in enumerate(row) if one not in above and score > -INF]
    best = plain_top([row[one] if one in left else -INF for one in range(len(row))], 1)[0]
    if exploration.kind == "none":
        return float(item == best)
    if exploration.kind == "epsilon":
        return exploration.epsilon / len(left) + (1 - exploration.epsilon) * (item == best)
    weights = {one: math.exp((row[one] - row[best]) / exploration.temperature) for one in left}
    return weights[item] / sum(weights.values())


def slates_of(scores: FloatArray, k: int, exploration: Exploration, seed: int = 0) -> Slates:
    return make_slates(scores.copy(), k, exploration, np.random.default_rng(seed))


@settings(deadline=None)
@given(SCORES, st.integers(1, 30))
def test_top_is_the_plain_loop(scores, k):
    expected = [plain_top(row, k) for row in scores.tolist()]
    found = top(scores, k)
    assert found.dtype == np.int32
    assert found.tolist() == expected


@settings(deadline=None)
@given(SCORES, st.integers(1, 30))
def test_both_ways_to_find_the_largest_agree(scores, k):
    usable, k = ranking.without_nan(scores), min(k, scores.shape[1])
    one_by_one = ranking._largest_one_by_one(usable.copy(), k)
    np.testing.assert_array_equal(one_by_one, ranking._largest_at_once(usable, k))


@settings(deadline=None)
@given(SCORES, st.integers(1, 30), st.integers(1, 9))
def test_the_largest_by_blocks_of_any_size(scores, k, size):
    k = min(k, scores.shape[1])
    assert ranking._largest_in_blocks(scores, k, size).tolist() == [plain_top(row, k) for row in scores.tolist()]


@pytest.mark.parametrize("k", [1, 3, 20, 60])
def test_large_catalogues_are_ranked_by_blocks(k, monkeypatch):
    """Ties everywhere, also across blocks; rows of nothing but NaN or −inf; an odd number of columns."""
    rng = np.random.default_rng(k)
    scores = rng.integers(0, 5, (6, 2 * ranking.LARGE + 7)).astype(np.float32)
    scores[1] = rng.normal(size=scores.shape[1])
    scores[2], scores[3] = np.nan, -np.inf
    scores[3, [17, scores.shape[1] - 1]] = [1, 2]
    scores[4, ::3] = np.nan
    expected = []
    for row in scores.tolist():
        usable = [item for item, score in enumerate(row) if score > -INF]
        best = sorted(usable, key=lambda item: -row[item])[:k]
        expected.append(best + [PAD] * (k - len(best)))
    assert top(scores, k).tolist() == expected
    monkeypatch.setattr(ranking, "LARGE", 10**9)
    assert top(scores, k).tolist() == expected


def test_top_with_scores():
    items, scores = top_scored(np.array([[1, 3, math.nan, 3], [-INF, -INF, 0, -INF]], np.float32), 3)
    assert items.tolist() == [[1, 3, 0], [2, PAD, PAD]]
    assert scores.dtype == np.float32
    assert scores.tolist() == [[3, 3, 1], [0, -INF, -INF]]


@pytest.mark.parametrize("k", [1, 2, ranking.FEW, ranking.FEW + 1, 40])
def test_ties_go_to_the_lower_index(k):
    scores = np.zeros((3, 40), np.float32)
    assert top(scores, k).tolist() == [list(range(k))] * 3


@pytest.mark.parametrize("k", [3, 7, ranking.FEW + 4])
def test_what_cannot_be_shown_never_wins(k):
    row = [-INF, math.nan, -5.0, INF, math.nan, -INF, -9.0] + [-INF] * 20
    assert top(np.array([row], np.float32), k).tolist() == [([3, 2, 6] + [PAD] * 99)[:k]]
    assert top(np.full((2, 27), np.nan, np.float32), k).tolist() == [[PAD] * k] * 2


def test_top_leaves_the_scores_alone():
    scores = np.random.default_rng(0).random((3, 5)).astype(np.float32)
    before = scores.copy()
    top(scores, 2)
    make_slates(scores, 2, EPSILON, np.random.default_rng(0))
    np.testing.assert_array_equal(scores, before)


def test_exclude():
    scores = np.arange(12, dtype=np.float32).reshape(3, 4)
    exclude(scores, np.array([[3, PAD], [PAD, PAD], [0, 2]], np.int32))
    assert scores.tolist() == [[0, 1, 2, -INF], [4, 5, 6, 7], [-INF, 9, -INF, 11]]


@every_exploration
@settings(deadline=None, max_examples=60)
@given(scores=SCORES, k=st.integers(1, 9), seed=st.integers(0, 99))
def test_slates_hold_distinct_available_items_with_exact_propensities(exploration, scores, k, seed):
    slates = slates_of(scores, k, exploration, seed)
    assert slates.items.shape == slates.propensities.shape == (len(scores), k)
    assert slates.items.dtype == np.int32
    assert slates.propensities.dtype == np.float32
    for row, items, propensities in zip(scores.tolist(), slates.items.tolist(), slates.propensities, strict=True):
        shown = items[: sum(score > -INF for score in row)]
        assert items == shown + [PAD] * (k - len(shown))
        assert len(set(shown)) == len(shown)
        assert all(row[item] > -INF for item in shown)
        exact = [plain_probability(row, shown[:place], item, exploration) for place, item in enumerate(shown)]
        assert propensities.tolist() == pytest.approx(exact + [1.0] * (k - len(shown)), rel=1e-5)
    np.testing.assert_allclose(slate_propensities(scores, slates.items, exploration), slates.propensities, rtol=1e-5)
    shown = slates.items != PAD
    np.testing.assert_array_equal(slates.values[~shown], -INF)
    rows = np.nonzero(shown)[0]
    np.testing.assert_array_equal(slates.values[shown], scores[rows, slates.items[shown]])


@every_exploration
@settings(deadline=None, max_examples=60)
@given(scores=SCORES, seed=st.integers(0, 99))
def test_the_probability_of_any_slate_is_the_plain_loop(exploration, scores, seed):
    """Also of slates that the policy would never show: unavailable items, and what comes below them."""
    k = min(3, scores.shape[1])
    items = np.random.default_rng(seed).permuted(np.tile(np.arange(scores.shape[1]), (len(scores), 1)), axis=1)[:, :k]
    found = slate_propensities(scores, items.astype(np.int32), exploration)
    for row, slate, propensities in zip(scores.tolist(), items.tolist(), found.tolist(), strict=True):
        for place, item in enumerate(slate):
            there = row[item] > -INF
            exact = plain_probability(row, slate[:place], item, exploration) if there else 0.0
            assert propensities[place] == pytest.approx(exact, rel=1e-4, abs=1e-7)


def test_places_that_were_not_asked_for_are_certain():
    scores = np.array([[1.0, 2.0, 3.0]], np.float32)
    assert slate_propensities(scores, np.array([[2, PAD]], np.int32), GREEDY).tolist() == [[1.0, 1.0]]


@every_exploration
def test_the_probabilities_of_all_slates_sum_to_one_and_are_their_frequencies(exploration):
    row, draws = [0.5, -INF, 1.0, 0.5, -0.5], 40_000
    available = [0, 2, 3, 4]
    exact = {
        (first, second): plain_probability(row, [], first, exploration)
        * plain_probability(row, [first], second, exploration)
        for first, second in itertools.permutations(available, 2)
    }
    assert sum(exact.values()) == pytest.approx(1.0)
    slates = slates_of(np.tile(np.array(row, np.float32), (draws, 1)), 2, exploration, seed=4)
    drawn = [tuple(items) for items in slates.items.tolist()]
    np.testing.assert_allclose(slates.propensities.prod(axis=1), [exact[slate] for slate in drawn], rtol=1e-5)
    counts = Counter(drawn)
    likely = [slate for slate in exact if exact[slate] * draws >= 5]
    assert sum(counts[slate] for slate in exact if slate not in likely) <= 15
    if len(likely) > 1:
        expected = np.array([exact[slate] for slate in likely])
        observed = np.array([counts[slate] for slate in likely])
        assert chisquare(observed, expected / expected.sum() * observed.sum()).pvalue > 0.001


def test_epsilon_0_is_the_ranking():
    scores = np.random.default_rng(1).integers(0, 4, (50, 11)).astype(np.float32)
    slates = slates_of(scores, 5, EXPLORATIONS["epsilon 0"])
    np.testing.assert_array_equal(slates.items, top(scores, 5))
    np.testing.assert_array_equal(slates.propensities, np.ones((50, 5), np.float32))


def test_epsilon_1_does_not_look_at_the_scores():
    scores = np.random.default_rng(1).random((60, 11)).astype(np.float32)
    slates = slates_of(scores, 3, EXPLORATIONS["epsilon 1"], seed=7)
    np.testing.assert_array_equal(slates.items, slates_of(np.zeros_like(scores), 3, EXPLORATIONS["epsilon 1"], 7).items)
    np.testing.assert_allclose(slates.propensities, np.tile([1 / 11, 1 / 10, 1 / 9], (60, 1)), rtol=1e-6)


def test_random_items_are_uniform_where_few_of_many_are_available():
    """Blind draws nearly always miss here, so that the available items are looked up."""
    scores = np.full((6_000, 500), -np.inf, np.float32)
    available = [3, 77, 310, 499]
    scores[:, available] = [1.0, 9.0, 2.0, 0.0]
    slates = slates_of(scores, 2, EXPLORATIONS["epsilon 1"], seed=3)
    drawn = Counter(tuple(items) for items in slates.items.tolist())
    counts = [drawn[pair] for pair in itertools.permutations(available, 2)]
    assert sum(counts) == 6_000
    assert chisquare(counts).pvalue > 0.001


@pytest.mark.parametrize("k", [2, 3, 4])
def test_softmax_survives_scores_far_apart(k):
    """Weights of e^±1000 have no floating-point number; the items that remain are still drawn in proportion."""
    scores = np.tile(np.array([5000.0, 0.0, 0.0, -5000.0], np.float32), (2_000, 1))
    slates = slates_of(scores, k, Exploration(kind="softmax"), seed=2)
    assert set(slates.items[:, 0]) == {0}
    assert set(slates.items[:, 3:].ravel()) <= {3}
    assert np.mean(slates.items[:, 1] == 1) == pytest.approx(0.5, abs=0.04)
    np.testing.assert_allclose(slates.propensities, np.tile([1, 0.5, 1, 1][:k], (2_000, 1)), rtol=1e-6)


def test_softmax_of_an_infinite_score():
    slates = slates_of(np.array([[0.0, INF, 1.0]], np.float32), 2, SOFTMAX)
    assert slates.items[0, 0] == 1
    assert np.isfinite(slates.propensities).all()


@every_exploration
def test_same_seed_same_slates_and_another_seed_others(exploration):
    scores = np.random.default_rng(2).random((70, 13)).astype(np.float32)
    first, again, other = (slates_of(scores, 4, exploration, seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.items, again.items)
    np.testing.assert_array_equal(first.propensities, again.propensities)
    alike = exploration.kind == "none" or exploration.epsilon == 0 or exploration.temperature == 0.01
    assert alike or not np.array_equal(first.items, other.items)


@every_exploration
def test_nothing_to_show(exploration):
    slates = slates_of(np.array([[-INF, math.nan, -INF]], np.float32), 5, exploration)
    assert slates.items.tolist() == [[PAD] * 5]
    assert slates.propensities.tolist() == [[1.0] * 5]
