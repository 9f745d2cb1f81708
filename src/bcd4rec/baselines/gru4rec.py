"""GRU4Rec: a recurrent network with a ranking loss over sampled items."""

import math
from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.baselines.neural import EpochReport, NeuralConfig, last_items, trim
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, Rows
from bcd4rec.models.gru import ForwardGRU
from bcd4rec.models.next_item import NextItem
from bcd4rec.models.table_rows import rows_of

Loss = Literal["cross-entropy", "bpr-max"]
NEVER = -1e4  # the score of a negative that is the item itself; finite, so that its weight times its square is 0
LONGEST = 200  # of longer sessions the last items are learned from


def ranking_losses(positive: Tensor, others: Tensor, n_items: int, loss: Loss, penalty: float) -> Tensor:
    """(P,) the losses of predictions whose item scored `positive` (P,) and the negatives `others` (P, n).

    cross-entropy: −log softmax, each negative counting for as many items of the catalogue as it stands for.
    bpr-max: −log Σ_j w_j σ(r − r_j) + penalty · Σ_j w_j r_j² with w = softmax over the negatives.
    """
    if loss == "cross-entropy":
        rest = others.logsumexp(dim=1) + math.log(n_items / others.shape[1])
        return torch.logaddexp(positive, rest) - positive
    weights = others.softmax(dim=1)
    better = (weights * torch.sigmoid(positive.unsqueeze(1) - others)).sum(dim=1)
    return penalty * (weights * others.square()).sum(dim=1) - torch.log(better + 1e-24)


class SessionBatches:
    """Every session is an example: it is read once, and each of its items but the first is predicted on the way."""

    def __init__(self, sequences: Sequences, config: "GRU4RecConfig"):
        self._config = config
        self._items = last_items(sequences, min(int(sequences.lengths.max(initial=1)), LONGEST))
        self._items = self._items[(self._items != PAD).sum(axis=1) > 1]
        self.lengths: Rows = (self._items != PAD).sum(axis=1)
        predictions = max(float((self.lengths - 1).mean()), 1.0) if len(self.lengths) else 1.0
        self.batch_size = max(1, round(config.batch_size / predictions))

    def loss(self, model: NextItem, rows: Rows, negatives: Tensor | None) -> tuple[Tensor, int]:
        items = torch.from_numpy(trim(self._items[rows]))
        asked = items[:, 1:] != PAD
        states = _forward(model).prefixes(items[:, :-1], model.embeddings)[asked]  # (P, D)
        targets = items[:, 1:][asked].long()
        everything = torch.arange(len(model.embeddings)) if negatives is None else negatives
        table = model.embeddings if negatives is None else rows_of(negatives, model.embeddings)
        positive = (states * rows_of(targets, model.embeddings)).sum(dim=1)
        others = (states @ table.T).masked_fill(targets.unsqueeze(1) == everything, NEVER)
        config = self._config
        return ranking_losses(positive, others, len(model.embeddings), config.loss, config.penalty).sum(), len(targets)


@BASELINES.register("gru4rec")
class GRU4RecConfig(NeuralConfig):
    """GRU4Rec (Hidasi et al., ICLR 2016; Hidasi & Karatzoglou, CIKM 2018), items embedded alike on both sides.

    A GRU reads the session, its hidden vector s after each item scores the items by s · v_i, and a ranking loss
    puts the item that came next above a sample of the others.
    """

    encoder: ClassVar[str] = "gru"
    epochs: int = Field(8, ge=1, description="Passes over the training sessions.")
    decay_after: float = Field(0.6, ge=0, le=1, description="Share of the epochs at the full learning rate.")
    learning_rate: float = Field(6e-3, gt=0, description="Adam's step size at the beginning.")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty.")
    negatives: int = Field(2048, ge=0, description="Items that stand for the catalogue in the loss; 0 for all items.")
    loss: Loss = Field("cross-entropy", description="cross-entropy or bpr-max.")
    penalty: float = Field(0.5, ge=0, description="Weight of the squared scores of the negatives in bpr-max.")
    dropout: float = Field(0.25, ge=0, lt=1, description="Share of the embeddings' entries left out while training.")

    def task(self, sequences: Sequences) -> SessionBatches:
        return SessionBatches(sequences, self)

    def train(self, model: NextItem, sequences: Sequences, rng: np.random.Generator) -> Iterator[EpochReport]:
        _forward(model).dropout.p = self.dropout
        return super().train(model, sequences, rng)


def _forward(model: NextItem) -> ForwardGRU:
    if not isinstance(model.encoder, ForwardGRU):
        raise TypeError(f"GRU4Rec trains a ForwardGRU, found {type(model.encoder).__name__}")
    return model.encoder
