"""The features of items as numbers that inner products and comparisons can be taken of.

Nothing here looks at responses, so items that nobody has seen are encoded as all others are. What an item does not have
is 0, or the code −1, and is like nothing.
"""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bcd4rec.data.knowledge import refuse_other_shape
from bcd4rec.data.states import PAD, FloatArray, IntArray, Rows
from bcd4rec.data.text_vectors import text_vectors

KNOTS = 8  # values between which a number counts as partly the one and partly the other
WIDEST = 64  # axes of a vector or a text …
ALTOGETHER = 256  # … or fewer where there are many of them
MOST_TAGS = 16  # of an item; each is a row of codes of all items
SAMPLED = 100_000  # items that the main directions of long vectors are found from


@dataclass(frozen=True)
class Content:
    """A items. Numbers, texts and vectors lie on axes, a block for each; categories and tags are codes."""

    axes: FloatArray  # (A, D) of unit length within each block, whose inner products tell how alike items are
    blocks: Rows  # (F + 1,) where the blocks of the axes begin
    codes: IntArray  # (K, A) of categorical features, −1 for none; no two features share a code
    rows: Rows  # (G + 1,) where the codes of the G features begin: tags have several rows, others one
    shares: FloatArray  # (K, A) how much of an item a code is, of unit length within each feature: 1 where it has one

    @property
    def features(self) -> int:
        return len(self.blocks) - 1 + len(self.rows) - 1

    @property
    def coded(self) -> list[IntArray]:
        """(k, A) the codes of each categorical feature."""
        return np.split(self.codes, self.rows[1:-1]) if len(self.codes) else []

    @property
    def values(self) -> int:
        """How many codes there are."""
        return int(self.codes.max(initial=-1)) + 1

    def of(self, items: IntArray) -> "Content":
        """Of these items alone."""
        codes, shares = np.ascontiguousarray(self.codes[:, items]), np.ascontiguousarray(self.shares[:, items])
        return Content(np.ascontiguousarray(self.axes[items]), self.blocks, codes, self.rows, shares)

    @classmethod
    def encode(cls, items: pl.DataFrame, kinds: dict[str, str]) -> Self:
        """Of the columns of `items`, by their kinds; those that tell nothing apart are left out."""
        limit = WIDEST
        while sum(min(_width(kind), limit) for kind in kinds.values()) > ALTOGETHER:
            limit //= 2
        parts: list[FloatArray] = []
        codes: list[IntArray] = []
        shares: list[FloatArray] = []
        for name, kind in kinds.items():
            if name == "category" or kind == "ignored":
                continue
            if kind in ("category", "tags"):
                first = max((int(one.max()) + 1 for one in codes), default=0)
                found = _codes(items[name], first)[None] if kind == "category" else _tag_codes(items[name], first)
                codes += [found] if found.max(initial=PAD) > PAD else []
                shares += [_shares(found)] if found.max(initial=PAD) > PAD else []
            else:
                axes = _axes(items[name], kind, min(_width(kind), limit))
                parts += [axes] if axes.any() else []
        nothing = np.zeros((len(items), 0), np.float32)
        blocks = np.cumsum([0, *(part.shape[1] for part in parts)]).astype(np.int64)
        rows = np.cumsum([0, *map(len, codes)]).astype(np.int64)
        none = [np.zeros((0, len(items)), dtype) for dtype in (np.int32, np.float32)]
        coded, shared = np.concatenate([none[0], *codes]), np.concatenate([none[1], *shares])
        return cls(np.concatenate([nothing, *parts], axis=1), blocks, coded, rows, shared)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {f"content.{field.name}": getattr(self, field.name) for field in fields(self)}

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]], n_items: int) -> Self:
        """What `arrays` gave; refuses any other, because compiled code does not look where it reads."""
        axes, blocks, codes, rows, shares = (arrays[f"content.{field.name}"] for field in fields(cls))
        refuse_other_shape("content.axes", axes, (n_items, *axes.shape[1:2]), np.float32)
        refuse_other_shape("content.blocks", blocks, (len(blocks),), np.int64)
        refuse_other_shape("content.codes", codes, (len(codes), n_items), np.int32)
        refuse_other_shape("content.rows", rows, (len(rows),), np.int64)
        refuse_other_shape("content.shares", shares, codes.shape, np.float32)
        if not len(rows) or rows[0] != 0 or rows[-1] != len(codes) or (np.diff(rows) < 1).any():
            raise ValueError(f"content.rows do not fit {len(codes)} rows of codes")
        if not len(blocks) or blocks[0] != 0 or blocks[-1] != axes.shape[1] or (np.diff(blocks) < 1).any():
            raise ValueError(f"content.blocks do not fit {axes.shape[1]} axes")
        if codes.min(initial=PAD) < PAD:
            raise ValueError(f"content.codes hold {codes.min()}, expected at least {PAD}")
        return cls(axes, blocks, codes, rows, shares)


