"""The paper's state encoder: a bidirectional GRU over the session's items."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from bcd4rec.models.encoder import ENCODERS, Encoder, look_up


@ENCODERS.register("bigru")
class BiGRU(Encoder):
    """s = W h_L + b, where h_L joins the final hidden states of both directions, D/2 units each.

    Sessions are packed, so padding never enters the recurrence.
    """

    takes_layers = True
    compiled = True  # train by compiled loops where there are some, on the CPU

    def __init__(self, width: int, outputs: int, layers: int = 2):
        super().__init__(outputs)
        units = (width + 1) // 2
        self.gru = nn.GRU(width, units, layers, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(2 * units, outputs)

    def encode(self, items: Tensor, lengths: Tensor, embeddings: Tensor) -> Tensor:
        states: Tensor = self.linear(self._final(look_up(items, embeddings), lengths.cpu()))
        return states

    def _final(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """(B, 2 · units) the final hidden vectors of both directions of the top layer."""
        if self.compiled and torch.is_grad_enabled() and vectors.device.type == "cpu":
            from bcd4rec.models.recurrence import final_states  # only training pays for the compiler

            return final_states(self.gru, vectors, lengths)
        packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
        _, hidden = self.gru(packed)  # (2 · layers, B, units); the last two are the top layer's directions
        return torch.cat([hidden[-2], hidden[-1]], dim=1)
