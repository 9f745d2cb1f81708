"""Training where the catalogue is large: candidates, sampled softmax, updates of rows. `LARGE` is small here."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bcd4rec.agents.agent import AGENTS
from bcd4rec.agents.allowed_search import AllowedSearch
from bcd4rec.agents.next_actions import NextActions, SearchRecall
from bcd4rec.constraint import behaviour_sets
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD
from bcd4rec.models import evidence as evidence_module
from bcd4rec.models import large
from bcd4rec.models.behaviour import BehaviourModel
from bcd4rec.models.evidence_kernels import COLUMNS
from bcd4rec.models.pretraining import Pretraining, initial, pretrain
from bcd4rec.models.q_network import pool
from bcd4rec.models.response_regression import fit_response
from bcd4rec.models.table_rows import RowAdamW, clip_gradients, rows_of
from bcd4rec.policies.evidence_policy import BehaviourWeights
from bcd4rec.training import Trainer
from bcd4rec.workflows.fitting import fit, with_preset
from test_evidence_agent import dataset_of, frame_of

ITEMS = 90
PAPER = {"dimension": 8, "pretraining_epochs": 1, "updates": 7, "batch_size": 16, "target_every": 3}


def log(sessions: int = 80) -> Dataset:
    rng = np.random.default_rng(3)
    rows = []
    for session in range(sessions):
        for step in range(3):
            near = 10 * rng.integers(ITEMS // 10) + rng.choice(10, 3, replace=False)
            for place, item in enumerate(near):
                rows.append((session, step, place, int(item), "click" if rng.random() < 0.1 + item % 4 / 5 else "skip"))
    return dataset_of(frame_of(rows), {"skip": 0.0, "click": 1.0})


LOG = log()


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "LARGE", 50)


def test_row_gradients_are_those_of_the_whole_table(small_is_large: None) -> None:
    draw = torch.Generator().manual_seed(0)
    table = torch.nn.Parameter(torch.randn(60, 5, generator=draw))
    few = torch.nn.Parameter(table.detach()[:40].clone())  # not large
    items = torch.tensor([[3, 7, -1], [7, 39, 2]], dtype=torch.int32)
    weights = torch.randn(2, 5, generator=draw)
    for one in (table, few):
        found = rows_of(items.clamp(min=0), one).sum(dim=1) + pool(items, one)
        (found * weights).sum().backward()
    assert table.grad is not None
    assert few.grad is not None
    assert table.grad.is_sparse
    assert not few.grad.is_sparse
    torch.testing.assert_close(table.grad.to_dense()[:40], few.grad)
    assert not table.grad.to_dense()[40:].any()


def test_rows_move_as_adam_moves_them_and_others_not_at_all(small_is_large: None) -> None:
    """A row's moments move when it is looked up; the count of steps is the table's."""
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(60, 3, generator=draw)
    table, other = torch.nn.Parameter(start.clone()), torch.nn.Parameter(torch.ones(2))
    rate, (first, second), eps, decay = 0.1, (0.9, 0.999), 1e-8, 0.01
    optimiser = RowAdamW([table, other], rate, weight_decay=decay)
    weights, mean, square = start.double(), torch.zeros(60, 3).double(), torch.zeros(60, 3).double()
    for step, rows in enumerate([[4, 9], [9], [9, 9, 17], [4]], start=1):
        goal = torch.randn(len(rows), 3, generator=draw)
        optimiser.zero_grad()
        ((rows_of(torch.tensor(rows), table) * goal).sum() + other.sum()).backward()
        optimiser.step()
        for row in set(rows):
            slope = sum(goal[place].double() for place, one in enumerate(rows) if one == row)
            mean[row] = first * mean[row] + (1 - first) * slope
            square[row] = second * square[row] + (1 - second) * slope**2
            size = (square[row] / (1 - second**step)).sqrt() + eps
            weights[row] = weights[row] * (1 - rate * decay) - rate * (mean[row] / (1 - first**step)) / size
    torch.testing.assert_close(table.detach().double(), weights, rtol=1e-5, atol=1e-6)
    untouched = [row for row in range(60) if row not in (4, 9, 17)]
    assert torch.equal(table.detach()[untouched], start[untouched])
    assert (other != 1).all()  # the usual AdamW


def test_clipping_counts_rows_as_part_of_the_gradient(small_is_large: None) -> None:
    table, other = torch.nn.Parameter(torch.ones(60, 2)), torch.nn.Parameter(torch.ones(3))
    (rows_of(torch.tensor([5, 5, 8]), table).sum() * 2 + 4 * other.sum()).backward()
    assert table.grad is not None
    assert other.grad is not None
    whole = torch.cat([table.grad.to_dense().flatten(), other.grad])
    clip_gradients([table, other], 1.5)
    clipped = torch.cat([table.grad.to_dense().flatten(), other.grad])
    torch.testing.assert_close(clipped, whole * 1.5 / whole.norm())
    clip_gradients([table, other], 10.0)  # short enough
    torch.testing.assert_close(torch.cat([table.grad.to_dense().flatten(), other.grad]), clipped)


def behaviour() -> BehaviourModel:
    torch.manual_seed(0)
    return BehaviourModel(np.random.default_rng(0).normal(size=(ITEMS, 6)).astype(np.float32))


@pytest.mark.parametrize(("beta", "limit"), [(0.5, 0), (0.05, 0), (0.01, 4), (1.0, 0)])
def test_sets_among_candidates_are_the_exact_ones_where_all_groups_are_looked_into(beta: float, limit: int) -> None:
    sessions = LOG.states.positives[:40]
    exact = behaviour_sets(behaviour(), sessions, beta, limit=limit)
    search = AllowedSearch(behaviour(), sessions, beta, "relative", limit)
    search._index.nprobe = search._index.nlist
    found = search.sets(sessions)
    for row in range(len(sessions)):
        assert found[row].tolist() == exact[row].tolist()
    assert 0 < search.told["recall"] <= 1
    assert search.told["cut"] == (
        np.mean(behaviour_sets(behaviour(), sessions, beta).sizes.numpy() > 4) if limit else 0
    )


def test_recall_is_the_share_of_the_exact_sets_that_was_found() -> None:
    sessions = LOG.states.positives[:30]
    search = AllowedSearch(behaviour(), sessions, 0.1, "relative")
    search._index.nprobe = 1  # groups: much is missed
    exact, found = behaviour_sets(behaviour(), sessions, 0.1), search.sets(sessions)
    states = torch.cat(list(search._encoded(sessions)))
    kept = [np.isin(exact[row], found[row]).mean() for row in range(30)]
    assert 0 < np.mean(kept) < 1
    assert all(len(found[row]) for row in range(30))  # the likeliest that was found is allowed
    expected, _ = search._exact(states)
    assert [one.tolist() for one in expected] == [exact[row].tolist() for row in range(30)]


def test_the_literal_form_estimates_what_it_does_not_see() -> None:
    sessions = LOG.states.positives[:30]
    exact = behaviour_sets(behaviour(), sessions, 0.03, "literal")
    search = AllowedSearch(behaviour(), sessions, 0.03, "literal")
    search._index.nprobe = search._index.nlist
    found = search.sets(sessions)
    assert [found[row].tolist() for row in range(30)] == [exact[row].tolist() for row in range(30)]


@pytest.mark.parametrize("beta", [None, 0.2, 0.9])
def test_next_actions_among_candidates_are_the_exact_ones_where_all_items_are_listed(beta: float | None) -> None:
    model, sample = fit_response(LOG, 0)
    likely = None if beta is None else BehaviourWeights(np.linspace(-1, 1, COLUMNS, dtype=np.float32), beta)
    evidence, states = sample.evidence[1], LOG.states[np.arange(0, len(LOG.states), 3)]
    asked = NextActions(model.weights, likely, 6, again=False)
    exact, found = asked.exact(evidence, states)[0], asked.among(evidence, asked.searches(evidence), states)
    assert [sorted(row) for row in found.tolist()] == [sorted(row) for row in exact.tolist()]


def test_recall_tells_what_lists_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_module, "LISTED", 1)
    monkeypatch.setattr("bcd4rec.agents.next_actions.POOL", 1)
    model, sample = fit_response(LOG, 0)
    evidence, states = sample.evidence[0], LOG.states[np.arange(0, len(LOG.states), 9)]
    asked, recall = NextActions(model.weights, None, 6, again=False), SearchRecall()
    recall.compare(asked, evidence, states)
    exact, found = asked.exact(evidence, states)[0], asked.among(evidence, asked.searches(evidence), states)
    kept = [np.isin(wanted[wanted != PAD], one).mean() for wanted, one in zip(exact, found, strict=True)]
    assert recall.told(5) == {"states": 5, "recall": round(float(np.mean(kept)), 4), "measured_on": len(states)}
    assert np.mean(kept) < 1


def bits(trainer: Trainer) -> list[torch.Tensor]:
    modules = [part for part in trainer.agent.parts().values() if isinstance(part, torch.nn.Module)]
    return [one for module in modules for one in module.state_dict().values()]


def trained(checkpoint: Path | None = None) -> Trainer:
    config = AGENTS["bcd4rec"].parse(with_preset("bcd4rec", "paper", PAPER), "test")
    trainer = Trainer(config, LOG, 0, checkpoint)
    for _ in trainer.run(100):
        pass
    return trainer


def test_same_seed_same_bits_and_checkpoints_resume_to_them(small_is_large: None, tmp_path: Path) -> None:
    whole = trained()
    assert all(map(torch.equal, bits(whole), bits(trained())))
    first = Trainer(whole.config, LOG, 0)
    next(iter(first.run(report_every=4)))
    first.save(tmp_path / "checkpoint")
    assert all(map(torch.equal, bits(whole), bits(trained(tmp_path / "checkpoint"))))


def test_an_update_moves_the_rows_it_looked_up(small_is_large: None) -> None:
    config = AGENTS["bcd4rec"].parse(with_preset("bcd4rec", "paper", PAPER | {"batch_size": 2, "updates": 1}), "test")
    trainer = Trainer(config, LOG, 0)
    before = trainer.agent.parts()["network"].state_dict()["embeddings"].clone()  # type: ignore[union-attr]
    for _ in trainer.run(1):
        pass
    after = trainer.agent.parts()["network"].state_dict()["embeddings"]  # type: ignore[union-attr]
    moved = (before != after).any(dim=1).sum()
    assert 0 < moved < ITEMS / 3


@pytest.mark.parametrize("settings", [{}, with_preset("bcd4rec", "paper", PAPER)], ids=["default", "paper"])
def test_bundles_tell_the_recall(settings: dict[str, object], small_is_large: None) -> None:
    told = fit("bcd4rec", LOG, settings | {"updates": 5}, search="none").about["sets"]
    assert 0.5 < told["recall"] <= 1
    assert told["measured_on"] > 0


@pytest.mark.parametrize("kind", ["item2vec", "srgnn"])
def test_pretraining_moves_what_was_liked(kind: Pretraining, small_is_large: None) -> None:
    """Rows that no batch looked up stay where they began; what is liked together comes to lie together."""
    likes = Sequences.of([[3, 4], [4, 3], [60, 61]] * 60)
    found = pretrain(kind, likes, 70, 6, np.random.default_rng(0), epochs=8, negatives=3)
    again = pretrain(kind, likes, 70, 6, np.random.default_rng(0), epochs=8, negatives=3)
    assert np.isfinite(found).all()
    if kind == "item2vec":
        assert np.array_equal(found, again)
        begun = 0.1 * initial(70, 6, np.random.default_rng(0))
        assert np.array_equal(found[5:60], begun[5:60])
        assert (found[[3, 4, 60, 61]] != begun[[3, 4, 60, 61]]).any(axis=1).all()


def test_small_catalogues_are_exact() -> None:
    assert "sets" not in fit("bcd4rec", LOG, {"updates": 5}, search="none").about
    assert "sets" not in fit("bcd4rec", LOG, with_preset("bcd4rec", "paper", PAPER), search="none").about
