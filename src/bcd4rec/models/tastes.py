"""The same small network for every axis of taste.

The embeddings' axes are tastes (see `data.cooccurrence`). What a session says about one taste, how much of it was
liked and skipped, lately and in all, is turned into that entry of the state by one network that all entries share. It
has some 1,300 weights however many items and axes there are, so a few thousand sessions are enough to learn from.
"""

import torch
from torch import Tensor, nn

from bcd4rec.data.states import PAD
from bcd4rec.models.encoder import ENCODERS, Encoder, look_up

LATE_POSITIVES, LATE_SKIPS = 2, 7  # how many of the last items count as lately
HIDDEN = 32
# Rough sizes of the inputs, to bring them near 1: liked, liked lately, skipped, skipped lately, and both counts.
SIZES = (1.0, 1.0, 5.0, 2.0, 10.0, 70.0)


@ENCODERS.register("tastes")
class Tastes(Encoder):
    """s_d = f(Σ liked_d, Σ late liked_d, Σ skipped_d, Σ late skipped_d, counts); the rest of s is a mean over axes."""

    takes_skips = True

    def __init__(self, width: int, outputs: int):
        super().__init__(outputs)
        self.width, self.more = width, outputs - width
        self.network = nn.Sequential(
            nn.Linear(len(SIZES), HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 1 + self.more),
        )

    def forward(self, items: Tensor, embeddings: Tensor, skips: Tensor | None = None) -> Tensor:
        skips = items[:, :0] if skips is None else skips
        liked, late, likes = _sums(items, embeddings, LATE_POSITIVES)
        skipped, late_skipped, misses = _sums(skips, embeddings, LATE_SKIPS)
        counts = (likes.expand_as(liked), misses.expand_as(liked))
        inputs = torch.stack((liked, late, skipped, late_skipped, *counts), dim=-1)  # (B, D, 6)
        found = self.network(inputs / torch.tensor(SIZES))  # (B, D, 1 + more)
        return torch.cat((found[..., 0], found[..., 1:].mean(dim=1)), dim=1)

    def encode(self, items: Tensor, lengths: Tensor, embeddings: Tensor) -> Tensor:
        return self.forward(items, embeddings)


def _sums(items: Tensor, embeddings: Tensor, late: int) -> tuple[Tensor, Tensor, Tensor]:
    """(B, D) the sum of the items' embeddings, (B, D) the sum over the last `late` of them, (B, 1) their number."""
    count = (items != PAD).sum(dim=1, keepdim=True)
    vectors = look_up(items, embeddings)
    age = count - 1 - torch.arange(items.shape[1])
    recent = vectors * ((age >= 0) & (age < late)).unsqueeze(-1)
    return vectors.sum(dim=1), recent.sum(dim=1), count.float()
