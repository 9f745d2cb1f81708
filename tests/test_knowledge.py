"""What a log knows about its items, against plain loops."""

import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sparse

from bcd4rec.data import knowledge
from bcd4rec.data.knowledge import STRENGTHS, Counted, Knowledge, Neighbours, folds, log_lift
from bcd4rec.data.sequences import Sequences

Row = tuple[int, int, bool, bool, float, float]  # session, item, positive, target, expected ones


def counted(rows: list[Row]) -> Counted:
    session, item, positive, target, expected, bought = zip(*rows, strict=True) if rows else [()] * 6
    return Counted(
        np.array(session, np.uint32),
        np.array(item, np.int32),
        np.array(positive, np.bool_),
        np.array(target, np.bool_),
        np.array(expected, np.float64),
        np.array(bought, np.float64),
    )


def some_rows(seed: int, sessions: int, n_items: int, count: int) -> list[Row]:
    rng = np.random.default_rng(seed)
    return [
        (int(session), int(rng.integers(n_items)), bool(rng.random() < 0.4), bool(rng.random() < 0.1), 0.4, 0.1)
        for session in np.sort(rng.integers(sessions, size=count))
    ]


def some_likes(seed: int, sessions: int, n_items: int, longest: int) -> list[list[int]]:
    """Sessions within one half of the catalogue, so that there are tastes; some are empty."""
    rng = np.random.default_rng(seed)
    half = n_items // 2
    return [
        (rng.integers(half, size=rng.integers(longest + 1)) + half * int(rng.integers(2))).tolist()
        for _ in range(sessions)
    ]


def plain_strength(n: list[float], e: list[float], prior: list[float]) -> float:
    best, strength = -math.inf, 0.0
    for m in STRENGTHS:
        likelihood = 0.0
        for count, expected, lift in zip(n, e, prior, strict=True):
            if expected > 0:
                a = m * lift
                likelihood += math.lgamma(count + a) - math.lgamma(a) + a * math.log(m / (expected + m))
                likelihood += count * math.log(expected / (expected + m))
        if likelihood > best:
            best, strength = likelihood, float(m)
    return strength


def plain_log_lift(n: list[float], e: list[float], categories: list[int]) -> list[float]:
    prior = [1.0] * len(n)
    groups = range(max(categories) + 1)
    members = [[item for item, category in enumerate(categories) if category == group] for group in groups]
    by_group = [(sum(n[item] for item in one), sum(e[item] for item in one)) for one in members]
    if by_group:
        m = plain_strength([one for one, _ in by_group], [one for _, one in by_group], [1.0] * len(by_group))
        for one, (count, expected) in zip(members, by_group, strict=True):
            for item in one:
                prior[item] = (count + m) / (expected + m)
    m = plain_strength(n, e, prior)
    return [math.log((n[item] + m * prior[item]) / (e[item] + m)) for item in range(len(n))]


@pytest.mark.parametrize("seed", range(5))
def test_log_lift_by_plain_loops(seed):
    rng = np.random.default_rng(seed)
    n_items, groups = 23, 4
    expected = rng.exponential(5.0, n_items) * (rng.random(n_items) < 0.8)  # some were never shown
    responses = rng.poisson(expected * rng.gamma(3.0, 1 / 3.0, n_items)).astype(np.float64)
    for categories in (
        rng.integers(groups, size=n_items),
        rng.integers(-1, groups, size=n_items),
        np.full(n_items, -1),
        np.where(np.arange(n_items) == 7, 2, -1),  # lower categories without items
    ):
        found = log_lift(responses, expected, categories.astype(np.int32))
        wanted = plain_log_lift(responses.tolist(), expected.tolist(), categories.tolist())
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6)
        assert found.dtype == np.float32


