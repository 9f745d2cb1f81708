"""Losses as pure functions: axes are named, reductions are stated."""

import torch
from torch import Tensor


def huber(errors: Tensor, kappa: float = 1.0) -> Tensor:
    """Half the square within ±κ and linear outside, of the same shape as `errors`."""
    size = errors.abs()
    return torch.where(size <= kappa, 0.5 * errors.square(), kappa * (size - 0.5 * kappa))


def quantile_huber(predicted: Tensor, target: Tensor, taus: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile Huber loss of predicted quantiles (B, N) at fractions `taus` (B, N) against target samples (B, M).

    Sum over the predicted quantiles N, mean over the target samples M, mean over the batch; the weight is divided
    by κ (Dabney et al., Implicit Quantile Networks, 2018, equations 2 and 3). A scalar.
    """
    if predicted.shape != taus.shape or predicted.shape[0] != target.shape[0]:
        raise ValueError(f"shapes do not fit: predicted {predicted.shape}, taus {taus.shape}, target {target.shape}")
    errors = target[:, None, :] - predicted[:, :, None]  # (B, N, M)
    weights = (taus[:, :, None] - (errors.detach() < 0).to(taus.dtype)).abs()
    return (weights * huber(errors, kappa) / kappa).sum(dim=1).mean(dim=1).mean()


def conservative(values: Tensor, logged: Tensor) -> Tensor:
    """Mean over the batch of log Σ_c exp values[b, c] − values[b, logged[b]] (Kumar et al., 2020). A scalar.

    `values` (B, C) may hold −inf where a state has fewer actions; `logged` (B,) is the place of the logged one.
    """
    return (values.logsumexp(dim=1) - values.gather(1, logged[:, None])[:, 0]).mean()


def advantage_weighted(logits: Tensor, values: Tensor, logged: Tensor, temperature: float, most: float) -> Tensor:
    """Mean over the batch of −w_b · log π(logged[b]), where w = min(exp(A / (β σ)), most) (Wang et al., 2020).

    The advantage A is the value of the logged action above the policy's mean value Σ_c π(c) values[b, c], and σ its
    root mean square in the batch: so the temperature β has no unit and means the same on every log. `logits` and
    `values` (B, C) hold −inf where a state has fewer actions. No gradient flows through the weights. A scalar.
    """
    chances = logits.log_softmax(dim=1)
    places = logged[:, None]
    with torch.no_grad():
        exists = logits > -torch.inf
        expected = (chances.exp() * values.masked_fill(~exists, 0.0)).sum(dim=1)
        advantage = values.gather(1, places)[:, 0] - expected
        size = advantage.square().mean().sqrt().clamp(min=1e-6)
        weights = (advantage / (temperature * size)).exp().clamp(max=most)
    return -(weights * chances.gather(1, places)[:, 0]).mean()
