"""What a baseline is: hyper-parameters as a config, and `fit` that turns a data set into a scorer."""

from abc import abstractmethod

from bcd4rec.config import Config
from bcd4rec.data.dataset import Dataset
from bcd4rec.policies.scorer import SavedScorer
from bcd4rec.registry import Registry


class Baseline(Config):
    """A subclass's docstring is the claim, the formula and the citation; its fields are the hyper-parameters."""

    @abstractmethod
    def fit(self, dataset: Dataset, seed: int) -> SavedScorer:
        """Learn from the split `train` of a data set; `dataset.sequences("train")` are its positive items."""


BASELINES: Registry[type[Baseline]] = Registry("baseline", "bcd4rec.baselines")
