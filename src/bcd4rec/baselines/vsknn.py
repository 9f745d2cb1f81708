"""VSKNN: later items of the session count more, and rare items gain."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.baselines.session_knn import NeighbourConfig
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import Doubles
from bcd4rec.models.knn_kernels import Index, Weights
from bcd4rec.models.session_neighbours import plain_tables


@BASELINES.register("vsknn")
class VSKNNConfig(NeighbourConfig):
    """Vector multiplication SKNN (Ludewig & Jannach, UMUAI 2018).

    The item at position p of the l items so far weighs w = (p/l)² (its last position counts, if it is repeated).
    sim(s, n) = Σ_{i ∈ s ∩ n} w_i / |s|, and score(i) = Σ_n sim(s, n) · (1 + λ·idf_i) / step, where the newest item
    that s shares with n was seen `step` steps ago (1 is the last item) and idf_i = ln(sessions / events with i).
    """

    method: ClassVar[str] = "vsknn"
    cosine: ClassVar[bool] = False
    k: int = Field(500, ge=1, description="How many neighbours vote.")
    sample: int = Field(2500, ge=1, description="How many of the most recent sessions with a shared item are compared.")
    weighting: Literal["same", "div", "quadratic"] = Field("quadratic", description="w = 1, p/l or (p/l)².")
    decay: Literal["same", "div", "quadratic"] = Field("div", description="Vote by 1, 1/step or 1/step².")
    idf: float = Field(5.0, ge=0, description="λ: how much rare items gain; 0 for not at all.")

    _powers: ClassVar[dict[str, int]] = {"same": 0, "div": 1, "quadratic": 2}

    def position_weights(self, position: Doubles, length: Doubles) -> Doubles:
        return (position / length) ** self._powers[self.weighting]

    def step_weights(self, step: Doubles) -> Doubles:
        return 1.0 / step ** self._powers[self.decay]

    def tables(self, sequences: Sequences, index: Index) -> Weights:
        plain = plain_tables(sequences, index)
        events = np.maximum(np.bincount(sequences.items, minlength=len(plain.item)), 1)
        idf = np.maximum(np.log(max(len(sequences), 1) / events), 0.0)  # an item seen twice a session is not worth less
        return plain._replace(session_norm=np.ones(len(sequences)), item=1.0 + self.idf * idf)
