"""Item embeddings learned from positive responses before any agent sees a reward."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import scipy.sparse as sparse
import torch
from scipy.sparse.linalg import eigsh

from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import HISTORY, PAD, FloatArray, IntArray
from bcd4rec.models.large import is_large
from bcd4rec.models.next_item import Examples, NextItem, fit
from bcd4rec.models.table_rows import RowAdamW, rows_of

Pretraining = Literal["srgnn", "item2vec", "svd", "none"]
Notify = Callable[[float], None]
BLOCK = 50_000  # items whose first embeddings are drawn at once


def silent(loss: float) -> None:
    """For callers that show no progress."""


def initial(n_items: int, width: int, rng: np.random.Generator) -> FloatArray:
    """Embeddings that know nothing: entries uniform in ±1/√D."""
    bound, found = width**-0.5, np.empty((n_items, width), np.float32)
    for first in range(0, n_items, BLOCK):  # drawn as doubles, which need not all be there at once
        found[first : first + BLOCK] = rng.uniform(-bound, bound, found[first : first + BLOCK].shape)
    return found


def prefixes(sequences: Sequences, length: int = HISTORY) -> Examples:
    """Every proper prefix of every sequence, cut to its last `length` items, with the item that followed."""
    lengths = sequences.lengths
    session = np.repeat(np.arange(len(sequences)), lengths)
    step = np.arange(len(session)) - sequences.offsets[:-1][session]
    rows = np.flatnonzero(step > 0)
    begin = np.maximum(step[rows] - length, 0)
    place = begin[:, None] + np.arange(length)  # (n, L) position in the session
    inside = place < step[rows, None]
    flat = sequences.offsets[:-1][session[rows], None] + np.where(inside, place, 0)
    histories = np.where(inside, sequences.items[flat], PAD).astype(np.int32)
    return Examples(histories, sequences.items[rows], np.arange(len(rows) + 1))


def srgnn(
    sequences: Sequences,
    n_items: int,
    width: int,
    rng: np.random.Generator,
    *,
    epochs: int = 5,
    length: int = HISTORY,
    negatives: int = 0,
    notify: Notify = silent,
) -> FloatArray:
    """The embeddings of an SR-GNN that predicts the next positive item, as in the paper."""
    model = NextItem(initial(n_items, width, rng), "srgnn")
    fit(model, prefixes(sequences, length), rng, epochs=epochs, negatives=negatives, notify=notify)
    return model.embeddings.detach().numpy()


def neighbours(sequences: Sequences, window: int) -> tuple[IntArray, IntArray]:
    """All ordered pairs of positive items of one session that lie at most `window` places apart."""
    session = np.repeat(np.arange(len(sequences)), sequences.lengths)
    left, right = [], []
    for distance in range(1, min(window, max(int(sequences.lengths.max(initial=0)) - 1, 0)) + 1):
        together = np.flatnonzero(session[distance:] == session[:-distance])
        left += [sequences.items[together], sequences.items[together + distance]]
        right += [sequences.items[together + distance], sequences.items[together]]
    if not left:
        return np.empty(0, np.int32), np.empty(0, np.int32)
    return np.concatenate(left), np.concatenate(right)


def item2vec(
    sequences: Sequences,
    n_items: int,
    width: int,
    rng: np.random.Generator,
    *,
    epochs: int = 5,
    window: int = HISTORY,
    negatives: int = 5,
    batch_size: int = 4096,
    notify: Notify = silent,
) -> FloatArray:
    """Skip-gram with negative sampling over sessions (Barkan and Koenigstein, Item2Vec, 2016)."""
    centre = torch.nn.Parameter(torch.from_numpy(0.1 * initial(n_items, width, rng)))
    context = torch.nn.Parameter(torch.zeros(n_items, width))
    large = is_large(n_items)
    optimiser = (RowAdamW if large else torch.optim.Adam)([centre, context], 3e-3, weight_decay=0.0)
    left, right = neighbours(sequences, window)
    popularity = np.bincount(sequences.items, minlength=n_items) ** 0.75
    upper = np.cumsum(popularity / max(popularity.sum(), 1e-9))
    for _ in range(epochs):
        order, total = rng.permutation(len(left)), 0.0
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            if large:  # `choice` would sum up the catalogue for each batch
                noise = np.minimum(np.searchsorted(upper, rng.random((len(rows), negatives))), n_items - 1)
            else:
                noise = rng.choice(n_items, (len(rows), negatives), p=popularity / popularity.sum())
            others = torch.from_numpy(np.concatenate([right[rows, None], noise], axis=1).astype(np.int64))
            own = torch.from_numpy(left[rows].astype(np.int64))
            around, at = (rows_of(others, context), rows_of(own, centre)) if large else (context[others], centre[own])
            logits = (around @ at.unsqueeze(2)).squeeze(2)
            truth = torch.zeros_like(logits)
            truth[:, 0] = 1.0
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, truth, reduction="sum")
            optimiser.zero_grad(set_to_none=True)
            (loss / len(rows)).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            total += loss.item()
        notify(total / max(len(order), 1))
    return centre.detach().numpy()


def svd(sequences: Sequences, n_items: int, width: int, rng: np.random.Generator) -> FloatArray:
    """The leading part of the matrix of co-clicks, each count over what chance would give: U √Σ of its centred SVD."""
    left, right = neighbours(sequences, int(sequences.lengths.max(initial=0)))
    counts = sparse.coo_matrix((np.ones(len(left)), (left, right)), (n_items, n_items)).tocsr()
    seen = np.maximum(np.asarray(counts.sum(axis=1)).ravel(), 1.0)
    scale = sparse.diags(seen**-0.5)
    popularity = np.sqrt(seen / seen.sum())  # without co-click structure the scaled matrix is their outer product
    scaled = sparse.linalg.LinearOperator(
        (n_items, n_items),
        matvec=lambda x: scale @ (counts @ (scale @ x.ravel())) - popularity * (popularity @ x.ravel()),
        dtype=np.float64,
    )
    rank = min(width, n_items - 1)
    # The matrix is symmetric, so its singular values are the sizes of its eigenvalues. Where co-clicks fall into
    # separate pieces, ARPACK goes on from random vectors: with `rng` these are ours, and the same seed gives the same.
    values, vectors = eigsh(scaled, rank, v0=rng.standard_normal(n_items), rng=rng)
    order = np.argsort(-np.abs(values), kind="stable")
    result = np.zeros((n_items, width), np.float32)
    result[:, :rank] = (vectors * np.sqrt(np.abs(values)))[:, order]
    return result


def standardise(embeddings: FloatArray, scale: float) -> FloatArray:
    """Centred, and scaled so that the mean square of an entry is `scale`²."""
    centred: FloatArray = embeddings - embeddings.mean(axis=0)
    return (centred * (scale / max(float(np.sqrt(np.mean(centred**2))), 1e-12))).astype(np.float32)


def pretrain(
    kind: Pretraining,
    sequences: Sequences,
    n_items: int,
    width: int,
    rng: np.random.Generator,
    *,
    epochs: int,
    negatives: int = 0,
    notify: Notify = silent,
) -> FloatArray:
    """Embeddings (A, width) by the method called `kind`."""
    if kind == "srgnn":
        return srgnn(sequences, n_items, width, rng, epochs=epochs, negatives=negatives, notify=notify)
    if kind == "item2vec":
        return item2vec(sequences, n_items, width, rng, epochs=epochs, notify=notify)
    if kind == "svd":
        return svd(sequences, n_items, width, rng)
    return initial(n_items, width, rng)
