"""Pseudo-inverse weights against enumerated slates."""

from itertools import permutations

import numpy as np
import pytest

from bcd4rec.evaluation.off_policy import pseudo_inverse
from bcd4rec.evaluation.off_policy.pseudo_inverse import (
    CLIP,
    Ranked,
    category_counts,
    category_means,
    category_products,
    directions,
    epsilon_inclusion,
    inclusion_of,
    weights,
    weights_from_samples,
    weights_over_categories,
    weights_over_items,
)
from bcd4rec.policies.slates import Exploration, make_slates

A, K, C = 6, 3, 2
CATEGORIES = np.array([0, 1, 0, 0, 1, 0], np.int32)


def slates_of(ranking: list[int], k: int, epsilon: float) -> dict[tuple[int, ...], float]:
    """The probability of every slate, by the rule itself."""
    found = {}
    for slate in permutations(ranking, k):
        chance, left = 1.0, list(ranking)
        for item in slate:
            chance *= epsilon / len(left) + (1 - epsilon) * (item == left[0])
            left.remove(item)
        found[slate] = chance
    return found


def ranked(rankings: list[list[int]], epsilon: float, k: int = K) -> Ranked:
    items = np.array([ranking[:k] + [-1] * (k - len(ranking)) for ranking in rankings], np.int32)
    return Ranked(items, np.array([len(ranking) for ranking in rankings]), epsilon)


def plain_weight(slate, logger, candidate, parts) -> float:
    """mᵀ Γ⁺ x with moments over all slates; `parts` maps a slate to counts."""
    gamma = sum(p * np.outer(parts(s), parts(s)) for s, p in logger.items())
    mean = sum(p * parts(s) for s, p in candidate.items())
    return float(mean @ np.linalg.pinv(gamma, rcond=1e-9) @ parts(slate))


def items_of(slate) -> np.ndarray:
    return np.bincount(slate, minlength=A).astype(float)


def categories_of(slate) -> np.ndarray:
    return np.bincount(CATEGORIES[list(slate)], minlength=C).astype(float)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("left", [6, 4, 3, 2])
def test_inclusion_is_that_of_all_slates(epsilon, left):
    ranking = [4, 0, 5, 2, 1, 3][:left]
    slates = slates_of(ranking, min(K, left), epsilon)
    table = epsilon_inclusion(K, left, epsilon)
    for i, first in enumerate(ranking):
        for j, second in enumerate(ranking):
            together = sum(p for slate, p in slates.items() if first in slate and second in slate)
            if i < K and j < K:
                expected = table.ranks[i, j]
            elif i < K or j < K:
                expected = table.with_other[min(i, j)]
            else:
                expected = table.other if i == j else table.two_others
            assert together == pytest.approx(expected, abs=1e-12)


LOGGER = [[4, 0, 5, 2, 1, 3], [1, 2, 3, 5, 0], [3, 2, 1]]
CANDIDATE = [[3, 4, 2, 1, 5, 0], [5, 1, 0, 3, 2], [1, 3, 2]]


@pytest.mark.parametrize(("logs", "plays"), [(0.4, 0.1), (1.0, 0.0), (0.2, 0.2)])
def test_weights_are_those_of_all_slates(logs, plays, monkeypatch):
    monkeypatch.setattr(pseudo_inverse, "CLIP", np.inf)
    rng = np.random.default_rng(3)
    rows = [rng.permutation(ranking)[:K] for ranking in LOGGER]
    shown = np.array(rows, np.int32)
    logger, candidate = ranked(LOGGER, logs), ranked(CANDIDATE, plays)
    available = np.stack([categories_of(ranking) for ranking in LOGGER])
    by_items = weights_over_items(shown, logger, candidate)
    by_categories = weights_over_categories(shown, logger, candidate, CATEGORIES, available)
    for row, slate in enumerate(rows):
        log, new = slates_of(LOGGER[row], K, logs), slates_of(CANDIDATE[row], K, plays)
        assert by_items[row] == pytest.approx(plain_weight(slate, log, new, items_of))
        assert by_categories[row] == pytest.approx(plain_weight(slate, log, new, categories_of))


def test_a_linear_outcome_is_estimated_without_bias():
    """Over all slates of the logger, weighted outcomes have the candidate's mean."""
    log, new = slates_of(LOGGER[0], K, 0.5), slates_of(CANDIDATE[0], K, 0.1)
    worth = np.array([0.3, 0.1, 0.7, 0.2, 0.5, 0.4])
    slates = np.array(list(log), np.int32)
    many = len(slates)
    found = weights_over_items(slates, ranked(many * [LOGGER[0]], 0.5), ranked(many * [CANDIDATE[0]], 0.1))
    assert np.abs(found).max() < CLIP
    estimate = sum(p * w * worth[list(s)].sum() for (s, p), w in zip(log.items(), found, strict=True))
    assert estimate == pytest.approx(sum(p * worth[list(s)].sum() for s, p in new.items()))


def test_moments_agree_with_slates_that_are_drawn():
    scores = np.tile(np.array([0.5, 0.2, 0.9, 0.1, 0.7, 0.3], np.float32), (20_000, 1))
    slates = make_slates(scores, K, Exploration(kind="epsilon", epsilon=0.4), np.random.default_rng(0)).items
    policy = Ranked(np.array([[2, 4, 0]], np.int32), np.array([A]), 0.4)
    available = np.array([[4.0, 2.0]])
    first, second = category_means(policy, CATEGORIES, available), category_products(policy, CATEGORIES, available)
    counts = category_counts(slates, CATEGORIES, C)
    assert first[0] == pytest.approx(counts.mean(axis=0), abs=0.03)
    assert second[0] == pytest.approx(counts.T @ counts / len(counts), abs=0.08)
    drawn = weights_from_samples(counts[:5], np.tile(counts, (5, 1, 1)), np.tile(counts, (5, 1, 1)))
    assert drawn == pytest.approx(np.ones(5), abs=1e-6)  # the logger itself: x always sums to K


def test_singular_moments_leave_out_what_never_varies():
    gamma = np.diag([2.0, 0.0, 1.0])[None]
    found = weights(np.array([[1.0, 5.0, 1.0]]), directions(np.array([[1.0, 1.0, 1.0]]), gamma))
    assert found == pytest.approx(1.5)


def test_weights_are_clipped():
    gamma = np.diag([1e-3, 1.0])[None]
    assert weights(np.array([[1.0, 0.0]]), directions(np.array([[1.0, 0.0]]), gamma))[0] == CLIP


def test_empty_places_are_never_in_a_slate():
    policy = ranked([[3, 1]], 0.5)
    assert inclusion_of(policy, np.array([[3, -1, 1]], np.int32))[0] == pytest.approx([1.0, 0.0, 1.0])
