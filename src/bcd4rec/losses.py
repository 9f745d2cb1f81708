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