def test_the_prior_is_strong_where_items_do_not_differ_and_weak_where_they_do():
    rng = np.random.default_rng(0)
    expected = np.full(2000, 20.0)
    alike = rng.poisson(expected).astype(np.float64)
    assert knowledge.strength(alike, expected, np.ones(2000)) == STRENGTHS[-1]
    for variance in (1.0, 4.0):  # of the lift, of which the strength is the inverse
        lift = rng.gamma(1 / variance, variance, 2000)
        found = knowledge.strength(rng.poisson(expected * lift).astype(np.float64), expected, np.ones(2000))
        assert found == pytest.approx(1 / variance, rel=0.4)
    assert np.abs(log_lift(alike, expected, np.full(2000, -1, np.int32))).max() < 0.1
    spread = log_lift(alike * rng.integers(2, size=2000) * 2, expected, np.full(2000, -1, np.int32))
    assert spread.std() > 1.0


def test_an_item_is_judged_once_in_a_session():
    """Ten times the same impression in a session change nothing, ten sessions do."""
    once = some_rows(1, 6, 5, 14)
    once = list({(row[0], row[1]): row for row in once}.values())
    often = sorted(once + [row for row in once if row[1] in (1, 3) for _ in range(9)])
    likes, categories = Sequences.of([[0, 1]]), np.array([0, 0, 1, 1, -1], np.int32)
    left, right = (Knowledge.count(counted(rows), likes, categories).arrays() for rows in (sorted(once), often))
    for name in left:
        np.testing.assert_allclose(left[name], right[name], rtol=1e-6, err_msg=name)
    # Ten impressions of one session with one positive response among them are a tenth of a positive response.
    mixed = [(0, 2, place == 4, False, 0.1 * place, 0.2) for place in range(10)] + [(3, 2, True, True, 0.5, 0.5)]
    found = Knowledge.count(counted(mixed), likes, np.full(5, -1, np.int32))
    n, e = [0.0, 0.0, 1.1, 0.0, 0.0], [0.0, 0.0, 0.45 + 0.5, 0.0, 0.0]
    np.testing.assert_allclose(found.positive, plain_log_lift(n, e, [-1] * 5), rtol=1e-5)


