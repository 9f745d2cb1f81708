"""How far an agent over evidence looks ahead is chosen by the log alone, in a few short runs.

Looking ahead moves values away from the response model's, and on a log that says little about what follows, that is
noise. So values are drawn to the response model, and the search finds how strongly: of the strengths in `STRENGTHS`
the one whose policy ranks validation slates best.
"""

import contextlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bcd4rec.data.dataset import Dataset
from bcd4rec.errors import InputError
from bcd4rec.evaluation.logged_slates import Cases, Ranker, Values, logged_cases, values_of
from bcd4rec.policies.evidence_policy import EvidencePolicy
from bcd4rec.policies.scorer import SavedScorer

if TYPE_CHECKING:
    from bcd4rec.agents.agent import AgentConfig
    from bcd4rec.agents.evidence_agent import LearningMaterial

Search = Literal["none", "quick", "full"]
STRENGTHS: dict[Search, tuple[float, ...]] = {
    "none": (),
    "quick": (1.0, 10.0, 100.0),
    "full": (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
}
MOST = 5000  # validation cases that decide
MEASURE = "reward_auc"


@dataclass(frozen=True)
class Tried:
    """One run of the search."""

    shrink: float
    measure: float  # mean over validation cases
    difference: float  # to the response model
    error: float  # standard error of the difference, over sessions


def candidates(config: "AgentConfig", settings: dict[str, Any], search: Search) -> list["AgentConfig"]:
    """Configurations in the order in which they are to be tried; one where there is nothing to choose."""
    if "shrink" in settings or not STRENGTHS[search]:
        return [config]
    return [config.model_copy(update={"shrink": strength}) for strength in STRENGTHS[search]]


def nothing_to_look_ahead_to(material: "LearningMaterial", dataset: Dataset) -> str | None:
    """Why values beyond the next response cannot be learned from this log; None where they can."""
    shown, responses = material.transitions, dataset.responses
    if np.isin(shown.response, [responses.code(name) for name in responses.positive]).all():
        return "nothing was skipped in this log, so it tells which items follow each other and not what they are worth"
    if not (shown.discount > 0).any():
        return "every session ends with its first slate, so there is nothing to look ahead to"
    return None


class Validator:
    """Policies beside the response model on validation slates."""

    def __init__(self, dataset: Dataset, material: "LearningMaterial", seed: int):
        self._cases: Cases | None = None
        self._response: Values = {}
        with contextlib.suppress(InputError):  # without validation sessions there is nothing to choose by
            self._cases = logged_cases(dataset, "validation", most=MOST, seed=seed)
            self._response = values_of(Ranker("response", EvidencePolicy(material.model)), self._cases)

    @property
    def can_tell(self) -> bool:
        return MEASURE in self._response

    def tried(self, policy: SavedScorer, shrink: float) -> Tried:
        if self._cases is None:
            raise ValueError("there are no validation slates")
        mine, other = values_of(Ranker("agent", policy), self._cases)[MEASURE], self._response[MEASURE]
        known = np.isfinite(mine) & np.isfinite(other)
        _, session = np.unique(self._cases.session[known], return_inverse=True)
        apart = (mine - other)[known]
        mean = float(apart.mean())
        error = float(np.sqrt((np.bincount(session, apart - mean) ** 2).sum()) / len(apart))
        return Tried(shrink, float(mine[known].mean()), mean, error)


def told(search: Search, tried: list[Tried], chosen: float) -> dict[str, Any]:
    """What the bundle says about the search."""
    if not tried:
        return {"kind": search, "shrink": chosen, "tried": []}
    reason = "the pull to the response model with which validation slates are ranked best"
    return {"kind": search, "by": MEASURE, "shrink": chosen, "reason": reason, "tried": [asdict(one) for one in tried]}
