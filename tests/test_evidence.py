"""Rows of evidence, against a plain reference that is written from the names of the columns."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd4rec.data.knowledge import Knowledge, Neighbours
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, States
from bcd4rec.models.evidence import NAMES, SUMMARY, Evidence, summary
from bcd4rec.models.evidence_kernels import COLUMNS, OWN, TASTE_LIKED, TASTE_SKIPPED

A, L, S, D, CATEGORIES = 13, 5, 7, 3, 4
Session = tuple[list[int], list[int]]  # liked items, skipped items
SESSIONS: list[Session] = [
    ([2, 7, 2], [4, 4, 0, 11]),
    ([], []),
    ([], [3, 5, 3]),
    ([12], []),
    ([6, 1, 8, 9, 9], [2, 10, 6, 0, 1, 5, 5]),  # full, and some items are liked and skipped
    ([12, 12], [12]),
]


def neighbours(rng: np.random.Generator, filled: float) -> Neighbours:
    matrix = rng.random((A, A)) * (rng.random((A, A)) < filled)
    np.fill_diagonal(matrix, 0)
    rows, items = np.nonzero(matrix)
    offsets = np.append(0, np.cumsum(np.bincount(rows, minlength=A))).astype(np.int64)
    return Neighbours(offsets, items.astype(np.int32), matrix[rows, items].astype(np.float32))


def some_evidence(seed: int = 0, categories: list[int] | None = None) -> Evidence:
    """Arbitrary numbers everywhere, so that no two columns are alike. Item 12 has no neighbours and no category."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(-1, CATEGORIES, A) if categories is None else np.array(categories)
    kinds[12] = -1
    own = [rng.normal(size=A).astype(np.float32) for _ in range(OWN)]
    tastes = rng.normal(size=(A, D)).astype(np.float32)
    knowledge = Knowledge(kinds.astype(np.int32), *own, neighbours(rng, 0.3), neighbours(rng, 0.2), tastes)
    lists = [rng.integers(A - 1, size=rng.integers(1, 6)).tolist() for _ in range(9)]
    return Evidence(knowledge, Sequences.of(lists))


def states_of(sessions: list[Session], length: int = L, skips: int = S) -> States:
    states = States.empty(len(sessions), length, skips)
    for row, (liked, skipped) in enumerate(sessions):
        states.positives[row, : len(liked)] = liked
        states.skips[row, : len(skipped)] = skipped
    return states


def weight(found: Neighbours, item: int, other: int) -> float:
    """How much `other` is a neighbour of `item`."""
    for at in range(found.offsets[item], found.offsets[item + 1]):
        if found.items[at] == other:
            return float(found.weights[at])
    return 0.0


def votes(likes: Sequences, liked: list[int], item: int) -> float:
    """STAN with its usual settings; so few sessions are all neighbours."""
    decay = {one: math.exp((place + 1 - len(liked)) / 2.5) for place, one in enumerate(liked)}
    norm = math.sqrt(sum(one**2 for one in decay.values()))
    total = 0.0
    for number, session in enumerate(likes):
        places = {int(one): place for place, one in enumerate(session)}
        shared = [one for one in places if one in decay]
        if shared and item in places:
            age = (len(likes) - number) / 1000
            similarity = sum(decay[one] for one in shared) / (norm * math.sqrt(len(places))) * math.exp(-age / 80)
            total += similarity * math.exp(-abs(places[item] - max(places[one] for one in shared)) / 5)
    return total


