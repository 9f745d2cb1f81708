"""GRU4Rec, SR-GNN and item2vec: what they share, their losses by plain loops, and that they learn."""

import math

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd4rec.baselines.baseline import BASELINES, Baseline
from bcd4rec.baselines.gru4rec import GRU4RecConfig, Sessions, ranking_losses
from bcd4rec.baselines.neural import NeuralPolicy, batches, fit_empty, last_items, trim
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, States
from bcd4rec.models.next_item import NextItem
from bcd4rec.models.pretraining import initial
from bcd4rec.policies.scorer import SCORERS

NEURAL = ["gru4rec", "srgnn"]
METHODS = [*NEURAL, "item2vec"]
SMALL = {"width": 8, "epochs": 2, "least_steps": 3}


def walks(count: int, seed: int, n_items: int = 40) -> np.ndarray:
    """(count, 5) sessions along a ring, mostly one step at a time."""
    rng = np.random.default_rng(seed)
    steps = rng.choice([1, 2, 3], (count, 5), p=[0.7, 0.2, 0.1])
    return (rng.integers(0, n_items, (count, 1)) + np.cumsum(steps, axis=1)) % n_items


def fit(method: str, train: list[list[int]], n_items: int, seed: int = 0, **options: object):
    return configure(method, options).fit(Dataset.from_sequences(Sequences.of(train), n_items), seed)


def configure(method: str, options: dict[str, object]) -> Baseline:
    known = BASELINES[method].model_fields
    return BASELINES[method].parse({key: value for key, value in options.items() if key in known}, "test")


@pytest.fixture(scope="module", params=METHODS)
def policy(request):
    return fit(request.param, walks(60, 1).tolist(), 43, **SMALL)


STATES = States.of([[], [3], [5, 6, 5], list(range(12))])


class TestPolicy:
    def test_candidates_have_the_scores_of_the_catalogue(self, policy):
        scores = policy.scores(STATES)
        assert scores.shape == (4, 43)
        assert scores.dtype == np.float32
        candidates = np.array([[1, PAD, 42], [PAD, PAD, 7], [0, 1, 2], [9, 9, PAD]], np.int32)
        some = policy.scores(STATES, candidates)
        assert (some[candidates == PAD] == -np.inf).all()
        expected = np.take_along_axis(scores, np.maximum(candidates, 0), axis=1)
        np.testing.assert_allclose(some[candidates != PAD], expected[candidates != PAD], rtol=1e-4, atol=1e-5)

    def test_save_and_restore_give_the_same_bits(self, policy):
        assert SCORERS[policy.kind] is type(policy)
        arrays = {name: array.copy() for name, array in policy.arrays().items()}
        again = type(policy).restore(policy.settings(), arrays)
        np.testing.assert_array_equal(again.scores(STATES), policy.scores(STATES))

    def test_no_states(self, policy):
        assert policy.scores(STATES[:0]).shape == (0, 43)

    def test_top_ranks_the_scores(self, policy):
        if not hasattr(policy, "top"):
            pytest.skip("ranked by its scores")
        items, scores = policy.top(STATES, 6, batch=3)
        order = np.argsort(-policy.scores(STATES), axis=1, kind="stable")[:, :6]
        np.testing.assert_array_equal(items, order)
        np.testing.assert_allclose(scores, np.take_along_axis(policy.scores(STATES), order, axis=1), rtol=1e-4)
        ragged, _ = policy.top(Sequences.of([[], [3], [5, 6, 5], list(range(12))]), 6)
        np.testing.assert_array_equal(ragged[:3], items[:3])  # the last session is longer than a state remembers
        assert policy.top(Sequences.of([]), 6)[0].shape == (0, 6)


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_bits(method):
    train = walks(30, 2).tolist()
    one, same, other = (fit(method, train, 40, seed, **SMALL).scores(STATES) for seed in (7, 7, 8))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("train", [[[0, 0], [0]], [[0]], None], ids=["one item", "one view", "nothing"])
