"""What a user can answer to a shown item, and what each answer is worth."""

from typing import Self

from pydantic import model_validator

from bcd4rec.config import Config, parse_numbers

LARGEST_REWARD = 1e9  # so that sums and squares of returns stay within single precision


class Responses(Config):
    """Response names with their rewards; which of them are positive, and which one is the target.

    Codes are positions in `rewards`: with `skip=0,click=4` a skip is 0 and a click is 1.
    """

    rewards: dict[str, float]
    """Reward of each response, by name, e.g. skip=0, click=4."""
    positive: tuple[str, ...] = ()
    """Responses that enter the state; by default those with a reward above 0."""
    target: str = ""
    """The response whose rate is reported; by default the one with the largest reward."""

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: dict[str, object]) -> dict[str, object]:
        rewards = values.get("rewards")
        if isinstance(rewards, dict) and rewards:
            values = dict(values)
            if not values.get("positive"):
                values["positive"] = tuple(name for name, reward in rewards.items() if float(reward) > 0)
            if not values.get("target"):
                values["target"] = max(rewards, key=lambda name: float(rewards[name]))
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.rewards) < 2:
            raise ValueError("at least two responses are needed, e.g. skip=0,click=4")
        if not all(abs(reward) <= LARGEST_REWARD for reward in self.rewards.values()):
            raise ValueError(f"rewards must be finite numbers between ±{LARGEST_REWARD:g}; write them in a larger unit")
        for name in (*self.positive, self.target):
            if name not in self.rewards:
                raise ValueError(f"{name!r} has no reward; known responses are {', '.join(self.rewards)}")
        if not self.positive:
            raise ValueError("no response is positive; give one a reward above 0 or name it with --positive")
        if set(self.positive) == set(self.rewards):
            raise ValueError("every response is positive; one of them must be the skip")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.rewards)

    def code(self, name: str) -> int:
        return self.names.index(name)

    @classmethod
    def from_options(cls, rewards: str, positive: str | None = None, target: str | None = None) -> Self:
        """From the CLI's `--rewards skip=0,click=4 --positive click --target click`."""
        values = {
            "rewards": parse_numbers(rewards, "--rewards"),
            "positive": tuple(part.strip() for part in positive.split(",")) if positive else (),
            "target": target or "",
        }
        return cls.parse(values, f"--rewards {rewards}")


RECSIM = Responses(rewards={"skip": 0.0, "click": 4.0})
DIGINETICA = Responses(rewards={"skip": 0.0, "click": 1.0, "buy": 5.0})
