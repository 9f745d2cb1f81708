"""What a baseline is: hyper-parameters as a config, and `fit` that turns sequences into a policy."""

from abc import abstractmethod

from bcd4rec.config import Config
from bcd4rec.data.sequences import Sequences
from bcd4rec.policies.bundle import SavedPolicy
from bcd4rec.registry import Registry


class Baseline(Config):
    """A subclass's docstring is the claim, the formula and the citation; its fields are the hyper-parameters."""

    @abstractmethod
    def fit(self, sequences: Sequences, n_items: int, seed: int) -> SavedPolicy:
        """Learn from the positive items of sessions, oldest session first."""


BASELINES: Registry[type[Baseline]] = Registry("baseline", "bcd4rec.baselines")
