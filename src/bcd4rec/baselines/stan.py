"""STAN: positions and the age of sessions count."""

from typing import ClassVar

import numpy as np
from pydantic import Field

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.baselines.knn_kernels import Doubles, Index, Weights
from bcd4rec.baselines.session_knn import NeighbourConfig, plain_tables
from bcd4rec.data.sequences import Sequences


@BASELINES.register("stan")
class STANConfig(NeighbourConfig):
    """Sequence and time aware neighbourhood (Garg et al., SIGIR 2019).

    The item at position p of the l items so far weighs w = exp((p − l)/λ_spw) (its last position, if repeated).
    sim(s, n) = Σ_{i ∈ s ∩ n} w_i / (‖w‖·√|n|) · exp(−age_n/λ_snh), and
    score(i) = Σ_n sim(s, n) · exp(−|pos_n(i) − pos_n(i*)|/λ_inh) with i* the last item of n that is also in s.
    Sequences carry no clock, so the age of a session is how many have begun since, in days of `sessions_per_day`.
    """

    method: ClassVar[str] = "stan"
    k: int = Field(500, ge=1, description="How many neighbours vote.")
    sample: int = Field(2500, ge=1, description="How many of the most recent sessions with a shared item are compared.")
    lambda_spw: float = Field(2.5, gt=0, description="Within so many steps an item of the session loses a factor e.")
    lambda_snh: float = Field(80.0, gt=0, description="Within so many days a session loses a factor e.")
    lambda_inh: float = Field(5.0, gt=0, description="So many places from the last shared item cost a factor e.")
    sessions_per_day: float = Field(1000.0, gt=0, description="How many sessions count as a day.")

    def position_weights(self, position: Doubles, length: Doubles) -> Doubles:
        return np.exp((position - length) / self.lambda_spw)

    def tables(self, sequences: Sequences, index: Index) -> Weights:
        plain = plain_tables(sequences, index)
        days = np.arange(len(sequences), 0.0, -1.0) / self.sessions_per_day
        gap = np.exp(-np.arange(float(len(plain.gap))) / self.lambda_inh)
        return plain._replace(recency=np.exp(-days / self.lambda_snh), gap=gap)
