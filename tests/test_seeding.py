"""Streams of random numbers that stay what they are."""

import numpy as np
import pytest

from bcd4rec.seeding import generator, stream_seed


def test_streams_are_stable():
    """Changing any of these numbers changes every simulated log and every split ever made."""
    assert stream_seed(0) == 144831499309457368979394674105665208338
    assert stream_seed(7, "users") == 18057448988635667534302487962070051402
    assert generator(7, "users").integers(1_000_000, size=3).tolist() == [414264, 629061, 134605]
    assert generator(7, "users", 2).random() == 0.8688858093539273


def test_the_same_stream_twice():
    np.testing.assert_array_equal(generator(3, "a", 1).random(5), generator(3, "a", 1).random(5))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((7, "users"), (7, "choices")),
        ((7, "users"), (8, "users")),
        ((7, "users"), (7,)),
        ((7, "a", "b"), (7, "b", "a")),
        ((7, "a", 1), (7, "a", 2)),
        ((71, "a"), (7, "1a")),
    ],
)
def test_streams_are_independent(one, other):
    assert stream_seed(*one) != stream_seed(*other)
    left, right = generator(*one).random(2000), generator(*other).random(2000)
    assert not np.isin(left, right).any()
    assert abs(np.corrcoef(left, right)[0, 1]) < 0.1


def test_a_seed_of_numpy_is_the_same_seed():
    assert stream_seed(np.int64(7), "users") == stream_seed(7, "users")
    assert stream_seed(stream_seed(7, "evaluation"), "users") < 2**128
