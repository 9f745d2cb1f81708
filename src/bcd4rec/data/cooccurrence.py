"""Which items are liked in the same sessions, as a vector for each item."""

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.linalg import LinearOperator, eigsh

from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, Doubles, FloatArray

RANK = 64  # at most so many directions of taste
SMALL = 1e-9
TOLERANCE = 1e-3  # of eigenvalues, relative
ROTATIONS = 200  # at most so many sweeps of the varimax rotation


def incidence(sequences: Sequences, n_items: int) -> sparse.csr_matrix:
    """(sessions, A) 1 where a session has the item among its positives."""
    matrix = sparse.csr_matrix(
        (np.ones(len(sequences.items)), sequences.items, sequences.offsets), (len(sequences), n_items), copy=True
    )
    matrix.sum_duplicates()  # in place, hence the copy
    matrix.data[:] = 1.0
    return matrix


def item_vectors(sequences: Sequences, n_items: int, rank: int = RANK) -> FloatArray:
    """(A, D ≤ rank) unit vectors; items that are liked together more often than chance would have it point alike.

    C_ij = (sessions with both − what independence would give) / √(sessions with i · sessions with j), 0 for i = j.
    A symmetric matrix of pure noise has as much on the negative as on the positive side of its spectrum, so directions
    count only where their eigenvalue lies above the size of the most negative one. The varimax rotation (Kaiser, 1958)
    turns them so that each item lies along few axes, which makes an axis a taste. Items without co-clicks are zero.
    """
    kept = min(rank, n_items - 2)
    if kept < 1 or not len(sequences.items):
        return np.zeros((n_items, 1), np.float32)
    matrix = _above_chance(incidence(sequences, n_items))
    rng = np.random.default_rng(0)  # ARPACK draws from it, too, where the matrix falls into separate pieces
    start = rng.standard_normal(n_items)
    if np.abs(matrix @ start).max() < SMALL:  # all sessions are alike, and ARPACK knows no matrix of zeros
        return np.zeros((n_items, 1), np.float32)
    # The spectrum of a long-tailed catalogue is crowded at its ends, and exact eigenvalues would take minutes.
    noise = -float(eigsh(matrix, 1, which="SA", v0=start, tol=TOLERANCE, return_eigenvectors=False, rng=rng)[0])
    values, vectors = eigsh(matrix, kept, which="LA", v0=start, tol=TOLERANCE, rng=rng)
    real = np.flatnonzero(values > max(noise, SMALL))[::-1]
    if not len(real):
        return np.zeros((n_items, 1), np.float32)
    turned = varimax(vectors[:, real] * np.sqrt(values[real] - SHRINK * noise))
    turned *= np.where((turned**3).sum(axis=0) < 0, -1.0, 1.0)  # the heavy tail of an axis is its positive side
    norm = np.linalg.norm(turned, axis=1, keepdims=True)
    return np.where(norm > SMALL, turned / np.maximum(norm, SMALL), 0.0).astype(np.float32)


def supported_vectors(sequences: Sequences, n_items: int, rank: int, support: int) -> FloatArray:
    """(A, D) the `item_vectors` of the items that at least `support` sessions like, among these alone; zero for others.

    They cost what the sessions hold, however many items nobody liked.
    """
    sessions = np.asarray(incidence(sequences, n_items).sum(axis=0)).ravel()
    often = np.flatnonzero(sessions >= support)
    place = np.full(n_items, PAD, np.int32)
    place[often] = np.arange(len(often))
    kept = place[sequences.items] != PAD
    counts = np.append(0, np.cumsum(kept))[sequences.offsets]
    found = item_vectors(Sequences(place[sequences.items[kept]], counts), len(often), rank)
    vectors = np.zeros((n_items, found.shape[1]), np.float32)
    vectors[often] = found
    return vectors


SHRINK = 0.9  # how much of the noise level is taken off an eigenvalue


def _above_chance(clicks: sparse.csr_matrix) -> LinearOperator:
    sessions, n_items = clicks.shape
    count = np.asarray(clicks.sum(axis=0)).ravel()
    scale = 1.0 / np.sqrt(np.maximum(count, 1.0))
    chance = np.sqrt(count / max(sessions, 1))
    diagonal = (count > 0) - chance**2

    def multiply(x: Doubles) -> Doubles:
        x = x.ravel()
        together = scale * (clicks.T @ (clicks @ (scale * x)))
        result: Doubles = together - chance * (chance @ x) - diagonal * x
        return result

    return LinearOperator((n_items, n_items), matvec=multiply, dtype=np.float64)


def varimax(loadings: Doubles) -> Doubles:
    """`loadings` (A, D) turned so that the squares of each column are as unequal as a rotation can make them."""
    rotation, reached = np.eye(loadings.shape[1]), 0.0
    for _ in range(ROTATIONS):
        turned = loadings @ rotation
        squares = turned * turned  # cubes by ** take ten times as long
        left, values, right = np.linalg.svd(loadings.T @ (turned * (squares - squares.mean(axis=0))))
        rotation = left @ right
        if values.sum() < reached * (1 + 1e-8):
            break
        reached = values.sum()
    result: Doubles = loadings @ rotation
    return result
