"""What of the distribution of a return is ranked by: its mean, the mean of its worst cases, or that of its best.

All three are linear in the quantiles, so serving by any of them costs what serving by the mean does. Quantiles of
networks may cross; a share of cases is the share of the fractions that were asked for (Dabney et al., Implicit Quantile
Networks, 2018), not of the sorted values.
"""

from typing import Literal

import numpy as np
from pydantic import Field

from bcd4rec.config import Config
from bcd4rec.data.states import FloatArray

Measure = Literal["mean", "cvar", "optimistic"]


class Risk(Config):
    """A weighted mean over quantiles at N evenly spread fractions."""

    measure: Measure = Field(default="mean", description="mean, cvar (of the worst cases) or optimistic (of the best).")
    level: float = Field(default=0.2, gt=0, le=1, description="The share of cases that count; of the mean, all do.")

    def weights(self, count: int) -> FloatArray | None:
        """(count,) what the quantile at (i + ½) / count counts; they sum to 1. None where all count alike.

        The i-th quantile stands for the fractions from i / count to (i + 1) / count: it counts by how many of them are
        among the worst (or best) cases.
        """
        if self.measure == "mean" or self.level == 1:
            return None
        edges = np.minimum(np.arange(count + 1) / count, self.level)
        counts = np.diff(edges) / self.level
        return (counts if self.measure == "cvar" else counts[::-1]).astype(np.float32)

    def fold(self, quantiles: FloatArray) -> FloatArray:
        """The weighted mean over the first axis, of N evenly spread fractions."""
        weights = self.weights(len(quantiles))
        return np.asarray(quantiles.mean(axis=0) if weights is None else weights @ quantiles, np.float32)


MEAN = Risk()
