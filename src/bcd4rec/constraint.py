"""Behaviour probabilities -> allowed actions; constrained argmax over ragged sets."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bcd4rec.data.states import IntArray
from bcd4rec.models.behaviour import BehaviourModel

Form = Literal["relative", "literal"]

# Gathering one vector of a ragged set costs about as much as this many rows of a dense product.
GATHER_COST = 8


def allowed_mask(log_probabilities: Tensor, beta: float, form: Form = "relative") -> Tensor:
    """(B, A) which actions the behaviour policy makes likely enough.

    `relative`: p ≥ β · max p. `literal`: p > β. The mode (on ties the lowest index) is allowed in both forms,
    so that no state is left without an action.
    """
    top, mode = log_probabilities.max(dim=1, keepdim=True)
    threshold = math.log(beta) if beta > 0 else -math.inf
    mask = log_probabilities >= top + threshold if form == "relative" else log_probabilities > threshold
    return mask.scatter(1, mode, True)


def mask_values(values: Tensor, allowed: Tensor) -> Tensor:
    """−inf where not allowed. A product with the mask would let a forbidden 0 beat an allowed negative value."""
    return values.masked_fill(~allowed, -math.inf)


@dataclass(frozen=True)
class AllowedSets:
    """The allowed actions of each row: those of row j are `items[offsets[j]:offsets[j + 1]]`, in ascending order."""

    items: Tensor  # (total,) int32
    offsets: Tensor  # (rows + 1,) int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Tensor:
        return self.items[self.offsets[row] : self.offsets[row + 1]]

    @property
    def sizes(self) -> Tensor:
        return self.offsets.diff()

    @classmethod
    def build(
        cls,
        log_probabilities: Callable[[int, int], Tensor],
        rows: int,
        beta: float,
        form: Form = "relative",
        chunk: int = 1024,
        limit: int = 0,
    ) -> "AllowedSets":
        """Sets of all rows, `chunk` rows at a time; `log_probabilities(start, stop)` gives (stop − start, A).

        With `limit` > 0 at most so many actions, the likeliest, are kept for each row.
        """
        items, sizes = [], []
        for start in range(0, rows, chunk):
            scores = log_probabilities(start, min(start + chunk, rows))
            mask = allowed_mask(scores, beta, form)
            if 0 < limit < mask.shape[1]:
                likeliest = mask_values(scores, mask).topk(limit, dim=1).indices
                mask &= torch.zeros_like(mask).scatter_(1, likeliest, True)
            items.append(mask.nonzero()[:, 1].to(torch.int32))
            sizes.append(mask.sum(dim=1))
        if not items:
            return cls(torch.zeros(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int64))
        return cls(torch.cat(items), torch.nn.functional.pad(torch.cat(sizes).cumsum(0), (1, 0)))

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The sets of some rows one after another: the actions, and which of `rows` each belongs to."""
        starts, sizes = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        device = rows.device
        owner = torch.repeat_interleave(torch.arange(len(rows), device=device), sizes)
        first = sizes.cumsum(0) - sizes
        position = torch.arange(len(owner), device=device) - first[owner] + starts[owner]
        return self.items[position].long(), owner

    def argmax(self, rows: Tensor, vectors: Tensor, matrix: Tensor) -> Tensor:
        """(B,) for row rows[b] the allowed action a with the largest vectors[b] · matrix[a]; ties to the lower index.

        `vectors` is (B, D) and `matrix` (A, D); no (B, A) array is made where the sets are small.
        """
        total = int((self.offsets[rows + 1] - self.offsets[rows]).sum())
        if len(rows) * len(matrix) <= GATHER_COST * total:
            return self._dense_argmax(rows, vectors @ matrix.T)
        items, owner = self.gather(rows)
        values = (vectors[owner] * matrix[items]).sum(dim=1)
        return items[segment_argmax(values, owner, len(rows))]

    def _dense_argmax(self, rows: Tensor, values: Tensor) -> Tensor:
        """As `argmax`, of values (B, A). Row by row: the sets are long, so a loop in NumPy is quicker than indexing."""
        items, offsets = self.items.cpu().numpy(), self.offsets.cpu().numpy()
        sets = (items[offsets[row] : offsets[row + 1]] for row in rows.tolist())
        best = [one[row[one].argmax()] for one, row in zip(sets, values.detach().cpu().numpy(), strict=True)]
        return torch.from_numpy(np.array(best, np.int64)).to(rows.device)


def segment_argmax(values: Tensor, owner: Tensor, segments: int) -> Tensor:
    """(segments,) the first place of the largest value of each segment; `owner` is ascending, no segment is empty."""
    best = values.new_full((segments,), -math.inf).scatter_reduce(0, owner, values, "amax")
    positions = torch.arange(len(values), device=values.device).masked_fill(values != best[owner], len(values))
    return torch.full((segments,), len(values), device=values.device).scatter_reduce(0, owner, positions, "amin")


@torch.no_grad()
def behaviour_sets(
    model: BehaviourModel, sessions: IntArray, beta: float, form: Form = "relative", limit: int = 0
) -> AllowedSets:
    """The allowed sets of `sessions` (n, L) under a frozen M, in chunks whose memory does not grow with A."""
    chunk, device = min(1024, max(1, 2**24 // len(model.embeddings))), model.embeddings.device

    def log_probabilities(start: int, stop: int) -> Tensor:
        return model.log_probabilities(torch.from_numpy(np.array(sessions[start:stop])).to(device))

    return AllowedSets.build(log_probabilities, len(sessions), beta, form, chunk, limit)
