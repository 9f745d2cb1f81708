"""Metrics against cases worked out by hand and against plain loops; intervals against simulation."""

import json
from collections import defaultdict
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd4rec.data.responses import DIGINETICA, RECSIM, Responses
from bcd4rec.errors import InputError
from bcd4rec.evaluation import statistics
from bcd4rec.evaluation.metrics import (
    coverage,
    gap_closed,
    gini,
    per_session,
    popularity_curve,
    rate_by_step,
    rate_name,
    target_rate,
)
from bcd4rec.evaluation.statistics import (
    DISCOUNTED_RETURN,
    RATE,
    RETURN,
    Interval,
    Ratio,
    coverage_interval,
    difference,
    gap_interval,
    interval,
    resampled_sums,
    wilson,
)
from bcd4rec.evaluation.summary import Gap, compare, curves, summarise

COLUMNS = ["session_id", "step", "position", "item_id", "response"]


def log_of(*rows: tuple[Any, ...]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=COLUMNS, orient="row")


def random_log(seed: int, sessions: int = 11, n_items: int = 23, slate: int = 3, longest: int = 7) -> pl.DataFrame:
    """Sessions of unequal lengths, rows in no order, a request may get several responses."""
    rng = np.random.default_rng(seed)
    rows = []
    for session in range(sessions):
        for step in range(rng.integers(1, longest + 1)):
            for position, item in enumerate(rng.permutation(n_items)[:slate].tolist()):
                rows.append((session, step, position, item, str(rng.choice(DIGINETICA.names, p=[0.5, 0.3, 0.2]))))
    return log_of(*[rows[row] for row in rng.permutation(len(rows))])


def table_of(targets: Any, steps: Any, ids: Any = None) -> pl.DataFrame:
    return pl.DataFrame(
        {"session_id": np.arange(len(targets)) if ids is None else ids, "steps": steps, "targets": targets}
    )


# By hand: two requests of two items (a click, then two skips), and one request that is bought and clicked.
HAND = log_of(
    ("a", 0, 0, 10, "skip"),
    ("a", 0, 1, 11, "click"),
    ("a", 1, 0, 10, "skip"),
    ("a", 1, 1, 12, "skip"),
    ("b", 0, 0, 11, "buy"),
    ("b", 0, 1, 13, "click"),
    ("b", 2, 0, 10, "buy"),
)


def test_per_session_by_hand() -> None:
    assert per_session(HAND, DIGINETICA, gamma=0.5).to_dicts() == [
        {"session_id": "a", "steps": 2, "targets": 0, "return": 1.0, "discounted_return": 1.0},
        {"session_id": "b", "steps": 2, "targets": 2, "return": 11.0, "discounted_return": 6.0 + 0.25 * 5.0},
    ]


def test_several_targets_in_one_request_count_once() -> None:
    log = log_of((1, 0, 0, 5, "click"), (1, 0, 1, 6, "click"))
    assert per_session(log, RECSIM).row(0) == (1, 1, 1, 8.0, 8.0)


def test_target_rate_by_hand() -> None:
    assert target_rate(per_session(HAND, DIGINETICA)) == 50.0
    clicks = Responses(rewards=DIGINETICA.rewards, target="click")
    assert target_rate(per_session(HAND, clicks)) == 50.0  # one request of each session
    assert target_rate(per_session(HAND.filter(pl.col("session_id") == "a"), clicks)) == 50.0


def test_rate_names() -> None:
    assert rate_name(RECSIM) == "ctr"
    assert rate_name(DIGINETICA) == "br"
    assert rate_name(Responses(rewards={"skip": 0, "like": 1})) == "like_rate"


def test_rate_by_step_counts_the_sessions_that_got_so_far() -> None:
    assert rate_by_step(HAND, DIGINETICA).rows() == [(0, 2, 1, 50.0), (1, 1, 0, 0.0), (2, 1, 1, 100.0)]


def test_coverage_by_hand() -> None:
    assert coverage(HAND, n_items=8, x=1) == 25.0  # items 10 and 11
    assert coverage(HAND, n_items=8, x=2) == 50.0
    assert coverage(HAND, n_items=4) == 100.0


