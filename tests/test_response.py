"""The response model against plain loops, and what it learns of a world whose truth is known."""

import copy
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd4rec.data.states import PAD
from bcd4rec.models import response_training
from bcd4rec.models.response import ResponseNetwork, ResponseShape
from bcd4rec.models.response_training import (
    MOST,
    Answers,
    ResponseTraining,
    fit_responses,
    log_loss,
    log_probabilities,
    make_model,
    scale,
)

ITEMS, WIDTH, SIMILAR, RESPONSES, LENGTH, SHOWN = 11, 6, 3, 4, 5, 2
CATEGORIES = np.array([0, 1, 2, 0, 1, 2, 0, -1, 1, -1, 2], np.int32)
HISTORIES = [[], [3], [7, 9], [0, 4, 3], [5, 5, 2, 10, 8]]


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        yield


def padded(histories: list[list[int]]) -> np.ndarray:
    return np.array([one + [PAD] * (LENGTH - len(one)) for one in histories], np.int32)


def random_model(category: bool = True) -> ResponseNetwork:
    similar = np.random.default_rng(0).standard_normal((ITEMS, SIMILAR)).astype(np.float32)
    model = ResponseNetwork(similar, CATEGORIES, RESPONSES, ResponseShape(width=WIDTH, category=category)).eval()
    with torch.no_grad():
        for parameter in (model.item_bias, model.bias, model.matching, model.returning):
            parameter.copy_(torch.randn_like(parameter))
        model.mixing.copy_(torch.randn(RESPONSES - 1, RESPONSES - 1))
        model.shift.copy_(torch.tensor([0.3, -0.2, 0.1]))
    return model


@torch.no_grad()
def plain(model: ResponseNetwork, history: list[int], item: int) -> list[float]:
    """Probabilities of the responses, one number after the other."""
    vectors, width = model.vectors(), WIDTH
    state = model.encoder(torch.from_numpy(padded([history])), vectors)[0]
    logits = []
    for answer in range(RESPONSES - 1):
        own = state[answer * (width + 1) : (answer + 1) * (width + 1)]
        value = sum(float(own[place]) * float(vectors[item, place]) for place in range(width)) + float(own[width])
        value += float(model.bias[answer]) + float(model.item_bias[item, answer])
        for place, feature in enumerate(plain_match(model, history, item)):
            value += feature * float(model.matching[place, answer])
        value += (item in history) * float(model.returning[0, answer])
        value += (history[-1:] == [item]) * float(model.returning[1, answer])
        logits.append(value)
    scaled = [0.0]
    for answer in range(RESPONSES - 1):
        mixed = sum(float(model.mixing[answer, other]) * one for other, one in enumerate(logits))
        scaled.append(mixed + float(model.shift[answer]))
    total = sum(math.exp(one) for one in scaled)
    return [math.exp(one) / total for one in scaled]


def plain_match(model: ResponseNetwork, history: list[int], item: int) -> list[float]:
    def alike(one: int, other: int) -> float:
        return sum(float(model.similar[one, place]) * float(model.similar[other, place]) for place in range(SIMILAR))

    same = 0
    for liked in history:
        if CATEGORIES[liked] == CATEGORIES[item] and CATEGORIES[item] >= 0:
            same += 1
    last = bool(history) and CATEGORIES[item] >= 0 and CATEGORIES[history[-1]] == CATEGORIES[item]
    by_category = [float(last), float(same > 0), math.log(1 + same), same / len(history) if history else 0.0]
    if not model.shape.category:
        by_category = [0.0] * 4
    mean = sum(alike(one, item) for one in history) / len(history) if history else 0.0
    return [*by_category, mean, alike(history[-1], item) if history else 0.0]


