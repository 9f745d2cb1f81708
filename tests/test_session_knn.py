"""SKNN, VSKNN and STAN against their formulas, read with dictionaries and plain loops."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.baselines.session_knn import NeighbourConfig, SessionKNN
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, States
from bcd4rec.errors import InputError
from bcd4rec.models import session_neighbours
from bcd4rec.models.session_neighbours import SequenceAndTime, SessionNeighbours

METHODS = ["sknn", "vsknn", "stan"]
N_ITEMS = 7


def configure(method: str, **settings: object) -> NeighbourConfig:
    config = BASELINES[method].parse(settings, "test")
    assert isinstance(config, NeighbourConfig)
    return config


def fit(method: str, train: list[list[int]], n_items: int = N_ITEMS, **settings: object) -> SessionKNN:
    return SessionKNN(configure(method, **settings), Sequences.of(train), n_items)


def last_positions(session: list[int]) -> dict[int, int]:
    return {item: position for position, item in enumerate(session, start=1)}


def position_weight(config: NeighbourConfig, position: int, length: int) -> float:
    if config.method == "sknn":
        return 1.0
    if config.method == "vsknn":
        return {"same": 1.0, "div": position / length, "quadratic": (position / length) ** 2}[config.weighting]
    return math.exp((position - length) / config.lambda_spw)


def similarity(config: NeighbourConfig, session: list[int], other: list[int], age: int) -> float:
    weights = {item: position_weight(config, p, len(session)) for item, p in last_positions(session).items()}
    newest_first = sorted(weights, key=last_positions(session).get, reverse=True)
    shared = sum(weights[item] for item in newest_first if item in other)
    if config.method == "vsknn":
        return shared / len(weights)
    length = math.sqrt(sum(weights[item] ** 2 for item in newest_first))
    cosine = shared / (length * math.sqrt(len(set(other))))
    return cosine * math.exp(-age / config.sessions_per_day / config.lambda_snh) if config.method == "stan" else cosine


def vote(config: NeighbourConfig, session: list[int], other: list[int], item: int, train: list[list[int]]) -> float:
    if config.method == "sknn":
        return 1.0
    if config.method == "vsknn":
        step = next(step for step, seen in enumerate(reversed(session), start=1) if seen in other)
        events = Counter(seen for one in train for seen in one)
        idf = max(math.log(len(train) / events[item]), 0.0)
        return {"same": 1.0, "div": 1 / step, "quadratic": 1 / step**2}[config.decay] * (1 + config.idf * idf)
    places = last_positions(other)
    anchor = max(places[seen] for seen in places if seen in session)
    return math.exp(-abs(places[item] - anchor) / config.lambda_inh)


def plain_scores(config: NeighbourConfig, train: list[list[int]], session: list[int]) -> dict[int, float]:
    candidates = [row for row, other in enumerate(train) if set(other) & set(session)][::-1][: config.sample]
    similarities = [(similarity(config, session, train[row], len(train) - row), row) for row in candidates]
    neighbours = sorted(similarities, reverse=True)[: config.k]  # among equals the larger row, which is more recent
    scores: dict[int, float] = defaultdict(float)
    for strength, row in neighbours:
        for item in set(train[row]):
            scores[item] += strength * vote(config, session, train[row], item, train)
    return scores


def plain_row(config: NeighbourConfig, train: list[list[int]], session: list[int], n_items: int) -> list[float]:
    scores = plain_scores(config, train, session)
    return [scores.get(item, 0.0) for item in range(n_items)]


def assert_agrees(policy: SessionKNN, train: list[list[int]], sessions: list[list[int]], k: int) -> None:
    expected = np.array([plain_row(policy.config, train, one, policy.n_items) for one in sessions]).astype(np.float32)
    items, scores = policy.top(Sequences.of(sessions), k)
    every, values = policy.top(Sequences.of(sessions), policy.n_items)
    found = np.take_along_axis(values, np.argsort(every, axis=1), axis=1)
    np.testing.assert_allclose(found, expected, rtol=3e-7)
    order = np.argsort(-found, axis=1, kind="stable")[:, :k]  # ties to the lower index
    np.testing.assert_array_equal(items, order)
    np.testing.assert_array_equal(scores, np.take_along_axis(found, order, axis=1))


ITEM = st.integers(0, N_ITEMS - 1)
SESSIONS = st.lists(st.lists(ITEM, max_size=6), min_size=1, max_size=25)
QUERIES = st.lists(st.lists(ITEM, max_size=9), min_size=1, max_size=4)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=120, deadline=None)
@given(train=SESSIONS, queries=QUERIES, k=st.integers(1, 8), sample=st.integers(1, 20), slate=st.integers(1, 9))
def test_agrees_with_the_formulas(method, train, queries, k, sample, slate):
    policy = fit(method, train, k=k, sample=sample)
    assert_agrees(policy, train, queries, slate)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("vsknn", {"weighting": "same", "decay": "quadratic", "idf": 0.0}),
        ("vsknn", {"weighting": "div", "decay": "same", "idf": 1.5}),
        ("stan", {"lambda_spw": 0.7, "lambda_snh": 0.01, "lambda_inh": 1.3, "sessions_per_day": 7}),
    ],
)
def test_other_settings_on_larger_data(method, options):
    rng = np.random.default_rng(3)
    n_items = 83
    train = [rng.zipf(1.3, rng.integers(1, 13)).clip(max=n_items).tolist() for _ in range(400)]
    train = [[item - 1 for item in one] for one in train]
    queries = [rng.integers(0, n_items, rng.integers(1, 17)).tolist() for _ in range(30)]
    assert_agrees(fit(method, train, n_items, k=17, sample=61, **options), train, queries, 20)


@pytest.mark.parametrize("method", METHODS)
def test_scores_of_states_are_those_of_their_positives(method):
    rng = np.random.default_rng(4)
    train = [rng.integers(0, N_ITEMS, rng.integers(1, 6)).tolist() for _ in range(50)]
    sessions = [[], [3], [1, 2, 1], [0, 1, 2, 3, 4]]
    policy = fit(method, train)
    states = States.of(sessions)
    scores = policy.scores(states)
    expected = np.array([plain_row(policy.config, train, one, N_ITEMS) for one in sessions]).astype(np.float32)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=3e-7)
    candidates = np.array([[0, PAD, 2], [6, 5, PAD], [PAD, PAD, PAD], [4, 4, 0]], np.int32)
    some = policy.scores(states, candidates)
    for row, column in np.ndindex(candidates.shape):
        item = candidates[row, column]
        assert some[row, column] == (-np.inf if item == PAD else scores[row, item])
    items, values = policy.top(states, 3)
    np.testing.assert_array_equal(items, np.argsort(-scores, axis=1, kind="stable")[:, :3])
    np.testing.assert_array_equal(values, -np.sort(-scores, axis=1)[:, :3])


@pytest.mark.parametrize("method", METHODS)
def test_one_query_leaves_nothing_behind_for_the_next(method):
    train = [[0, 1], [1, 2], [2, 3, 4], [5, 6]]
    policy = fit(method, train)
    together = policy.scores(States.of([[1, 2], [5], []]))
    alone = [policy.scores(States.of([one]))[0] for one in ([1, 2], [5], [])]
    np.testing.assert_array_equal(together, alone)


def test_votes_that_are_asked_for_again_are_kept(monkeypatch):
    """Of large batches alone, each list of items once, up to a limit, and always the same votes."""
    rng = np.random.default_rng(5)
    train = [rng.integers(0, N_ITEMS, rng.integers(1, 6)).tolist() for _ in range(50)]
    lists = [rng.integers(0, N_ITEMS, rng.integers(5)).tolist() for _ in range(9)]
    batches = [States.of([lists[one] for one in rng.integers(9, size=6)]) for _ in range(8)]
    neighbours = SessionNeighbours(SequenceAndTime.parse({}, "test"), Sequences.of(train), N_ITEMS)
    asked: list[int] = []
    count = neighbours._votes
    monkeypatch.setattr(neighbours, "_votes", lambda states: asked.append(len(states)) or count(states))
    plain = [neighbours.votes(one) for one in batches]  # small batches, as a server's
    assert asked == [6] * 8
    assert not neighbours._kept()
    monkeypatch.setattr(session_neighbours, "KEPT_BATCH", 6)
    for limit in (1000, 20, 0):
        asked.clear()
        monkeypatch.setattr(session_neighbours, "KEPT_VOTES", limit)
        neighbours._kept().clear()
        for states, wanted in zip(batches, plain, strict=True):
            found = neighbours.votes(states)
            assert all(np.array_equal(left, right) for left, right in zip(found, wanted, strict=True))
            assert [one.dtype for one in found] == [one.dtype for one in wanted]
        distinct = len({one.tobytes() for states in batches for one in states.positives})
        assert sum(asked) == distinct if limit == 1000 else sum(asked) > distinct
        assert len(neighbours._kept()) == distinct if limit == 1000 else len(neighbours._kept()) < distinct


def test_sknn_by_hand():
    policy = fit("sknn", [[0, 1], [1, 2, 3, 3], [4]], 5)
    scores = policy.scores(States.of([[1]]))[0]
    first, second = 1 / math.sqrt(2), 1 / math.sqrt(3)
    np.testing.assert_allclose(scores, [first, first + second, second, second, 0], rtol=1e-6)


def test_ties_between_neighbours_go_to_the_more_recent_session():
    assert fit("sknn", [[0, 1], [0, 2], [0, 3]], k=1).top(Sequences.of([[0]]), 2)[0].tolist() == [[0, 3]]


def test_the_sample_holds_the_most_recent_sessions():
    train = [[0, 1], [0, 2, 3, 4], [0, 2, 3, 5]]  # the oldest session is the most similar one
    assert fit("sknn", train, sample=2).scores(States.of([[0, 1]]))[0, 1] == 0
    assert fit("sknn", train, sample=3).scores(States.of([[0, 1]]))[0, 1] > 0


@pytest.mark.parametrize("method", METHODS)
def test_odd_sessions(method):
    train = [[2], [2], [3], [0, 2]]
    policy = fit(method, train)
    assert policy.scores(States.empty(2)).tolist() == [[0.0] * N_ITEMS] * 2, "an empty session says nothing"
    assert policy.top(Sequences.of([[]]), 3)[0].tolist() == [[0, 1, 2]], "and ties go to the lower index"
    assert policy.top(Sequences.of([[6, 6]]), 3)[0].tolist() == [[0, 1, 2]], "an item that no session holds"
    assert_agrees(policy, train, [[2] * 40, list(range(N_ITEMS)) * 30], N_ITEMS)
    assert policy.scores(States.empty(0)).shape == (0, N_ITEMS)
    assert policy.top(Sequences.of([]), 4)[0].shape == (0, 4)


@pytest.mark.parametrize("method", METHODS)
def test_odd_training_sets(method):
    one = fit(method, [[0, 0], [0]], n_items=1)
    assert one.top(Sequences.of([[0], []]), 20)[0].tolist() == [[0], [0]]
    assert one.scores(States.of([[0]]))[0, 0] > 0
    assert_agrees(fit(method, [[0], [1], [1]]), [[0], [1], [1]], [[0, 1], [1]], 3)
    assert fit(method, []).scores(States.of([[1]])).tolist() == [[0.0] * N_ITEMS]
    assert_agrees(fit(method, [[], [1, 2], []]), [[], [1, 2], []], [[2]], 3)


@pytest.mark.parametrize("method", METHODS)
def test_very_long_sessions_do_not_overflow(method):
    train = [list(range(5000)), [0, 1], [4999, 2]]
    policy = fit(method, train, n_items=5000)
    scores = policy.scores(States.of([[0, 1], [4999]]))
    assert np.isfinite(scores).all()
    assert policy.top(Sequences.of([list(range(5000))]), 5)[0].shape == (1, 5)


@pytest.mark.parametrize("method", METHODS)
def test_save_and_restore_give_the_same_bits(method):
    rng = np.random.default_rng(5)
    train = [rng.integers(0, N_ITEMS, rng.integers(1, 6)).tolist() for _ in range(80)]
    policy = fit(method, train, k=11, sample=29)
    again = SessionKNN.restore(policy.settings(), policy.arrays())
    states = States.of([rng.integers(0, N_ITEMS, rng.integers(0, 6)).tolist() for _ in range(13)])
    np.testing.assert_array_equal(policy.scores(states), again.scores(states))
    np.testing.assert_array_equal(policy.scores(states), fit(method, train, k=11, sample=29).scores(states))


def test_fitted_on_the_positives_of_a_data_set():
    train = [[0, 1], [2, 1, 5], [5]]
    fitted = configure("stan").fit(Dataset.from_sequences(Sequences.of(train), N_ITEMS), 0)
    states = States.of([[1], [5, 2]])
    assert fitted.scores(states).tobytes() == fit("stan", train).scores(states).tobytes()


def test_items_outside_the_catalogue_are_refused():
    policy = fit("stan", [[0, 1]])
    for wrong in ([N_ITEMS], [PAD]):
        with pytest.raises(ValueError, match="catalogue of 7 items"):
            policy.top(Sequences.of([wrong]), 2)
    with pytest.raises(ValueError, match="catalogue of 7 items"):
        policy.scores(States.empty(1), np.array([[N_ITEMS]], np.int32))
    with pytest.raises(ValueError, match="catalogue of 1 items"):
        fit("sknn", [[0, 1]], n_items=1)


def test_unknown_and_impossible_settings_are_named():
    with pytest.raises(InputError, match="unknown key 'neighbours'"):
        configure("sknn", neighbours=3)
    with pytest.raises(InputError, match="k: found 0"):
        configure("stan", k=0)


@pytest.mark.parametrize(("method", "floor"), [("sknn", 0.65), ("vsknn", 0.95), ("stan", 0.88)])
def test_quality_floor_on_chains(method, floor):
    """Sessions walk along a ring of 100 items, mostly one step at a time; 8 items at random would hit 8 %."""
    rng = np.random.default_rng(6)
    steps = rng.choice([1, 2, 3], (900, 5), p=[0.7, 0.2, 0.1])
    walks = (rng.integers(0, 100, (900, 1)) + np.cumsum(steps, axis=1)) % 100
    policy = fit(method, walks[:700].tolist(), n_items=100)
    items, _ = policy.top(Sequences.of(walks[700:, :4].tolist()), 8)
    hits = (items == walks[700:, 4:]).any(axis=1).mean()
    assert hits >= floor
