"""Names and pictures of items, for people."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bcd4rec.data.states import IntArray
from bcd4rec.data.vocabulary import ItemId
from bcd4rec.errors import InputError
from bcd4rec.serving.loading import Served


class Names:
    """Optional metadata: what is missing is shown by its id."""

    def __init__(self, names: dict[str, str] | None = None, pictures: dict[str, str] | None = None):
        self._names, self._pictures = names or {}, pictures or {}
        self._order = lru_cache(maxsize=2)(_by_popularity)

    @classmethod
    def read(cls, path: Path) -> "Names":
        """From a CSV or Parquet file with item_id, name and, if there are any, picture (an https address)."""
        try:  # of a CSV nothing is made a number: 007 and 7 are two items
            table = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path, infer_schema=False)
            wanted = [name for name in ("item_id", "name", "picture") if name in table.columns]
            told = table.select(pl.col(wanted).cast(pl.String))
        except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(f"--items {path} cannot be read ({reason}); expected CSV or Parquet.") from None
        for column in ("item_id", "name"):
            if column not in table.columns:
                found = ", ".join(table.columns[:20])
                raise InputError(
                    f"--items {path} has no column {column!r} but {found}; expected item_id, name, picture."
                )
        return cls(_texts(told, "name"), _texts(told, "picture"))

    def of(self, item: ItemId) -> dict[str, Any]:
        key = str(item)
        return {"item": item, "name": self._names.get(key, key), "picture": self._pictures.get(key)}

    def search(self, served: Served, text: str, limit: int, offset: int) -> dict[str, Any]:
        """Items whose id or name holds `text`, the most popular first."""
        order = self._order(_Identity(served))
        text = text.casefold()
        if not text:
            chosen = [served.vocabulary.id(index) for index in order[offset : offset + limit]]
            return {"items": [self.of(item) for item in chosen], "total": len(order)}
        ids = served.vocabulary.ids.to_list()
        found = [index for index in order.tolist() if self._matches(ids[index], text)]
        return {"items": [self.of(ids[index]) for index in found[offset : offset + limit]], "total": len(found)}

    def named(self, served: Served, ids: list[str]) -> dict[str, Any]:
        """The items with these ids, as far as they are known."""
        known = [served.vocabulary.id(index) for index in served.vocabulary.encode(ids)[0]]
        return {"items": [self.of(item) for item in known], "total": len(known)}

    def _matches(self, item: ItemId, text: str) -> bool:
        key = str(item)
        return text in key.casefold() or text in self._names.get(key, "").casefold()


def _texts(table: pl.DataFrame, column: str) -> dict[str, str]:
    """What a column says of each item; nothing where it is missing or empty."""
    if column not in table.columns:
        return {}
    ids, texts = (table[name].to_list() for name in ("item_id", column))
    return {item: text for item, text in zip(ids, texts, strict=True) if item and text}


class _Identity:
    """A key for the cache: a loaded policy is what it is and is not compared by its arrays."""

    def __init__(self, served: Served):
        self.served = served

    def __hash__(self) -> int:
        return hash(self.served.version)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.served.version == self.served.version


def _by_popularity(key: _Identity) -> IntArray:
    served = key.served
    popularity = served.policy.popularity
    if popularity is None:
        return np.arange(len(served.vocabulary), dtype=np.int32)
    return np.argsort(-popularity, kind="stable").astype(np.int32)
