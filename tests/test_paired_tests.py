"""Paired comparisons by hand, by plain loops and by SciPy."""

import itertools
import math

import numpy as np
import polars as pl
import pytest
from scipy.stats import permutation_test

from bcd4rec.errors import InputError
from bcd4rec.evaluation import paired_tests
from bcd4rec.evaluation.paired_tests import compare_paired, holm
from bcd4rec.evaluation.statistics import RATE, RETURN, Ratio, difference, interval

MEAN = Ratio("gain")


def means(**gains: list[float]) -> dict[str, pl.DataFrame]:
    return {name: pl.DataFrame({"session_id": range(len(gain)), "gain": gain}) for name, gain in gains.items()}


def rates(seed: int, sessions: int, **lifts: float) -> dict[str, pl.DataFrame]:
    """Sessions of different lengths for each policy, as when users leave a poor policy sooner."""
    tables = {}
    for place, (name, lift) in enumerate(lifts.items()):
        rng = np.random.default_rng([seed, place])
        steps = rng.integers(3, 12, sessions)
        targets = rng.binomial(steps, 0.4 + lift)
        tables[name] = pl.DataFrame(
            {"session_id": np.arange(sessions), "steps": steps, "targets": targets, "return": 2.5 * targets}
        )
    return tables


def plain_p_value(first: pl.DataFrame, second: pl.DataFrame) -> float:
    """Every way to swap sessions between two policies, one by one."""
    one, other = (list(zip(table["targets"], table["steps"], strict=True)) for table in (first, second))

    def apart(swaps: tuple[bool, ...]) -> float:
        sums = [[0, 0], [0, 0]]
        for swap, a, b in zip(swaps, one, other, strict=True):
            for side, (targets, steps) in enumerate((b, a) if swap else (a, b)):
                sums[side][0] += targets
                sums[side][1] += steps
        return sums[0][0] / sums[0][1] - sums[1][0] / sums[1][1]

    ways = list(itertools.product([False, True], repeat=len(one)))
    observed = abs(apart(ways[0]))
    return sum(abs(apart(way)) >= observed - 1e-12 for way in ways) / len(ways)


def test_difference_and_p_value_by_hand():
    found = compare_paired(means(a=[3.0, 2.0, 2.0], b=[1.0, 1.0, 0.0]), {"gain": MEAN})
    (pair,) = found.pairs
    assert (pair.metric, pair.first, pair.second) == ("gain", "a", "b")
    assert pair.difference.value == pytest.approx(5 / 3)
    assert pair.p_value == 2 / 8, "only no swap and all swaps are as far apart"
    assert found.values["gain"]["a"].value == pytest.approx(7 / 3)
    assert not pair.significant


def test_policies_that_are_alike():
    (pair,) = compare_paired(means(a=[1.0, 0.0] * 20, b=[1.0, 0.0] * 20), {"gain": MEAN}).pairs
    assert pair.difference == (0, 0, 0)
    assert pair.p_value == pair.p_holm == 1


def test_few_sessions_are_swapped_in_every_way_as_scipy_does():
    rng = np.random.default_rng(3)
    a, b = rng.normal(0.5, 1, 9), rng.normal(0, 1, 9)
    (pair,) = compare_paired(means(a=a.tolist(), b=b.tolist()), {"gain": MEAN}).pairs
    exact = permutation_test(
        (a, b), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples", vectorized=True
    )
    assert pair.p_value == pytest.approx(exact.pvalue)


def test_rates_are_swapped_with_their_steps():
    tables = rates(5, 8, a=0.2, b=0.0)
    (pair,) = compare_paired(tables, {"rate": RATE}).pairs
    assert pair.p_value == pytest.approx(plain_p_value(tables["a"], tables["b"]))
    assert 0.005 < pair.p_value < 0.9


def test_random_swaps_come_near_to_all_swaps(monkeypatch):
    tables = rates(5, 11, a=0.2, b=0.0)
    (exact,) = compare_paired(tables, {"rate": RATE}).pairs
    monkeypatch.setattr(paired_tests, "PERMUTATIONS", 2_000)  # fewer than 2¹¹, so they are drawn
    (drawn,) = compare_paired(tables, {"rate": RATE}).pairs
    assert drawn.p_value != exact.p_value
    assert drawn.p_value == pytest.approx(exact.p_value, abs=4 * math.sqrt(0.25 / 2_000))


def test_intervals_are_those_of_the_statistics():
    tables = rates(1, 60, a=0.2, b=0.0, c=0.1)
    found = compare_paired(tables, {"rate": RATE, "return": RETURN}, seed=4)
    assert [(one.metric, one.first, one.second) for one in found.pairs] == [
        (metric, *pair) for metric in ("rate", "return") for pair in (("a", "b"), ("a", "c"), ("b", "c"))
    ]
    for one in found.pairs:
        ratio = {"rate": RATE, "return": RETURN}[one.metric]
        expected = difference(tables[one.first], tables[one.second], ratio, seed=4, paired=True)
        assert one.difference == pytest.approx(expected)
        assert found.values[one.metric][one.first] == pytest.approx(interval(tables[one.first], ratio, seed=4))


def test_what_differs_is_significant_and_what_does_not_is_not():
    found = compare_paired(rates(2, 400, a=0.1, b=0.0, c=0.0), {"rate": RATE}).pairs
    assert [one.significant for one in found] == [True, True, False]
    assert found[0].p_value == 1 / 10_001, "none of 10,000 swaps is as far apart"


def test_p_values_are_uniform_without_a_difference():
    rng = np.random.default_rng(0)
    gains = {f"m{place}": rng.integers(0, 3, 40).astype(float).tolist() for place in range(24)}
    found = compare_paired(means(**gains), {"gain": MEAN}).pairs
    independent = [one.p_value for one in found if int(one.second[1:]) == int(one.first[1:]) + 1]
    assert 0.3 < np.mean(independent) < 0.75
    assert sum(one.significant for one in found) == 0


def test_holm_by_hand():
    assert holm(np.array([0.03, 0.01, 0.04])).tolist() == pytest.approx([0.06, 0.03, 0.06])
    assert holm(np.array([0.9, 0.6])).tolist() == [1.0, 1.0]


def test_against_one_policy_corrects_for_fewer_pairs():
    tables = rates(2, 30, a=0.15, b=0.0, c=0.05)
    every = compare_paired(tables, {"rate": RATE}).pairs
    some = compare_paired(tables, {"rate": RATE}, against="b").pairs
    assert [(one.first, one.second) for one in some] == [("a", "b"), ("b", "c")]
    assert some[0].difference == every[0].difference
    assert min(one.p_holm for one in some) == pytest.approx(2 * min(one.p_value for one in some))


def test_same_seed_same_numbers():
    tables = rates(2, 30, a=0.15, b=0.1)
    one, again, other = (compare_paired(tables, {"rate": RATE}, seed) for seed in (1, 1, 2))
    assert one == again
    assert one.pairs[0].p_value != other.pairs[0].p_value


def test_bad_input_is_named():
    with pytest.raises(InputError, match="nothing to compare it with"):
        compare_paired(means(a=[1.0]), {"gain": MEAN})
    with pytest.raises(InputError, match="no policy 'c' to compare with; there are a, b"):
        compare_paired(means(a=[1.0], b=[2.0]), {"gain": MEAN}, against="c")
    with pytest.raises(InputError, match="a and b did not meet the same sessions"):
        compare_paired(means(a=[1.0], b=[2.0, 3.0]), {"gain": MEAN})
