"""Titles as vectors: words weighed by how rare they are, and their main directions (latent semantic analysis)."""

import numpy as np
import polars as pl
import scipy.sparse as sparse
from scipy.sparse.linalg import LinearOperator, eigsh

from bcd4rec.data.states import Doubles, FloatArray

LEAST = 2  # items that a word is in; the words of one item say nothing about others
MOST_WORDS = 50_000  # the most common ones
TOLERANCE = 1e-3  # of eigenvalues, relative


def text_vectors(texts: pl.Series, rank: int) -> FloatArray:
    """(n, D ≤ rank) of n texts; 0 where a text is missing or has no word that another has.

    tf-idf of lower-case words, in rows of unit length, by their D main directions (a truncated SVD).
    """
    weighed = tf_idf(texts)
    kept = min(rank, min(weighed.shape) - 1)
    if kept < 1 or not weighed.nnz:
        return np.zeros((len(texts), 0), np.float32)
    width = weighed.shape[1]

    def twice(x: Doubles) -> Doubles:
        found: Doubles = weighed.T @ (weighed @ x.ravel())
        return found

    rng = np.random.default_rng(0)  # ARPACK draws from it, too
    operator = LinearOperator((width, width), matvec=twice, dtype=np.float64)
    _, words = eigsh(operator, kept, which="LA", v0=rng.standard_normal(width), tol=TOLERANCE, rng=rng)
    return np.asarray(weighed @ words[:, ::-1], np.float32)


def tf_idf(texts: pl.Series) -> sparse.csr_matrix:
    """(n, words) (1 + log tf) · log(n / df), each row of unit length."""
    row = pl.int_range(pl.len(), dtype=pl.Int64).alias("row")
    found = (
        pl.DataFrame({"text": texts})
        .select(row, pl.col("text").str.to_lowercase().str.extract_all(r"\w+").alias("word"))
        .explode("word")
        .drop_nulls()
        .group_by("row", "word")
        .agg(pl.len().alias("times"))
    )
    words = found.group_by("word").agg(pl.len().alias("items")).filter(pl.col("items") >= LEAST)
    words = words.sort("items", "word", descending=[True, False]).head(MOST_WORDS).with_row_index("column")
    found = found.join(words, on="word").sort("row", "column")
    count = max(len(texts) - texts.null_count(), 1)
    weight = (1.0 + np.log(found["times"].to_numpy())) * np.log(count / found["items"].to_numpy())
    places = (found["row"].to_numpy(), found["column"].to_numpy())
    matrix = sparse.csr_matrix((weight, places), (len(texts), len(words)))
    norm = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    return sparse.csr_matrix(sparse.diags(1.0 / np.maximum(norm, 1e-12)) @ matrix)