def test_odd_training_sets(method, train):
    skipped = pl.DataFrame({"session_id": [0], "step": [0], "item_id": [0], "response": ["skip"]})
    dataset = Dataset.from_frame(skipped) if train is None else Dataset.from_sequences(Sequences.of(train), 1)
    scores = configure(method, SMALL).fit(dataset, 0).scores(States.of([[], [0]]))
    assert scores.shape == (2, 1)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize(
    ("method", "options", "floor"),
    [
        ("gru4rec", {}, 0.8),
        ("gru4rec", {"loss": "bpr-max", "penalty": 0.1}, 0.8),
        ("gru4rec", {"negatives": 20}, 0.8),
        ("srgnn", {}, 0.8),
        ("srgnn", {"negatives": 20}, 0.8),
        ("item2vec", {"decay": 0.3, "window": 2, "epochs": 20}, 0.6),
    ],
)
def test_quality_floor_on_a_ring(method, options, floor):
    """The next item of a walk is one of three; 5 items at random out of 40 would hit 12 %."""
    neural = {"width": 16, "epochs": 12, "least_steps": 0, "batch_size": 64, "learning_rate": 0.01, "dropout": 0.0}
    data = walks(500, 3)
    policy = fit(method, data[:400].tolist(), 40, **(neural | options))
    best = np.argsort(-policy.scores(States.of(data[400:, :4].tolist())), axis=1)[:, :5]
    assert (best == data[400:, 4:]).any(axis=1).mean() >= floor


@pytest.mark.parametrize("loss", ["cross-entropy", "bpr-max"])
def test_ranking_losses_against_plain_loops(loss):
    rng = np.random.default_rng(0)
    positive, others = rng.normal(size=3), rng.normal(size=(3, 5))
    found = ranking_losses(torch.tensor(positive), torch.tensor(others), 11, loss, 0.3)
    for row in range(3):
        exps = [math.exp(score) for score in others[row]]
        if loss == "cross-entropy":
            own = math.exp(positive[row])
            expected = -math.log(own / (own + sum(exps) * 11 / 5))
        else:
            better = square = 0.0
            for score, exp in zip(others[row], exps, strict=True):
                better += exp / sum(exps) / (1 + math.exp(score - positive[row]))
                square += exp / sum(exps) * score**2
            expected = -math.log(better) + 0.3 * square
        assert found[row].item() == pytest.approx(expected, rel=1e-9)


def test_gru4rec_predicts_every_item_from_those_before_it():
    config = GRU4RecConfig(width=6, batch_size=6)
    sessions = [[4, 2, 4], [1], [0, 3], [], [5, 6, 0, 1]]
    task = Sessions(Sequences.of(sessions), config)
    assert task.lengths.tolist() == [3, 2, 4]
    assert task.batch_size == 3
    torch.manual_seed(0)
    model = NextItem(initial(7, 6, np.random.default_rng(0)), "gru").eval()
    loss, count = task.loss(model, np.arange(3), None)
    expected = 0.0
    for session in (sessions[0], sessions[2], sessions[4]):
        for end in range(1, len(session)):
            logs = model.log_probabilities(torch.tensor([session[:end]]))
            expected -= logs[0, session[end]].item()
    assert count == 6
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), max_size=300), size=st.integers(1, 9))
def test_batches_hold_every_row_once(lengths, size):
    found = list(batches(np.array(lengths, np.int64), size, np.random.default_rng(0)))
    assert sorted(row for rows in found for row in rows.tolist()) == list(range(len(lengths)))
    assert all(0 < len(rows) <= size for rows in found)


def test_batches_hold_sessions_of_similar_length():
    lengths = np.random.default_rng(1).integers(1, 30, 1000)
    spread = [np.ptp(lengths[rows]) for rows in batches(lengths, 20, np.random.default_rng(0))]
    assert np.mean(spread) < 2


def test_few_sessions_are_passed_over_more_often():
    sequences = Sequences.of(walks(10, 0).tolist())  # 40 prefixes: 4 steps an epoch
    model = NextItem(initial(40, 8, np.random.default_rng(0)), "srgnn")
    config = BASELINES["srgnn"].parse({"width": 8, "epochs": 2, "batch_size": 10, "least_steps": 17}, "test")
    reports = list(config.train(model, sequences, np.random.default_rng(1)))
    assert [report.number for report in reports] == [1, 2, 3, 4, 5]
    assert reports[-1].loss < reports[0].loss


def test_last_items_and_trim():
    items = last_items(Sequences.of([[1, 2, 3, 4], [], [5]]), 3)
    assert items.tolist() == [[2, 3, 4], [PAD] * 3, [5, PAD, PAD]]
    assert trim(items[1:]).tolist() == [[PAD], [5]]
    assert last_items(Sequences.of([[]]), 2).tolist() == [[PAD, PAD]]


def test_an_empty_session_gets_what_sessions_begin_with():
    first = [3] * 6 + [1] * 3 + [0]
    model = NextItem(np.eye(5, dtype=np.float32) * 3, "gru")
    fit_empty(model, Sequences.of([[item, 4, 4] for item in first]))
    policy = NeuralPolicy(model, "gru", 10)
    assert policy.top(States.empty(1), 3)[0].tolist() == [[3, 1, 0]]
