"""How much better one of two arms is, known at every moment: looking at it after every session costs nothing.

Sessions are given to the new arm with a known probability p (its share of the traffic), so with the reward y in [0, 1]
and a guess g of it from the sessions before,

    x = (y − g) / p in the new arm,   x = −(y − g) / (1 − p) in the old one

has the mean δ = mean(new) − mean(old), whatever g is and however rewards drift over the day, as long as they drift in
both arms. For every δ on a grid a gambler bets that x lies above δ, and another one that it lies below:

    wealth(δ) = mean over stakes λ of Π (1 ± λ (x − δ)).

Where δ is the truth no stake wins in the long run, and the wealth ever exceeds 1 / error with probability ≤ error. So
the interval is of those δ that neither gambler got rich on (Waudby-Smith and Ramdas, "Estimating means of bounded
random variables by betting", 2024). Stakes are those that would be best for a range of true differences, given the
variance of the sessions before.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bcd4rec.errors import InputError

Doubles = NDArray[np.float64]

DIFFERENCES = np.array([0.003, 0.006, 0.012, 0.025, 0.05, 0.1, 0.2, 0.4])  # true differences that stakes are best for
BOLDEST = 0.9  # of all that could be lost in one session, the largest share at stake
GRID = 40  # differences on either side of the margin; they lie closer together near to it
FINEST = 0.001  # the step of the grid next to the margin
PRIOR_SESSIONS, PRIOR_REWARD, PRIOR_VARIANCE = 2.0, 0.5, 0.05  # what stands for the sessions before the first


class Range(NamedTuple):
    """Where the difference lies; 0 is in it as long as nothing is known."""

    low: float
    high: float


def grid_around(margin: float) -> Doubles:
    """(2 · GRID + 1,) differences from −1 to 1 around `margin`, growing further apart geometrically."""
    if not -1.0 < margin < 1.0:
        raise InputError(f"The margin is {margin}, expected a difference of rewards between -1 and 1.")

    def side(length: float) -> Doubles:
        growth = _growth(length / FINEST)
        steps = np.array([FINEST * (growth**step - 1) / (growth - 1) for step in range(1, GRID + 1)])
        steps[-1] = length
        return steps

    return np.concatenate([margin - side(1 + margin)[::-1], [margin], margin + side(1 - margin)])


def _growth(length: float) -> float:
    """The g for which 1 + g + … + g^(GRID − 1) = length."""
    low, high = 1.0 + 1e-9, 4.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (middle**GRID - 1) / (middle - 1) < length else (low, middle)
    return high


@dataclass
class ConfidenceSequence:
    """The state: some hundred numbers, however many sessions there were."""

    margin: float = 0.0
    error: float = 0.05  # of each side of the interval
    new: int = 0
    old: int = 0
    rewards: float = 0.0  # sum over both arms
    squares: float = 0.0  # sum of (y − g)²
    above: Doubles = field(default_factory=lambda: np.zeros((0, 0)))  # (δ, λ) logarithm of the wealth of who bets x > δ
    below: Doubles = field(default_factory=lambda: np.zeros((0, 0)))
    low: int = 0  # the first δ of the grid that is not yet refuted, and never before it
    high: int = 2 * GRID

    def __post_init__(self) -> None:
        if not 0.0 < self.error < 1.0:
            raise InputError(f"The error rate is {self.error}, expected a number between 0 and 1, e.g. 0.05.")
        self.grid = grid_around(self.margin)
        if not self.above.size:
            self.above, self.below = (np.zeros((len(self.grid), len(DIFFERENCES))) for _ in range(2))

    @property
    def sessions(self) -> int:
        return self.new + self.old

    def add(self, in_new: bool, reward: float, share: float) -> None:
        """One more session; `share` is the probability with which it was given to the new arm."""
        if not 0.0 <= reward <= 1.0:
            raise InputError(f"The reward of a session is {reward}, expected 0 to 1; scale it by its largest value.")
        if not 0.0 < share < 1.0:
            raise InputError(f"The new arm's share is {share}, expected a number between 0 and 1, e.g. 0.1.")
        guess = (PRIOR_SESSIONS * PRIOR_REWARD + self.rewards) / (PRIOR_SESSIONS + self.sessions)
        spread = (PRIOR_SESSIONS * PRIOR_VARIANCE + self.squares) / (PRIOR_SESSIONS + self.sessions)
        x = (reward - guess) / share if in_new else (guess - reward) / (1 - share)
        variance = spread / (share * (1 - share))
        lowest = -max(guess / share, (1 - guess) / (1 - share))
        highest = max((1 - guess) / share, guess / (1 - share))
        stakes = DIFFERENCES / (variance + DIFFERENCES**2)  # (λ,)
        delta = self.grid[:, None]
        self.above += np.log1p(np.minimum(stakes, BOLDEST / np.maximum(delta - lowest, 1e-9)) * (x - delta))
        self.below += np.log1p(np.minimum(stakes, BOLDEST / np.maximum(highest - delta, 1e-9)) * (delta - x))
        self.rewards += reward
        self.squares += (reward - guess) ** 2
        self.new, self.old = self.new + in_new, self.old + (not in_new)
        self._refute()

    def _refute(self) -> None:
        """What is refuted once stays so."""
        rich = math.log(1 / self.error)
        higher, lower = _wealth(self.above) < rich, _wealth(self.below) < rich
        if higher.any():
            self.low = max(self.low, int(higher.argmax()))
        if lower.any():
            self.high = min(self.high, len(lower) - 1 - int(lower[::-1].argmax()))

    @property
    def interval(self) -> Range:
        """Both ends with their own error rate; rounded outwards to the grid."""
        size = len(self.grid) - 1
        return Range(float(self.grid[max(self.low - 1, 0)]), float(self.grid[min(self.high + 1, size)]))

    @property
    def is_above(self) -> bool:
        """The difference is larger than the margin, with error rate `error`."""
        return self.low > GRID

    @property
    def is_below(self) -> bool:
        return self.high < GRID

    def to_json(self) -> dict[str, Any]:
        """For `json.dumps`, which writes floats so that they are read as the same bits."""
        plain = ("margin", "error", "new", "old", "rewards", "squares", "low", "high")
        return {name: getattr(self, name) for name in plain} | {
            "above": self.above.ravel().tolist(),
            "below": self.below.ravel().tolist(),
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self:
        arrays = {name: np.array(state[name], np.float64).reshape(-1, len(DIFFERENCES)) for name in ("above", "below")}
        return cls(**(state | arrays))


def _wealth(logs: Doubles) -> Doubles:
    """(δ,) the logarithm of the mean of exp over stakes."""
    most = logs.max(axis=1)
    found: Doubles = most + np.log(np.exp(logs - most[:, None]).mean(axis=1))
    return found
