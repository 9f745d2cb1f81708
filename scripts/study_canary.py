"""How often a canary errs and how soon it decides, on sessions of simulated users: the table of docs/canary.md.

    python scripts/study_canary.py

Both arms are made of whole sessions of the preset `paper` (20 slates of 7; a session's reward is its share of slates
with a click). The sessions of one arm are the random policy's; of the other arm a part of them is the oracle's, as
large as it must be for the difference to be exactly what the row says. All runs of a row go on at once, at margin 0;
some are repeated by `Canary` itself, which must decide the same after the same session.
"""

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bcd4rec.evaluation.canary import Canary, CanaryConfig
from bcd4rec.evaluation.confidence_sequence import (
    BOLDEST,
    DIFFERENCES,
    PRIOR_REWARD,
    PRIOR_SESSIONS,
    PRIOR_VARIANCE,
)
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.slates import Exploration, SlateRule
from bcd4rec.policies.uniform import Uniform
from bcd4rec.sim.interest_evolution import PRESETS, InterestEvolution
from bcd4rec.sim.rollout import Oracle, policy_of

Doubles = NDArray[np.float64]
USERS, RUNS, REPEATED, ERROR = 20_000, 400, 3, 0.05
ROWS = [
    *((0.5, points, 10_000) for points in (0.0, 1.0, -1.0, 3.0, -3.0, 10.0, -10.0)),
    *((0.1, points, 10_000) for points in (0.0, 3.0, -3.0, 10.0, -10.0)),
]


def session_rewards(environment: InterestEvolution, policy: Policy, seed: int) -> Doubles:
    """(B,) the share of slates with a click."""
    environment.reset(USERS, seed)
    sessions, rng = policy.begin(USERS), np.random.default_rng(seed)
    clicks = np.zeros(USERS)
    for _ in range(environment.horizon):
        items = policy.slates(sessions, environment.slate_size, rng).items
        liked = environment.step(items).responses > 0
        clicks += liked.any(axis=1)
        sessions = policy.after(sessions, items, liked)
    return clicks / environment.horizon


def drawn(pools: tuple[Doubles, Doubles], points: float, shape: tuple[int, int], rng: np.random.Generator) -> Doubles:
    """Rewards of sessions whose mean is `points` above the worse pool's."""
    worse, better = pools
    part = points / 100 / (better.mean() - worse.mean())
    return np.where(rng.random(shape) < part, rng.choice(better, shape), rng.choice(worse, shape))


def decided(arms: NDArray[np.bool_], rewards: Doubles, share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each run the decision (1 promote, −1 roll back, 0 none), and after how many sessions; by its two gamblers."""
    runs, most = arms.shape
    total, squares = np.zeros(runs), np.zeros(runs)
    wealth = np.zeros((2, runs, len(DIFFERENCES)))
    found, when = np.zeros(runs, np.int64), np.full(runs, most)
    for number in range(most):
        sessions = PRIOR_SESSIONS + number
        guess = (PRIOR_SESSIONS * PRIOR_REWARD + total) / sessions
        variance = (PRIOR_SESSIONS * PRIOR_VARIANCE + squares) / sessions / (share * (1 - share))
        off = rewards[:, number] - guess
        x = np.where(arms[:, number], off / share, -off / (1 - share))
        ends = (
            np.maximum(guess / share, (1 - guess) / (1 - share)),
            np.maximum((1 - guess) / share, guess / (1 - share)),
        )
        stakes = DIFFERENCES / (variance[:, None] + DIFFERENCES**2)
        for side, sign in enumerate((1, -1)):
            wealth[side] += np.log1p(sign * np.minimum(stakes, BOLDEST / ends[side][:, None]) * x[:, None])
        total, squares = total + rewards[:, number], squares + off**2
        rich = np.exp(wealth).mean(axis=2) >= 1 / ERROR
        fresh = (found == 0) & rich.any(axis=0)
        found[fresh], when[fresh] = np.where(rich[1], -1, 1)[fresh], number + 1
        if found.all():
            break
    return found, when


def check(arms: NDArray[np.bool_], rewards: Doubles, share: float, found: int, when: int) -> None:
    """`Canary` itself, on one run."""
    canary = Canary(CanaryConfig(error=ERROR, most=arms.size))
    for number in range(when):
        canary.add(bool(arms[number]), float(rewards[number]), share)
    expected = ({1: "promote", -1: "roll back", 0: "stop"}[found], when)
    if (canary.decision, canary.sequence.sessions) != expected:
        raise RuntimeError(f"Canary: {canary.decision} after {canary.sequence.sessions}, expected {expected}")


def row(pools: tuple[Doubles, Doubles], share: float, points: float, most: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    arms = rng.random((RUNS, most)) < share
    new, old = (drawn(pools, max(sign * points, 0.0), arms.shape, rng) for sign in (1, -1))
    rewards = np.where(arms, new, old)
    found, when = decided(arms, rewards, share)
    for run in range(REPEATED):
        check(arms[run], rewards[run], share, int(found[run]), int(when[run]))
    in_new = [int(arms[run, : when[run]].sum()) for run in range(RUNS)]
    percents = [f"{100 * (found == decision).mean():.1f}" for decision in (1, -1, 0)]
    ends = np.quantile(when, [0.5, 0.9])
    return [
        f"{share:g}",
        f"{points:+g}" if points else "0",
        *percents,
        f"{np.median(in_new):,.0f}",
        f"{np.median(when - np.array(in_new)):,.0f}",
        f"{ends[1]:,.0f}",
    ]


def main() -> None:
    environment = InterestEvolution(PRESETS["paper"])
    rule = SlateRule(unavailable=environment.unavailable, exploration=Exploration(kind="epsilon", epsilon=1.0))
    random = policy_of(Uniform(environment.n_items), environment, "random", rule)
    oracle = policy_of(Oracle(environment), environment, "oracle")
    pools = (session_rewards(environment, random, 1), session_rewards(environment, oracle, 2))
    for name, pool in zip(("random", "oracle"), pools, strict=True):
        print(f"{name}: mean {100 * pool.mean():.1f}, standard deviation {100 * pool.std():.1f} points")
    table = Table(
        *("share", "points", "promote %", "roll back %", "none %"),
        *("new arm, median", "old arm, median", "both arms, 90 %"),
        title=f"{RUNS} runs a row, error {ERROR:g}, at most 10,000 sessions",
    )
    for seed, (share, points, most) in enumerate(ROWS):
        table.add_row(*row(pools, share, points, most, seed))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
