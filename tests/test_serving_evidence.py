"""Policies over evidence behind HTTP: the same slates as from the policy itself, explained, and in large catalogues."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file, save_file

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.knowledge import Knowledge, Neighbours
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.models.evidence import SUMMARY, Evidence
from bcd4rec.models.evidence_kernels import COLUMNS, VOTED, VOTES
from bcd4rec.models.response_regression import ResponseModel, ResponseWeights
from bcd4rec.policies import bundle
from bcd4rec.policies.evidence_policy import BehaviourWeights, EvidencePolicy, ReturnWeights
from bcd4rec.policies.policy import Memory, Policy
from bcd4rec.policies.ranking import top
from bcd4rec.serving import arms
from bcd4rec.serving.bundles import export_bundle
from bcd4rec.serving.loading import Served, load
from bcd4rec.serving.recommending import Recommender
from bcd4rec.serving.retrieval import DEPTH, Shortlists, retrieval_for
from bcd4rec.sim.rollout import rollout, with_ids, with_openings
from bcd4rec.sim.shop import Shop
from bcd4rec.sim.shop_config import CatalogueConfig, ShopConfig
from bcd4rec.workflows.comparison import BEHAVIOUR, contestant
from bcd4rec.workflows.fitting import Fitted, fit
from serving_help import PATIENT, Running, serving, states_of
from test_cli import run

ITEMS, LARGE = 61, 200_000


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    shop = Shop(
        ShopConfig(
            catalogue=CatalogueConfig(items=ITEMS, categories=7),
            slate_size=3,
            page=4,
            most_pages=5,
            stray=0.3,
            positive_far=0.4,
        )
    )
    log = rollout(shop, contestant(BEHAVIOUR, shop), 300, 1)
    return Dataset.from_frame(with_ids(with_openings(log, shop), shop), shop.responses)


@pytest.fixture(scope="module")
def fitted(dataset: Dataset) -> Fitted:
    return fit("bcd4rec", dataset, {"updates": 60, "beta": 0.01})


@pytest.fixture(scope="module")
def folder(fitted: Fitted, dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("policy")
    bundle.write(fitted.whole(dataset).with_rule(diversity=0.0, after_skip="repeat", unavailable="liked"), made)
    return made


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("scratch"), folder, environment=PATIENT) as running:
        yield running


@pytest.fixture(scope="module")
def served(folder: Path) -> Served:
    return load(folder)


def numbers(served: Served, ids: list[Any]) -> list[int]:
    found, unknown = served.vocabulary.encode(ids)
    assert not unknown
    return found


def ranking(served: Served, liked: list[Any], skipped: list[Any], k: int) -> list[Any]:
    """The ids that the policy itself puts first, without what was liked."""
    policy, likes = served.policy, numbers(served, liked)
    scores = policy.scorer.scores(states_of(policy, likes, numbers(served, skipped)))[0]
    order = sorted((item for item in range(policy.n_items) if item not in likes), key=lambda item: -scores[item])
    return [served.vocabulary.id(item) for item in order[:k]]


def test_slates_are_the_policys_own_ranking(server: Running, served: Served) -> None:
    assert isinstance(served.policy.scorer, EvidencePolicy)
    ids = [served.vocabulary.id(item) for item in range(served.policy.n_items)]
    for liked, skipped in (([], []), ([ids[3]], []), ([ids[7], ids[2]], [ids[5], ids[9]]), ([ids[4]] * 2, [ids[4]])):
        session = [{"item": item, "response": "skip"} for item in skipped] + list(liked)
        answer = server.recommend(session=session, k=5)
        assert [one["item"] for one in answer["items"]] == ranking(served, liked, skipped, 5)
        states = states_of(served.policy, numbers(served, liked), numbers(served, skipped))
        expected = served.policy.scorer.scores(states)[0, numbers(served, [one["item"] for one in answer["items"]])]
        np.testing.assert_allclose([one["value"] for one in answer["items"]], expected, rtol=1e-5)
    some = ids[10:20]
    answer = server.recommend(session=[ids[3]], k=3, candidates=some)
    assert [one["item"] for one in answer["items"]] == [
        item for item in ranking(served, [ids[3]], [], ITEMS) if item in some
    ][:3]


def test_a_session_that_says_nothing_gets_no_catalogue_order(server: Running, served: Served) -> None:
    shown = numbers(served, [one["item"] for one in server.recommend(k=8)["items"]])
    assert shown != sorted(shown)
    values = served.policy.scorer.scores(served.policy.begin(1).states)[0]
    assert len(np.unique(values)) > served.policy.n_items // 2


def test_feedback_changes_what_comes_next(server: Running, served: Served) -> None:
    first = server.recommend(session_id="one", k=3)
    taken, left, unanswered = (one["item"] for one in first["items"])
    told = [{"item": taken, "response": "click"}, {"item": left, "response": "skip"}]
    assert server.post("/v1/feedback", {"request_id": first["request_id"], "responses": told}).status_code == 200
    second = server.recommend(session_id="one", k=4)
    assert [one["item"] for one in second["items"]] == ranking(served, [taken], [left, unanswered], 4)


def test_explanations(server: Running, served: Served) -> None:
    policy = served.policy.scorer
    assert isinstance(policy, EvidencePolicy)
    liked = served.vocabulary.id(5)
    answer = server.recommend(session=[liked], k=4, explain=True)
    states, shown = states_of(served.policy, [5], []), numbers(served, [one["item"] for one in answer["items"]])
    logits = np.array([float(row @ policy.behaviour.evidence) for row in rows_of(policy, states)])  # type: ignore[union-attr]
    chances = np.exp(logits) / np.exp(logits).sum()
    for one, item in zip(answer["items"], shown, strict=True):
        quantiles = [one["quantiles"][f"0.{tenth}"] for tenth in range(1, 10)]
        assert quantiles == sorted(quantiles)
        assert quantiles[0] < one["value"] < quantiles[-1]
        assert one["likelihood"] == pytest.approx(chances[item], rel=1e-3)
    behaviour = numbers(served, answer["beside"]["behaviour"])
    assert behaviour == [item for item in np.argsort(-chances, kind="stable").tolist() if item != 5][:4]
    assert served.policy.popularity is not None
    popular = numbers(served, answer["beside"]["popular"])
    assert popular == [item for item in np.argsort(-served.policy.popularity, kind="stable").tolist() if item != 5][:4]


def rows_of(policy: EvidencePolicy, states: States) -> FloatArray:
    """(A, COLUMNS) about every item, in one state, by a policy that has never been asked."""
    fresh = EvidencePolicy.restore(policy.settings(), policy.arrays())
    return fresh.model.evidence.rows(states, np.arange(policy.n_items, dtype=np.int32)[None])[0]


def test_all_items_at_once_as_one_by_one(served: Served) -> None:
    """Two ways to the same numbers: rows of evidence, and sums without rows; alone and in a batch."""
    policy, rng = served.policy.scorer, np.random.default_rng(3)
    assert isinstance(policy, EvidencePolicy)
    sessions = [([], []), ([4], []), ([4, 9, 4], [9, 1, 1]), ([], [2, 3])]
    weights = rng.normal(size=(5, COLUMNS)).astype(np.float32)
    rows = [states_of(served.policy, *session) for session in sessions]
    states = States(np.concatenate([one.positives for one in rows]), np.concatenate([one.skips for one in rows]))
    sums = policy.model.evidence.sums(states, weights)
    for place, one in enumerate(rows):
        expected = weights @ rows_of(policy, one).T
        np.testing.assert_allclose(sums[:, place], expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(policy.model.evidence.sums(one, weights)[:, 0], expected, rtol=1e-4, atol=1e-4)
        given = policy.model.evidence.neighbours.scores(one)[0]
        np.testing.assert_allclose(rows_of(policy, one)[:, VOTES], np.log1p(100 * given), rtol=1e-5)
        assert rows_of(policy, one)[:, VOTED].tolist() == [float(vote > 0) for vote in given]
    votes, dense = policy.model.evidence.neighbours.votes(states), policy.model.evidence.neighbours.scores(states)
    for place in range(len(states)):
        part = slice(votes.offsets[place], votes.offsets[place + 1])
        told = dict(zip(votes.items[part].tolist(), votes.scores[part].tolist(), strict=True))
        assert told == {item: value for item, value in enumerate(dense[place].tolist()) if value > 0}


def test_nothing_is_to_be_exported(folder: Path) -> None:
    found = run("export", folder, "--onnx", "--json")
    assert (found.returncode, found.stdout) == (2, "")
    assert "takes it as it is, and there is nothing to export" in found.stderr
    with pytest.raises(InputError, match="kind 'evidence'"):
        export_bundle(folder)


def damaged_copy(folder: Path, to: Path, arrays: dict[str, Any]) -> Path:
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    save_file(arrays, to / bundle.ARRAYS)
    manifest = json.loads((to / "manifest.json").read_text())  # as if it had been saved so
    manifest["checksums"][bundle.ARRAYS] = bundle.checksum(to / bundle.ARRAYS)
    (to / "manifest.json").write_text(json.dumps(manifest))
    return to


def test_damaged_arrays_are_refused(folder: Path, tmp_path: Path) -> None:
    arrays = load_file(folder / "arrays.safetensors")
    assert {"evidence.tastes", "evidence.similar.items", "response.evidence", "returns.output"} <= set(arrays)
    for name in arrays:
        missing = {other: array for other, array in arrays.items() if other != name}
        with pytest.raises(InputError, match="is damaged"):
            load(damaged_copy(folder, tmp_path, missing))
        if len(arrays[name]):
            with pytest.raises(InputError, match="is damaged"):
                load(damaged_copy(folder, tmp_path, arrays | {name: arrays[name][:-1].copy()}))
    for name, value in (("evidence.similar.items", ITEMS), ("evidence.categories", -2), ("evidence.likes.items", -1)):
        strange = arrays[name].copy()
        strange[-1] = value
        with pytest.raises(InputError, match="is damaged"):
            load(damaged_copy(folder, tmp_path, arrays | {name: strange}))
    load(damaged_copy(folder, tmp_path, arrays))


# ---- large catalogues


def made_up(items: int, beta: float = 0.0, seed: int = 0) -> EvidencePolicy:
    """A policy over items with popularity as uneven as in shops: what the log says of an item, and random weights."""
    rng = np.random.default_rng(seed)

    def drawn(count: int) -> IntArray:
        return (items * rng.random(count) ** 3).astype(np.int32)

    def neighbours(each: int) -> Neighbours:
        offsets = np.arange(items + 1, dtype=np.int64) * each
        return Neighbours(offsets, drawn(items * each), rng.random(items * each, dtype=np.float32) ** 4)

    lengths = rng.integers(1, 9, items // 4)
    likes = Sequences(drawn(int(lengths.sum())), np.append(0, np.cumsum(lengths)))
    own = [rng.normal(size=items).astype(np.float32) for _ in range(4)]
    tastes = rng.normal(size=(40, 16))[rng.integers(40, size=items)] + 0.5 * rng.normal(size=(items, 16))
    tastes /= np.linalg.norm(tastes, axis=1, keepdims=True)
    tastes[rng.random(items) < 0.5] = 0.0
    categories = rng.integers(-1, items // 300, items).astype(np.int32)
    knowledge = Knowledge(categories, *own, neighbours(20), neighbours(7), tastes.astype(np.float32))
    signs = np.array([1, 1, 0.5, -0.2, 1, 0.5, 0.5, -0.5, 2, 1, -1, -1, -1, -1, 2, 0.3, 0.7, 0.3, -0.2, 0.5])
    weights = np.stack([np.append(signs, [0.3, 0.5]) * rng.uniform(0.3, 1.2, COLUMNS) for _ in range(3)])
    session = rng.normal(size=(2, SUMMARY)) * [1, 0.3, 0.3, 0.1] - [4, 0, 0, 0]
    response = ResponseWeights(
        0.0, np.array([1.0, 4.0]), session.astype(np.float32), (0.6 * weights[:2]).astype(np.float32)
    )
    returns = ReturnWeights(
        np.full(2, 1.2, np.float32),
        np.stack([0.05 * weights[2]] * 2).astype(np.float32),
        np.ones(2, np.float32),
        np.zeros(2, np.float32),
        rng.normal(size=(3, SUMMARY + 1)).astype(np.float32),
        rng.normal(size=4).astype(np.float32),
    )
    behaviour = BehaviourWeights(weights[0].astype(np.float32), beta)
    return EvidencePolicy(ResponseModel(Evidence(knowledge, likes), response), returns, behaviour)


@pytest.fixture(scope="module")
def large() -> EvidencePolicy:
    return made_up(LARGE)


def wide_states(liked: list[int], skipped: list[int]) -> States:
    positives, skips = np.full((1, 9), PAD, np.int32), np.full((1, 12), PAD, np.int32)
    positives[0, : len(liked)], skips[0, : len(skipped)] = liked, skipped
    return States(positives, skips)


def test_shortlists_hold_what_scoring_everything_finds(large: EvidencePolicy) -> None:
    rng, hits = np.random.default_rng(5), []
    for _ in range(40):
        liked, skipped = ((LARGE * rng.random(rng.integers(low, 9)) ** 3).astype(int).tolist() for low in (1, 0))
        states = wide_states(liked, skipped)
        pool = large.shortlist(states, 200)
        assert (np.diff(pool) > 0).all()
        assert len(pool) < LARGE // 50
        expected = top(large.scores(states), 10)[0]
        hits.append(np.isin(expected, pool).mean())
        np.testing.assert_allclose(
            large.scores(states, pool[None])[0], large.scores(states)[0, pool], rtol=1e-4, atol=1e-5
        )
    assert np.mean(hits) >= 0.99
    nothing = wide_states([], [])
    for most in (10, 200, 1_000):
        expected = top(large.scores(nothing), most)[0]
        assert set(expected.tolist()) <= set(large.shortlist(nothing, most).tolist())


def test_a_pool_leaves_nothing_behind(large: EvidencePolicy) -> None:
    """Boards are used again by the next session, so they must be clean."""
    nothing, before = wide_states([], []), large.scores(wide_states([], []))
    first = large.shortlist(nothing, 200)
    large.shortlist(wide_states([5, 77, 5], [1_000, 3]), 200)
    assert large.shortlist(nothing, 200).tolist() == first.tolist()
    assert large.scores(nothing).tobytes() == before.tobytes()


def served_policy(served: Served, scorer: EvidencePolicy) -> Served:
    vocabulary = Vocabulary(pl.Series("item_id", range(scorer.n_items)))
    return replace(served, policy=Policy(scorer, vocabulary, Memory(length=9, skips=12)))


def test_the_server_shortlists_large_catalogues(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    small = served_policy(served, made_up(3_000))
    assert retrieval_for(small) is None
    assert retrieval_for(served_policy(served, made_up(3_000, beta=0.1)), large=2_999) is None
    found = retrieval_for(small, large=2_999)
    assert isinstance(found, Shortlists)
    assert found.measured.recall > 0.99
    assert found.measured.milliseconds > 0
    whole, pooled = Recommender(small), Recommender(small, found)
    sessions = small.policy.read([], [5, 77, (9, "skip")]).sessions
    expected = whole.slate(sessions, DEPTH)
    monkeypatch.setattr(Evidence, "sums", lambda *_: pytest.fail("scored everything"))
    slate = pooled.slate(sessions, DEPTH)
    assert slate.items.tolist() == expected.items.tolist()
    assert not {5, 77} & set(slate.items[0].tolist())
    np.testing.assert_allclose(slate.values, expected.values, rtol=1e-4)


def test_the_manifest_tells_the_kind(folder: Path) -> None:
    assert json.loads((folder / "manifest.json").read_text())["scorer"] == "evidence"
    assert arms.load_arm("a", folder, 1.0).recommender.batcher is not None
