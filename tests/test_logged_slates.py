"""How policies rank what was liked among what was shown: every measure against plain loops."""

import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bcd4rec
from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.repeats import MetAgain
from bcd4rec.data.responses import Responses
from bcd4rec.data.schema import Log
from bcd4rec.data.splits import SplitConfig
from bcd4rec.data.states import PAD, States
from bcd4rec.errors import InputError
from bcd4rec.evaluation import logged_slates
from bcd4rec.evaluation.logged_slates import (
    Judgement,
    Ranker,
    Ranking,
    logged_cases,
    logged_order,
    next_item_values,
    ranking_values,
    row_scores,
    values_of,
)
from bcd4rec.evaluation.placing import enough_rivals, rivals_of
from bcd4rec.policies.uniform import Uniform
from bcd4rec.workflows import judging

SHOP = Responses(rewards={"skip": 0.0, "click": 1.0, "buy": 5.0})
ITEMS = 23


# The measures, each over all orders of equal scores.


def orders(scores: list[float]) -> list[list[int]]:
    """All rankings that sort by score."""
    every = itertools.permutations(range(len(scores)))
    return [list(one) for one in every if all(scores[a] >= scores[b] for a, b in itertools.pairwise(one))]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def auc_by_hand(scores: list[float], worth: list[float]) -> float:
    found = []
    for one, other in itertools.permutations(range(len(scores)), 2):
        if worth[one] > worth[other]:
            found.append(1.0 if scores[one] > scores[other] else 0.5 if scores[one] == scores[other] else 0.0)
    return mean(found) if found else math.nan


def mrr_by_hand(scores: list[float], liked: list[bool]) -> float:
    return mean([1 / (1 + next(place for place, row in enumerate(one) if liked[row])) for one in orders(scores)])


def ndcg_by_hand(scores: list[float], gains: list[float], places: int = 5) -> float:
    def dcg(order: list[int]) -> float:
        return sum(gains[row] / math.log2(place + 2) for place, row in enumerate(order[:places]))

    best = sorted(range(len(gains)), key=lambda row: -gains[row])
    return mean([dcg(one) for one in orders(scores)]) / dcg(best)


def top_by_hand(scores: list[float], liked: list[bool]) -> float:
    return mean([float(liked[one[0]]) for one in orders(scores)])


