"""CTR, CategoryPop and Markov against their formulas, read with plain loops."""

from collections import Counter, defaultdict

import numpy as np
import polars as pl
import pytest

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.baselines.ctr import expected
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.splits import SplitConfig
from bcd4rec.data.states import PAD, States
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.ranking import top_scored
from bcd4rec.policies.scorer import SavedScorer

ITEMS, SESSIONS, STEPS, SLATE = 13, 37, 5, 2
REWARDS = {"skip": 0.0, "click": 1.0, "buy": 5.0}
LISTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7], [9], [3, 2, 3, 8], [1, 4]]
STATES = States.of([[], [3], [1, 4], [9, 2, 9, 9], [0], [5, 5, 3, 8, 2, 6, 7, 7, 1, 4, 4]])
CANDIDATES = np.array([[0, 6, PAD], [PAD, 3, 3], [4, 12, 1], [5, PAD, 9], [1, 2, 0], [PAD, PAD, 8]], np.int32)


def log(categories: bool = True) -> pl.DataFrame:
    """Items 0 to 11; those of category 2 have none; item 12 is only ever shown in the other split."""
    rng = np.random.default_rng(4)
    rows = []
    for session in range(SESSIONS):
        for step in range(STEPS):
            for place, item in enumerate(rng.choice(ITEMS - 1, SLATE, False, np.arange(12, 0, -1) / 78).tolist()):
                response = str(rng.choice(list(REWARDS), p=[0.6, 0.3, 0.1]))
                rows.append((session, step, place, item, response, None if item % 4 == 2 else f"c{item % 4}"))
    frame = pl.DataFrame(rows, ["session_id", "step", "position", "item_id", "response", "category"], orient="row")
    return frame if categories else frame.drop("category")


def dataset(categories: bool = True) -> Dataset:
    return Dataset.from_frame(log(categories), REWARDS, PrepareConfig(split=SplitConfig(validation=0.0)))


def fit(method: str, data: Dataset, **options: object) -> SavedScorer:
    return BASELINES[method].parse(options, "test").fit(data, 0)


def lists() -> Dataset:
    return Dataset.from_sequences(Sequences.of(LISTS), ITEMS)


@pytest.mark.parametrize("method", ["ctr", "category_popular", "markov"])
@pytest.mark.parametrize("data", [dataset, lists], ids=["log", "sequences"])
def test_candidates_and_bundles_have_the_scores_of_the_catalogue(method, data, tmp_path):
    data = data()
    policy, kept = fit(method, data), CANDIDATES % data.n_items
    kept[CANDIDATES == PAD] = PAD
    every, some = policy.scores(STATES), policy.scores(STATES, kept)
    assert every.dtype == some.dtype == np.float32
    assert every.shape == (len(STATES), data.n_items)
    assert np.isfinite(every).all()
    expected_scores = np.where(kept == PAD, -np.inf, np.take_along_axis(every, np.maximum(kept, 0), axis=1))
    np.testing.assert_array_equal(some, expected_scores)
    bundle.write(Policy(policy, data.vocabulary), tmp_path)
    again = bundle.load(tmp_path).scorer
    assert again.scores(STATES).tobytes() == every.tobytes()
    assert again.scores(STATES, kept).tobytes() == some.tobytes()
    every[:] = 0
    assert policy.scores(STATES).any(), "the result is the caller's to change"
    assert policy.scores(States.empty(0)).shape == (0, data.n_items)


@pytest.mark.parametrize("categories", [True, False])
@pytest.mark.parametrize("priors", [{}, {"item_prior": 3.0, "category_prior": 7.0}])
def test_ctr_by_plain_loops(categories, priors):
    m, m_c = priors.get("item_prior", 20.0), priors.get("category_prior", 50.0)
    found = fit("ctr", dataset(categories), position=False, **priors).scores(States.empty(1))[0]
    rows = log().rows(named=True)
    kind = {item: None if not categories or item % 4 == 2 else item % 4 for item in range(ITEMS)}
    for item in range(ITEMS - 1):
        score = 0.0
        for response in ("click", "buy"):
            prior = sum(row["response"] == response for row in rows) / len(rows)
            if kind[item] is not None:
                own = [row["response"] for row in rows if kind[row["item_id"]] == kind[item]]
                prior = (own.count(response) + m_c * prior) / (len(own) + m_c)
            own = [row["response"] for row in rows if row["item_id"] == item]
            score += REWARDS[response] * (own.count(response) + m * prior) / (len(own) + m)
        assert found[item] == pytest.approx(score, rel=1e-6)


