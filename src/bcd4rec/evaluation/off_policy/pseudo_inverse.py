"""Weights for slates whose value is a sum over their parts: the pseudo-inverse.

Two policies seldom show the same slate, but often the same items, and more often the same categories. If the outcome of
a slate S is linear in the counts x(S) of its parts (items, or categories), then with the logger's second moments
Γ = E[x xᵀ] and the candidate's means m = E[x] in the same state, outcomes weighted by

    v = mᵀ Γ⁺ x(S)

have the candidate's mean (Swaminathan et al., "Off-policy evaluation for slate recommendation", 2017). Γ may be
singular: a logger that never varies something tells nothing about it, and its pseudo-inverse leaves that out. Weights
are clipped at 10: they serve to tell that a candidate is worse, beside a model of the response (see `estimators`).

For policies that explore by ε the moments are exact; for all others they are taken from slates that they draw.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.states import PAD, IntArray
from bcd4rec.errors import InputError
from bcd4rec.evaluation.off_policy.decisions import Doubles

CLIP = 10.0
SMALLEST = 1e-7  # eigenvalues below this share of the largest one count as 0
MOST_PLACES = 12  # of slates whose moments are exact; what it takes doubles with each place


class Ranked(NamedTuple):
    """What a policy that explores by ε would show: enough to know the probability of any slate's parts."""

    items: IntArray  # (n, K) the best available items, best first, padded with `PAD`
    left: NDArray[np.int64]  # (n,) how many items are available
    epsilon: float


class Inclusion(NamedTuple):
    """How likely the items of a ranking are in a slate, by their ranks; all below the K best are alike."""

    ranks: Doubles  # (R, R) two of the best together; on the diagonal each of them
    with_other: Doubles  # (R,) one of the best together with a certain other item
    other: float  # a certain other item
    two_others: float  # two certain others together


@lru_cache(maxsize=4096)
def epsilon_inclusion(k: int, left: int, epsilon: float) -> Inclusion:
    """Of slates of `k` of `left` items: place by place with probability ε any that is left, else the best of them.

    The sets of the best items that may have been taken, and how likely each is, after every place.
    """
    if k > MOST_PLACES:
        raise InputError(f"Slates have {k} places, and exact moments are for {MOST_PLACES} at most; draw slates.")
    places = ranks = min(k, left)
    others = left - ranks
    chance = np.zeros(1 << ranks)
    chance[0] = 1.0
    taken = np.arange(1 << ranks)
    size = np.array([int(one).bit_count() for one in taken])
    for place in range(places):
        after = chance * epsilon * np.maximum(others - (place - size), 0) / (left - place)
        bolder = np.ones(len(chance), np.bool_)  # whether all better ranks are taken
        for rank in range(ranks):
            has = (taken >> rank & 1).astype(np.bool_)
            free = np.flatnonzero(~has)
            share = epsilon / (left - place) + (1.0 - epsilon) * bolder[free]
            after[free | (1 << rank)] += chance[free] * share
            bolder &= has
        chance = after
    member = (taken[:, None] >> np.arange(ranks) & 1).astype(np.float64)  # (sets, R)
    rest = places - size
    one, two = (chance @ rest, chance @ (rest * (rest - 1)))
    return Inclusion(
        member.T @ (chance[:, None] * member),
        (chance * rest) @ member / max(others, 1),
        float(one / max(others, 1)),
        float(two / max(others * (others - 1), 1)),
    )


def inclusion_of(policy: Ranked, items: IntArray) -> Doubles:
    """(n, J) how likely each of `items` (n, J), which must be available or `PAD`, is in the slate."""
    found = np.zeros(items.shape)
    for rows, table in _tables(policy):
        same = (items[rows, :, None] == policy.items[rows, None, : len(table.ranks)]) & (items[rows, :, None] != PAD)
        found[rows] = np.where(same.any(axis=2), same @ table.ranks.diagonal(), table.other)
    found[items == PAD] = 0.0
    return found


