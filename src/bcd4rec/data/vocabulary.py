"""Item ids of the log <-> item indices 0…A−1 of everything behind it."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import polars as pl

from bcd4rec.data.states import IntArray

ItemId = int | str


class Vocabulary:
    """The catalogue in ascending order of ids, so that the same items always get the same indices."""

    def __init__(self, ids: pl.Series):
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _index(self) -> dict[ItemId, int]:
        return {item: index for index, item in enumerate(self.ids.to_list())}

    def index(self, item: ItemId) -> int | None:
        """The index of an id, or None for an unknown item. An item is its id as written: `"17"` and `17` are the same
        one, as JSON and text files mean, and `"017"`, `"17 "` and `17.0` are others."""
        if isinstance(item, bool) or not isinstance(item, int | str):
            return None
        index = self._index.get(item)
        return self._index_by_text.get(str(item)) if index is None else index

    @cached_property
    def _index_by_text(self) -> dict[str, int]:
        return {str(item): index for item, index in self._index.items()}

    def id(self, index: int) -> ItemId:
        value: ItemId = self.ids[int(index)]
        return value

    def encode(self, items: Sequence[ItemId]) -> tuple[list[int], list[ItemId]]:
        """Indices of the known items in their order, and the unknown items."""
        pairs = [(item, self.index(item)) for item in items]
        return [index for _, index in pairs if index is not None], [item for item, index in pairs if index is None]

    def positions_of(self, other: "Vocabulary") -> IntArray:
        """(len(other),) where each item of `other` stands in this vocabulary, −1 for the unknown ones."""
        return np.array([-1 if (index := self.index(item)) is None else index for item in other.ids], np.int32)
