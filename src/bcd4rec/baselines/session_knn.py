"""Nearest neighbours among whole sessions as policies: what SKNN, VSKNN and STAN share."""

from typing import Any, ClassVar, Self

from bcd4rec.baselines.baseline import BASELINES, Baseline
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import FloatArray, IntArray, States
from bcd4rec.models.session_neighbours import SessionNeighbours, Weighting
from bcd4rec.policies.scorer import Arrays, register


class NeighbourConfig(Weighting, Baseline):
    """What the methods share; see `Weighting`."""

    method: ClassVar[str]

    def fit(self, dataset: Dataset, seed: int) -> "SessionKNN":
        return SessionKNN(self, dataset.sequences("train"), dataset.n_items)


@register
class SessionKNN:
    """The policy: items by the votes of a session's neighbours."""

    kind: ClassVar[str] = "session_knn"

    def __init__(self, config: NeighbourConfig, sequences: Sequences, n_items: int):
        self.config = config
        self._neighbours = SessionNeighbours(config, sequences, n_items)

    @property
    def n_items(self) -> int:
        return self._neighbours.n_items

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        return self._neighbours.scores(states, candidates)

    def top(self, sessions: States | Sequences, k: int) -> tuple[IntArray, FloatArray]:
        """(B, K) the best items and their scores, K = min(k, A), as ranking `scores` gives them but without (B, A)."""
        return self._neighbours.top(sessions, k)

    def settings(self) -> dict[str, Any]:
        return {"method": self.config.method, "config": self.config.model_dump(), "n_items": self.n_items}

    def arrays(self) -> Arrays:
        sequences = self._neighbours.sequences
        return {"items": sequences.items, "offsets": sequences.offsets}

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: Arrays) -> Self:
        name = settings["method"]
        if name not in BASELINES or not issubclass(method := BASELINES[name], NeighbourConfig):
            raise ValueError(f"{name!r} is no method of nearest neighbours")
        config = method.parse(settings["config"], "bundle")
        return cls(config, Sequences(arrays["items"], arrays["offsets"]), settings["n_items"])