def _width(kind: str) -> int:
    """Axes that a column would have if there were no limit."""
    if kind in ("category", "tags", "ignored"):
        return 0
    return KNOTS if kind == "number" else WIDEST if kind == "text" else int(kind.split()[-1].replace(",", ""))


def _codes(column: pl.Series, first: int) -> IntArray:
    """(A,) numbers from `first` on of values that several items have; −1 for others."""
    common = column.drop_nulls().value_counts().filter(pl.col("count") > 1)[column.name].sort()
    table = pl.DataFrame({"value": common, "code": np.arange(first, first + len(common), dtype=np.int32)})
    found = pl.DataFrame({"value": column}).join(table, on="value", how="left", maintain_order="left")["code"]
    return np.ascontiguousarray(found.fill_null(PAD).to_numpy(), np.int32)


def _tag_codes(column: pl.Series, first: int) -> IntArray:
    """(k, A) the same of lists of values, the first k = `MOST_TAGS` or fewer of each item that others have, too."""
    each = _shared_tags(column, first).filter(pl.col("row") < MOST_TAGS)
    row = each["row"].to_numpy()
    codes = np.full((row.max(initial=0) + 1, len(column)), PAD, np.int32)
    codes[row, each["item"].to_numpy()] = each["code"].to_numpy()
    return codes


def tags_beyond(column: pl.Series) -> tuple[int, int]:
    """Of how many items some tags are not looked at, and how many these are."""
    each = _shared_tags(column, 0).filter(pl.col("row") >= MOST_TAGS)
    return each["item"].n_unique(), len(each)


def _shared_tags(column: pl.Series, first: int) -> pl.DataFrame:
    """item, code and row, counted within the item, of the values that several items have."""
    each = pl.DataFrame({"value": column}).with_row_index("item").explode("value").drop_nulls()
    each = each.with_columns(pl.Series("code", _codes(each["value"], first))).filter(pl.col("code") > PAD)
    return each.select("item", "code", pl.int_range(pl.len()).over("item").alias("row"))


def _shares(codes: IntArray) -> FloatArray:
    """(k, A) 1 / √ of how many codes the item has."""
    many = np.maximum((codes > PAD).sum(axis=0), 1)
    return np.ascontiguousarray(np.broadcast_to(1.0 / np.sqrt(many), codes.shape), np.float32)


def _axes(column: pl.Series, kind: str, width: int) -> FloatArray:
    if kind == "number":
        return _unit(_hats(column.cast(pl.Float64).to_numpy(), width))
    if kind == "text":
        found = text_vectors(column, width)
        return _unit(_centred(found, np.asarray(found.any(axis=1))))
    there = column.is_not_null().to_numpy()
    size = int(kind.split()[-1].replace(",", ""))
    vectors = np.zeros((len(column), size), np.float32)
    vectors[there] = column.drop_nulls().explode().to_numpy().reshape(-1, size)
    return _unit(_turned(_centred(vectors, there), there, width))


def _hats(values: FloatArray, width: int) -> FloatArray:
    """(A, ≤ width) how near each value is to knots that as many items lie between; two knots share it."""
    there = np.isfinite(values)
    knots = np.unique(np.quantile(values[there], np.linspace(0, 1, width))) if there.any() else np.empty(0)
    hats = np.zeros((len(values), len(knots)), np.float32)
    if len(knots) < 2:  # all alike
        return hats
    rows = np.flatnonzero(there)
    left = np.clip(np.searchsorted(knots, values[rows], side="right") - 1, 0, len(knots) - 2)
    share = (values[rows] - knots[left]) / (knots[left + 1] - knots[left])
    hats[rows, left], hats[rows, left + 1] = 1.0 - share, share
    return hats


def _centred(vectors: FloatArray, there: NDArray[np.bool_]) -> FloatArray:
    """Embeddings mostly point one way; what tells items apart is how they differ from that."""
    vectors[there] -= vectors[there].mean(axis=0, dtype=np.float64).astype(np.float32) if there.any() else 0.0
    return vectors


def _turned(vectors: FloatArray, there: NDArray[np.bool_], width: int) -> FloatArray:
    """(A, ≤ width) the main directions of vectors that are longer than that."""
    if vectors.shape[1] <= width:
        return vectors
    rows = np.flatnonzero(there)
    some = vectors[rows[np.linspace(0, len(rows) - 1, min(len(rows), SAMPLED)).astype(np.int64)]].astype(np.float64)
    _, directions = np.linalg.eigh(some.T @ some)
    return np.ascontiguousarray(vectors @ directions[:, : -width - 1 : -1].astype(np.float32))


def _unit(vectors: FloatArray) -> FloatArray:
    norm = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.maximum(norm, 1e-12), np.float32)
