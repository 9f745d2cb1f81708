"""What the soak calls growth."""

from bench.soak import FILLING_KB, FULL, GROWTH, NOISE_MB, Sample, allowed


def grew(*samples: tuple[int, float]) -> bool:
    found = [Sample(*one) for one in samples]
    return found[-1].mb > allowed(found)[0]


def test_a_server_may_fill_its_memory_and_then_no_more() -> None:
    filled = 200 + FILLING_KB * FULL / 1024
    assert not grew((0, 200), (FULL // 2, 250), (FULL, filled), (3 * FULL, filled + NOISE_MB - 1))
    assert grew((0, 200), (FULL // 2, 250), (FULL, 290), (3 * FULL, 290 * GROWTH + NOISE_MB + 1))
    assert grew((0, 200), (FULL, filled + 2 * NOISE_MB), (3 * FULL, filled + 2 * NOISE_MB))  # slowly, but too much
    assert allowed([Sample(0, 200), Sample(FULL, 290), Sample(FULL + 1, 291)])[1] == 290


def test_a_short_soak_is_measured_by_its_slates() -> None:
    assert not grew((100, 200), (5_000, 215))
    assert grew((100, 200), (5_000, 200 + NOISE_MB + FILLING_KB * 4_900 / 1024 + 1))
    assert allowed([Sample(100, 200), Sample(5_000, 215)])[1] is None
