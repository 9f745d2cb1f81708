"""Largest inner products among many vectors: exact in blocks, or approximate by an inverted file of faiss.

Items are grouped around centres, and a query looks only into the groups whose centres score best. How many groups have
to be looked into depends on the queries, so whoever searches measures that on queries of its own.
"""

from typing import Any

import numpy as np

from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.states import FloatArray, IntArray
from bcd4rec.errors import InputError
from bcd4rec.seeding import generator

SAMPLE = 64  # items to learn each centre from
BLOCK = 50_000  # items at once


def inverted_file(table: FloatArray, tick: Tick = no_tick, seed: int = 0) -> Any:
    """An inverted file over all items, eight bits for each entry of a vector."""
    items, width = table.shape
    faiss, lists = import_faiss(), int(2 * np.sqrt(items))
    index = faiss.index_factory(width, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    clustering = faiss.extract_index_ivf(index).cp
    clustering.niter, clustering.seed = 6, 1234
    rows = generator(seed, "retrieval").choice(items, min(items, SAMPLE * lists), replace=False)
    tick("grouping items", 0.0)
    index.train(table[np.sort(rows)])
    for start in range(0, items, BLOCK):
        tick("indexing items", start / items)
        index.add(table[start : start + BLOCK])
    return index


def exact_best(queries: FloatArray, table: FloatArray, depth: int) -> IntArray:
    """(Q, depth) the items with the largest inner products, in any order, over blocks of the table."""
    best = np.full((len(queries), depth), -np.inf, np.float32)
    items = np.zeros((len(queries), depth), np.int32)
    for start in range(0, len(table), BLOCK):
        block = queries @ table[start : start + BLOCK].T
        values = np.concatenate([best, block], axis=1)
        numbers = np.concatenate([items, np.tile(np.arange(start, start + block.shape[1]), (len(queries), 1))], axis=1)
        places = np.argpartition(-values, depth - 1, axis=1)[:, :depth]
        best, items = np.take_along_axis(values, places, 1), np.take_along_axis(numbers, places, 1).astype(np.int32)
    return items


def import_faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError:
        raise InputError("Large catalogues need faiss: pip install 'bcd4rec[train]' or 'bcd4rec[serve]'.") from None
    return faiss
