"""The gymnasium environments: gymnasium's own checks, and the same sessions as the environment beneath."""

import importlib
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode

import bcd4rec.sim.gym as registration
from bcd4rec.errors import InputError
from bcd4rec.sim.interest_evolution import PRESETS

ENV_ID = "bcd4rec/InterestEvolution-v0"


@pytest.fixture(autouse=True)
def _no_warnings():  # type: ignore[no-untyped-def]
    """gymnasium reports most of what it dislikes as warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)  # of what another test left, whenever it is collected
        yield


@pytest.mark.parametrize("preset", PRESETS)
def test_passes_the_checker(preset: str) -> None:
    env = gymnasium.make(ENV_ID, preset=preset)
    check_env(env.unwrapped)
    assert env.action_space.nvec.tolist() == [200] * PRESETS[preset].slate_size


@pytest.mark.parametrize("preset", PRESETS)
def test_observations_are_the_last_clicks(preset: str) -> None:
    env = gymnasium.make(ENV_ID, preset=preset)
    env.action_space.seed(0)
    observation, info = env.reset(seed=1)
    assert observation.tolist() == [-1] * 10
    assert info == {}
    clicked, terminated, steps = [], False, 0
    while not terminated:
        slate = env.action_space.sample()
        observation, reward, terminated, truncated, info = env.step(slate)
        clicked += [int(item) for item, code in zip(slate, info["responses"], strict=True) if code == 1]
        recent = clicked[-10:]
        assert observation.tolist() == recent + [-1] * (10 - len(recent))
        assert reward == 4.0 * info["responses"].sum()
        assert not truncated
        steps += 1
    assert steps == 20
    assert clicked


def test_more_than_ten_clicks_forget_the_oldest() -> None:
    env = gymnasium.make(ENV_ID)
    env.reset(seed=0)
    best = env.unwrapped._sessions.environment  # type: ignore[attr-defined]
    clicked = []
    for _ in range(20):
        scores = best.oracle_scores()[0]
        scores[clicked] = -2
        slate = np.argsort(-scores, kind="stable")[:7]
        observation, _, _, _, info = env.step(slate)
        clicked += slate[info["responses"] == 1].tolist()
    assert len(clicked) > 10
    assert observation.tolist() == clicked[-10:]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_vector_of_one_is_the_single_environment(preset: str) -> None:
    """Over two sessions, so that the autoreset draws the same next user as a reset without a seed."""
    single, vector = gymnasium.make(ENV_ID, preset=preset), gymnasium.make_vec(ENV_ID, num_envs=1, preset=preset)
    single.action_space.seed(3)
    assert data_equivalence(single.reset(seed=5)[0], vector.reset(seed=5)[0][0], exact=True)
    for _ in range(2):
        for step in range(20):
            slate = single.action_space.sample()
            observation, reward, terminated, truncated, info = single.step(slate)
            batch = vector.step(slate[None])
            assert data_equivalence(observation, batch[0][0], exact=True)
            assert (reward, terminated, truncated) == (batch[1][0], batch[2][0], batch[3][0])
            assert data_equivalence(info["responses"], batch[4]["responses"][0], exact=True)
            assert terminated == (step == 19)
        observation, _ = single.reset()
        batch = vector.step(slate[None])
        assert data_equivalence(observation, batch[0][0], exact=True)
        assert (batch[1][0], batch[2][0], batch[3][0], batch[4]) == (0.0, False, False, {})


def test_vector_keeps_the_shapes_and_types_of_gymnasiums_own_vectorisation() -> None:
    native = gymnasium.make_vec(ENV_ID, num_envs=3, preset="literal")
    copies = gymnasium.make_vec(ENV_ID, num_envs=3, preset="literal", vectorization_mode="sync")
    assert native.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert native.metadata["autoreset_mode"] is copies.metadata["autoreset_mode"]
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space", "num_envs"):
        assert getattr(native, name) == getattr(copies, name)
    native.action_space.seed(0)
    assert native.reset(seed=0)[0].tobytes() == copies.reset(seed=0)[0].tobytes()
    for _ in range(43):  # two sessions and their resets
        slates = native.action_space.sample()
        ours, theirs = native.step(slates), copies.step(slates)
        assert native.observation_space.contains(ours[0])
        for mine, other in zip(ours[:4], theirs[:4], strict=True):
            assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        for ending in (2, 3):
            np.testing.assert_array_equal(ours[ending], theirs[ending])
        assert set(ours[4]) == set(theirs[4])
        if "responses" in ours[4]:
            assert ours[4]["responses"].shape == theirs[4]["responses"].shape
            np.testing.assert_array_equal(ours[4]["_responses"], theirs[4]["_responses"])


def test_vector_is_seeded_and_draws_new_users_each_session() -> None:
    env = gymnasium.make_vec(ENV_ID, num_envs=40, preset="recsim")
    slates = np.tile(np.arange(3), (40, 1))

    def rewards(steps: int) -> np.ndarray:
        return np.stack([env.step(slates)[1] for _ in range(steps)])

    env.reset(seed=2)
    first = rewards(41)
    env.reset(seed=2)
    np.testing.assert_array_equal(rewards(41), first)
    assert (first[:20] != first[21:]).any()
    assert len(np.unique(first[:20], axis=1).T) > 20  # the users of one batch differ
    env.reset(seed=3)
    assert (rewards(20) != first[:20]).any()


def test_observations_are_the_callers_own() -> None:
    first, second = (gymnasium.make_vec(ENV_ID, num_envs=5) for _ in range(2))
    first.reset(seed=0)[0][:] = 7
    second.reset(seed=0)
    kept, copies = [], []
    for _ in range(19):
        slates = first.action_space.sample()
        first.step(slates)[0][:] = 7  # must not reach the next observation
        kept.append(second.step(slates)[0])
        copies.append(kept[-1].copy())
    np.testing.assert_array_equal(first.step(slates)[0], second.step(slates)[0])
    np.testing.assert_array_equal(kept, copies)


def test_reset_in_the_middle_starts_a_full_session() -> None:
    env = gymnasium.make_vec(ENV_ID, num_envs=2)
    env.reset(seed=0)
    for _ in range(20):
        env.step(env.action_space.sample())
    env.reset()  # in place of the autoreset
    ended = [bool(env.step(env.action_space.sample())[2].all()) for _ in range(20)]
    assert ended == [False] * 19 + [True]


def test_registration_can_be_repeated_and_is_not_forced_on_anyone() -> None:
    importlib.reload(registration)
    code = "import sys, bcd4rec.sim.interest_evolution; sys.exit('gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="Unknown preset 'papr'"):
        gymnasium.make_vec(ENV_ID, num_envs=2, preset="papr")
    env = gymnasium.make_vec(ENV_ID, num_envs=2)
    env.reset(seed=0)
    with pytest.raises(InputError, match="expected 0 to 199"):
        env.step(np.full((2, 7), 200))