SLATES = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 1.0, 5.0])), min_size=2, max_size=6).filter(
        lambda slate: 0 < sum(worth > 0 for _, worth in slate) < len(slate)
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(SLATES)
def test_measures_are_what_all_orders_of_equal_scores_give(slates):
    flat = [row for slate in slates for row in slate]
    offsets = np.cumsum([0, *map(len, slates)])
    ranking = Ranking(np.array([score for score, _ in flat], float), offsets)
    worth = np.array([worth for _, worth in flat])
    found = {
        "auc": ranking.concordance((worth > 0).astype(float)),
        "reward": ranking.concordance(worth),
        "mrr": ranking.reciprocal_rank(worth > 0),
        "ndcg": ranking.ndcg(worth),
        "top": ranking.top_one(worth > 0),
    }
    for number, slate in enumerate(slates):
        scores, worths = [float(score) for score, _ in slate], [worth for _, worth in slate]
        liked = [one > 0 for one in worths]
        expected = {
            "auc": auc_by_hand(scores, [float(one) for one in liked]),
            "reward": auc_by_hand(scores, worths),
            "mrr": mrr_by_hand(scores, liked),
            "ndcg": ndcg_by_hand(scores, worths),
            "top": top_by_hand(scores, liked),
        }
        assert {name: values[number] for name, values in found.items()} == pytest.approx(expected, abs=1e-12)
        assert ranking.tied[number] == 100 * (scores.count(max(scores)) > 1)


@settings(max_examples=40, deadline=None)
@given(SLATES, st.randoms(use_true_random=False))
def test_order_within_slates_and_the_unit_of_scores_change_nothing(slates, rng):
    def measures(rows, offsets, change=float):
        ranking = Ranking(np.array([change(score) for score, _ in rows]), offsets)
        worth = np.array([worth for _, worth in rows])
        liked = worth > 0
        return [
            *ranking.concordance(worth),
            *ranking.reciprocal_rank(liked),
            *ranking.ndcg(worth),
            *ranking.top_one(liked),
            *ranking.tied,
        ]

    offsets = np.cumsum([0, *map(len, slates)])
    rows = [row for slate in slates for row in slate]
    shuffled = [row for slate in slates for row in rng.sample(slate, len(slate))]
    expected = measures(rows, offsets)
    assert measures(shuffled, offsets) == pytest.approx(expected, abs=1e-12)
    assert measures(rows, offsets, lambda score: math.exp(score) - 7) == pytest.approx(expected, abs=1e-12)


def test_a_large_tie_is_exact():
    """Too many orders to try: the first of 3 liked rows among 40 in places that follow 2 others."""
    scores = np.array([2.0, 2.0, *[1.0] * 40, 0.0])
    liked = np.zeros(43, np.bool_)
    liked[[5, 17, 30]] = True
    expected = sum(math.comb(40 - k, 2) / math.comb(40, 3) / (2 + k) for k in range(1, 39))
    found = Ranking(scores, np.array([0, 43])).reciprocal_rank(liked)
    assert found.tolist() == pytest.approx([expected])


def test_minus_infinity_is_a_score_like_any_other():
    ranking = Ranking(np.array([-np.inf, 1.0, -np.inf]), np.array([0, 3]))
    assert ranking.concordance(np.array([1.0, 0.0, 0.0])).tolist() == [0.25]


# Logs.


def rows_of_slates(rng: np.random.Generator, sessions: int, responses=SHOP) -> pl.DataFrame:
    """Slates of 1 to 6 items; every third session has an item of its own."""
    found = []
    for session in range(sessions):
        for step in range(int(rng.integers(1, 5))):
            shown = rng.choice(20, int(rng.integers(1, 7)), replace=False)
            if session % 3 == 0:
                shown[0] = 100 + session
            for position, item in enumerate(shown):
                response = rng.choice(list(responses.names), p=[0.6, 0.3, 0.1])
                found.append((session, step, position, int(item), response))
    names = ["session_id", "step", "position", "item_id", "response"]
    return pl.DataFrame(found, schema=names, orient="row")


def prepared(
    rows: pl.DataFrame, folder: Path, responses: Responses = SHOP, split: SplitConfig | None = None
) -> Dataset:
    folder.mkdir(parents=True, exist_ok=True)
    rows.write_parquet(folder / "log.parquet")
    config = PrepareConfig(split=split or SplitConfig(test=0.3, validation=0.2))
    prepare(Log(folder / "log.parquet"), responses, config, folder / "dataset", seed=4)
    return Dataset.load(folder / "dataset")


class Table:
    """Scores by item and by how much was liked so far."""

    def __init__(self, n_items: int, seed: int = 5):
        self.table = np.random.default_rng(seed).integers(0, 6, (11, n_items)).astype(np.float32)
        self.n_items = n_items
        self.asked: list[tuple[int, ...]] = []

    def scores(self, states: States, candidates=None):
        found = self.table[states.lengths]
        if candidates is None:
            return found.copy()
        self.asked.append(candidates.shape)
        return np.where(candidates == PAD, np.float32(-np.inf), np.take_along_axis(found, np.maximum(candidates, 0), 1))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return prepared(rows_of_slates(np.random.default_rng(1), 90), tmp_path_factory.mktemp("data"))


def slates_by_hand(data: Dataset, split: str):
    """(session id, state, items, responses) of every slate with something liked and something not."""
    ids, splits = data.sessions["session_id"].to_list(), data.sessions["split"].to_list()
    slates: dict[tuple[int, int], list] = {}
    for session, step, state, item, response in data.frame.select(
        "session", "step", "state", "action", "response"
    ).iter_rows():
        if splits[session] == split:
            slates.setdefault((session, step), []).append((state, item, response))
    for (session, _), rows in slates.items():
        if len({response > 0 for _, _, response in rows}) == 2:
            yield ids[session], rows[0][0], [item for _, item, _ in rows], [response for _, _, response in rows]


def test_values_on_a_data_set(data, monkeypatch):
    monkeypatch.setattr(logged_slates, "CELLS", 40)  # so that there are many chunks
    policy = Table(data.n_items)
    cases = logged_cases(data, "test")
    found = values_of(Ranker("table", policy), cases)
    by_hand = list(slates_by_hand(data, "test"))
    assert (cases.unit, len(cases)) == ("slate", len(by_hand))
    assert max(rows * columns for rows, columns in policy.asked) <= 40
    assert len({columns for _, columns in policy.asked}) > 2
    seen = (data.items["impressions"] > 0).to_list()
    for number, (_, state, items, responses) in enumerate(by_hand):
        length = int((data.states.positives[state] != PAD).sum())
        scores = [float(policy.table[length, item]) for item in items]
        positive, bought = [one > 0 for one in responses], [one == 2 for one in responses]
        rewards = [[0.0, 1.0, 5.0][one] for one in responses]
        expected = {
            "auc": auc_by_hand(scores, positive),
            "mrr": mrr_by_hand(scores, positive),
            "ndcg@5": ndcg_by_hand(scores, positive),
            "top1": top_by_hand(scores, positive),
            "reward_auc": auc_by_hand(scores, rewards),
            "reward_ndcg@5": ndcg_by_hand(scores, rewards),
            "tied": 100.0 * (scores.count(max(scores)) > 1),
        }
        buys = {"buy_auc": math.nan, "buy_mrr": math.nan, "buy_ndcg@5": math.nan, "buy_top1": math.nan}
        if any(bought):
            buys = {
                "buy_auc": auc_by_hand(scores, bought),
                "buy_mrr": mrr_by_hand(scores, bought),
                "buy_ndcg@5": ndcg_by_hand(scores, bought),
                "buy_top1": top_by_hand(scores, bought),
            }
        got = {name: values[number] for name, values in found.items()}
        assert got == pytest.approx(expected | buys, nan_ok=True)
        assert cases.parts["first"][number] == (length == 0)
        assert cases.parts["known"][number] == all(seen[item] for item, one in zip(items, positive, strict=True) if one)
    for one, other in (("first", "later"), ("known", "new")):
        assert (cases.parts[one] ^ cases.parts[other]).all()
        assert cases.parts[one].any()
        assert cases.parts[other].any()


def test_who_knows_the_answer_is_right_and_who_knows_nothing_is_tied(data):
    cases = logged_cases(data, "test")
    knowing = ranking_values(cases.reward, cases)
    for name, values in knowing.items():
        if name != "tied":
            assert values[~np.isnan(values)] == pytest.approx(1.0), name
    constant = values_of(Ranker("uniform", Uniform(data.n_items)), cases)
    assert set(constant["auc"]) == set(constant["reward_auc"]) == {0.5}
    assert set(constant["tied"]) == {100.0}
    shares = np.add.reduceat(cases.positive, cases.offsets[:-1]) / cases.sizes
    assert constant["top1"] == pytest.approx(shares)


def test_means_are_over_slates_and_parts_add_up(data):
    cases = logged_cases(data, "test")
    values = {
        "table": values_of(Ranker("table", Table(data.n_items)), cases),
        "random": values_of(Ranker("random", Uniform(data.n_items)), cases),
    }
    found = Judgement(cases, values, seed=3)
    for name in ("auc", "buy_mrr", "reward_ndcg@5"):
        interval = found.interval("table", name)
        assert interval.value == pytest.approx(np.nanmean(values["table"][name]))
        assert interval.low < interval.value < interval.high
    for part, mask in cases.parts.items():
        assert found.interval("table", "auc", part).value == pytest.approx(values["table"]["auc"][mask].mean())
    apart = found.difference("table", "random")
    assert apart.value == pytest.approx(values["table"]["auc"].mean() - 0.5)
    interval = found.interval("table")
    assert apart == pytest.approx((apart.value, interval.low - 0.5, interval.high - 0.5))  # chance does not vary
    assert found.verdict("table", "table") == "no better"


def test_sessions_are_what_is_drawn(tmp_path):
    """Twenty equal slates in each session tell no more than one: the interval is that of the sessions."""
    rng = np.random.default_rng(2)
    good = rng.random(40) < 0.6
    rows = [
        (session, step, position, item, "click" if (item == 1) == good[session] else "skip")
        for session in range(40)
        for step in range(20)
        for position, item in enumerate((0, 1))
    ]
    names = ["session_id", "step", "position", "item_id", "response"]
    log = pl.DataFrame(rows, schema=names, orient="row")
    two = Responses(rewards={"skip": 0.0, "click": 1.0})
    many = prepared(log, tmp_path / "many", two, SplitConfig(validation=0.0))
    once = prepared(log.filter(pl.col("step") == 0), tmp_path / "once", two, SplitConfig(validation=0.0))

    def interval(data):
        cases = logged_cases(data, "train")
        scores = (cases.item == 1).astype(float)
        return Judgement(cases, {"one": ranking_values(scores, cases)}).interval("one")

    assert interval(many) == pytest.approx(interval(once))
    assert interval(once).value == pytest.approx(good.mean())
    half = 1.96 * math.sqrt(good.mean() * (1 - good.mean()) / 40)
    assert interval(once).high - interval(once).low == pytest.approx(2 * half, rel=0.2)


def test_verdicts_in_words(data):
    cases = logged_cases(data, "test")
    values = {
        "wise": ranking_values(cases.reward, cases),
        "contrary": ranking_values(-cases.reward, cases),
        "random": values_of(Ranker("random", Uniform(data.n_items)), cases),
    }
    found = Judgement(cases, values)
    assert found.sentence("wise", "random") == "wise is better than random (AUC +0.500 [0.500, 0.500])."
    assert found.sentence("contrary", "random") == "contrary is worse than random (AUC −0.500 [−0.500, −0.500])."
    told = found.to_json([("wise", "random")])
    assert told["comparisons"][0]["verdict"] == "better"
    assert told["policies"][0]["auc_low"] == 1.0
    assert told["policies"][1]["first"]["auc"] == 0.0
    assert told["cases"] == len(cases)


def test_slates_are_drawn_by_seed(data):
    whole = logged_cases(data, "test")
    some, again, other = (logged_cases(data, "test", most=17, seed=seed) for seed in (1, 1, 2))
    assert len(some) == 17 < len(whole)
    assert some.item.tolist() == again.item.tolist() != other.item.tolist()
    scores = {}
    policy = Table(data.n_items)
    for cases in (whole, some):
        values = values_of(Ranker("table", policy), cases)["auc"]
        for number, session in enumerate(cases.session):
            begin, end = cases.offsets[number : number + 2]
            key = (int(session), int(cases.state[begin]), tuple(cases.item[begin:end].tolist()))
            scores.setdefault(key, []).append(values[number])
    assert sum(len(both) == 2 for both in scores.values()) >= 16
    assert all(len(set(both)) == 1 for both in scores.values())


def test_unknown_items_get_the_mean_of_the_known_ones(data):
    cases = logged_cases(data, "test")
    known = np.ones(data.n_items, np.bool_)
    known[[0, 3, 8, 11, 15]] = False
    policy = Table(data.n_items)
    policy.table[:, 1::4] = -np.inf  # what a policy rules out has no say in the mean
    found = row_scores(Ranker("table", policy, known), cases)
    plain = row_scores(Ranker("table", policy), cases)
    for begin, end in itertools.pairwise(cases.offsets):
        items = cases.item[begin:end]
        told = [plain[begin + n] for n, item in enumerate(items) if known[item] and plain[begin + n] > -np.inf]
        for n, item in enumerate(items):
            expected = plain[begin + n] if known[item] else (mean(told) if told else -np.inf)
            assert found[begin + n] == pytest.approx(expected)
    unknown = Ranker("table", policy, known).unknown(cases)
    assert unknown.mean() == pytest.approx(np.isin(cases.item, [0, 3, 8, 11, 15]).mean())


def test_a_policy_sees_what_it_has_learned_to_see():
    states = States(
        np.array([[1, 2, 3, PAD], [4, 5, 6, 7], [8, PAD, PAD, PAD]], np.int32), np.array([[1], [2], [3]], np.int32)
    )
    seen = Ranker("one", Uniform(9), length=2, skips=0).view(states)
    assert seen.positives.tolist() == [[2, 3], [6, 7], [8, PAD]]
    assert seen.skips.shape == (3, 0)
    assert Ranker("one", Uniform(9)).view(states).positives.shape == (3, 4)


def test_the_logged_order(data):
    from dataclasses import replace

    cases = logged_cases(data, "test")
    places = np.concatenate([np.arange(size) for size in cases.sizes]).astype(np.int32)
    assert logged_order(replace(cases, position=None)) is None
    found = logged_order(replace(cases, position=places))
    begin, end = cases.offsets[:2]
    liked = [float(one) for one in cases.positive[begin:end]]
    assert found["auc"][0] == auc_by_hand([-float(place) for place in range(end - begin)], liked)
    assert set(found["tied"]) == {0.0}


# Logs without slates.


def place_by_hand(data: Dataset, policy: "Table", state: int, item: int, gone: set[int], weights: list[float]) -> float:
    """The share of what else might have been shown that scores lower than an item; ties are half."""
    length = int((data.states.positives[state] != PAD).sum())
    below = total = 0.0
    for other, weight in enumerate(weights):
        if weight and other not in gone:
            total += weight
            own, theirs = policy.table[length, item], policy.table[length, other]
            below += weight if theirs < own else weight / 2 if theirs == own else 0.0
    return below / total


@pytest.mark.parametrize("kept_out", ["nothing", "liked", "shown"])
def test_one_item_a_step_is_judged_by_its_place_at_that_moment(tmp_path, monkeypatch, kept_out):
    monkeypatch.setattr(MetAgain, "unavailable", lambda _: (kept_out, ""))
    monkeypatch.setattr(logged_slates, "CELLS", 300)  # so that there are many chunks
    rows = rows_of_slates(np.random.default_rng(7), 40).with_columns(
        step=pl.int_range(pl.len()).over("session_id"), position=pl.lit(0)
    )
    feed = prepared(rows, tmp_path)
    cases = logged_cases(feed, "test")
    policy = Table(feed.n_items)
    found = values_of(Ranker("table", policy), cases)
    assert cases.unit == "session"
    assert set(found) == {"auc", "buy_auc", "reward_auc", "tied"}
    assert set(cases.parts) == {"known", "new"}
    splits, weights = feed.sessions["split"].to_list(), feed.items["impressions"].to_list()
    by_session: dict[int, list] = {}
    for session, state, item, response in feed.frame.select("session", "state", "action", "response").iter_rows():
        if splits[session] == "test":
            held = {"nothing": [], "liked": ["positives"], "shown": ["positives", "skips"]}[kept_out]
            gone = {int(one) for name in held for one in getattr(feed.states, name)[state] if one != PAD}
            place = place_by_hand(feed, policy, state, item, gone, weights)
            by_session.setdefault(session, []).append((place, response))
    mixed = {name: one for name, one in by_session.items() if len({response > 0 for _, response in one}) == 2}
    assert cases.session.tolist() == list(mixed)
    expected = [auc_by_hand([s for s, _ in one], [float(r > 0) for _, r in one]) for one in mixed.values()]
    assert found["auc"].tolist() == pytest.approx(expected)
    assert logged_order(cases) is None


def test_what_a_moment_is_worth_does_not_count(tmp_path):
    """A policy that adds something to all scores of a state ranks as before, and is judged as before."""

    class Moody(Table):
        def scores(self, states, candidates=None):
            return super().scores(states, candidates) + 3 * states.lengths[:, None].astype(np.float32)

    rows = rows_of_slates(np.random.default_rng(9), 50).with_columns(
        step=pl.int_range(pl.len()).over("session_id"), position=pl.lit(0)
    )
    feed = prepared(rows, tmp_path)
    cases = logged_cases(feed, "test")
    plain, moody = (values_of(Ranker("x", kind(feed.n_items)), cases)["auc"] for kind in (Table, Moody))
    assert plain.tolist() == moody.tolist()
    assert values_of(Ranker("random", Uniform(feed.n_items)), cases)["auc"].tolist() == [0.5] * len(cases)


def test_rivals_are_drawn_by_how_often_they_are_shown(tmp_path):
    rows = rows_of_slates(np.random.default_rng(10), 300).with_columns(
        step=pl.int_range(pl.len()).over("session_id"), position=pl.lit(0)
    )
    feed = prepared(rows, tmp_path)
    shown = feed.items["impressions"].to_numpy()
    every, some = rivals_of(feed, 0), rivals_of(feed, 0, 30)
    assert every.items.tolist() == np.flatnonzero(shown).tolist()
    assert every.weights.tolist() == shown[shown > 0].tolist()
    assert some.weights.sum() == 30
    assert [enough_rivals(places) for places in (10, 100_000, 10_000_000)] == [400, 167, 100]
    assert len(some.items) < 30  # those shown often are drawn several times
    assert np.array_equal(some.items, rivals_of(feed, 0, 30).items)
    assert not np.array_equal(some.items, rivals_of(feed, 1, 30).items)
    common = set(np.argsort(-shown)[:20].tolist())
    assert some.weights[np.isin(some.items, list(common))].sum() > 15


def test_clicks_alone_ask_for_the_next_item(tmp_path):
    rows = rows_of_slates(np.random.default_rng(8), 60).filter(pl.col("response") == "click")
    rows = rows.with_columns(step=pl.int_range(pl.len()).over("session_id"), position=pl.lit(0))
    clicks = prepared(rows, tmp_path, Responses(rewards={"skip": 0.0, "click": 1.0}))
    cases = logged_cases(clicks, "test")
    assert cases.unit == "next item"
    policy = Table(clicks.n_items)
    barred = int(cases.item[3])
    policy.table[:, barred] = -np.inf
    found = next_item_values(Ranker("table", policy), cases)
    for number, (state, item) in enumerate(zip(cases.state, cases.item, strict=True)):
        scores = policy.table[int((clicks.states.positives[state] != PAD).sum())]
        above, equal = sum(scores > scores[item]), sum(scores == scores[item])
        places = [above + place for place in range(1, equal + 1)]
        hit = [float(place <= 20) for place in places] if item != barred else [0.0]
        reciprocal = [1 / place if place <= 20 else 0.0 for place in places] if item != barred else [0.0]
        assert found["recall@20"][number] == pytest.approx(mean(hit))
        assert found["mrr@20"][number] == pytest.approx(mean(reciprocal))
    chance = values_of(Ranker("random", Uniform(clicks.n_items)), cases)
    assert chance["recall@20"] == pytest.approx(20 / clicks.n_items)
    assert set(chance["tied"]) == {100.0}


def test_logs_that_tell_nothing_are_refused(tmp_path):
    rows = rows_of_slates(np.random.default_rng(9), 30)
    skips = prepared(rows.with_columns(response=pl.lit("skip")), tmp_path / "skips")
    with pytest.raises(InputError, match="no ranking can be judged"):
        logged_cases(skips, "test")
    apart = rows.with_columns(
        response=pl.when(pl.col("session_id") % 2 == 0).then(pl.lit("skip")).otherwise(pl.lit("buy"))
    )
    with pytest.raises(InputError, match="both a positive response and another"):
        logged_cases(prepared(apart, tmp_path / "apart"), "test")


# The commands.

QUICK = ["--set", "updates=20"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(bcd4rec.__file__).parents[1]), "COLUMNS": "160"}
FLOOR = "ctr" if "ctr" in BASELINES else "random"


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "bcd4rec.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=300)