def plain_row(evidence: Evidence, session: Session, item: int) -> dict[str, float]:
    known, (liked, skipped) = evidence.knowledge, session
    kinds, kind = known.categories, known.categories[item]
    tastes = known.tastes.astype(np.float64)
    in_kind = [one for one in liked if kinds[one] == kind] if kind >= 0 else []
    kinds_of_likes = [kinds[one] for one in liked if kinds[one] >= 0]
    share = len(in_kind) / len(kinds_of_likes) if kinds_of_likes else 0.0
    vote = votes(evidence.neighbours.sequences, liked, item)

    def similar(items: list[int]) -> float:
        return math.log(1 + 10 * sum(weight(known.similar, one, item) for one in items))

    def taste(items: list[int]) -> float:
        return float(sum(tastes[one] @ tastes[item] for one in items))

    return {
        "positive lift": known.positive[item],
        "target lift": known.target[item],
        "popularity": known.popularity[item],
        "shown": known.shown[item],
        "similar to liked": similar(liked),
        "similar to last liked": weight(known.similar, liked[-1], item) if liked else 0.0,
        "follows last liked": math.log(1 + 100 * weight(known.followers, liked[-1], item)) if liked else 0.0,
        "similar to skipped": similar(skipped),
        "taste of liked": taste(liked),
        "taste of last liked": taste(liked[-1:]),
        "taste of skipped": taste(skipped),
        "liked before": math.log(1 + liked.count(item)),
        "liked last": float(liked[-1:] == [item]),
        "skipped before": math.log(1 + skipped.count(item)),
        "share of likes in category": share,
        "category of first like": float(bool(liked) and kind >= 0 and kinds[liked[0]] == kind),
        "category of last like": float(bool(liked) and kind >= 0 and kinds[liked[-1]] == kind),
        "likes in category": math.log(1 + len(in_kind)),
        "skips in category": math.log(1 + (sum(kinds[one] == kind for one in skipped) if kind >= 0 else 0)),
        "share in category × positive lift": share * known.positive[item],
        "votes of similar sessions": math.log(1 + 100 * vote),
        "any vote": float(vote > 0),
    }


@pytest.mark.parametrize("seed", range(3))
def test_every_column_by_plain_loops(seed):
    evidence, states = some_evidence(seed), states_of(SESSIONS)
    rng = np.random.default_rng(seed + 10)
    candidates = rng.integers(A, size=(len(SESSIONS), 9)).astype(np.int32)
    candidates[:, 0], candidates[:, 5] = 12, 2
    candidates[1::2, 4], candidates[3, :] = PAD, PAD
    found = evidence.rows(states, candidates)
    assert found.shape == (len(SESSIONS), 9, COLUMNS)
    assert found.dtype == np.float32
    for b, session in enumerate(SESSIONS):
        for c, item in enumerate(candidates[b]):
            wanted = dict.fromkeys(NAMES, 0.0) if item == PAD else plain_row(evidence, session, int(item))
            assert list(wanted) == list(NAMES)
            for column, name in enumerate(NAMES):
                assert found[b, c, column] == pytest.approx(wanted[name], rel=1e-4, abs=1e-5), (name, b, item)


def everything(evidence: Evidence, states: States) -> np.ndarray:
    return evidence.rows(states, np.tile(np.arange(A, dtype=np.int32), (len(states), 1)))


def items_of(size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, A - 1), max_size=size)


EVIDENCE = [some_evidence(1), some_evidence(2, [-1] * A), some_evidence(3, [3] * A)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(items_of(L), items_of(S)), max_size=4),
    st.sampled_from(EVIDENCE),
    st.integers(1, 3),
    st.integers(0, 2**32),
)
def test_sums_are_products_with_the_rows_of_all_items(sessions, evidence, count, seed):
    weights = np.random.default_rng(seed).normal(size=(count, COLUMNS)).astype(np.float32)
    weights[:, np.random.default_rng(seed).random(COLUMNS) < 0.3] = 0
    states = states_of(sessions)
    found = evidence.sums(states, weights)
    wanted = np.einsum("bac,rc->rba", everything(evidence, states).astype(np.float64), weights)
    assert found.shape == (count, len(sessions), A)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("column", range(COLUMNS))
def test_sums_of_one_column(column):
    weights = np.eye(COLUMNS, dtype=np.float32)[[column]]
    for evidence in EVIDENCE:
        states = states_of(SESSIONS)
        wanted = everything(evidence, states)[:, :, column]
        np.testing.assert_allclose(evidence.sums(states, weights)[0], wanted, rtol=1e-5, atol=1e-6)


def test_a_session_knows_nothing_of_the_others():
    evidence, states = some_evidence(4), states_of(SESSIONS)
    together = everything(evidence, states)
    weights = np.random.default_rng(0).normal(size=(2, COLUMNS)).astype(np.float32)
    counted = weights.copy()
    counted[:, TASTE_LIKED : TASTE_SKIPPED + 1] = 0.0
    sums, sums_counted = evidence.sums(states, weights), evidence.sums(states, counted)
    for row in (4, 0, 2, 5, 1, 3):
        one = states[row : row + 1]
        np.testing.assert_array_equal(everything(evidence, one)[0], together[row])
        np.testing.assert_array_equal(evidence.sums(one, counted)[:, 0], sums_counted[:, row])
        # Products of matrices are rounded as the processor's kernels for each size do it, in the last digit.
        np.testing.assert_allclose(evidence.sums(one, weights)[:, 0], sums[:, row], rtol=1e-6, atol=1e-6)


