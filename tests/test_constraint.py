"""Allowed actions and the constrained argmax, dense and ragged, against plain loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd4rec import constraint
from bcd4rec.constraint import AllowedSets, allowed_mask, mask_values
from bcd4rec.policies.evidence_policy import BehaviourWeights
from bcd4rec.serving.model import _allowed as served


def log_probabilities(rows: int, items: int, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.log_softmax(torch.randn(rows, items, generator=draw) * spread, dim=1)


def loop_allowed(row: list[float], beta: float, form: str) -> list[bool]:
    top = max(row)
    passed = [beta == 0 or p >= beta * top for p in row] if form == "relative" else [p > beta for p in row]
    passed[row.index(top)] = True
    return passed


@pytest.mark.parametrize("form", ["relative", "literal"])
@pytest.mark.parametrize("beta", [0.0, 0.05, 0.3, 0.8, 1.0])
def test_mask_equals_a_plain_loop(beta, form):
    scores = log_probabilities(13, 7).double()
    expected = [loop_allowed(row, beta, form) for row in scores.exp().tolist()]
    assert allowed_mask(scores, beta, form).tolist() == expected


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1), st.sampled_from(["relative", "literal"]))
def test_the_mode_is_always_allowed_and_a_larger_beta_allows_no_more(seed, first, second, form):
    scores = log_probabilities(5, 9, seed)
    wide, narrow = (allowed_mask(scores, beta, form) for beta in sorted((first, second)))
    assert wide.gather(1, scores.argmax(dim=1, keepdim=True)).all()
    assert (wide | ~narrow).all()


def test_beta_one_leaves_the_mode_and_beta_zero_leaves_everything():
    scores = log_probabilities(11, 6)
    assert allowed_mask(scores, 1.0).sum(dim=1).tolist() == [1] * 11
    assert (allowed_mask(scores, 1.0).to(torch.int8).argmax(dim=1) == scores.argmax(dim=1)).all()
    assert allowed_mask(scores, 0.0).all()
    assert allowed_mask(scores, 1.0, "literal").sum(dim=1).tolist() == [1] * 11


def test_exactly_beta_times_the_mode_is_allowed_where_it_is_relative():
    """p ≥ β · max p and not >; the literal form is p > β."""
    half = math.log(0.5)
    scores = torch.tensor([[0.0, half, half - 1e-3]])
    assert allowed_mask(scores, 0.5).tolist() == [[True, True, False]]
    assert allowed_mask(scores, 0.5, "literal").tolist() == [[True, False, False]]
    logits = scores.numpy()
    assert BehaviourWeights(np.zeros(3, np.float32), 0.5).allowed(logits).tolist() == [[True, True, False]]
    assert served(logits, 0.5, "relative").tolist() == [[True, True, False]]
    assert served(logits, 0.5, "literal").tolist() == [[True, False, False]]


def test_a_forbidden_zero_does_not_beat_an_allowed_negative_value():
    values, allowed = torch.tensor([[-2.0, 0.0, -3.0]]), torch.tensor([[True, False, True]])
    assert mask_values(values, allowed).tolist() == [[-2.0, -math.inf, -3.0]]
    assert mask_values(values, allowed).argmax(dim=1).tolist() == [0]


def test_ties_go_to_the_lower_index():
    values = torch.tensor([[1.0, 3.0, 3.0, 3.0]])
    assert values.argmax(dim=1).tolist() == [1]
    assert mask_values(values, torch.tensor([[True, False, True, True]])).argmax(dim=1).tolist() == [2]


@pytest.mark.parametrize("gather_cost", [0, 10**9])  # always gathered vectors, always the dense product
def test_ragged_argmax_equals_a_plain_loop(gather_cost, monkeypatch):
    monkeypatch.setattr(constraint, "GATHER_COST", gather_cost)
    scores, draw = log_probabilities(17, 8), torch.Generator().manual_seed(1)
    sets = AllowedSets.build(lambda start, stop: scores[start:stop], 17, 0.2, chunk=5)
    vectors = torch.randint(-2, 3, (6, 3), generator=draw).float()  # small whole numbers, so that there are ties
    matrix = torch.randint(-2, 3, (8, 3), generator=draw).float()
    rows = torch.tensor([16, 3, 3, 0, 9, 5])
    expected = []
    for vector, row in zip(vectors, rows.tolist(), strict=True):
        passed = [a for a, ok in enumerate(loop_allowed(scores[row].exp().tolist(), 0.2, "relative")) if ok]
        assert sets[row].tolist() == passed
        expected.append(max(passed, key=lambda a: (float(vector @ matrix[a]), -a)))
    assert sets.argmax(rows, vectors, matrix).tolist() == expected
    assert sets.sizes.tolist() == allowed_mask(scores, 0.2).sum(dim=1).tolist()


def test_sets_do_not_depend_on_the_chunk_and_keep_the_likeliest_under_a_limit():
    scores = log_probabilities(10, 12)
    sets = [AllowedSets.build(lambda a, b: scores[a:b], 10, 0.05, chunk=chunk) for chunk in (1, 4, 100)]
    assert all(torch.equal(one.items, sets[0].items) and torch.equal(one.offsets, sets[0].offsets) for one in sets)
    limited = AllowedSets.build(lambda a, b: scores[a:b], 10, 0.05, limit=2)
    for row in range(10):
        best = set(scores[row].topk(min(2, len(sets[0][row]))).indices.tolist())
        assert set(limited[row].tolist()) == best
