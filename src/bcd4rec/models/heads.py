"""Quantile heads: from a state vector to the distribution of the return of an action.

Every head scores by inner products with action vectors, so the mean over quantiles is one inner product too:
mean_τ Q^τ(s, a) = mean_vector(s) · a. Choosing among all items costs (B, D) × (D, A), however many quantiles.
"""

import math
from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

HeadName = Literal["expected", "fixed", "implicit"]
FRACTIONS = 32  # over which the mean of a head that knows any fraction is taken


def midpoints(count: int, device: torch.device | str | None = None) -> Tensor:
    """(count,) the fractions (i + ½) / count."""
    return (torch.arange(count, device=device) + 0.5) / count


def fold(quantiles: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean over the first axis, weighted where there are `weights`."""
    return quantiles.mean(dim=0) if weights is None else weights @ quantiles


class Head(nn.Module):
    """N fractions in a training batch are either the head's own midpoints or drawn anew."""

    def __init__(self, quantiles: int):
        super().__init__()
        self.count = quantiles

    @property
    def samples_taus(self) -> bool:
        """Whether any fraction in (0, 1) may be asked for; otherwise only `midpoints(count)`."""
        return False

    @abstractmethod
    def quantiles(self, states: Tensor, actions: Tensor, taus: Tensor) -> Tensor:
        """(B, N) quantiles at `taus` (B, N) of the return of `actions` (B, D) in `states` (B, D)."""

    @property
    def folded(self) -> int:
        """N: over how many evenly spread fractions `mean_vector` takes the mean; no draw, so it is deterministic."""
        return self.count

    @abstractmethod
    def mean_vector(self, states: Tensor, weights: Tensor | None = None) -> Tensor:
        """(B, D) the vector whose inner product with an action is the mean over its quantiles.

        With `weights` (N,), which sum to 1, it is the weighted mean.
        """


class ExpectedValue(Head):
    """One number: Q(s, a) = s · a. With τ = ½ the quantile loss is half the Huber loss of DQN."""

    def __init__(self, width: int):
        super().__init__(1)

    def quantiles(self, states: Tensor, actions: Tensor, taus: Tensor) -> Tensor:
        return (states * actions).sum(dim=1, keepdim=True)

    def mean_vector(self, states: Tensor, weights: Tensor | None = None) -> Tensor:
        return states


class FixedQuantiles(Head):
    """K state vectors of D entries, one for each fixed fraction (Dabney et al., 2017): s_k = s ⊙ φ_k + b_k.

    K matrices in place of the K vectors φ_k would have K · D² weights to learn from the same few sessions.
    """

    def __init__(self, width: int, quantiles: int):
        super().__init__(quantiles)
        self.scale = nn.Parameter(torch.ones(quantiles, width))
        self.bias = nn.Parameter(torch.zeros(quantiles, width))

    def quantiles(self, states: Tensor, actions: Tensor, taus: Tensor) -> Tensor:
        return (states * actions) @ self.scale.T + actions @ self.bias.T

    def mean_vector(self, states: Tensor, weights: Tensor | None = None) -> Tensor:
        return states * fold(self.scale, weights) + fold(self.bias, weights)


class ImplicitQuantiles(Head):
    """Q^τ(s, a) = (s ⊙ φ(τ)) · a with φ_j(τ) = ReLU(Σ_i cos(π i τ) w_ij + b_j) (Dabney et al., 2018)."""

    frequencies: Tensor

    def __init__(self, width: int, quantiles: int, cosines: int):
        super().__init__(quantiles)
        self.register_buffer("frequencies", math.pi * torch.arange(cosines), persistent=False)
        self.linear = nn.Linear(cosines, width)
        nn.init.ones_(self.linear.bias)  # φ ≈ 1 at first: the state vector counts as it is

    @property
    def samples_taus(self) -> bool:
        return True

    def embed(self, taus: Tensor) -> Tensor:
        """φ: one more axis of D entries behind those of `taus`."""
        return torch.relu(self.linear(torch.cos(taus.unsqueeze(-1) * self.frequencies)))

    def quantiles(self, states: Tensor, actions: Tensor, taus: Tensor) -> Tensor:
        return (self.embed(taus) @ (states * actions).unsqueeze(2)).squeeze(2)

    @property
    def folded(self) -> int:
        return FRACTIONS

    def mean_vector(self, states: Tensor, weights: Tensor | None = None) -> Tensor:
        return states * fold(self.embed(midpoints(FRACTIONS, self.frequencies.device)), weights)


def make_head(name: HeadName, width: int, quantiles: int, cosines: int) -> Head:
    if name == "expected":
        return ExpectedValue(width)
    if name == "fixed":
        return FixedQuantiles(width, quantiles)
    return ImplicitQuantiles(width, quantiles, cosines)
