"""Stepping all users at once against stepping the same environment one user at a time."""

import time

import numpy as np
from rich.console import Console
from rich.table import Table

from bcd4rec.data.states import IntArray
from bcd4rec.sim.interest_evolution import PRESETS, InterestEvolution

USERS = 2000
SINGLES = 50  # sessions that are played one after the other in each round
ROUNDS = 7


def random_slates(env: InterestEvolution, users: int) -> IntArray:
    """(T, B, K) distinct items, drawn beforehand so that only the environment is timed."""
    scores = np.random.default_rng(0).random((env.horizon, users, env.n_items))
    return scores.argpartition(env.slate_size, axis=2)[:, :, : env.slate_size].astype(np.int32)


def seconds_per_user_step(env: InterestEvolution, slates: IntArray, sessions: int) -> float:
    """Whole sessions, the drawing of their users included."""
    start = time.perf_counter()
    for seed in range(sessions):
        env.reset(slates.shape[1], seed)
        for slate in slates:
            env.step(slate)
    return (time.perf_counter() - start) / (sessions * slates[:, :, 0].size)


def run() -> dict[str, float]:
    """Rounds alternate between the two, and the fastest round of each counts, so that other load hurts both alike."""
    env = InterestEvolution(PRESETS["paper"])
    batch = random_slates(env, USERS)
    alone = np.ascontiguousarray(batch[:, :1])
    rounds = [(seconds_per_user_step(env, alone, SINGLES), seconds_per_user_step(env, batch, 1)) for _ in range(ROUNDS)]
    single, batched = (min(times) for times in zip(*rounds, strict=True))
    table = Table("simulator, preset paper", "user-steps per second", "× one at a time")
    table.add_row("one user at a time", f"{1 / single:,.0f}", "1.0")
    table.add_row(f"{USERS:,} users at once", f"{1 / batched:,.0f}", f"{single / batched:.1f}")
    Console().print(table)
    return {"simulator.batched_over_single": single / batched}


if __name__ == "__main__":
    run()
