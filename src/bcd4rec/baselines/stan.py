"""STAN: positions and the age of sessions count."""

from typing import ClassVar

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.baselines.session_knn import NeighbourConfig
from bcd4rec.models.session_neighbours import SequenceAndTime


@BASELINES.register("stan")
class STANConfig(SequenceAndTime, NeighbourConfig):
    """STAN: see `SequenceAndTime` for the formula and the citation."""

    method: ClassVar[str] = "stan"