def test_ctr_of_items_never_shown_is_that_of_their_category():
    data = dataset()
    kept = data.frame.filter(~pl.col("action").is_in([5, 6, 9]))
    some = Dataset(data.manifest, data.items, data.sessions, kept, data.states)
    scores = fit("ctr", some, position=False).scores(States.empty(1))[0]
    assert scores[5] == scores[9], "both are of category 1, and nothing breaks the tie"
    assert scores[6] != scores[5]
    assert scores[6] == pytest.approx(kept["reward"].mean(), rel=1e-5), "without a category, the rate of all"


def test_ctr_of_clicks_alone_is_popularity():
    scores = fit("ctr", lists()).scores(States.empty(1))[0]
    counts = Counter(item for one in LISTS for item in one)
    total = sum(counts.values())
    assert scores.tolist() == [np.float32(counts[item] / total) for item in range(ITEMS)]


def test_impressions_count_by_what_is_expected_at_their_place():
    rng = np.random.default_rng(1)
    places = rng.integers(-1, 4, 300).astype(np.int32)
    positive = rng.random(300) < np.array([0.5, 0.8, 0.4, 0.2, 0.1])[places + 1]
    found = expected(places, positive, 11.0)
    rates = {}
    for place in range(-1, 4):
        own = positive[places == place]
        rates[place] = (own.sum() + 11.0 * positive.mean()) / (len(own) + 11.0)
    mean = sum(rates[place] for place in places.tolist()) / 300
    np.testing.assert_allclose(found, [rates[place] / mean for place in places.tolist()])
    assert found.mean() == pytest.approx(1)
    np.testing.assert_allclose(expected(np.full(9, -1, np.int32), np.arange(9) < 2, 11.0), np.ones(9))
    np.testing.assert_allclose(expected(np.zeros(9, np.int32), np.zeros(9, np.bool_), 11.0), np.ones(9))


def test_ctr_does_not_punish_the_bottom_of_the_slate(monkeypatch):
    """Items 0 and 1 please alike, but 1 stands at the bottom, where a third of the people look; 2 and 3 are worse."""
    rng, shown = np.random.default_rng(2), 900
    items = np.tile([0, 1, 2, 3], shown).astype(np.int32)
    places = np.where(rng.random(4 * shown) < np.array([0.9, 0.1, 0.5, 0.5])[items], 0, 1).astype(np.int32)
    looked = rng.random(4 * shown) < np.where(places == 0, 0.9, 0.3)
    liked = looked & (rng.random(4 * shown) < np.array([0.6, 0.6, 0.25, 0.25])[items])
    rows = {"session_id": np.arange(4 * shown), "step": 0, "item_id": items}
    frame = pl.DataFrame(rows).with_columns(pl.when(pl.Series(liked)).then(pl.lit("click")).otherwise(pl.lit("skip")))
    data = Dataset.from_frame(
        frame.rename({"literal": "response"}), config=PrepareConfig(split=SplitConfig(validation=0))
    )
    plain = data.transitions("train")
    own = places[plain.session]
    assert (items[plain.session] == plain.action).all()
    weights = expected(own, plain.response == 1, 50.0)
    monkeypatch.setattr(data, "transitions", lambda split: Placed(vars(plain), own))
    aware, naive = (fit("ctr", data, position=place).scores(States.empty(1))[0] for place in (True, False))
    whole = liked.sum() / weights.sum()
    for item in range(4):
        hits, trials = (liked & (items == item)).sum(), weights[plain.action == item].sum()
        assert aware[item] == pytest.approx((hits + 20 * whole) / (trials + 20), rel=1e-5)
    assert naive[1] < 0.55 * naive[0]
    assert aware[1] > 0.7 * aware[0]
    assert aware[1] > 1.3 * aware[2:].max()


