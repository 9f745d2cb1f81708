"""Options of canaries, for `bcd4rec serve --canary` and `bcd4rec canary --log`."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bcd4rec.config import OPTIONS
from bcd4rec.errors import InputError

if TYPE_CHECKING:  # NumPy must not be loaded before `serve` has said how many threads it may have
    from bcd4rec.evaluation.canary import CanaryConfig
    from bcd4rec.evaluation.session_rewards import SessionReward
    from bcd4rec.serving.arms import Arm
    from bcd4rec.serving.canary_state import CanarySettings
    from bcd4rec.serving.decision_hook import Hook

AB_SHARE, CANARY_SHARE = 0.5, 0.1
Margin = Annotated[
    float, typer.Option(help="Promote if surely better by more than this, in units of the session's reward.")
]
ErrorRate = Annotated[float, typer.Option(help="Probability of a wrong promotion, however often one looks.")]
Most = Annotated[int, typer.Option(help="Counted sessions after which a canary stops without a decision.")]
SessionMinutes = Annotated[
    float, typer.Option(help="How long a session is watched, from its first slate on, before it counts.")
]
SessionRewardOption = Annotated[
    str,
    typer.Option(
        help="What a session is worth: slate (mean over slates of the strongest response's reward), item (mean over "
        "shown items) or total (sum, at most --highest)."
    ),
]
Highest = Annotated[float | None, typer.Option(help="Where --session-reward total is cut off.")]


def reward_of(measure: str, highest: float | None, rewards: dict[str, float]) -> "SessionReward":
    from bcd4rec.evaluation.session_rewards import MEASURES, SessionReward

    if measure not in MEASURES:
        raise InputError(f"--session-reward: found {measure!r}, expected {', '.join(MEASURES)}.")
    if (highest is not None) != (measure == "total"):
        needs = "needs --highest, where it is cut off" if highest is None else "has no --highest; leave it out"
        raise InputError(f"--session-reward {measure} {needs}.")
    if highest is not None and not 0 < highest < 1e9:
        raise InputError(f"--highest: found {highest:g}, expected a number above 0.")
    return SessionReward.from_rewards(measure, list(rewards.values()), highest)


def rule_of(margin: float, error: float, most: int, reward: "SessionReward") -> "CanaryConfig":
    from bcd4rec.evaluation.canary import CanaryConfig

    span = reward.highest - reward.lowest
    if not -span < margin < span:
        raise InputError(f"--margin: found {margin:g}, expected a difference of session rewards below {span:g}.")
    values = {"margin": margin, "error": error, "most": most, "lowest": reward.lowest, "highest": reward.highest}
    return CanaryConfig.parse(values, OPTIONS)


@dataclass(frozen=True)
class CanaryOptions:
    """What `bcd4rec serve` was told about its canary."""

    canary: Path | None
    control: str
    share: float | None
    margin: float
    error: float
    most: int
    ramp: str | None
    ramp_sessions: int
    session_minutes: float
    session_reward: str
    highest: float | None
    decide: str
    on_decision: str | None

    def check(self, ab: Path | None) -> None:
        """What is wrong whatever the policies are; before they are loaded, which takes long."""
        if self.control not in ("policy", "external"):
            raise InputError(f"--control: found {self.control!r}, expected policy or external.")
        if self.decide not in ("act", "tell"):
            raise InputError(f"--decide: found {self.decide!r}, expected act or tell.")
        if self.canary is not None and self.external:
            raise InputError("--control external: POLICY is the new policy then; leave --canary out.")
        if self.active:
            if ab is not None:
                raise InputError("--ab and a canary are two tests at once; choose one of them.")
            self._rule_and_shares()
        elif self.ramp is not None or self.on_decision is not None:
            option = "--ramp" if self.ramp is not None else "--on-decision"
            raise InputError(f"{option} is for a canary; say which policy it is with --canary FOLDER.")

    @property
    def external(self) -> bool:
        return self.control == "external"

    @property
    def active(self) -> bool:
        return self.canary is not None or self.external

    def _rule_and_shares(self) -> None:
        _ = self.hook
        if self.ramp is not None and self.share is not None:
            raise InputError("--share and --ramp are both given; the ramp begins with its first share.")
        reward = reward_of(self.session_reward, self.highest, {"skip": 0.0, "click": 1e9})  # the true ones come later
        rule_of(self.margin, self.error, self.most, reward)
        self._settings("old", "new", reward, 0)

    @property
    def shares(self) -> tuple[float, ...]:
        if self.ramp is None:
            return (CANARY_SHARE if self.share is None else self.share,)
        try:
            return tuple(float(part) for part in self.ramp.split(","))
        except ValueError:
            raise InputError(f"--ramp: found {self.ramp!r}, expected shares that rise, e.g. 0.05,0.2,0.5.") from None

    @cached_property
    def hook(self) -> "Hook | None":
        from bcd4rec.serving.decision_hook import hook_of

        return None if self.on_decision is None else hook_of(self.on_decision)

    def arms(self, policy: Path, ab: Path | None) -> list[tuple[str, Path, float]]:
        """Name, folder and share of each policy that answers."""
        if self.external:
            return [("new", policy, self.shares[0])]
        if self.canary is not None:
            return [("old", policy, 1.0 - self.shares[0]), ("new", self.canary, self.shares[0])]
        if ab is None:
            return [("a", policy, 1.0)]
        share = AB_SHARE if self.share is None else self.share
        return [("a", policy, 1.0 - share), ("b", ab, share)]

    def settings(self, loaded: "list[Arm]", seed: int) -> "CanarySettings":
        """The canary of these policies, which must agree on what responses are worth."""
        rewards: list[dict[str, float]] = [arm.recommender.served.responses.rewards for arm in loaded]
        if rewards[0] != rewards[-1]:
            raise InputError(
                f"--canary: the new policy has the rewards {rewards[-1]}, the old one {rewards[0]}; expected the same."
            )
        new = loaded[-1].version
        old = "external" if self.external else loaded[0].version
        if old == new:
            raise InputError(f"--canary: both folders hold the same policy (version {new}); there is nothing to test.")
        return self._settings(old, new, reward_of(self.session_reward, self.highest, rewards[-1]), seed)

    def _settings(self, old: str, new: str, reward: "SessionReward", seed: int) -> "CanarySettings":
        from bcd4rec.serving.canary_state import CanarySettings

        values: dict[str, Any] = {
            "old": old,
            "new": new,
            "rule": rule_of(self.margin, self.error, self.most, reward),
            "shares": self.shares,
            "ramp_sessions": self.ramp_sessions,
            "session_minutes": self.session_minutes,
            "reward": reward,
            "seed": seed,
        }
        return CanarySettings.parse(values, OPTIONS)