@pytest.mark.parametrize("category", [True, False])
def test_probabilities_are_the_plain_loop(category: bool) -> None:
    model = random_model(category)
    items = np.random.default_rng(1).integers(ITEMS, size=(len(HISTORIES), SHOWN))
    items[2] = [7, 1]  # without a category, as all that was liked: that is no match
    with torch.no_grad():
        found = model(torch.from_numpy(padded(HISTORIES)), torch.from_numpy(items)).exp().numpy()
    assert found.shape == (len(HISTORIES), SHOWN, RESPONSES)
    for row, history in enumerate(HISTORIES):
        for place, item in enumerate(items[row]):
            assert found[row, place] == pytest.approx(plain(model, history, int(item)), abs=1e-5)


def test_all_items_at_once_are_the_same_numbers() -> None:
    model = random_model()
    histories, every = torch.from_numpy(padded(HISTORIES)), torch.arange(ITEMS)[None]
    with torch.no_grad():
        vectors = model.vectors()
        together = model.scaled(model.logits(histories, model.encode(histories, vectors), vectors, every))
        one_by_one = model(histories, every.expand(len(HISTORIES), -1))
    assert torch.allclose(together, one_by_one, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=120))
def test_grouped_answers_are_the_same_answers(rows: list[int]) -> None:
    """Every impression keeps its history, response and session, and no row holds too many."""
    histories = np.arange(7 * LENGTH, dtype=np.int32).reshape(7, LENGTH)
    number = np.arange(len(rows))
    found = Answers.group(histories, np.array(rows, np.int32), number.astype(np.int32), number % 3, number * 2)
    assert found.offsets[-1] == len(rows)
    assert (np.diff(found.offsets) <= MOST).all()
    seen = sorted(zip(found.items.tolist(), found.histories[found.owner][:, 0].tolist(), strict=True))
    assert seen == [(place, row * LENGTH) for place, row in enumerate(rows)]
    assert (found.responses == found.items % 3).all()
    assert (found.sessions == found.items * 2).all()


def truth(history: list[int], item: int) -> list[float]:
    """Skip, click, buy: what is liked is what is of the session's category; some items are bought more often."""
    if not history:
        return [0.5, 0.45, 0.05]
    if CATEGORIES[history[-1]] != CATEGORIES[item]:
        return [0.93, 0.06, 0.01]
    return [0.3, 0.3, 0.4] if item % 2 else [0.3, 0.6, 0.1]


def world(count: int, seed: int) -> Answers:
    rng = np.random.default_rng(seed)
    kinds = [np.flatnonzero(kind == CATEGORIES) for kind in range(3)]
    histories = [rng.choice(kinds[kind], size).tolist() for kind in range(3) for size in (0, 1, 2, 3) for _ in range(9)]
    rows = rng.integers(len(histories), size=count)
    items = rng.choice(np.flatnonzero(CATEGORIES >= 0), count)
    answers = [rng.choice(3, p=truth(histories[row], item)) for row, item in zip(rows, items, strict=True)]
    return Answers.group(padded(histories), rows.astype(np.int32), items.astype(np.int32), np.array(answers), rows)


def true_loss(answers: Answers) -> float:
    total = 0.0
    for owner, item, response in zip(answers.owner, answers.items, answers.responses, strict=True):
        history = [one for one in answers.histories[owner].tolist() if one != PAD]
        total -= math.log(truth(history, int(item))[response])
    return total / len(answers.items)


def trained(seed: int = 0, epochs: int = 7) -> tuple[ResponseNetwork, list[float]]:
    torch.manual_seed(seed)
    config = ResponseTraining(width=WIDTH, epochs=epochs, batch_size=64, learning_rate=5e-3, vector_rate=3e-3)
    answers = world(5000, 1)
    rates = np.bincount(answers.responses) / len(answers.items)
    similar = np.eye(ITEMS, SIMILAR, dtype=np.float32)
    model = make_model(config, similar, CATEGORIES, 3, rates)
    rng = np.random.default_rng(seed)
    return model, [epoch.held_out for epoch in fit_responses(model, config, answers, world(1500, 2), rng)]


