"""The same small network for every axis of taste.

The embeddings' axes are tastes (see `data.cooccurrence`). What a session says about one taste, how much of it was
liked and skipped, lately and in all, is turned into that entry of the state by one network that all entries share. It
has some 1,600 weights however many items and axes there are, so a few thousand sessions are enough to learn from.

A taste of which a session says nothing counts as nothing: what the network makes of no evidence is taken off. Without
that, whatever an item has of all tastes together would move it up or down in every session.

A like never speaks against a taste and a skip never for it: the network is monotone. Logs of good policies need that.
There a taste is skipped often because it is shown often because it is liked, and a free network learns to show what
was skipped.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, linear, pad

from bcd4rec.data.states import PAD
from bcd4rec.models.encoder import ENCODERS, Encoder

LATE_POSITIVES, LATE_SKIPS = 2, 7  # how many of the last items count as lately
HIDDEN = 32
# The inputs are: liked, liked lately, skipped, skipped lately, and both counts. These are their rough sizes, to bring
# them near 1, and which way each may move a taste (0: either way).
SIZES = (1.0, 1.0, 5.0, 2.0, 10.0, 70.0)
DIRECTIONS = (1.0, 1.0, -1.0, -1.0, 0.0, 0.0)


@ENCODERS.register("tastes")
class Tastes(Encoder):
    """s_d = f(x_d) − f(x_0); the rest of s is a mean over axes.

    x_d is what was liked and skipped along axis d, lately and in all, and the counts of both; in x_0 there is nothing
    but the counts.
    """

    takes_skips = True

    def __init__(self, width: int, outputs: int):
        super().__init__(outputs)
        self.width, self.more = width, outputs - width
        self.taste = Monotone(DIRECTIONS)
        self.rest = nn.Sequential(nn.Linear(len(SIZES), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, self.more))

    def forward(self, items: Tensor, embeddings: Tensor, skips: Tensor | None = None) -> Tensor:
        skips = items[:, :0] if skips is None else skips
        liked, late, likes = _sums(items, embeddings, LATE_POSITIVES)
        skipped, late_skipped, misses = _sums(skips, embeddings, LATE_SKIPS)
        counts = (likes.expand_as(liked), misses.expand_as(liked))
        inputs = torch.stack((liked, late, skipped, late_skipped, *counts), dim=-1) / torch.tensor(SIZES)  # (B, D, 6)
        evidence = self.taste.directions != 0
        known = (inputs[..., evidence] != 0).any(dim=-1)  # (B, D); what is not known is 0 exactly, not but for rounding
        apart = self.taste(inputs) - self.taste(inputs[:, :1] * ~evidence)
        return torch.cat((apart * known, self.rest(inputs).mean(dim=1)), dim=1)

    def encode(self, items: Tensor, lengths: Tensor, embeddings: Tensor) -> Tensor:
        return self.forward(items, embeddings)


class Monotone(nn.Module):
    """One output that rises with inputs of direction 1, falls with those of −1 and is free in those of 0.

    Behind the first layer no weight is negative (its absolute value is taken). Half of the hidden units bend upwards
    and half downwards; with one kind the function would be convex as well.
    """

    directions: Tensor

    def __init__(self, directions: tuple[float, ...]):
        super().__init__()
        self.register_buffer("directions", torch.tensor(directions), persistent=False)
        self.first, self.second = nn.Linear(len(directions), HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.last = nn.Linear(HIDDEN, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """(…,) of `inputs` (…, n)."""
        free, weight = self.directions == 0, self.first.weight
        hidden = _bend(linear(inputs, torch.where(free, weight, self.directions * weight.abs()), self.first.bias))
        hidden = _bend(linear(hidden, self.second.weight.abs(), self.second.bias))
        return linear(hidden, self.last.weight.abs(), self.last.bias)[..., 0]


def _bend(values: Tensor) -> Tensor:
    up, down = values.chunk(2, dim=-1)
    return torch.cat((up.clamp(min=0), down.clamp(max=0)), dim=-1)


def _sums(items: Tensor, embeddings: Tensor, late: int) -> tuple[Tensor, Tensor, Tensor]:
    """(B, D) the sum of the items' embeddings, (B, D) the sum over the last `late` of them, (B, 1) their number."""
    items = pad(items, (0, 1), value=PAD)  # there may be no items at all
    count = (items != PAD).sum(dim=1, keepdim=True)
    places = count - 1 - torch.arange(min(late, items.shape[1]))
    recent = items.gather(1, places.clamp(min=0).to(torch.int64)).masked_fill(places < 0, PAD)
    return _sum(items, embeddings), _sum(recent, embeddings), count.float()


def _sum(items: Tensor, embeddings: Tensor) -> Tensor:
    """(B, D) the sum of the embeddings of `items` (B, n)."""
    known = items != PAD
    return embedding_bag(items.clamp(min=0), embeddings, mode="sum", per_sample_weights=known.to(embeddings.dtype))