def weights_over_items(shown: IntArray, logger: Ranked, candidate: Ranked) -> Doubles:
    """(n,) of slates `shown` (n, K), in states where both policies have the same items to choose from.

    All items but the logger's K best are alike to it. So Γ acts on them as one number on all that sums to 0 over them,
    and together with the best it is a matrix of K + 1 rows.
    """
    found = np.zeros(len(shown))
    best, there = inclusion_of(candidate, logger.items), inclusion_of(candidate, shown)
    for rows, table in _tables(logger):
        ranks = len(table.ranks)
        others = int(logger.left[rows[0]]) - ranks
        same = shown[rows, :, None] == logger.items[rows, None, :ranks]
        is_other = ~same.any(axis=2) & (shown[rows] != PAD)
        count, places = is_other.sum(axis=1), min(shown.shape[1], int(logger.left[rows[0]]))
        mean_other = places - best[rows, :ranks].sum(axis=1)  # the candidate's mean number of others
        root = np.sqrt(max(others, 1))
        gamma = np.zeros((ranks + 1, ranks + 1))
        gamma[:-1, :-1], gamma[-1, :-1], gamma[:-1, -1] = table.ranks, *(2 * [root * table.with_other])
        gamma[-1, -1] = table.other + (others - 1) * table.two_others if others else 0.0
        inverse = np.linalg.pinv(gamma, rcond=SMALLEST, hermitian=True)
        means = np.column_stack([best[rows, :ranks], mean_other / root])
        counts = np.column_stack([same.any(axis=1), count / root])
        found[rows] = ((means @ inverse) * counts).sum(axis=1)
        alone = table.other - table.two_others
        if others > 1 and alone > SMALLEST * table.ranks.max():
            apart = (there[rows] * is_other).sum(axis=1) - mean_other * count / others
            found[rows] += apart / alone
    return np.clip(found, -CLIP, CLIP)


def weights_over_categories(
    shown: IntArray, logger: Ranked, candidate: Ranked, categories: IntArray, available: Doubles
) -> Doubles:
    """(n,) with `categories` (A,) from 0 and how many items of each are `available` (n, C)."""
    groups = available.shape[1]
    gamma = category_products(logger, categories, available)
    means = category_means(candidate, categories, available)
    return weights(means, directions(category_counts(shown, categories, groups), gamma))


def category_means(policy: Ranked, categories: IntArray, available: Doubles) -> Doubles:
    """(n, C) how many items of each category a slate has on average."""
    found = np.zeros(available.shape)
    for rows, table in _tables(policy):
        best = _one_hot(policy.items[rows, : len(table.ranks)], categories, available.shape[1])  # (b, R, C)
        rest = available[rows] - best.sum(axis=1)
        found[rows] = table.ranks.diagonal() @ best + table.other * rest
    return found


def category_products(policy: Ranked, categories: IntArray, available: Doubles) -> Doubles:
    """(n, C, C) the second moments Γ of how many items of each category a slate has."""
    groups = available.shape[1]
    found = np.zeros((*available.shape, groups))
    for rows, table in _tables(policy):
        best = _one_hot(policy.items[rows, : len(table.ranks)], categories, groups)
        rest = available[rows] - best.sum(axis=1)
        cross = (table.with_other @ best)[:, :, None] * rest[:, None, :]
        products = best.swapaxes(1, 2) @ (table.ranks @ best) + cross + cross.swapaxes(1, 2)
        products += table.two_others * rest[:, :, None] * rest[:, None, :]
        products += (table.other - table.two_others) * rest[:, :, None] * np.eye(groups)
        found[rows] = products
    return found


def category_counts(slates: IntArray, categories: IntArray, groups: int) -> Doubles:
    """(…, C) how many items of each category the slates (…, K) have."""
    counts: Doubles = _one_hot(slates, categories, groups).sum(axis=-2)
    return counts


def weights_from_samples(shown: Doubles, logger: Doubles, candidate: Doubles) -> Doubles:
    """(n,) where `shown` (n, C) are counts, and slates drawn by the policies have counts (n, M, C) and (n, M′, C).

    An inverse of sampled moments is too large on average; draw ten times as many slates as there are categories.
    """
    gamma = np.einsum("nmc,nmd->ncd", logger, logger) / logger.shape[1]
    return weights(candidate.mean(axis=1), directions(shown, gamma))


def directions(shown: Doubles, gamma: Doubles) -> Doubles:
    """(n, C) Γ⁺ x from the counts (n, C) of what was shown and the logger's Γ (n, C, C); for all candidates alike."""
    inverse = np.linalg.pinv(gamma, rcond=SMALLEST, hermitian=True)
    found: Doubles = np.einsum("ncd,nd->nc", inverse, shown)
    return found


def weights(means: Doubles, directions: Doubles) -> Doubles:
    """(n,) from the candidate's means (n, C)."""
    found: Doubles = np.clip((means * directions).sum(axis=1), -CLIP, CLIP)
    return found


def _one_hot(items: IntArray, categories: IntArray, groups: int) -> Doubles:
    """(…, K, C); items without a category, −1, and empty places count nowhere."""
    found = np.where(items == PAD, -1, categories[np.where(items == PAD, 0, items)])
    hot: Doubles = (found[..., None] == np.arange(groups)).astype(np.float64)
    return hot


def _tables(policy: Ranked) -> list[tuple[NDArray[np.int64], Inclusion]]:
    """The rows with each number of available items, and what holds for them."""
    k = policy.items.shape[1]
    return [
        (np.flatnonzero(policy.left == left), epsilon_inclusion(k, int(left), policy.epsilon))
        for left in np.unique(policy.left)
    ]