def result(*arguments: object) -> dict:
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refusal(*arguments: object) -> str:
    done = run(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def tasteful(sessions: int, seed: int) -> pl.DataFrame:
    """Even items are liked, and of those with the parity of a session's half the more."""
    rng = np.random.default_rng(seed)
    rows = []
    for session in range(sessions):
        for step in range(4):
            for position, item in enumerate(rng.choice(ITEMS, 5, replace=False)):
                liked = rng.random() < (0.6 if item % 2 == 0 else 0.1)
                rows.append((session, step, position, int(item), "click" if liked else "skip"))
    return pl.DataFrame(rows, schema=["session_id", "step", "position", "item_id", "response"], orient="row")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    tasteful(150, 1).write_parquet(folder / "log.parquet")
    result("prepare", folder / "log.parquet", "--out", folder / "dataset", "--rewards", "skip=0,click=2")
    tasteful(60, 2).with_columns(item_id=pl.col("item_id") + 2).write_parquet(folder / "later.parquet")
    return folder


@pytest.fixture(scope="module")
def trained(work: Path) -> "subprocess.CompletedProcess[str]":
    done = run("train", "bcd4rec", work / "dataset", "--out", work / "policy", *QUICK)
    assert done.returncode == 0, done.stderr
    return done


def test_train_ends_with_a_verdict(work, trained):
    for opponent in {FLOOR, "popular", "stan", "random"}:
        assert any(
            f"bcd4rec is {verdict} than {opponent} (AUC" in trained.stdout
            for verdict in ("better", "no better", "worse")
        ), opponent
    told = json.loads((work / "policy" / "manifest.json").read_text())["about"]["validation"]
    assert told["split"] == "validation"
    assert told["policies"][0]["policy"] == "bcd4rec"
    assert {one["second"] for one in told["comparisons"]} >= {"popular", "stan", "random"}
    again = result("evaluate", "--log", work / "dataset", work / "policy", "popular")
    mine, theirs = (next(one for one in found["policies"] if one["policy"] == "popular") for found in (again, told))
    assert mine["auc"] == pytest.approx(theirs["auc"])


def test_every_method_is_judged_when_it_is_trained(work, tmp_path):
    found = result("train", "popular", work / "dataset", "--out", tmp_path / "popular")["validation"]
    names = [one["policy"] for one in found["policies"]]
    assert names.count("popular") == 1
    assert "stan" in names
    by_name = {one["policy"]: one for one in found["policies"]}
    assert by_name["popular"]["auc"] > 0.6
    assert by_name["random"]["auc"] == 0.5
    verdicts = {one["second"]: one["verdict"] for one in found["comparisons"]}
    assert verdicts["random"] == "better"


def test_train_says_when_nothing_can_judge(work, tmp_path):
    result("prepare", work / "log.parquet", "--out", tmp_path / "data", "--validation", "0")
    done = run("train", "popular", tmp_path / "data", "--out", tmp_path / "popular", "--json")
    assert json.loads(done.stdout)["validation"] is None
    assert "Nothing tells whether this policy is any good" in done.stderr
    assert "'validation'" in done.stderr


def test_neighbours_are_left_out_where_they_take_long(work, monkeypatch):
    from bcd4rec.workflows.fitting import fit

    monkeypatch.setattr(judging, "MANY_SESSIONS", 50)
    monkeypatch.setattr(judging, "MOST", 30)
    data = Dataset.load(work / "dataset")
    found = judging.judge_on_log(fit("popular", data), data, 0)
    assert len(found.judgement.cases) == 30
    assert "stan" not in found.judgement.values
    assert found.notes == ("Not compared with stan, which takes long on 120 sessions.",)


def test_evaluate_on_a_data_set(work, trained, tmp_path):
    found = result(
        "evaluate", "--log", work / "dataset", work / "policy", "popular", "--report", tmp_path / "page.html",
        "--sessions", tmp_path / "sessions.parquet",
    )  # fmt: skip
    names = [one["policy"] for one in found["policies"]]
    assert names[:2] == ["bcd4rec", "popular"]
    assert "random" in names
    assert (found["unit"], found["split"]) == ("slate", "validation")
    assert {one["second"] for one in found["comparisons"]} == {FLOOR}
    page = (tmp_path / "page.html").read_text()
    assert "BCD4Rec" in page
    assert "<svg" in page
    assert found["comparisons"][0]["sentence"] in page
    compared = result("compare", tmp_path / "sessions.parquet")
    means = {one["policy"]: one["auc"] for one in compared["policies"]}
    assert means == pytest.approx({one["policy"]: one["auc"] for one in found["policies"]})
    apart = {(one["first"], one["second"]): one["auc"] for one in found["comparisons"]}
    pairs = {(p["first"], p["second"]): p["difference"] for p in compared["pairs"] if p["metric"] == "auc"}
    assert apart["bcd4rec", FLOOR] == pytest.approx(pairs["bcd4rec", FLOOR])
    table = run("evaluate", "--log", work / "dataset", work / "policy")
    assert f"AUC − {FLOOR}" in table.stdout
    assert f"than {FLOOR} (AUC" in table.stdout


def test_evaluate_on_another_split(work, trained):
    done = run("evaluate", "--log", work / "dataset", work / "policy", "--split", "train", "--json")
    assert json.loads(done.stdout)["split"] == "train"
    assert "how well they remember" in done.stderr
    assert "another data set" not in done.stderr


def test_evaluate_says_what_a_reader_has_to_know(work, trained, tmp_path):
    split = ["--rewards", "skip=0,click=2", "--seed", 5]
    result("prepare", work / "log.parquet", "--out", tmp_path / "skips", "--history", "all", *split)
    result("prepare", work / "log.parquet", "--out", tmp_path / "plain", "--history", "positives", *split)
    result("train", "popular", tmp_path / "skips", "--out", tmp_path / "policy")
    done = run("evaluate", "--log", tmp_path / "plain", tmp_path / "policy", "--json")
    assert json.loads(done.stdout)["policies"][0]["policy"] == "popular"
    assert "the states of this data set hold 0" in done.stderr
    assert "was learned from another data set" in done.stderr


def test_evaluate_on_a_plain_log(work, trained):
    found = result(
        "evaluate", "--log", work / "later.parquet", work / "policy", "popular", "--dataset", work / "dataset"
    )
    assert found["split"] == "all"
    assert found["sessions"] <= 60
    by_name = {one["policy"]: one for one in found["policies"]}
    assert by_name["popular"]["auc"] > 0.6
    rows = pl.read_parquet(work / "later.parquet")
    mixed = rows.filter((pl.col("response") == "click").any().over("session_id", "step")).filter(
        (pl.col("response") == "skip").any().over("session_id", "step")
    )
    assert found["cases"] == mixed.select("session_id", "step").n_unique()
    share = 100 * (mixed["item_id"] >= ITEMS).mean()
    assert by_name["bcd4rec"]["unknown"] == pytest.approx(share)
    assert found["parts"]["new"] > 0
    alone = result("evaluate", "--log", work / "later.parquet", work / "policy")
    assert alone["policies"][0]["policy"] == "bcd4rec"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--log", "WORK/none"], "none does not exist"),
        (["--log", "WORK/dataset", "WORK/nobody"], "there is no such folder"),
        (["--log", "WORK/dataset", "WORK/dataset"], "is not a policy"),
        (["--log", "WORK/policy"], "is not a data set"),
        (["--log", "WORK/dataset", "oracle"], "Unknown policy 'oracle'"),
        (["--log", "WORK/dataset", "--split", "mars"], "has no split 'mars'"),
        (["--log", "WORK/later.parquet", "--split", "test"], "all of whose sessions count"),
        (["--log", "WORK/later.parquet", "popular"], "has nothing to learn from"),
        (["--log", "WORK/dataset", "--env", "recsim"], "--env is for simulated users"),
        (["--log", "WORK/dataset", "--after-skip", "repeat"], "--after-skip is for simulated users"),
        (["--split", "test"], "--split is for --log"),
        (["--log", "WORK/strange.parquet", "WORK/policy"], "knows none of the log's"),
        (["--log", "WORK/dataset", "--report", "WORK/log.parquet"], "exists already"),
    ],
)
def test_bad_input_is_one_sentence(arguments, words, work, trained):
    strange = tasteful(9, 3).with_columns(item_id=pl.col("item_id") + 1000)
    strange.write_parquet(work / "strange.parquet")
    assert words in refusal("evaluate", *(part.replace("WORK", str(work)) for part in arguments))


