"""A GRU that reads the session forwards, as GRU4Rec does."""

import torch
from torch import Tensor, nn

from bcd4rec.models.encoder import ENCODERS, Encoder, look_up


@ENCODERS.register("gru")
class ForwardGRU(Encoder):
    """The state is the hidden vector after the last item, so one pass gives the states of all prefixes."""

    def __init__(self, width: int, outputs: int, dropout: float = 0.0):
        super().__init__(outputs)
        self.dropout = nn.Dropout(dropout)
        self.gru = nn.GRU(width, outputs, batch_first=True)

    def encode(self, items: Tensor, lengths: Tensor, embeddings: Tensor) -> Tensor:
        return self.prefixes(items, embeddings)[torch.arange(len(items), device=items.device), lengths - 1]

    def prefixes(self, items: Tensor, embeddings: Tensor) -> Tensor:
        """(B, L, outputs) the state after each item. Padding stands on the right, so no state has seen any."""
        states: Tensor = self.gru(self.dropout(look_up(items, embeddings)))[0]
        return states
