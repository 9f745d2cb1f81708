"""Losses against plain loops, with sizes that all differ."""

import pytest
import torch

from bcd4rec.losses import huber, quantile_huber


def loop_huber(error: float, kappa: float) -> float:
    return 0.5 * error**2 if abs(error) <= kappa else kappa * (abs(error) - 0.5 * kappa)


def loop_loss(predicted, target, taus, kappa):
    total = 0.0
    for b in range(len(predicted)):
        for n in range(len(predicted[b])):
            for m in range(len(target[b])):
                error = target[b][m] - predicted[b][n]
                weight = abs(taus[b][n] - (1.0 if error < 0 else 0.0))
                total += weight * loop_huber(error, kappa) / kappa / len(target[b]) / len(predicted)
    return total


@pytest.mark.parametrize("kappa", [0.5, 1.0, 2.0])
def test_quantile_huber_equals_a_plain_loop_with_n_other_than_m(kappa):
    draw = torch.Generator().manual_seed(3)
    predicted = torch.randn(5, 3, generator=draw, dtype=torch.float64) * 3
    target = torch.randn(5, 7, generator=draw, dtype=torch.float64) * 3
    taus = torch.rand(5, 3, generator=draw, dtype=torch.float64)
    expected = loop_loss(predicted.tolist(), target.tolist(), taus.tolist(), kappa)
    assert quantile_huber(predicted, target, taus, kappa).item() == pytest.approx(expected, rel=1e-12)


def test_huber_is_square_inside_and_linear_outside():
    assert huber(torch.tensor([-3.0, -0.5, 0.0, 1.0, 4.0]), 1.0).tolist() == [2.5, 0.125, 0.0, 0.5, 3.5]


def test_with_one_quantile_at_one_half_the_loss_is_half_the_huber_loss():
    predicted, target = torch.tensor([[1.0], [2.0]]), torch.tensor([[4.0], [1.5]])
    assert quantile_huber(predicted, target, torch.full((2, 1), 0.5)).item() == pytest.approx((2.5 + 0.125) / 4)


def test_minimising_finds_the_quantiles():
    draw = torch.Generator().manual_seed(0)
    sample = torch.rand(1, 2000, generator=draw) * 10
    taus = torch.tensor([[0.1, 0.5, 0.9]])
    predicted = torch.zeros(1, 3, requires_grad=True)
    optimiser = torch.optim.Adam([predicted], 0.1)
    for _ in range(400):
        optimiser.zero_grad()
        quantile_huber(predicted, sample, taus, kappa=0.1).backward()
        optimiser.step()
    assert predicted.detach()[0].tolist() == pytest.approx([1.0, 5.0, 9.0], abs=0.4)


def test_shapes_that_would_broadcast_silently_are_refused():
    with pytest.raises(ValueError, match="shapes do not fit"):
        quantile_huber(torch.zeros(4, 3), torch.zeros(4, 5), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="shapes do not fit"):
        quantile_huber(torch.zeros(4, 3), torch.zeros(1, 5), torch.zeros(4, 3))
