"""SKNN: sessions with the same items vote."""

from typing import ClassVar

import numpy as np

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.baselines.session_knn import NeighbourConfig
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import Doubles
from bcd4rec.models.knn_kernels import Index, Weights
from bcd4rec.models.session_neighbours import plain_tables


@BASELINES.register("sknn")
class SKNNConfig(NeighbourConfig):
    """SKNN (Jannach & Ludewig, RecSys 2017).

    Sessions as sets: sim(s, n) = |s ∩ n| / √(|s|·|n|), and score(i) = Σ sim(s, n) over the neighbours n with i.
    """

    method: ClassVar[str] = "sknn"

    def position_weights(self, position: Doubles, length: Doubles) -> Doubles:
        return np.ones_like(position)

    def tables(self, sequences: Sequences, index: Index) -> Weights:
        return plain_tables(sequences, index)
