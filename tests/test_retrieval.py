"""Large catalogues: what the index finds, measured against a plain search."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.models.q_network import QNetwork, QNetworkConfig
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Memory, Policy
from bcd4rec.policies.quantile_policy import QuantilePolicy
from bcd4rec.seeding import generator
from bcd4rec.serving import retrieval
from bcd4rec.serving.loading import Served, load
from bcd4rec.serving.model import OnnxPolicy
from bcd4rec.serving.recommending import Recommender
from bcd4rec.serving.retrieval import DEPTH, POOL, InvertedFile, exact_best, retrieval_for

ITEMS, WIDTH = 5_000, 12


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, WIDTH))[rng.integers(40, size=ITEMS)] + 0.3 * rng.normal(size=(ITEMS, WIDTH))
    policy = QuantilePolicy(QNetwork(vectors.astype(np.float32), QNetworkConfig(head="implicit", encoder="meanpool")))
    folder = tmp_path_factory.mktemp("large")
    vocabulary = Vocabulary(pl.Series("item_id", range(ITEMS)))
    bundle.write(Policy(policy, vocabulary, Memory(length=4, skips=3)), folder)
    return load(folder)


@pytest.fixture(scope="module")
def found(served: Served) -> InvertedFile:
    made = retrieval_for(served, large=ITEMS - 1)
    assert isinstance(made, InvertedFile)
    return made


def test_small_catalogues_need_none(served: Served) -> None:
    assert retrieval_for(served) is None


def test_exact_best_is_a_plain_search(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    queries, table = rng.normal(size=(3, 5)).astype(np.float32), rng.normal(size=(120_000, 5)).astype(np.float32)
    for query, best in zip(queries, exact_best(queries, table, 7), strict=True):
        scores = [float(value) for value in table @ query]
        assert set(best.tolist()) == set(sorted(range(len(table)), key=lambda item: -scores[item])[:7])


def test_recall_is_what_it_says(served: Served, found: InvertedFile) -> None:
    policy = served.policy.scorer
    assert isinstance(policy, OnnxPolicy)
    table = policy.tower.table
    states = retrieval.likely_states(served, lambda some: exact_best(policy.preference(some)[0], table, DEPTH))
    assert (states.positives[0] == -1).all()
    hits = []
    for row in range(len(states)):
        scores = policy.scores(states[row : row + 1])[0]
        best = sorted(range(ITEMS), key=lambda item: -float(scores[item]))[:DEPTH]
        pool = found.pool(policy.preference(states[row : row + 1])[0], 5)
        assert (np.diff(pool) > 0).all()
        assert len(pool) <= POOL + 5
        hits.append(len(set(best) & set(pool.tolist())) / DEPTH)
    assert found.measured.recall > 0.9
    assert np.mean(hits) == pytest.approx(found.measured.recall, abs=0.02)


def test_values_are_exact_and_liked_items_never_return(served: Served, found: InvertedFile) -> None:
    recommender, plain = Recommender(served, found), Recommender(served)
    sessions = served.policy.read([], [7, 70]).sessions
    exact, slate = plain.slate(sessions, 9), recommender.slate(sessions, 9)
    assert exact.items.shape == slate.items.shape == (1, 9)
    assert not {7, 70} & {*exact.items[0].tolist(), *slate.items[0].tolist()}
    assert len(set(exact.items[0].tolist()) & set(slate.items[0].tolist())) >= 8
    scores = served.policy.scorer.scores(sessions.states)[0]
    np.testing.assert_allclose(slate.values[0], scores[slate.items[0]], rtol=1e-5)
    gone = slate.items[0, :5].tolist()
    again = recommender.slate(sessions, 9, excluded=gone).items[0].tolist()
    assert len(again) == 9
    assert not {7, 70, *gone} & set(again)


def test_exploration_stays_among_what_was_retrieved(served: Served, found: InvertedFile) -> None:
    policy = served.policy.scorer
    assert isinstance(policy, OnnxPolicy)
    sessions = served.policy.read([], [7]).sessions
    pool = found.pool(policy.preference(sessions.states)[0], 2 + 1)
    exploring = served.policy.with_rule(exploration={"kind": "epsilon", "epsilon": 1.0})
    slate = Recommender(replace(served, policy=exploring), found).slate(sessions, 2, generator(0, "explore"))
    left = len(pool) - int(7 in pool)
    assert set(slate.items[0].tolist()) <= set(pool.tolist())
    np.testing.assert_allclose(slate.propensities[0], [1 / left, 1 / (left - 1)], rtol=1e-5)


def test_an_index_is_used_only_for_the_bundle_it_was_made_from(
    served: Served, found: InvertedFile, tmp_path: Path
) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(served.folder, folder)
    assert isinstance(served.policy.scorer, OnnxPolicy)
    written = found.save(folder)
    assert InvertedFile.read(served.policy.scorer, bundle.opened(folder)) is None  # nobody has listed it
    bundle.list_exported(folder, written)
    again = InvertedFile.read(served.policy.scorer, bundle.opened(folder))
    assert again is not None
    assert again.measured == found.measured
    query = np.ones((1, WIDTH), np.float32)
    assert again.pool(query, 3).tolist() == found.pool(query, 3).tolist()