def test_popularity_by_hand_with_ties_to_the_lower_id() -> None:
    curve = popularity_curve(HAND, n_items=6)
    assert curve["item_id"].to_list() == [10, 11, 12, 13, None, None]
    assert curve["rank"].to_list() == [1, 2, 3, 4, 5, 6]
    assert curve["shown"].to_list() == [3, 2, 1, 1, 0, 0]
    assert curve["share"].to_list() == pytest.approx([300 / 7, 200 / 7, 100 / 7, 100 / 7, 0, 0])
    assert len(popularity_curve(HAND)) == 4


def test_gini_by_hand() -> None:
    one = log_of(*[("s", step, 0, 3, "skip") for step in range(5)])
    assert gini(one, 4) == pytest.approx(0.75)  # all to one of four
    assert gini(log_of(("s", 0, 0, 1, "skip"), ("s", 0, 1, 2, "skip")), 2) == 0.0
    assert gini(log_of(("s", 0, 0, 1, "skip"), *[("s", 1, k, 2, "skip") for k in range(3)]), 2) == pytest.approx(0.25)


def test_gap_closed_reproduces_the_shares_of_table_1() -> None:
    rows = {58: (76.4, 63.1, 85.9), 62: (79.3, 68.3, 85.9), 55: (83.2, 79.9, 85.9), 89: (24.1, 4.1, 26.6)}
    for share, (method, behaviour, online) in rows.items():
        assert gap_closed(method, behaviour, online) == pytest.approx(share, abs=0.51)
    assert gap_closed(3.0, 4.0, 6.0) == -50.0
    assert gap_closed(3.0, 4.0, 4.0) is None
    assert gap_closed(3.0, 4.0, 2.0) is None


@pytest.mark.parametrize("seed", range(3))
def test_against_plain_loops(seed: int) -> None:
    log, gamma, x, n_items = random_log(seed), 0.8, 2, 23
    steps, targets, returns, discounted = (defaultdict(float) for _ in range(4))
    requests = defaultdict(list)
    covered, shown = set(), defaultdict(int)
    for session, step, position, item, response in log.rows():
        requests[session, step].append(response)
        shown[item] += 1
        if position < x:
            covered.add(item)
    for (session, step), answers in requests.items():
        steps[session] += 1
        targets[session] += "buy" in answers
        for answer in answers:
            returns[session] += DIGINETICA.rewards[answer]
            discounted[session] += gamma**step * DIGINETICA.rewards[answer]
    found = per_session(log, DIGINETICA, gamma)
    assert found["session_id"].to_list() == sorted(steps)
    for row in found.to_dicts():
        key = row["session_id"]
        assert (row["steps"], row["targets"], row["return"]) == (steps[key], targets[key], returns[key])
        assert row["discounted_return"] == pytest.approx(discounted[key])
    assert target_rate(found) == pytest.approx(100 * sum(targets.values()) / sum(steps.values()))
    assert coverage(log, n_items, x) == pytest.approx(100 * len(covered) / n_items)
    assert popularity_curve(log)["shown"].to_list() == sorted(shown.values(), reverse=True)
    counts = [shown[item] for item in range(n_items)]
    apart = sum(abs(a - b) for a in counts for b in counts)
    assert gini(log, n_items) == pytest.approx(apart / (2 * n_items * sum(counts)))
    for step, sessions, got, rate in rate_by_step(log, DIGINETICA).rows():
        answers = [found for (_, at), found in requests.items() if at == step]
        assert (sessions, got) == (len(answers), sum("buy" in answer for answer in answers))
        assert rate == pytest.approx(100 * got / sessions)


def test_the_order_of_rows_changes_no_bit() -> None:
    log = random_log(5)
    odd = Responses(rewards={"skip": -0.1, "click": 0.7, "buy": 0.3})
    for seed in range(3):
        assert per_session(log.sample(fraction=1, shuffle=True, seed=seed), odd).equals(per_session(log, odd))


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (HAND.drop("step"), "no column step"),
        (HAND.clear(), "no rows"),
        (HAND.with_columns(response=pl.lit("like")), "'like'"),
        (HAND.with_columns(response=pl.lit(None, pl.String)), "None"),
    ],
)
def test_bad_logs(log: pl.DataFrame, words: str) -> None:
    with pytest.raises(InputError, match=words):
        per_session(log, DIGINETICA)


