"""Item vectors from known categories, for catalogues so large that co-clicks alone say little about an item."""

import numpy as np

from bcd4rec.data.cooccurrence import item_vectors
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, FloatArray, IntArray

TASTES = 0.2  # share of the entries that co-clicks may take
TASTE_SIZE, POPULARITY_SIZE = 0.5, 0.3  # of these parts of a vector, where the part of the category has length 1


def category_vectors(categories: IntArray, sequences: Sequences, width: int, rng: np.random.Generator) -> FloatArray:
    """(A, width): the code of the item's category, how popular it is, and its axes of taste.

    Codes are random directions. In a hundred entries a thousand of them are nearly orthogonal, so that a sum over a
    session's items is long along the categories it holds and hardly along others. Items without a category have none.
    """
    n_items = len(categories)
    tastes = item_vectors(sequences, n_items, max(1, int(TASTES * width)))
    codes = rng.standard_normal((int(categories.max(initial=0)) + 1, width - 1 - tastes.shape[1]))
    codes /= np.maximum(np.linalg.norm(codes, axis=1, keepdims=True), 1e-12)
    own = np.where((categories != PAD)[:, None], codes[np.maximum(categories, 0)], 0.0)
    popularity = np.log1p(np.bincount(sequences.items, minlength=n_items))
    popularity = (popularity - popularity.mean()) / max(float(popularity.std()), 1e-12)
    parts = (own, POPULARITY_SIZE * popularity[:, None], TASTE_SIZE * tastes)
    return np.concatenate(parts, axis=1).astype(np.float32)