def test_columns_of_an_item_by_plain_loops():
    n_items, sessions = 11, 17
    rows = some_rows(2, sessions, n_items, 140)
    lists = some_likes(3, 13, n_items, 6)
    categories = [0, 2, 1, -1, 2, 0, 0, 1, 2, -1, 1]
    found = Knowledge.count(counted(rows), Sequences.of(lists), np.array(categories, np.int32))
    times: dict[tuple[int, int], int] = {}
    for session, item, *_ in rows:
        times[session, item] = times.get((session, item), 0) + 1
    sums = [[0.0] * 5 for _ in range(n_items)]
    for session, item, *values in rows:
        for place, value in enumerate([1.0, *map(float, values)]):
            sums[item][place] += value / times[session, item]
    seen, positive, target, expected, bought = (list(one) for one in zip(*sums, strict=True))
    liked = [sum(one.count(item) for one in lists) for item in range(n_items)]

    def centred(values: list[float]) -> list[float]:
        middle = sum(v * w for v, w in zip(values, seen, strict=True)) / sum(seen)
        return [value - middle for value in values]

    np.testing.assert_allclose(found.positive, plain_log_lift(positive, expected, categories), rtol=1e-5)
    np.testing.assert_allclose(found.target, plain_log_lift(target, bought, categories), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.popularity, centred([math.log(1 + one) for one in liked]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.shown, centred([math.log(1 + one) for one in seen]), rtol=1e-5, atol=1e-6)


def dense(neighbours: Neighbours, n_items: int) -> np.ndarray:
    found = np.zeros((n_items, n_items))
    for item in range(n_items):
        place = slice(neighbours.offsets[item], neighbours.offsets[item + 1])
        assert len(set(neighbours.items[place].tolist())) == place.stop - place.start
        found[item, neighbours.items[place]] = neighbours.weights[place]
    assert len(neighbours.items) == len(neighbours.weights) == neighbours.offsets[-1]
    return found


def most(row: list[float], count: int) -> list[float]:
    """A row in which only the largest entries are left, among equals the lower columns."""
    kept = sorted((column for column in range(len(row)) if row[column]), key=lambda column: (-row[column], column))
    return [value if column in kept[:count] else 0.0 for column, value in enumerate(row)]


@pytest.mark.parametrize("count", [1, 3, 100])
def test_neighbours_are_the_largest_entries_of_a_row(count):
    rng = np.random.default_rng(4)
    matrix = rng.integers(4, size=(7, 9)).astype(np.float64)  # many ties, and zeros that are not stored
    matrix[2] = 0
    stored = sparse.csr_matrix(matrix)
    for row in range(7):  # stored in any order
        place = slice(stored.indptr[row], stored.indptr[row + 1])
        turn = rng.permutation(place.stop - place.start)
        stored.indices[place], stored.data[place] = stored.indices[place][turn], stored.data[place][turn]
    found = Neighbours.of(stored, count)
    for row in range(7):
        place = slice(found.offsets[row], found.offsets[row + 1])
        wanted = most(matrix[row].tolist(), count)
        columns = found.items[place].tolist()
        assert sorted(columns) == [column for column in range(9) if wanted[column]]
        assert found.weights[place].tolist() == [wanted[column] for column in columns]
    assert (found.offsets.dtype, found.items.dtype, found.weights.dtype) == (np.int64, np.int32, np.float32)


def test_similar_items_by_plain_loops(monkeypatch):
    n_items, lists = 12, some_likes(5, 19, 12, 7)
    sets = [set(one) for one in lists]
    count = [sum(item in one for one in sets) for item in range(n_items)]
    wanted = [
        [
            sum(i in one and j in one for one in sets) / math.sqrt((count[i] + 5) * (count[j] + 5)) if i != j else 0.0
            for j in range(n_items)
        ]
        for i in range(n_items)
    ]
    full = Knowledge.count(counted([]), Sequences.of(lists), np.full(n_items, -1, np.int32)).similar
    np.testing.assert_allclose(dense(full, n_items), wanted, rtol=1e-6)
    monkeypatch.setattr(Neighbours.of.__func__, "__defaults__", (3,))
    few = Knowledge.count(counted([]), Sequences.of(lists), np.full(n_items, -1, np.int32)).similar
    np.testing.assert_allclose(dense(few, n_items), [most(row, 3) for row in wanted], rtol=1e-6)


def test_followers_by_plain_loops():
    n_items, lists = 10, [*some_likes(6, 15, 10, 8), [9], [9, 9], [9, 9, 8]]
    weight = np.zeros((n_items, n_items))
    for one in lists:
        for place, before in enumerate(one):
            for distance in (1, 2, 3):
                if place + distance < len(one) and one[place + distance] != before:
                    weight[before, one[place + distance]] += 1 / distance
    wanted = [[value / (row.sum() + 5.0) for value in row] for row in weight]
    found = Knowledge.count(counted([]), Sequences.of(lists), np.full(n_items, -1, np.int32)).followers
    np.testing.assert_allclose(dense(found, n_items), wanted, rtol=1e-6)


def test_only_items_that_several_sessions_liked_have_a_taste():
    rng = np.random.default_rng(7)
    lists = [[*rng.permutation(6)[:3], 13] for _ in range(20)]
    lists += [[*(6 + rng.permutation(6)[:3])] for _ in range(20)]
    lists += [[0, 1, 12, 12, 12]] * 4  # four sessions are too few, however often they like it
    tastes = Knowledge.count(counted([]), Sequences.of(lists), np.full(15, -1, np.int32)).tastes
    size = np.linalg.norm(tastes, axis=1)
    assert size[[12, 14]].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(size[:12], 1.0, rtol=1e-5)
    near = tastes @ tastes.T
    assert near[:6, :6].mean() > 0.5 > near[:6, 6:12].mean()
    fifth = Knowledge.count(counted([]), Sequences.of([*lists, [12, 0]]), np.full(15, -1, np.int32)).tastes
    assert np.linalg.norm(fifth[12]) == pytest.approx(1.0)


def test_arrays_and_back():
    made = Knowledge.count(
        counted(some_rows(8, 6, 9, 40)), Sequences.of(some_likes(9, 12, 9, 5)), np.array([0, 1, -1] * 3, np.int32)
    )
    arrays = made.arrays()
    again = Knowledge.restore({name: array.copy() for name, array in arrays.items()})
    assert again.n_items == 9
    assert list(again.arrays()) == list(arrays)
    for name, array in again.arrays().items():
        assert array.dtype == arrays[name].dtype
        np.testing.assert_array_equal(array, arrays[name])
    assert isinstance(again.similar, Neighbours)


@pytest.mark.parametrize(("sessions", "count"), [(11, 4), (4, 4), (3, 4), (1, 4), (0, 4)])
def test_every_session_is_in_one_fold(sessions, count):
    masks = list(folds(np.arange(sessions), count, np.random.default_rng(0)))
    assert 1 <= len(masks) <= count
    assert sum(mask.astype(int) for mask in masks).tolist() == [1] * sessions
    if sessions >= count:
        assert {mask.sum() for mask in masks} <= {sessions // count, -(-sessions // count)}
    same = folds(np.arange(sessions), count, np.random.default_rng(0))
    assert all((left == right).all() for left, right in zip(masks, same, strict=True))


def test_sessions_of_one_owner_are_in_one_fold():
    owners = np.array([3, 0, 1, 0, 2, 3, 3, 1, 4])
    masks = list(folds(owners, 3, np.random.default_rng(1)))
    assert sum(mask.astype(int) for mask in masks).tolist() == [1] * len(owners)
    for owner in range(5):
        assert sum(mask[owners == owner].any() for mask in masks) == 1


MANY = [[0, 1, 2]] * 5  # as often together as chance has it: a matrix of zeros


@pytest.mark.parametrize(
    ("rows", "lists", "categories"),
    [
        ([], [], [-1, -1, -1]),
        ([], [[]], [0, 1, 1]),
        (some_rows(11, 1, 3, 5), [[2]], [0, -1, 0]),
        ([(0, 1, False, False, 1e-9, 1e-9)], [], [-1, 0, -1]),
        ([(0, 1, False, False, 0.0, 0.0)], [], [-1, 0, -1]),
        ([(7, 2, True, True, 1.0, 1.0)] * 3, [[2, 2, 2]], [-1, -1, -1]),
        (some_rows(12, 5, 3, 20), MANY, [2, 2, 2]),
        (some_rows(12, 5, 1, 20), [[0]] * 9, [0]),
        (some_rows(12, 5, 2, 20), [[0], [1]] * 9, [0, -1]),
        (some_rows(12, 5, 3, 20), [[0], [1], [2]] * 9, [0, -1, 0]),
        (some_rows(12, 5, 4, 20), [[0, 1], [2, 3]] * 9, [0, -1, 0, 1]),
    ],
)
def test_little_or_nothing_is_known(rows, lists, categories):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Knowledge.count(counted(rows), Sequences.of(lists), np.array(categories, np.int32))
    for name, array in found.arrays().items():
        assert np.isfinite(array).all(), name
    assert len(found.similar.offsets) == len(found.followers.offsets) == len(categories) + 1
    if not rows:
        for column in (found.positive, found.target, found.shown):
            assert not column.any()


def test_large_catalogues_do_not_run_over():
    """A session times the size of the catalogue needs more than 32 bits: these two would be one in 32."""
    n_items = 200_000
    pairs = [(0, 21_475 * n_items - 2**32), (21_475, 0)]
    rows = [(session, item, True, False, 0.5, 0.5) for session, item in pairs]
    found = Knowledge.count(counted(rows), Sequences.of([[199_999, 3]]), np.full(n_items, -1, np.int32))
    assert [found.shown[item] - found.shown[1] for _, item in pairs] == pytest.approx([math.log(2)] * 2)
    assert found.similar.items.tolist() == [199_999, 3]
    assert found.followers.items.tolist() == [3]
