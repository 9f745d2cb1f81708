"""When a canary ends: promote the new policy, roll it back, or stop without a decision.

The rule looks after every session, which the confidence sequence allows. Harm is tested from the first session on, and
with the same error rate as gain. Sessions should be added in the order in which they began (each once it has ended or
timed out): if short sessions were added first, the shares of the arms among what was added would depend on the arms.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pydantic import Field

from bcd4rec.config import Config
from bcd4rec.errors import InputError
from bcd4rec.evaluation.confidence_sequence import ConfidenceSequence

Decision = Literal["promote", "roll back", "stop"]


class CanaryConfig(Config):
    """What is asked of the new policy, and how sure the answer must be."""

    margin: float = 0.0
    """Promoted if surely better than the old one by more than this, rolled back if surely not, in units of the
    session's reward. Below 0: so much worse is accepted."""
    error: float = Field(default=0.05, gt=0.0, lt=1.0)
    """Probability of promoting something that is not better by the margin, however often one looks; and the
    probability of rolling back something that is not worse."""
    most: int = Field(default=10_000, ge=1)
    """Sessions of both arms together after which it stops without a decision."""
    lowest: float = 0.0
    """The smallest reward that a session can have."""
    highest: float = 1.0
    """The largest reward that a session can have; rewards are scaled to 0..1 by these two."""


@dataclass
class Canary:
    """The rule and its state; a decision stays once it is made, and later sessions change nothing."""

    config: CanaryConfig = field(default_factory=CanaryConfig)
    decision: Decision | None = None
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0])  # of the rewards of the old and the new arm
    sequence: ConfidenceSequence = field(init=False)

    def __post_init__(self) -> None:
        if not self.config.lowest < self.config.highest:
            raise InputError(
                f"Rewards of a session go from {self.config.lowest} to {self.config.highest}; "
                "expected the first to be smaller."
            )
        scale = self.config.highest - self.config.lowest
        self.sequence = ConfidenceSequence(self.config.margin / scale, self.config.error)

    def add(self, in_new: bool, reward: float, share: float) -> Decision | None:
        """One more session that ended, given to the new arm with probability `share`; the decision so far."""
        if self.decision is not None:
            return self.decision
        low, high = self.config.lowest, self.config.highest
        if not low <= reward <= high:
            raise InputError(f"The reward of a session is {reward}, expected {low} to {high}.")
        self.sequence.add(in_new, (reward - low) / (high - low), share)
        self.sums[in_new] += reward
        self.decision = self._decide()
        return self.decision

    def _decide(self) -> Decision | None:
        if self.sequence.is_below:
            return "roll back"
        if self.sequence.is_above:
            return "promote"
        return "stop" if self.sequence.sessions >= self.config.most else None

    @property
    def means(self) -> tuple[float | None, float | None]:
        """The mean rewards of the old and of the new arm."""
        counts = (self.sequence.old, self.sequence.new)
        old, new = (total / count if count else None for total, count in zip(self.sums, counts, strict=True))
        return old, new

    @property
    def interval(self) -> tuple[float, float]:
        """Where new − old lies, in units of the reward; each end with its own error rate."""
        scale = self.config.highest - self.config.lowest
        low, high = self.sequence.interval
        return low * scale, high * scale

    def sentence(self) -> str:
        """What was decided, in words."""
        low, high = self.interval
        found = f"after {self.sequence.new} sessions of the new and {self.sequence.old} of the old policy"
        between = f"the difference lies between {low:+.4g} and {high:+.4g}".replace("-", "−")
        words = {
            "promote": "Promoted: the new policy is better",
            "roll back": "Rolled back: the new policy is worse",
            "stop": "Stopped without a decision",
            None: "Not decided yet",
        }
        return f"{words[self.decision]}; {found} {between}."

    def to_json(self) -> dict[str, Any]:
        return {
            "config": self.config.model_dump(),
            "decision": self.decision,
            "sums": list(self.sums),
            "sequence": self.sequence.to_json(),
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self:
        """The same state to the bit."""
        found = cls(CanaryConfig.parse(state["config"], "canary"), state["decision"], list(state["sums"]))
        found.sequence = ConfidenceSequence.from_json(state["sequence"])
        return found