def test_bad_catalogue_and_positions() -> None:
    with pytest.raises(InputError, match="shows 4 items, but the catalogue has 3"):
        coverage(HAND, 3)
    with pytest.raises(InputError, match="shows 4 items"):
        popularity_curve(HAND, 3)
    with pytest.raises(InputError, match="expected 1 or more"):
        coverage(HAND, 9, x=0)


# Intervals


def test_resampled_sums_against_a_loop() -> None:
    columns = np.random.default_rng(1).random((3, 7))
    rng, twin = np.random.default_rng(2), np.random.default_rng(2)
    found = resampled_sums(columns, rng, resamples=5)
    for resample in range(5):
        drawn = [int(twin.integers(7)) for _ in range(7)]
        for column in range(3):
            assert found[column, resample] == pytest.approx(sum(columns[column, row] for row in drawn))


def test_chunks_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = np.random.default_rng(1).random((2, 13))
    whole = resampled_sums(columns, np.random.default_rng(2), 101)
    monkeypatch.setattr(statistics, "CHUNK", 40)
    assert np.array_equal(whole, resampled_sums(columns, np.random.default_rng(2), 101))


def test_memory_is_bounded() -> None:
    drawn = []

    class Spy(np.random.Generator):
        def integers(self, *args: Any, **options: Any) -> Any:
            drawn.append(options["size"][0] * options["size"][1])
            return super().integers(*args, **options)

    resampled_sums(np.random.default_rng(1).random((1, 100_000)), Spy(np.random.PCG64(0)), 12)
    assert max(drawn) <= statistics.CHUNK
    assert sum(drawn) == 12 * 100_000