# Whose users a policy has learned from.


def test_simulated_users_judge_only_policies_of_their_own_logs(work, trained, tmp_path):
    told = refusal("evaluate", work / "policy", "random", "--env", "recsim", "--users", 5)
    assert "does not tell which users" in told
    assert "--foreign" in told
    assert "--dataset" in refusal("evaluate", "popular", "--users", 5, "--dataset", work / "dataset")
    found = result("evaluate", work / "policy", "random", "oracle", "--users", 5, "--foreign")
    assert found["policies"][0]["policy"] == "bcd4rec"
    log, data, policy = (tmp_path / name for name in ("log.parquet", "data", "policy"))
    result("simulate", "--users", 40, "--logs", log)
    assert result("prepare", log, "--out", data, "--rewards", "skip=0,click=4")
    result("train", "popular", data, "--out", policy)
    expected = {"env": "recsim", "preset": "paper", "alike": ["paper"], "items": 200, "categories": 20}
    for folder in (data, policy):
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest.get("about", manifest)["origin"] == expected
    assert result("evaluate", policy, "random", "oracle", "popular", "--users", 5, "--dataset", data)["policies"]
    told = refusal("evaluate", policy, "--users", 5, "--preset", "single")
    assert "learned from recsim, preset paper, expected a Parquet log of recsim, preset single" in told
    assert "shop, preset single" in refusal("evaluate", policy, "--users", 5, "--env", "shop")


