"""The policy that prefers nothing. With exploration at ε = 1 it is the random policy."""

from typing import Any, ClassVar, Self

import numpy as np

from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.policies.scorer import Arrays, register


@register
class Uniform:
    """Every item has the score 0."""

    kind: ClassVar[str] = "uniform"

    def __init__(self, n_items: int):
        self._n_items = n_items

    @property
    def n_items(self) -> int:
        return self._n_items

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        if candidates is None:
            return np.zeros((len(states), self._n_items), np.float32)
        return np.where(candidates == PAD, np.float32(-np.inf), np.float32(0))

    def settings(self) -> dict[str, Any]:
        return {"n_items": self._n_items}

    def arrays(self) -> Arrays:
        return {}

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: Arrays) -> Self:
        return cls(settings["n_items"])
