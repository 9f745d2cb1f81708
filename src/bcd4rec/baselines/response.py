"""The response model, played greedily: a supervised, myopic opponent for every agent."""

from bcd4rec.baselines.baseline import BASELINES, Baseline
from bcd4rec.data.dataset import Dataset
from bcd4rec.models.response_regression import fit_response
from bcd4rec.policies.evidence_policy import EvidencePolicy


@BASELINES.register("response")
class ResponseConfig(Baseline):
    """A logistic model of the response with some twenty weights over what the log and the session say about an item.

    score(i) = expected reward of showing i now; see `models.response_regression` for the formula and
    `models.evidence` for the columns. It does not look ahead.
    """

    def fit(self, dataset: Dataset, seed: int) -> EvidencePolicy:
        model, _ = fit_response(dataset, seed)
        return EvidencePolicy(model)