class Placed:
    """Transitions with the places of their items."""

    def __init__(self, columns: dict[str, object], position: np.ndarray):
        self.__dict__.update(columns | {"position": position})

    def __len__(self) -> int:
        return len(self.__dict__["action"])


@pytest.mark.parametrize("categories", [True, False])
def test_category_popular_by_plain_loops(categories):
    data = dataset(categories)
    found = fit("category_popular", data).scores(STATES)
    counts = Counter(row["item_id"] for row in log().rows(named=True) if row["response"] != "skip")
    kind = {item: None if not categories or item % 4 == 2 else item % 4 for item in range(ITEMS)}
    mean = sum(counts.values()) / data.n_items
    inside = 0
    for row, session in enumerate(STATES.positives.tolist()):
        liked = [kind[item] for item in session if item != PAD and kind[item] is not None]
        for item in range(data.n_items):
            if kind[item] in liked:
                best = max(counts[other] for other in range(data.n_items) if kind[other] == kind[item])
                share = liked.count(kind[item]) / len(liked)
                assert found[row, item] == pytest.approx(share * (counts[item] + mean) / (best + mean), rel=1e-5)
                inside += 1
            else:
                assert found[row, item] == pytest.approx(-1 / (1 + counts[item]), rel=1e-5)
    assert bool(inside) == categories


def test_without_likes_it_is_most_popular():
    data = dataset()
    popular, mine = fit("popular", data), fit("category_popular", data)
    orders = [np.argsort(-one.scores(States.empty(1))[0], kind="stable").tolist() for one in (popular, mine)]
    assert orders[0] == orders[1]


def plain_markov(
    sessions: list[list[int]], n_items: int, query: list[int], reach: int, decay: float, prior: float, most: int
) -> list[float]:
    follow: dict[int, Counter[int]] = defaultdict(Counter)
    counts = Counter(item for one in sessions for item in one)
    total = sum(counts.values())
    for one in sessions:
        for place, item in enumerate(one):
            for distance, later in enumerate(one[place + 1 : place + 1 + reach], 1):
                follow[item][later] += 1 / distance  # type: ignore[assignment]
    scores = []
    for item in range(n_items):
        score = 0.0 if query else counts[item] / total
        for age, seen in enumerate(reversed(query)):
            kept = sorted(follow[seen], key=lambda other: (-follow[seen][other], other))[:most]
            counted = follow[seen][item] if item in kept else 0.0
            row = sum(follow[seen].values())
            score += decay**age * (counted + prior * counts[item] / total) / (row + prior)
        scores.append(score)
    return scores


@pytest.mark.parametrize("options", [{}, {"window": 2, "decay": 0.3, "prior": 4.0, "successors": 2}, {"decay": 0.0}])
def test_markov_by_plain_loops(options):
    settings = {"window": 10, "decay": 0.7, "prior": 1.0, "successors": 200} | options
    policy = fit("markov", lists(), **options)
    found = policy.scores(STATES)
    for row, session in enumerate(STATES.positives.tolist()):
        query = [item for item in session if item != PAD]
        assert found[row] == pytest.approx(plain_markov(LISTS, ITEMS, query, *settings.values()), rel=1e-5)
    for k in (1, 4, ITEMS, 50):
        items, scores = policy.top(STATES, k)
        best, values = top_scored(found, k)
        np.testing.assert_array_equal(items, best)
        np.testing.assert_array_equal(scores, values)


def test_markov_of_whole_sessions_looks_at_what_a_state_holds():
    policy, long = fit("markov", lists()), [3, 2, *STATES.positives[5].tolist()]
    found = policy.top(Sequences.of([long, [], [9]]), 5)
    same = policy.top(States.of([long, [], [9]]), 5)
    np.testing.assert_array_equal(found[0], same[0])
    np.testing.assert_array_equal(found[1], same[1])


@pytest.mark.parametrize("method", ["ctr", "category_popular", "markov"])
def test_nothing_was_liked(method):
    rows = {"session_id": [0, 0, 1], "step": [0, 1, 0], "item_id": [5, 7, 3], "response": ["skip"] * 3}
    scores = fit(method, Dataset.from_frame(pl.DataFrame(rows))).scores(States.of([[1], []]))
    assert np.isfinite(scores).all()
    assert (scores == scores[0, 0]).all()