def test_the_origin_goes_through_raw_files_and_days(tmp_path):
    raw, log, data = tmp_path / "raw", tmp_path / "days.parquet", tmp_path / "data"
    result("simulate", "--env", "shop", "--days", 12, "--scale", 0.3, "--raw", raw, "--logs", log)
    expected = json.loads((raw / "origin.json").read_text())
    assert (expected["env"], expected["preset"]) == ("shop", "pages")
    assert {"single", "pages"} <= set(expected["alike"])  # the same users, slates of another size
    periods = ["--split", "session", "--set", "cut=none"]
    result("prepare", raw, "--format", "diginetica", "--out", data, *periods)
    result("prepare", raw, "--format", "diginetica", "--out", tmp_path / "rare", *periods, "--set", "min_support=2")
    result("prepare", log, "--out", tmp_path / "canonical")
    for folder in (data, tmp_path / "rare", tmp_path / "canonical"):
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest.get("about", manifest)["origin"] == expected
    result("train", "popular", data, "--out", tmp_path / "policy")
    assert result("evaluate", tmp_path / "policy", "random", "oracle", "--env", "shop", "--users", 5)["policies"]
    (raw / "origin.json").write_text("[]")
    assert "origin.json" in refusal("prepare", raw, "--format", "diginetica", "--out", tmp_path / "other", *periods)