@pytest.fixture(scope="module")
def learned() -> tuple[ResponseNetwork, list[float]]:
    with torch.random.fork_rng(devices=[]):
        return trained()


def test_a_small_world_is_learned_almost_to_its_entropy(learned: tuple[ResponseNetwork, list[float]]) -> None:
    model, held_out = learned
    fresh = world(4000, 5)
    found, best = log_loss(log_probabilities(model, fresh), fresh), true_loss(fresh)
    rates = np.bincount(fresh.responses) / len(fresh.responses)
    base = -float(rates @ np.log(rates))
    assert best < found < best + 0.03 < base - 0.1
    assert min(held_out) < held_out[0]


def test_the_same_seed_gives_the_same_bits() -> None:
    one, other, third = trained(4, 2)[0], trained(4, 2)[0], trained(5, 2)[0]
    state = other.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in one.state_dict().items())
    assert not torch.equal(one.items, third.items)


def test_scaling_mends_a_model_that_is_too_sure(learned: tuple[ResponseNetwork, list[float]]) -> None:
    model = copy.deepcopy(learned[0])
    held_out, fresh = world(3000, 7), world(3000, 8)
    model.mixing.mul_(2.0)
    model.mixing[0, 1] += 0.5
    model.shift += 1.0
    wrong = model.mixing.clone()
    before = log_loss(log_probabilities(model, fresh), fresh)
    scale(model, held_out)
    assert not torch.allclose(model.mixing, wrong)
    after = log_loss(log_probabilities(model, fresh), fresh)
    assert after < before - 0.05
    assert after < true_loss(fresh) + 0.04
    said = np.exp(log_probabilities(model, held_out)).mean(axis=0)
    assert said == pytest.approx(np.bincount(held_out.responses) / len(held_out.responses), abs=0.005)


def test_a_response_that_nobody_gave_stays_finite() -> None:
    config = ResponseTraining(width=WIDTH, epochs=2, pretraining="none")
    answers = world(300, 1)
    model = make_model(config, np.zeros((ITEMS, 1), np.float32), CATEGORIES, 4, np.array([0.6, 0.3, 0.1, 0.0]))
    list(fit_responses(model, config, answers, world(100, 2), np.random.default_rng(0)))
    said = log_probabilities(model, world(100, 3))
    assert np.isfinite(said).all()
    assert np.exp(said)[:, 3].max() < 0.01


@pytest.mark.parametrize(
    ("patience", "losses", "passes", "best"),
    [
        (1, [3.0, 2.0, 2.5, 1.0, 0.5], 3, 2),
        (2, [3.0, 2.0, 2.5, 2.6, 1.0], 4, 2),
        (2, [3.0, 2.0, 2.5, 1.5, 1.6, 1.7, 1.0], 6, 4),  # a better pass begins the count anew
        (3, [3.0, 3.0, 3.0, 3.0, 1.0], 4, 1),  # as good is no better
        (3, [3.0, 2.0, 1.0], 3, 3),
    ],
)
def test_patience_is_how_many_passes_may_be_no_better(monkeypatch, patience, losses, passes, best):
    model, config = random_model(), ResponseTraining(patience=patience, epochs=len(losses))
    number = 0

    def learn(*_: object) -> float:
        nonlocal number
        number += 1
        with torch.no_grad():
            model.bias.fill_(number)
        return 0.0

    monkeypatch.setattr(response_training, "_pass", learn)
    monkeypatch.setattr(response_training, "log_loss", lambda *_: losses[number - 1])
    monkeypatch.setattr(response_training, "log_probabilities", lambda *_: None)
    monkeypatch.setattr(response_training, "scale", lambda *_: None)
    epochs = list(fit_responses(model, config, None, None, np.random.default_rng(0)))
    assert [epoch.number for epoch in epochs] == list(range(1, passes + 1))
    assert [epoch.number for epoch in epochs if epoch.best][-1] == best
    assert (model.bias == best).all()
