"""Logged decisions: what was shown with which probability, what the candidate would have done, and what came of it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.responses import Responses
from bcd4rec.errors import InputError
from bcd4rec.policies.mixture import mixed_propensities

Doubles = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Decisions:
    """n slates of whole sessions, those of a session together and in order; O outcomes of each.

    Propensities are conditional on the places above, and 1 in empty places. What comes from a model of the response is
    from a model that has not seen the session.
    """

    session: Index  # (n,) any numbers
    logged: Doubles  # (n, K) probabilities of what was shown under the logger
    candidate: Doubles  # (n, K) and under the candidate
    outcomes: Doubles  # (n, O)
    model_logged: Doubles | None = None  # (n, O) expected outcomes of the slate that was shown
    model_candidate: Doubles | None = None  # (n, O) and of what the candidate would show
    by_items: Doubles | None = None  # (n,) weights by the pseudo-inverse over items
    by_categories: Doubles | None = None  # (n,) and over categories

    def __post_init__(self) -> None:
        n = len(self.session)
        shapes = {
            "logged": (n, *self.logged.shape[1:]),
            "candidate": self.logged.shape,
            "outcomes": (n, *self.outcomes.shape[1:]),
            "model_logged": self.outcomes.shape,
            "model_candidate": self.outcomes.shape,
            "by_items": (n,),
            "by_categories": (n,),
        }
        for name, expected in shapes.items():
            found = getattr(self, name)
            if found is not None and found.shape != expected:
                raise ValueError(f"{name} has the shape {found.shape}, expected {expected}")

    def __len__(self) -> int:
        return len(self.session)

    @property
    def weights(self) -> Doubles:
        """(n,) how much more often the candidate would have shown the slate."""
        return slate_weights(self.logged, self.candidate)

    def mixed(self, alpha: float) -> "Decisions":
        """The same of a policy whose places are the candidate's with probability α, else the logger's.

        What models say about such slates is not known: it is not linear in places.
        """
        if not 0.0 <= alpha <= 1.0:
            raise InputError(f"The share of the new policy is {alpha}, expected 0 to 1.")
        mixed = mixed_propensities(self.logged, self.candidate, alpha)
        return Decisions(self.session, self.logged, mixed, self.outcomes)


def slate_weights(logged: Doubles, candidate: Doubles) -> Doubles:
    """(n,) ratios of the probabilities of whole slates from conditional ones (n, K).

    A slate whose logged propensity is missing or 0 cannot stand for anything: see `diagnostics.PropensityCheck`.
    """
    ratios: Doubles = np.divide(candidate, logged, out=np.zeros_like(candidate), where=logged > 0)
    found: Doubles = ratios.prod(axis=1)
    return found


def outcomes_of(codes: NDArray[np.integer], responses: Responses) -> tuple[tuple[str, ...], Doubles]:
    """Names, and (n, O) outcomes of slates with response `codes` (n, K), below 0 in empty places.

    One for each positive response, which is how many items of the slate had it, and at last the sum of the rewards.
    """
    shown = codes >= 0
    rewards = np.array([responses.rewards[name] for name in responses.names])
    counts = [((codes == responses.code(name)) & shown).sum(axis=1) for name in responses.positive]
    total = np.where(shown, rewards[np.where(shown, codes, 0)], 0.0).sum(axis=1)
    return (*responses.positive, "reward"), np.stack([*counts, total], axis=1).astype(np.float64)