def test_a_log_of_several_files_tells_what_they_agree_on(tmp_path):
    from bcd4rec.data.origin import origin_of_log
    from bcd4rec.sim.interest_evolution import PRESETS, InterestEvolution
    from bcd4rec.sim.rollout import write_log

    log = tasteful(3, 0)
    paper, single = InterestEvolution(), InterestEvolution(PRESETS["single"])
    write_log(log, tmp_path / "a.parquet", paper)
    write_log(log, tmp_path / "b.parquet", paper)
    assert origin_of_log(Log(tmp_path))["preset"] == "paper"
    write_log(log, tmp_path / "b.parquet", single)
    assert origin_of_log(Log(tmp_path)) is None
    log.write_parquet(tmp_path / "b.parquet")
    assert origin_of_log(Log(tmp_path)) is None
    log.write_parquet(tmp_path / "a.parquet", metadata={"bcd4rec.origin": "nonsense"})
    log.write_csv(tmp_path / "b.csv")
    assert origin_of_log(Log(tmp_path / "a.parquet")) is None
    assert origin_of_log(Log(tmp_path / "b.csv")) is None
    small = InterestEvolution(PRESETS["paper"].model_copy(update={"items": 50}))
    assert (small.origin.preset, small.origin.alike) == (None, (None,))
    assert not small.origin.fits(paper.origin)
    assert not paper.origin.fits(small.origin)
