"""Slates that do not stake everything on one kind of item.

The best K items of one score are often K times the same thing, and if the guess is wrong, all of the slate is. A user
chooses among what is shown, so the second item of a kind adds less than the first: after every place, items like the
one just placed lose

    λ · σ · max(cos(i, j), 0),

where σ is the standard deviation of the state's scores, so that λ means the same for every policy, and cos is taken
between vectors of items that the log's users liked together. The rule belongs to the slate, not to a method.
"""

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.states import FloatArray
from bcd4rec.policies.ranking import Regard


def spread(scores: FloatArray, vectors: FloatArray, strength: float) -> Regard:
    """What `make_slates` does after each place. `vectors` (A, D) are unit vectors; `scores` (B, A) may hold −inf."""
    usable = np.isfinite(scores)
    count = np.maximum(usable.sum(axis=1), 1)
    mean = np.where(usable, scores, 0.0).sum(axis=1) / count
    deviation = np.sqrt(np.where(usable, (scores - mean[:, None]) ** 2, 0.0).sum(axis=1) / count)
    loss = (strength * deviation).astype(np.float32)

    def regard(left: NDArray[np.floating], rows: NDArray[np.intp], items: NDArray[np.int64]) -> None:
        left[rows] -= loss[rows, None] * np.maximum(vectors[items] @ vectors.T, 0.0)

    return regard
