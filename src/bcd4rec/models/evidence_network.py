"""Q^τ(s, a) over evidence: an inner product of what the session makes of each column with the columns themselves.

    Q^τ(s, a) = φ(τ) · (w ⊙ x(s, a)),   x = (expected reward, evidence columns), and φ_v(τ) v(s) for the session itself

It starts as the response model: w is 1 for the expected reward and 0 for everything else, so all that is learned is
what the model misses and what lies beyond the next response. As with the paper's s_τ · a, the mean over quantiles is
one inner product, and any of the quantile heads fits on top.
"""

import torch
from torch import Tensor, nn

from bcd4rec.models.evidence import SUMMARY
from bcd4rec.models.evidence_kernels import COLUMNS
from bcd4rec.models.heads import HeadName, make_head

HIDDEN = 16


class SessionValue(nn.Module):
    """(B, 1) the value of a session itself, of its summary (B, SUMMARY)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(SUMMARY, HIDDEN), nn.Linear(HIDDEN, 1)

    def forward(self, sessions: Tensor) -> Tensor:
        values: Tensor = self.second(torch.relu(self.first(sessions)))
        return values


class EvidenceNetwork(nn.Module):
    """Weights of the columns, a small network for the value of the session itself, and a quantile head."""

    def __init__(self, head: HeadName, quantiles: int, cosines: int, columns: int = COLUMNS):
        super().__init__()
        self.inputs = 1 + columns
        self.weights = nn.Parameter(torch.eye(1, self.inputs)[0])
        self.value = SessionValue()
        self.head = make_head(head, self.inputs + 1, quantiles, cosines)

    def states(self, sessions: Tensor) -> Tensor:
        """(B, inputs + 1) of session summaries (B, SUMMARY)."""
        return torch.cat((self.weights.expand(len(sessions), -1), self.value(sessions)), dim=1)

    @staticmethod
    def actions(inputs: Tensor) -> Tensor:
        """(…, inputs + 1) of inputs (…, inputs)."""
        return nn.functional.pad(inputs, (0, 1), value=1.0)

    def preferences(self) -> Tensor:
        """(inputs,) whose inner product with the inputs ranks the items of any session by mean value."""
        anywhere = torch.zeros(1, SUMMARY, device=self.weights.device)
        return self.head.mean_vector(self.states(anywhere))[0, : self.inputs]

    def surplus(self) -> Tensor:
        """How far what ranks items has gone from the response model."""
        return self.preferences()[1:].square().sum()

    def distance(self) -> Tensor:
        """As `surplus`, and how far the weight of the expected reward has gone from 1.

        For losses that tell logged actions from others: where rewards are rare they would turn that weight around.
        """
        return self.surplus() + (self.preferences()[0] - 1).square()
