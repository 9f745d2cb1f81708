"""Support against a plain loop over impressions."""

import numpy as np
import pytest

from bcd4rec.data import support
from bcd4rec.data.states import PAD
from bcd4rec.data.support import PRIOR, Support, item_groups

CATEGORIES = np.array([0, 1, -1, 0, 2, -1, 1], np.int32)
GROUPS = [0, 1, 3, 0, 2, 4, 1]
EMPTY = "nothing yet"
LEAST = 3


def impressions(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    histories = rng.integers(len(GROUPS), size=(count, 4)).astype(np.int32)
    for row, length in enumerate(rng.integers(0, 5, size=count)):
        histories[row, length:] = PAD
    items = rng.choice(len(GROUPS) - 1, count, p=[0.4, 0.3, 0.15, 0.1, 0.04, 0.01]).astype(np.int32)
    return histories, items


def liked(history: np.ndarray) -> list[object]:
    return [GROUPS[item] for item in history if item != PAD] or [EMPTY]


def plain_likely(histories: np.ndarray, items: np.ndarray, history: np.ndarray, item: int) -> float:
    own = sum(1 for one in items if one == item)
    group = sum(1 for one in items if GROUPS[one] == GROUPS[item])
    chances = []
    for one in liked(history):
        pair = total = 0
        for before, shown in zip(histories, items, strict=True):
            for other in sorted({str(kind) for kind in liked(before)}):
                total_here = other == str(one)
                total += total_here
                pair += total_here and GROUPS[shown] == GROUPS[item]
        chances.append((pair + PRIOR * group / len(items)) / (total + PRIOR))
    return own / group * sum(chances) / len(chances) if group else 0.0


def test_groups_are_categories_or_single_items() -> None:
    assert item_groups(CATEGORIES).tolist() == GROUPS
    assert item_groups(np.full(3, -1, np.int32)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("chunk", [1_000_000, 7])
def test_likelihood_is_the_plain_loop(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "CHUNK", chunk)
    histories, items = impressions(60, 0)
    found = Support.count(histories, items, item_groups(CATEGORIES), LEAST)
    asked, _ = impressions(9, 1)
    slates = np.random.default_rng(2).integers(len(GROUPS), size=(9, 5)).astype(np.int32)
    said = found.likely(asked, slates)
    for row in range(9):
        for place in range(5):
            expected = plain_likely(histories, items, asked[row], int(slates[row, place]))
            assert said[row, place] == pytest.approx(expected)


def test_outside_is_rare_or_strange() -> None:
    histories, items = impressions(400, 3)
    counted = Support.count(histories, items, item_groups(CATEGORIES), LEAST)
    others = impressions(300, 4)
    found = counted.with_threshold(*others)
    likely = counted.likely(others[0], others[1][:, None])[:, 0]
    assert found.threshold == pytest.approx(np.quantile(likely, 0.01))
    slates = np.tile(np.array([0, 4, 5, 6, PAD], np.int32), (300, 1))
    outside = found.outside(others[0], slates)
    shown = np.bincount(items, minlength=len(GROUPS))
    assert shown[6] == 0
    assert outside[:, 3].all()  # never shown
    assert not outside[:, 4].any()  # an empty place asks nothing
    for row in range(300):
        for place in range(3):
            item = int(slates[row, place])
            strange = found.likely(others[0][row : row + 1], slates[row : row + 1])[0, place] < found.threshold
            assert outside[row, place] == (shown[item] < LEAST or strange)


def test_a_user_that_saw_nothing_knows_nothing() -> None:
    nothing = Support.count(np.empty((0, 4), np.int32), np.empty(0, np.int32), item_groups(CATEGORIES), LEAST)
    assert nothing.outside(impressions(3, 0)[0], np.array([[0], [1], [PAD]], np.int32)).ravel().tolist() == [
        True,
        True,
        False,
    ]
