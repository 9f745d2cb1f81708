"""How far an agent goes from where it starts is chosen by the log alone, in a few short runs.

Looking ahead moves values away from the response model's, and on a log that says little about what follows, that is
noise. So values are drawn to the response model, and the search finds how strongly: of the strengths in `STRENGTHS`
the one whose policy ranks validation slates best. An agent names the setting that is its strength.
"""

import contextlib
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from bcd4rec.agents.agent import AgentConfig
from bcd4rec.data.dataset import Dataset
from bcd4rec.errors import InputError
from bcd4rec.evaluation.logged_slates import Cases, Ranker, Values, logged_cases, values_of
from bcd4rec.policies.scorer import SavedScorer

Search = Literal["none", "quick", "full"]
STRENGTHS: dict[Search, tuple[float, ...]] = {
    "none": (),
    "quick": (1.0, 10.0, 100.0),
    "full": (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
}
MOST = 5000  # validation cases that decide
MEASURE = "reward_auc"
WORSE = "the response model alone: whatever was learned on top of it ranks validation slates worse"


@dataclass(frozen=True)
class Tried:
    """One run of the search."""

    strength: float
    measure: float  # mean over validation cases
    difference: float  # to the policy that training starts at
    error: float  # standard error of the difference, over sessions


def candidates(config: AgentConfig, settings: dict[str, Any], search: Search) -> list[AgentConfig]:
    """Configurations in the order in which they are to be tried; one where there is nothing to choose."""
    name = config.strength
    if name is None or name in settings or not STRENGTHS[search]:
        return [config]
    return [config.model_copy(update={name: strength}) for strength in STRENGTHS[search]]


class Validator:
    """Policies beside the one that training starts at, on validation slates."""

    def __init__(self, dataset: Dataset, start: SavedScorer | None, seed: int):
        self._cases: Cases | None = None
        self._response: Values = {}
        if start is None:
            return
        with contextlib.suppress(InputError):  # without validation sessions there is nothing to choose by
            self._cases = logged_cases(dataset, "validation", most=MOST, seed=seed)
            self._response = values_of(Ranker("start", start), self._cases)

    @property
    def can_tell(self) -> bool:
        """Only slates can: where items were shown one at a time, items of different moments would be compared, and what
        is left of a session, which is part of a value, differs between moments."""
        return self._cases is not None and self._cases.unit == "slate" and MEASURE in self._response

    def tried(self, policy: SavedScorer, config: AgentConfig) -> Tried:
        if self._cases is None:
            raise ValueError("there are no validation slates")
        mine, other = values_of(Ranker("agent", policy), self._cases)[MEASURE], self._response[MEASURE]
        known = np.isfinite(mine) & np.isfinite(other)
        _, session = np.unique(self._cases.session[known], return_inverse=True)
        apart = (mine - other)[known]
        mean = float(apart.mean())
        error = float(np.sqrt((np.bincount(session, apart - mean) ** 2).sum()) / len(apart))
        return Tried(strength_of(config), float(mine[known].mean()), mean, error)


def strength_of(config: AgentConfig) -> float:
    return float(getattr(config, config.strength or ""))


def told(search: Search, tried: list[Tried], chosen: AgentConfig) -> dict[str, Any]:
    """What the bundle says about the search."""
    found = {"kind": search, "setting": chosen.strength, "chosen": strength_of(chosen)}
    if not tried:
        return found | {"tried": []}
    reason = "the pull to the response model with which validation slates are ranked best"
    return found | {"by": MEASURE, "reason": reason, "tried": [asdict(one) for one in tried]}
