"""Features of items in the models: what is foreseen by them, what is alike, and a shop whose new items are better."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file

import bcd4rec
from bcd4rec.data.content import ALTOGETHER, Content
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.foresight import LARGEST, Foreseen, foreseen_lifts
from bcd4rec.data.preparing import PrepareConfig
from bcd4rec.data.splits import SplitConfig
from bcd4rec.data.states import PAD, FloatArray, States
from bcd4rec.data.text_vectors import text_vectors, tf_idf
from bcd4rec.evaluation.logged_slates import Judgement
from bcd4rec.models.content_evidence import OWN, ContentEvidence, content_columns
from bcd4rec.models.evidence import Evidence
from bcd4rec.models.evidence_kernels import COLUMNS, POPULARITY, POSITIVE, SHOWN, SIMILAR_LIKED, VOTED
from bcd4rec.models.response_regression import fit_response
from bcd4rec.policies import bundle
from bcd4rec.policies.evidence_policy import EvidencePolicy
from bcd4rec.policies.policy import Policy
from test_evidence import SESSIONS, A, everything, some_evidence, states_of

# ---- encodings


def test_numbers_are_shared_by_two_knots() -> None:
    values = [0.0, 1, 2, 3, 4, 5, 6, 7, 2.25, None]
    found = Content.encode(pl.DataFrame({"x": values}), {"x": "number"})
    likeness = found.axes @ found.axes.T
    np.testing.assert_allclose(np.diag(likeness)[:9], 1, rtol=1e-6)
    assert not found.axes[9].any()  # nothing is like what is not known
    assert likeness[2, 8] > likeness[3, 8] > likeness[4, 8] == 0
    assert Content.encode(pl.DataFrame({"x": [3.0, 3, None]}), {"x": "number"}).features == 0
    truth = Content.encode(pl.DataFrame({"x": [True, False, None, True]}), {"x": "number"})
    assert (truth.axes @ truth.axes.T).tolist() == [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1]]


def test_values_that_items_share_have_codes() -> None:
    frame = pl.DataFrame({"brand": ["b", "a", None, "once", "a", "b"], "size": ["1", "1", "2", "2", "3", None]})
    found = Content.encode(frame, {"brand": "category", "size": "category"})
    assert found.codes.tolist() == [[1, 0, -1, -1, 0, 1], [2, 2, 3, 3, -1, -1]]
    assert (found.features, found.values) == (2, 4)
    ignored = {"brand": "ignored", "category": "category"}
    assert Content.encode(frame.with_columns(category=pl.lit("x")), ignored).features == 0


def test_vectors_are_turned_and_narrowed() -> None:
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(40, 3)) @ rng.normal(size=(3, 700)) + 5.0  # three directions, and all far from 0
    frame = pl.DataFrame({name: flat.astype(np.float32).tolist() for name in "abcdefg"})
    frame = frame.with_columns(pl.when(pl.int_range(pl.len()) > 0).then(pl.all()))
    found = Content.encode(frame, dict.fromkeys("abcdefg", "vector of 700"))
    assert not found.axes[0].any()
    assert found.blocks.tolist() == [32 * n for n in range(8)]  # 64 each would be too many
    assert found.axes.shape[1] <= ALTOGETHER
    centred = flat[1:] - flat[1:].mean(axis=0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    mine = found.axes[1:, :32]
    np.testing.assert_allclose(mine @ mine.T, centred @ centred.T, atol=1e-4)


def test_titles() -> None:
    titles = ["Red shoe", "red warm shoe", None, "blue coat", "warm blue coat coat", "unique", "red!"]
    weights = tf_idf(pl.Series(titles)).toarray()
    words = sorted(["red", "shoe", "warm", "blue", "coat"], key=lambda word: (-(3 if word == "red" else 2), word))
    for row, title in enumerate(titles):
        said = (title or "").lower().replace("!", "").split()
        plain = []
        for word in words:
            df = sum(word in (other or "").lower().replace("!", "").split() for other in titles)
            plain.append((1 + math.log(said.count(word))) * math.log(6 / df) if word in said else 0.0)
        norm = math.sqrt(sum(one * one for one in plain)) or 1.0
        np.testing.assert_allclose(weights[row], [one / norm for one in plain], atol=1e-12)
    vectors = text_vectors(pl.Series(titles), 4)
    left = np.linalg.svd(weights)
    np.testing.assert_allclose(vectors @ vectors.T, (left[0][:, :4] * left[1][:4] ** 2) @ left[0][:, :4].T, atol=1e-2)
    assert vectors.tobytes() == text_vectors(pl.Series(titles), 4).tobytes()
    assert not vectors[[2, 5]].any()
    assert text_vectors(pl.Series(["one", "two"]), 4).shape == (2, 0)


# ---- what is foreseen


def counts(items: int, feature: FloatArray, seed: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Responses where 20 were expected; the last third of the items was never shown."""
    rng = np.random.default_rng(seed)
    lift = np.exp(0.7 * feature + 0.2 * rng.normal(size=items))
    expected = np.full(items, 20.0)
    expected[-items // 3 :] = 0.0
    return rng.poisson(expected * lift).astype(np.float64), expected, np.log(lift)


def test_features_foresee_items_known_and_new() -> None:
    rng, items = np.random.default_rng(1), 300
    feature = rng.normal(size=items)
    nothing = np.full(items, -1, np.int32)
    n, e, lift = counts(items, feature, 2)
    frame = pl.DataFrame({"x": feature, "noise": rng.normal(size=(items, 40)).tolist()})
    content = Content.encode(frame, {"x": "number", "noise": "vector of 40"})
    found = foreseen_lifts(n, e, nothing, content)
    for part in (slice(0, 200), slice(200, None)):
        assert np.corrcoef(found[part], lift[part])[0, 1] > 0.9
        assert 0.8 < np.polyfit(found[part], lift[part], 1)[0] < 1.2  # and not only in the right order
    brands = rng.integers(12, size=items)
    n, e, lift = counts(items, rng.normal(size=12)[brands], 3)
    content = Content.encode(pl.DataFrame({"brand": [f"b{one}" for one in brands]}), {"brand": "category"})
    found = foreseen_lifts(n, e, nothing, content)
    assert np.corrcoef(found[200:], lift[200:])[0, 1] > 0.9
    assert np.abs(found).max() <= LARGEST
    assert not foreseen_lifts(np.zeros(items), e, nothing, content).any()


def test_noise_foresees_nothing_and_no_item_foresees_itself() -> None:
    own = []
    for seed in range(6):
        rng, items = np.random.default_rng(seed), 90
        n, e, lift = counts(items, rng.normal(size=items), seed)
        frame = pl.DataFrame(
            {"v": rng.normal(size=(items, 60)).tolist(), "b": rng.integers(15, size=items).astype(str)}
        )
        content = Content.encode(frame, {"v": "vector of 60", "b": "category"})
        found = foreseen_lifts(n, e, np.full(items, -1, np.int32), content)
        own.append(float(np.mean(found[:60] * lift[:60])))
        assert found.std() < 0.35 * lift.std()
    # Sixty items with sixty numbers each could be told by heart; whoever looks at other items alone cannot.
    assert np.mean(own) < 0.02


# ---- rows and sums


def with_content(seed: int = 0) -> Evidence:
    rng = np.random.default_rng(seed)
    plain = some_evidence(seed)
    axes = rng.normal(size=(A, 5)).astype(np.float32)
    axes[3] = 0.0
    codes = np.stack([rng.integers(-1, 3, A), np.where(rng.random(A) < 0.2, -1, rng.integers(3, 7, A))])
    content = Content(
        axes, np.array([0, 2, 5]), codes.astype(np.int32), np.array([0, 1, 2]), np.ones(codes.shape, np.float32)
    )
    told = [rng.normal(size=A).astype(np.float32) for _ in range(3)]
    foreseen = Foreseen(rng.random(A) < 0.4, *told)
    return Evidence(plain.knowledge, plain.neighbours.sequences, ContentEvidence(content, foreseen))


def test_rows_by_the_names_of_their_columns() -> None:
    evidence = with_content()
    assert evidence.content is not None
    content, foreseen = evidence.content.content, evidence.content.foreseen
    found = everything(evidence, states_of(SESSIONS))
    assert found.shape == (len(SESSIONS), A, COLUMNS + 4 + 3 * 4) == (len(SESSIONS), A, evidence.columns)
    assert content_columns(content) == evidence.columns - COLUMNS
    np.testing.assert_array_equal(found[..., :COLUMNS], everything(some_evidence(), states_of(SESSIONS)))
    for row, (liked, skipped) in enumerate(SESSIONS):
        for item in range(A):
            known = (1, foreseen.positive[item], foreseen.target[item], foreseen.popularity[item])
            expected = [one * bool(foreseen.new[item]) for one in known]
            for first, last in ((0, 2), (2, 5)):
                for part in (liked, liked[-1:], skipped):
                    alike = [float(content.axes[item, first:last] @ content.axes[j, first:last]) for j in part]
                    expected.append(sum(alike) / max(len(part), 1))
            for codes in content.codes:
                for part in (liked, liked[-1:], skipped):
                    same = [codes[item] >= 0 and codes[item] == codes[j] for j in part]
                    expected.append(sum(same) / max(len(part), 1))
            np.testing.assert_allclose(found[row, item, COLUMNS:], expected, rtol=1e-4, atol=1e-5)


def test_sums_are_weights_times_rows() -> None:
    evidence, rng = with_content(3), np.random.default_rng(4)
    weights = rng.normal(size=(2, evidence.columns)).astype(np.float32)
    states = states_of(SESSIONS)
    expected = np.moveaxis(everything(evidence, states) @ weights.T, -1, 0)
    for _ in range(2):  # the boards are wiped
        np.testing.assert_allclose(evidence.sums(states, weights), expected, rtol=1e-4, atol=1e-4)
    again = Evidence.restore(evidence.arrays())
    assert again.sums(states, weights).tobytes() == evidence.sums(states, weights).tobytes()
    padded = np.array([[1, PAD, 4]] * len(SESSIONS), np.int32)
    assert not evidence.rows(states, padded)[:, 1].any()


def test_rows_as_if_the_items_were_new() -> None:
    evidence = with_content()
    assert evidence.content is not None
    rows = everything(evidence, states_of(SESSIONS))[4]
    items = np.arange(A, dtype=np.int32)
    found, new = evidence.as_new(rows, items), evidence.content.foreseen.new
    assert not found[:, [POPULARITY, SHOWN, SIMILAR_LIKED, VOTED]].any()
    assert found[:, POSITIVE].tolist() == evidence.content.foreseen.positive.tolist()
    assert found[:, COLUMNS].all()
    np.testing.assert_array_equal(found[new, COLUMNS:], rows[new, COLUMNS:])
    np.testing.assert_array_equal(found[:, COLUMNS + OWN :], rows[:, COLUMNS + OWN :])


def test_shortlists_hold_the_best_by_features() -> None:
    """Large catalogues are searched by groups and values; whatever is best by features alone is found."""
    rng, items = np.random.default_rng(0), 30_000
    middle = rng.normal(size=(40, 8))
    axes = middle[rng.integers(40, size=items)] + 0.3 * rng.normal(size=(items, 8))
    axes = (axes / np.linalg.norm(axes, axis=1, keepdims=True)).astype(np.float32)
    codes = rng.integers(-1, 900, (1, items)).astype(np.int32)
    content = Content(axes, np.array([0, 8]), codes, np.array([0, 1]), np.ones(codes.shape, np.float32))
    frame = log_of(Shop(3), 60, 1)
    small, _ = fit_response(Dataset.from_frame(frame, REWARDS), 0)
    known = small.evidence.knowledge
    arrays = {
        name: np.zeros((items, *one.shape[1:]), one.dtype) for name, one in known.arrays().items() if "." not in name
    }
    for name in ("similar", "followers"):
        arrays |= {f"{name}.offsets": np.zeros(items + 1, np.int64), f"{name}.items": np.empty(0, np.int32)}
        arrays |= {f"{name}.weights": np.empty(0, np.float32)}
    arrays |= {"categories": np.full(items, -1, np.int32), "likes.items": np.empty(0, np.int32)}
    arrays |= {"likes.offsets": np.zeros(1, np.int64)} | content.arrays()
    told = [rng.normal(size=items).astype(np.float32) for _ in range(3)]
    arrays |= Foreseen(np.ones(items, np.bool_), *told).arrays()
    model = type(small)(Evidence.restore(arrays), small.weights)
    weights = np.zeros((1, model.evidence.columns), np.float32)
    weights[:, COLUMNS:] = [0, 0.3, 0, 0, 3, 1, -1, 1, 0.5, -0.2]
    policy = EvidencePolicy(
        type(small)(model.evidence, type(small.weights)(0.0, np.ones(1), small.weights.session, weights))
    )
    hits = []
    for _ in range(20):
        liked, skipped = rng.integers(items, size=3), rng.integers(items, size=2)
        states = States(liked[None].astype(np.int32), skipped[None].astype(np.int32))
        pool = policy.shortlist(states, 100)
        assert len(pool) < items // 5
        hits.append(np.isin(np.argsort(-policy.scores(states)[0])[:10], pool).mean())
    assert np.mean(hits) > 0.95


# ---- a shop whose new items are better

REWARDS = {"skip": 0.0, "click": 1.0}
PLACES, STEPS = 4, 5


class Shop:
    """Items are liked for their price, their brand, and how near they are to a user's taste; some were never shown."""

    def __init__(self, seed: int, items: int = 160):
        rng = np.random.default_rng(seed)
        self.items = items
        self.price = np.exp(rng.normal(3.0, 0.7, items))
        self.brand = rng.integers(12, size=items)
        self.style = rng.normal(size=(items, 3))
        cheap = -(np.log(self.price) - 3.0) / 0.7
        self.worth = 0.9 * cheap + 0.5 * rng.normal(size=12)[self.brand] + 0.3 * rng.normal(size=items)
        self.new = rng.random(items) < 0.3

    def chances(self, tastes: FloatArray, slates: FloatArray) -> FloatArray:
        logits = self.worth[slates] + 0.6 * np.einsum("bd,bkd->bk", tastes, self.style[slates]) - 1.8
        return 1.0 / (1.0 + np.exp(-logits))

    def features(self, shuffle: int | None = None) -> pl.DataFrame:
        order = np.arange(self.items) if shuffle is None else np.random.default_rng(shuffle).permutation(self.items)
        told = {"price": self.price[order], "brand": [f"b{one}" for one in self.brand[order]]}
        rows = pl.DataFrame({"item_id": np.arange(self.items)} | told | {"style": self.style[order].tolist()})
        some = pl.col("item_id") % 9 != 4  # of some items not all is known
        return rows.with_columns(pl.when(some).then("price"), pl.when(some | (pl.col("item_id") > 80)).then("style"))


def log_of(shop: Shop, users: int, seed: int, new: bool = False) -> pl.DataFrame:
    """Random slates of what there was, or with `new` of all items."""
    rng = np.random.default_rng(seed)
    tastes, parts = rng.normal(size=(users, 3)), []
    there = np.arange(shop.items) if new else np.flatnonzero(~shop.new)
    for step in range(STEPS):
        slates = rng.permuted(np.tile(there, (users, 1)), axis=1)[:, :PLACES]
        clicked = rng.random(slates.shape) < shop.chances(tastes, slates)
        where = {"session_id": np.repeat(np.arange(users), PLACES), "step": np.full(slates.size, step)}
        what = {"item_id": slates.ravel(), "response": np.where(clicked.ravel(), "click", "skip")}
        parts.append(pl.DataFrame(where | what))
    return pl.concat(parts).sort("session_id", "step", maintain_order=True)


def play(shop: Shop, policy: Policy, users: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Chances of a click (users,), and the items shown, on users who have the same tastes and luck for every policy."""
    rng = np.random.default_rng(seed)
    tastes, luck = rng.normal(size=(users, 3)), rng.random((STEPS, users, PLACES))
    sessions, chances, shown = policy.begin(users, np.empty((users, 0), np.int32)), np.zeros(users), []
    ids = policy.vocabulary.ids.to_numpy()
    for step in range(STEPS):
        items = policy.slates(sessions, PLACES).items
        found = shop.chances(tastes, ids[items])
        chances += found.mean(axis=1) / STEPS
        sessions = policy.after(sessions, items, luck[step] < found)
        shown.append(ids[items])
    return chances, np.concatenate(shown).ravel()


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop(0)


def both_days(shop: Shop) -> pl.DataFrame:
    """On the first day nobody was shown what is new; on the second everybody was."""
    first, second = log_of(shop, 250, 1), log_of(shop, 200, 5, new=True)
    days = [first.with_columns(day=pl.lit(0)), second.with_columns(pl.col("session_id") + 1000, day=pl.lit(1))]
    at = (pl.col("day") * 86_400 + 3_600 + 60 * pl.col("step")).alias("timestamp")
    return pl.concat(days).with_columns(at).drop("day")


@pytest.fixture(scope="module")
def data(shop: Shop) -> dict[str, Dataset]:
    split = SplitConfig(by="time", periods={"train": 1, "test": 1})
    told = {"without": None, "informed": shop.features(), "noise": shop.features(shuffle=7)}
    config, log = PrepareConfig(split=split), both_days(shop)
    return {name: Dataset.from_frame(log, REWARDS, config, items=items) for name, items in told.items()}


@pytest.fixture(scope="module")
def policies(data: dict[str, Dataset]) -> dict[str, Policy]:
    """The default agent, and the response model that it starts from."""
    found = {name: bcd4rec.train("response", one) for name, one in data.items()}
    agents = {
        f"agent {name}": bcd4rec.train("bcd4rec", data[name], settings={"updates": 50}, search="none")
        for name in ("without", "informed")
    }
    return {name: replace(policy, about=policy.about | {"method": name}) for name, policy in (found | agents).items()}


def test_new_items_that_are_better_are_recommended(shop: Shop, policies: dict[str, Policy]) -> None:
    for kind in ("", "agent "):
        (old, _), (informed, shown) = (play(shop, policies[kind + name], 400, 3) for name in ("without", "informed"))
        gain = informed - old
        assert gain.mean() > 2 * 1.96 * gain.std() / math.sqrt(len(gain))
        times = np.bincount(shown, minlength=shop.items)
        good, bad = (shop.new & one for one in (shop.worth > 1.0, shop.worth < -0.5))
        assert times[good].sum() > 0.1 * times.sum()
        assert times[bad].sum() < 0.01 * times.sum()


def test_new_items_beat_chance_on_a_log(data: dict[str, Dataset], policies: dict[str, Policy]) -> None:
    chosen = [policies[name] for name in ("informed", "agent informed", "without", "noise")]
    judged = bcd4rec.evaluate(chosen, log=data["informed"], split="test")
    assert isinstance(judged, Judgement)
    for name in ("informed", "agent informed"):
        # Who puts all that is new on top does well where something new was clicked, but not elsewhere: hence the gain.
        new, gain = judged.interval(name, part="new"), judged.difference(name, "without")
        assert new is not None
        assert new.low > 0.55
        assert gain is not None
        assert gain.low > 0
    loss = judged.difference("noise", "without", part="known")
    assert loss is not None
    assert loss.high > 0  # not clearly worse


def test_a_bundle_knows_the_features(data: dict[str, Dataset], policies: dict[str, Policy], tmp_path: Path) -> None:
    policy = policies["agent informed"]
    policy.save(tmp_path / "policy")
    again, states = bundle.load(tmp_path / "policy"), data["informed"].states[:40]
    assert again.scorer.scores(states).tobytes() == policy.scorer.scores(states).tobytes()
    arrays = load_file(tmp_path / "policy" / bundle.ARRAYS)
    assert {"evidence.content.axes", "evidence.content.codes", "evidence.foreseen.new"} <= set(arrays)
    evidence = {name.removeprefix("evidence."): one for name, one in arrays.items() if name.startswith("evidence.")}
    for name, value in (("content.codes", -2), ("content.blocks", 99)):
        strange = evidence[name].copy()
        strange[-1] = value
        with pytest.raises(ValueError, match=name):
            Evidence.restore(evidence | {name: strange})
    for name in ("content.axes", "foreseen.new", "foreseen.positive"):
        with pytest.raises(ValueError, match=name):
            Evidence.restore(evidence | {name: evidence[name][:-1]})


def test_ids_alone_make_no_item_better(shop: Shop) -> None:
    """What nobody was shown is neither shunned nor sought for that."""
    log = log_of(shop, 120, 2)
    known = Dataset.from_frame(log, REWARDS, items=shop.features().select("item_id"))
    assert known.n_items == shop.items
    assert known.content is not None
    assert known.content.features == 0
    model, _ = fit_response(known, 0)
    scores = model.expected_rewards(States.empty(1, 5, 5))[0]
    new = scores[(known.items["impressions"] == 0).to_numpy()]
    assert len(np.unique(new)) == 1  # nothing tells them apart
    assert np.quantile(scores, 0.1) < new[0] < np.quantile(scores, 0.9)
    again, _ = fit_response(known, 0)
    assert again.weights.evidence.tobytes() == model.weights.evidence.tobytes()


def test_features_where_nothing_was_skipped(shop: Shop) -> None:
    clicks = log_of(shop, 250, 1).filter(pl.col("response") == "click")
    known = Dataset.from_frame(clicks, REWARDS, items=shop.features())
    scores = fit_response(known, 0)[0].expected_rewards(States.empty(1, 5, 5))[0]
    ids = known.items["item_id"].to_numpy()
    new = shop.new[ids]
    assert np.corrcoef(scores[new], shop.worth[ids[new]])[0, 1] > 0.4