def test_the_boards_are_wiped():
    evidence = some_evidence(5)
    for _ in range(2):
        everything(evidence, states_of(SESSIONS))
        evidence.sums(states_of(SESSIONS), np.ones((1, COLUMNS), np.float32))
    boards = evidence._boards()
    for name in boards._fields:
        if name not in ("items", "categories", "tastes"):
            assert not getattr(boards, name).any(), name


def test_width_of_states_and_padding_do_not_matter():
    evidence = some_evidence(6)
    narrow, wide = states_of(SESSIONS), states_of(SESSIONS, L + 4, S + 2)
    np.testing.assert_array_equal(everything(evidence, narrow), everything(evidence, wide))
    read_only = States(wide.positives.copy(), np.asfortranarray(wide.skips))
    read_only.positives.flags.writeable = False
    np.testing.assert_array_equal(everything(evidence, read_only), everything(evidence, wide))


def test_states_without_skips():
    evidence = some_evidence(7)
    sessions: list[Session] = [(liked, []) for liked, _ in SESSIONS]
    np.testing.assert_array_equal(
        everything(evidence, states_of(sessions, L, 0)), everything(evidence, states_of(sessions))
    )


def test_threads_do_not_disturb_each_other():
    evidence, rng = some_evidence(8), np.random.default_rng(8)
    batches = [
        states_of([(rng.integers(A, size=L).tolist(), rng.integers(A, size=S).tolist()) for _ in range(300)])
        for _ in range(8)
    ]
    weights = rng.normal(size=(2, COLUMNS)).astype(np.float32)

    def ask(states: States) -> tuple[np.ndarray, np.ndarray]:
        return everything(evidence, states), evidence.sums(states, weights)

    alone = [ask(states) for states in batches]
    with ThreadPoolExecutor(2) as pool:
        for one, other in zip(alone, pool.map(ask, batches * 3), strict=False):
            np.testing.assert_array_equal(one[0], other[0])
            np.testing.assert_array_equal(one[1], other[1])


@pytest.mark.parametrize(("liked", "skipped"), [([A], []), ([], [A]), ([], [0, 1, A + 50])])
def test_items_outside_the_catalogue_are_refused(liked, skipped):
    """Compiled code would read whatever stands there in memory."""
    evidence, states = some_evidence(9), states_of([(liked, skipped)])
    with pytest.raises(ValueError, match="catalogue of 13 items"):
        evidence.rows(states, np.zeros((1, 1), np.int32))
    with pytest.raises(ValueError, match="catalogue of 13 items"):
        evidence.sums(states, np.zeros((1, COLUMNS), np.float32))


def test_candidates_outside_the_catalogue_are_refused():
    with pytest.raises(ValueError, match="catalogue of 13 items"):
        some_evidence().rows(states_of(SESSIONS[:1]), np.array([[A]], np.int32))


def test_arrays_and_back():
    evidence = some_evidence(10)
    again = Evidence.restore({name: array.copy() for name, array in evidence.arrays().items()})
    np.testing.assert_array_equal(everything(again, states_of(SESSIONS)), everything(evidence, states_of(SESSIONS)))
    assert again.n_items == A


def test_nothing_is_known():
    nothing = np.zeros(A, np.float32)
    none = Neighbours(np.zeros(A + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    known = Knowledge(np.full(A, -1, np.int32), *[nothing] * OWN, none, none, np.zeros((A, 1), np.float32))
    evidence = Evidence(known, Sequences.of([]))
    rows = everything(evidence, states_of(SESSIONS))
    assert {NAMES[column] for column in np.flatnonzero(rows.any(axis=(0, 1)))} == {
        "liked before",
        "liked last",
        "skipped before",
    }
    assert not everything(evidence, states_of([([], [])])).any()


def test_summary_of_a_session():
    found = summary(states_of(SESSIONS))
    wanted = [[1, len(a) > 0, math.log(1 + len(a)), math.log(1 + len(b))] for a, b in SESSIONS]
    assert found.shape == (len(SESSIONS), SUMMARY)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
