"""The simulated users for gymnasium: one at a time, those of interest evolution also many at once.

Importing this module registers them:

    import gymnasium
    import bcd4rec.sim.gym

    env = gymnasium.make("bcd4rec/InterestEvolution-v0", preset="paper")
    envs = gymnasium.make_vec("bcd4rec/InterestEvolution-v0", num_envs=2000, preset="paper")
    env = gymnasium.make("bcd4rec/Shop-v0", preset="single")
    env = gymnasium.make("bcd4rec/Learned-v0", model="user/")

The action is a slate of K items, the observation the last 10 items with a positive response, oldest first, padded on
the right with −1 (in the shop the first is the item that the user has come with), and the reward the sum of the rewards
of the slate's responses, whose codes are `info["responses"]`. A session ends by termination, so nothing may be
bootstrapped from its last state.
"""

from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Box, MultiDiscrete, Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from bcd4rec.data.states import HISTORY, PAD, Doubles, IntArray, Mask, Rows, append
from bcd4rec.sim import shop_config
from bcd4rec.sim.environment import ENVIRONMENTS, Environment, EnvironmentOptions, openings
from bcd4rec.sim.interest_evolution import InterestEvolution, preset
from bcd4rec.sim.shop import Shop

ENV_ID = "bcd4rec/InterestEvolution-v0"
SHOP_ID = "bcd4rec/Shop-v0"
LEARNED_ID = "bcd4rec/Learned-v0"


class _Step(NamedTuple):
    observations: IntArray  # (B, L)
    rewards: Doubles  # (B,)
    ended: Mask  # (B,)
    responses: NDArray[np.int8]  # (B, K)


class _Sessions:
    """The environment of B users together with what they liked: all that the gymnasium classes share."""

    def __init__(self, environment: Environment, users: int):
        self.environment = environment
        self.users = users
        self._rewards = np.array(list(environment.responses.rewards.values()))
        self._positive = [environment.responses.code(name) for name in environment.responses.positive]
        self._clicks = np.full((users, HISTORY), PAD, np.int32)

    def observation_space(self) -> Space[IntArray]:
        return cast("Space[IntArray]", Box(PAD, self.environment.n_items - 1, (HISTORY,), np.int32))

    def action_space(self) -> MultiDiscrete:
        return MultiDiscrete([self.environment.n_items] * self.environment.slate_size)

    def reset(self, random: np.random.Generator) -> IntArray:
        """Fresh users, and their first observations."""
        self.environment.reset(self.users, int(random.integers(2**63)))
        self._clicks = np.full((self.users, HISTORY), PAD, np.int32)
        before = openings(self.environment, self.users)
        self._clicks[:, : before.shape[1]] = before
        return self._clicks.copy()

    def step(self, slates: Rows) -> _Step:
        shown = np.asarray(slates).astype(np.int32)
        outcome = self.environment.step(shown)
        liked = np.isin(outcome.responses, self._positive)
        for place in range(shown.shape[1]):  # one after the other, because `append` takes one item for each row
            rows = np.flatnonzero(liked[:, place]).astype(np.int32)
            self._clicks = append(self._clicks, rows, shown[rows, place])
        rewards = self._rewards[outcome.responses].sum(axis=1)
        return _Step(self._clicks.copy(), rewards, outcome.ended, outcome.responses)


class _OneUser(gymnasium.Env[IntArray, Rows]):
    """One user after another."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]

    def __init__(self, environment: Environment, render_mode: str | None = None):
        self.render_mode = render_mode
        self._sessions = _Sessions(environment, users=1)
        self.observation_space = self._sessions.observation_space()
        self.action_space = self._sessions.action_space()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[IntArray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._sessions.reset(self.np_random)[0], {}

    def step(self, action: Rows) -> tuple[IntArray, float, bool, bool, dict[str, Any]]:
        step = self._sessions.step(np.asarray(action)[None])
        return (
            step.observations[0],
            float(step.rewards[0]),
            bool(step.ended[0]),
            False,
            {"responses": step.responses[0]},
        )


class InterestEvolutionEnv(_OneUser):
    """One user of the interest-evolution environment after another."""

    def __init__(self, preset: str = "paper", render_mode: str | None = None):
        super().__init__(_interest_evolution(preset), render_mode)


class ShopEnv(_OneUser):
    """One user of the shop after another; sessions differ in length."""

    def __init__(self, preset: str = "single", render_mode: str | None = None):
        super().__init__(Shop(shop_config.preset(preset)), render_mode)


class LearnedEnv(_OneUser):
    """One session of a learned user after another; `model` is the folder of the user."""

    def __init__(self, model: str | Path, preset: str | None = None, render_mode: str | None = None):
        super().__init__(ENVIRONMENTS["learned"](EnvironmentOptions(preset, Path(model))), render_mode)


def _interest_evolution(name: str) -> InterestEvolution:
    return InterestEvolution(preset(name))


class InterestEvolutionVectorEnv(VectorEnv[IntArray, Rows, NDArray[Any]]):
    """`num_envs` users at once. All sessions are equally long, so all begin anew in the step after their last."""

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "render_modes": [],
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(self, num_envs: int = 1, preset: str = "paper", render_mode: str | None = None):
        self.num_envs = num_envs
        self.render_mode = render_mode
        self._sessions = _Sessions(_interest_evolution(preset), users=num_envs)
        self._ended = False
        self.single_observation_space = self._sessions.observation_space()
        self.single_action_space = self._sessions.action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[IntArray, dict[str, Any]]:
        super().reset(seed=seed)
        self._ended = False
        return self._sessions.reset(self.np_random), {}

    def step(self, actions: Rows) -> tuple[IntArray, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        never = np.zeros(self.num_envs, np.bool_)
        if self._ended:  # gymnasium's next-step autoreset: this step's actions are not looked at
            observations, info = self.reset()
            return observations, np.zeros(self.num_envs), never, never.copy(), info
        step = self._sessions.step(actions)
        self._ended = bool(step.ended.all())
        info = {"responses": step.responses, "_responses": ~never}  # the mask says which users have this entry
        return step.observations, step.rewards, step.ended, never, info


if ENV_ID not in gymnasium.registry:
    gymnasium.register(
        ENV_ID,
        entry_point=f"{__name__}:{InterestEvolutionEnv.__name__}",
        vector_entry_point=f"{__name__}:{InterestEvolutionVectorEnv.__name__}",
    )
if SHOP_ID not in gymnasium.registry:
    gymnasium.register(SHOP_ID, entry_point=f"{__name__}:{ShopEnv.__name__}")
if LEARNED_ID not in gymnasium.registry:
    gymnasium.register(LEARNED_ID, entry_point=f"{__name__}:{LearnedEnv.__name__}")
