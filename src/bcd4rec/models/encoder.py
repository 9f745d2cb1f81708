"""What a state encoder is, and the registry that makes encoders exchangeable."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from bcd4rec.data.states import PAD
from bcd4rec.models.table_rows import rows_of
from bcd4rec.registry import Registry


class Encoder(nn.Module):
    """Turns sessions into vectors. The item embeddings are the caller's, since states and actions share them.

    A subclass takes `(width, outputs)`: the width D of the embeddings and the number of entries of a state.
    """

    takes_layers = False  # whether the constructor wants a number of layers as its third argument

    def __init__(self, outputs: int):
        super().__init__()
        self.empty = nn.Parameter(torch.randn(outputs) * 0.1)  # the state of a session without positive items

    def forward(self, items: Tensor, embeddings: Tensor) -> Tensor:
        """States (B, outputs) of sessions `items` (B, L), padded on the right with −1, over `embeddings` (A, D)."""
        lengths = (items != PAD).sum(dim=1)
        begun = lengths > 0
        states = self.empty.expand(len(items), -1)
        if not begun.any():
            return states
        if begun.all():
            return self.encode(items, lengths, embeddings)
        # Only sessions with content enter the network, so nothing has to be invented for the others.
        return states.index_put((begun.nonzero()[:, 0],), self.encode(items[begun], lengths[begun], embeddings))

    @abstractmethod
    def encode(self, items: Tensor, lengths: Tensor, embeddings: Tensor) -> Tensor:
        """As `forward`, for sessions of at least one item."""


ENCODERS: Registry[type[Encoder]] = Registry("encoder", "bcd4rec.models")


def look_up(items: Tensor, embeddings: Tensor) -> Tensor:
    """(B, L, D) the embeddings of `items`, with zeros in padded places."""
    vectors = rows_of(items.clamp(min=0), embeddings)
    return vectors * (items != PAD).unsqueeze(-1)
