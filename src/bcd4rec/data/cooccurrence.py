"""Which items are liked in the same sessions: the leading part of the matrix of co-clicks."""

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, svds

from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import FloatArray

SMALL = np.float32(1e-9)
RANK = 32  # directions of taste that vectors keep


def incidence(sequences: Sequences, n_items: int) -> sparse.csr_matrix:
    """(sessions, A) 1 where a session has the item among its positives."""
    matrix = sparse.csr_matrix(
        (np.ones(len(sequences.items)), sequences.items, sequences.offsets), (len(sequences), n_items)
    )
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix


def item_vectors(sequences: Sequences, n_items: int, seed: int = 0, rank: int = RANK) -> FloatArray:
    """(A, rank) unit vectors; items that are liked together more often than chance would have it point alike.

    C is the co-click matrix, each count scaled by the square roots of both items' own counts, less what independence
    would give. Its singular values from `rank` + 1 on are taken for noise, so the next one is subtracted from those
    kept. An item without co-clicks has the zero vector.
    """
    clicks = incidence(sequences, n_items)
    count = np.asarray(clicks.sum(axis=0)).ravel()
    scale = 1.0 / np.sqrt(np.maximum(count, 1.0))
    chance = np.sqrt(count / max(len(sequences), 1))

    def multiply(x: NDArray[np.float64]) -> NDArray[np.float64]:
        x = x.ravel()
        together = scale * (clicks.T @ (clicks @ (scale * x)))
        result: NDArray[np.float64] = together - (count > 0) * x - chance * (chance @ x)
        return result

    kept = min(rank, n_items - 2)
    if kept < 1 or not len(sequences.items):
        return np.zeros((n_items, rank), np.float32)
    operator = LinearOperator((n_items, n_items), matvec=multiply, rmatvec=multiply, dtype=np.float64)
    start = np.random.default_rng(seed).standard_normal(n_items)
    vectors, values, _ = svds(operator, kept + 1, v0=start, return_singular_vectors="u")
    order = np.argsort(-values)
    strength = np.sqrt(np.maximum(values[order[:kept]] - values[order[kept]], 0.0))
    result = np.zeros((n_items, rank), np.float32)
    result[:, :kept] = vectors[:, order[:kept]] * strength
    norm = np.linalg.norm(result, axis=1, keepdims=True)
    return np.where(norm > SMALL, result / np.maximum(norm, SMALL), np.float32(0))
