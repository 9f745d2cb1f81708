"""SR-GNN as a recommender."""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.baselines.neural import NeuralConfig, trim
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, Rows
from bcd4rec.models.next_item import NextItem
from bcd4rec.models.pretraining import prefixes


class Prefixes:
    """Every prefix of every session is an example, and the item after it is its one prediction."""

    def __init__(self, sequences: Sequences, history: int, batch_size: int):
        self._examples = prefixes(sequences, history)
        self.lengths: Rows = (self._examples.sessions != PAD).sum(axis=1)
        self.batch_size = batch_size

    def loss(self, model: NextItem, rows: Rows, negatives: Tensor | None) -> tuple[Tensor, int]:
        sessions = torch.from_numpy(trim(self._examples.sessions[rows]))
        items = torch.from_numpy(self._examples.items[rows].astype(np.int64))
        return model.loss(sessions, items, torch.arange(len(rows)), negatives), len(rows)


@BASELINES.register("srgnn")
class SRGNNConfig(NeuralConfig):
    """SR-GNN (Wu et al., Session-based Recommendation with Graph Neural Networks, AAAI 2019).

    Each prefix of a session is a graph of its items; a gated graph network, attention guided by the last item and
    a linear layer give its state s, and p(i) = softmax_i(s · v_i) is trained on the item that came next.
    """

    encoder: ClassVar[str] = "srgnn"

    def task(self, sequences: Sequences) -> Prefixes:
        return Prefixes(sequences, self.history, self.batch_size)