def test_a_ratio_keeps_numerator_and_denominator_together() -> None:
    """Sessions of very different lengths with one and the same rate: no resample can give another rate."""
    steps = np.array([2, 40, 6, 100])
    assert interval(table_of(steps // 2, steps)) == pytest.approx((50.0, 50.0, 50.0))


def test_interval_of_a_mean_agrees_with_the_normal_one() -> None:
    values = np.random.default_rng(0).exponential(3.0, 900)
    found = interval(pl.DataFrame({"session_id": np.arange(900), "return": values}), RETURN)
    half = 1.96 * values.std() / 30
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - half, abs=0.03)
    assert found.high == pytest.approx(values.mean() + half, abs=0.03)


def test_same_seed_same_bits() -> None:
    table = table_of(np.arange(30) % 7, np.full(30, 9))
    assert interval(table, seed=3) == interval(table, seed=3) == interval(table.reverse(), seed=3)
    assert interval(table, seed=3) != interval(table, seed=4)


def test_one_session_has_no_width() -> None:
    assert interval(table_of([1], [4])) == Interval(25.0, 25.0, 25.0)


def simulated(rng: np.random.Generator, lift: float = 0.0, users: int = 70) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Two policies on the same users; users differ much, in their taste and in how long they stay."""
    taste = rng.uniform(0.1, 0.7, users)
    steps = rng.integers(3, 16, users)
    return tuple(table_of(rng.binomial(steps, taste + add), steps) for add in (0.0, lift))  # type: ignore[return-value]


def test_intervals_cover_the_truth_95_times_in_100() -> None:
    rng, hits, runs = np.random.default_rng(0), np.zeros(3), 400
    for seed in range(runs):
        first, second = simulated(rng, lift=0.1)
        rate = interval(first, seed=seed, resamples=300)
        paired = difference(second, first, seed=seed, resamples=300)
        unpaired = difference(second, first, seed=seed, resamples=300, paired=False)
        hits += [rate.low <= 40 <= rate.high, paired.low <= 10 <= paired.high, unpaired.low <= 10 <= unpaired.high]
    assert 0.91 <= hits[0] / runs <= 0.98
    assert 0.91 <= hits[1] / runs <= 0.98
    assert hits[2] > hits[1]  # leaving out the pairing wastes what the users have in common


def test_gap_interval_covers_the_truth() -> None:
    rng, runs, hits = np.random.default_rng(1), 300, 0
    for seed in range(runs):
        behaviour, online = simulated(rng, lift=0.25, users=150)
        taste = simulated(rng, lift=0.15, users=150)[1].with_columns(session_id=np.arange(150) + 1000)  # other users
        found = gap_interval(taste, behaviour, online, seed=seed, resamples=300)
        hits += found is not None and found.low <= 60 <= found.high
    assert 0.91 <= hits / runs <= 0.98


def test_paired_difference_by_hand() -> None:
    """Each session gains exactly one target in four steps: without doubt 25 points, however the users differ."""
    first = table_of([3, 1, 2, 1, 4], [4] * 5, list("abcde"))
    second = table_of([1, 2, 0, 3, 0], [4] * 5, list("cabed"))
    assert difference(first, second, paired=True) == pytest.approx((25.0, 25.0, 25.0))
    unpaired = difference(first, second, paired=False)
    assert unpaired.low < 10 < 40 < unpaired.high


def test_pairing_needs_the_same_sessions() -> None:
    first, second = table_of([1, 2], [3, 3]), table_of([1, 2, 1], [3, 3, 3])
    with pytest.raises(InputError, match="found 2 and 3 sessions"):
        difference(first, second, paired=True)
    assert difference(first, second) == difference(first, second, paired=False)
    names = first.with_columns(session_id=pl.Series(["0", "1"]))
    assert difference(first, names) == difference(first, names, paired=False)


def test_gap_of_the_ends_is_0_and_100() -> None:
    behaviour, online = simulated(np.random.default_rng(2), lift=0.25)
    assert gap_interval(behaviour, behaviour, online) == (0.0, 0.0, 0.0)
    assert gap_interval(online, behaviour, online) == (100.0, 100.0, 100.0)


def test_no_share_of_a_gap_that_may_not_exist() -> None:
    behaviour, online = simulated(np.random.default_rng(2), lift=0.005)
    assert gap_interval(online, behaviour, online, paired=False) is None
    assert gap_interval(online, behaviour, behaviour) is None
    assert gap_interval(behaviour, online, behaviour) is None


def test_coverage_interval_is_the_jackknife() -> None:
    log = random_log(4, sessions=9, n_items=40, slate=2, longest=3)
    found = coverage_interval(log, 40, x=1)
    without = [coverage(log.filter(pl.col("session_id") != left), 40, x=1) for left in range(9)]
    mean = sum(without) / 9
    half = 1.959964 * (8 / 9 * sum((value - mean) ** 2 for value in without)) ** 0.5
    assert found.value == coverage(log, 40, x=1)
    assert found.low == pytest.approx(found.value - half)
    assert found.high == pytest.approx(found.value + half)


def test_coverage_interval_covers_the_truth() -> None:
    rng, runs, n_items, sessions = np.random.default_rng(0), 300, 60, 40
    popularity = 1 / np.arange(1, n_items + 1)

    def draw() -> pl.DataFrame:
        items = rng.choice(n_items, (sessions, 3), p=popularity / popularity.sum()).ravel()
        return pl.DataFrame({"session_id": np.repeat(np.arange(sessions), 3), "item_id": items, "position": items * 0})

    truth = np.mean([coverage(draw(), n_items) for _ in range(runs)])
    found = [coverage_interval(draw(), n_items) for _ in range(runs)]
    assert 0.91 <= np.mean([one.low <= truth <= one.high for one in found]) <= 0.995


def test_coverage_without_rare_items_has_no_width() -> None:
    log = log_of(*[(session, 0, 0, item, "skip") for session in range(3) for item in range(2)])
    assert coverage_interval(log, 5) == Interval(40.0, 40.0, 40.0)


def test_wilson_by_hand() -> None:
    low, high = wilson(np.array([0.0, 5.0, 10.0]), np.array([10.0, 10.0, 10.0]))
    assert low.tolist() == pytest.approx([0.0, 23.66, 72.25], abs=0.01)
    assert high.tolist() == pytest.approx([27.75, 76.34, 100.0], abs=0.01)


tables = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=25).map(
    lambda rows: table_of([a for a, _ in rows], [a + b + 1 for a, b in rows])
)


@settings(max_examples=60, deadline=None)
@given(tables, tables, tables, st.integers(0, 2**40), st.sampled_from([1, 2, 50]))
def test_bounds(method: pl.DataFrame, behaviour: pl.DataFrame, online: pl.DataFrame, seed: int, resamples: int) -> None:
    rate = interval(method, RATE, seed, resamples)
    assert 0 <= rate.low <= rate.value <= rate.high <= 100
    assert rate.value == pytest.approx(target_rate(method))
    gap = difference(method, behaviour, RATE, seed, resamples)
    assert -100 <= gap.low <= gap.value <= gap.high <= 100
    share = gap_interval(method, behaviour, online, RATE, seed, resamples)
    if share is not None:
        assert share.low <= share.value <= share.high
        assert np.isfinite(share).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(3, 17))
def test_shares_and_bounds_of_any_log(seed: int, sessions: int, n_items: int) -> None:
    log = random_log(seed, sessions, n_items)
    found = coverage_interval(log, n_items)
    assert 0 <= found.low <= found.value <= found.high <= 100
    assert popularity_curve(log, n_items)["share"].sum() == pytest.approx(100)
    assert -1e-12 <= gini(log, n_items) < 1
    by_step = curves(log, DIGINETICA, n_items).by_step
    assert by_step["targets"].sum() == per_session(log, DIGINETICA)["targets"].sum()
    assert (by_step["low"] <= by_step["rate"] + 1e-9).all()
    assert (by_step["rate"] <= by_step["high"] + 1e-9).all()


# Summaries


def test_summary_is_made_of_the_metrics() -> None:
    log = random_log(0)
    sessions = per_session(log, DIGINETICA, 0.7)
    found = summarise("mine", log, DIGINETICA, 23, seed=5, gamma=0.7)
    assert found.rate == interval(sessions, RATE, 5)
    assert found.mean_return == interval(sessions, RETURN, 5)
    assert found.discounted_return == interval(sessions, DISCOUNTED_RETURN, 5)
    assert found.coverage == coverage_interval(log, 23, 3)
    assert (found.sessions, found.steps, found.gap_closed) == (11, sessions["steps"].sum(), None)


def test_summary_as_flat_json() -> None:
    found = summarise("mine", random_log(0), DIGINETICA, 23)
    flat = found.to_json()
    assert json.loads(json.dumps(flat, allow_nan=False)) == flat
    measured = ["br", "coverage@3", "return", "discounted_return", "gap_closed"]
    ends = [f"{name}{end}" for name in measured for end in ("", "_low", "_high")]
    assert list(flat) == ["policy", *ends, "sessions", "steps"]
    assert (flat["br"], flat["br_low"], flat["br_high"]) == found.rate
    assert flat["gap_closed"] is flat["gap_closed_low"] is None


def test_compare_puts_every_policy_on_the_way_from_behaviour_to_online() -> None:
    def log(rate: float, seed: int) -> pl.DataFrame:
        clicked = np.random.default_rng(seed).random(600) < rate
        names = np.where(clicked, "click", "skip")
        return log_of(*[(row // 4, row % 4, 0, row % 5, str(name)) for row, name in enumerate(names)])

    logs = {"random": log(0.2, 0), "new": log(0.5, 1), "oracle": log(0.8, 2)}
    random, new, oracle = compare(logs, RECSIM, 5, "random", "oracle", seed=1)
    assert (random.gap_closed, oracle.gap_closed) == ((0.0, 0.0, 0.0), (100.0, 100.0, 100.0))
    assert new.gap_closed is not None
    assert new.gap_closed.value == gap_closed(new.rate.value, random.rate.value, oracle.rate.value)
    ends = Gap(*(per_session(logs[name], RECSIM) for name in ("random", "oracle")))
    assert new == summarise("new", logs["new"], RECSIM, 5, 1, ends)
    with pytest.raises(InputError, match="'best', but there are only random, new, oracle"):
        compare(logs, RECSIM, 5, "random", "best")


def test_interval_as_text() -> None:
    assert Interval(64.04, 63.5, 64.66).text() == "64.0 [63.5, 64.7]"
    assert Interval(1, 0, 2).text(2) == "1.00 [0.00, 2.00]"


def test_a_ratio_needs_sessions() -> None:
    with pytest.raises(InputError, match="no sessions"):
        interval(table_of([], []), Ratio("targets"))
