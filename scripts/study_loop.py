"""From log to traffic and back, over several rounds of simulated users: the figures of docs/from-log-to-traffic.md.

    python scripts/study_loop.py --repetitions 10 --keep loop.jsonl

Each round, the policy that serves writes a log; a method learns from all logs so far; `judge` says what the newest
log's held-out sessions tell about it; unless that is a rejection, a canary of fresh sessions decides; and the winner
writes the next log. The first log is the random policy's. Methods take turns, and some are worse than what serves, as
in life. Whether a decision was right is looked up afterwards with many more users. Done repetitions are kept in the
file of --keep, and the same command goes on with the next one.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import polars as pl

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig
from bcd4rec.data.splits import SplitConfig
from bcd4rec.evaluation.canary import Canary, CanaryConfig
from bcd4rec.evaluation.statistics import wilson
from bcd4rec.policies.policy import Policy
from bcd4rec.seeding import generator, stream_seed
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig
from bcd4rec.sim.rollout import rollout
from bcd4rec.workflows.comparison import random_policy
from bcd4rec.workflows.fitting import fit
from bcd4rec.workflows.judging_study import session_rates, with_epsilon
from bcd4rec.workflows.log_verdict import judge_log

METHODS = ("popular", "ctr", "markov", "category_popular", "stan")
WHOLE = PrepareConfig(split=SplitConfig(validation=0.0))
HELD_OUT = 0.2  # of the newest log, for `judge`
BLOCK = 250  # sessions of both arms that are played at once


@dataclass(frozen=True)
class Settings:
    """How large everything is; users are those of the preset `paper`, but for these."""

    methods: tuple[str, ...] = METHODS
    sessions: int = 1000  # of a round's log
    most: int = 6000  # of a canary
    share: float = 0.5
    error: float = 0.05
    epsilon: float = 0.1  # of what serves
    truth: int = 4000  # users who tell whether a decision was right
    items: int = 100
    slate_size: int = 4
    horizon: int = 10


@dataclass(frozen=True)
class Round:
    """What happened to one new policy."""

    repetition: int
    number: int
    method: str
    judged: str
    canary: str  # promote, roll back, stop, or none where the log rejected it
    canary_sessions: int
    true_gain: float  # points of clicks a step over whole sessions
    true_error: float
    serving: float  # points of what serves after the round

    @property
    def wrong(self) -> bool:
        """Shipped, and surely worse."""
        return self.canary == "promote" and self.true_gain < -2 * self.true_error


def users(settings: Settings) -> InterestEvolution:
    config = InterestEvolutionConfig(
        items=settings.items, slate_size=settings.slate_size, horizon=settings.horizon, categories=20
    )
    return InterestEvolution(config)


def learned(method: str, logs: list[pl.DataFrame], environment: InterestEvolution, settings: Settings) -> Policy:
    """From all sessions so far but those that will judge it."""
    *earlier, newest = logs
    newest = newest.filter(pl.col("session_id") < (1 - HELD_OUT) * settings.sessions)
    many = [
        log.with_columns(pl.col("session_id") + number * settings.sessions, request_id=pl.lit(None, pl.String))
        for number, log in enumerate([*earlier, newest])
    ]
    dataset = Dataset.from_frame(pl.concat(many).drop("request_id"), environment.responses)
    policy = fit(method, dataset).whole(dataset)
    return with_epsilon(policy.with_rule(unavailable=environment.unavailable), settings.epsilon)


def judged(new: Policy, old: Policy, log: pl.DataFrame, environment: InterestEvolution, settings: Settings) -> str:
    """The word of `bcd4rec judge` on the held-out sessions."""
    held_out = log.filter(pl.col("session_id") >= (1 - HELD_OUT) * settings.sessions)
    return judge_log(new, Dataset.from_frame(held_out, environment.responses, WHOLE), old).word


def canary(new: Policy, old: Policy, environment: InterestEvolution, settings: Settings, seed: int) -> Canary:
    """Fresh sessions, one after the other, until it decides."""
    found = Canary(CanaryConfig(error=settings.error, most=settings.most))
    rng = generator(seed, "arms")
    for block in range(-(-settings.most // BLOCK)):
        rates = [session_rates(environment, one, BLOCK, stream_seed(seed, "block", block)) for one in (old, new)]
        for number, in_new in enumerate(rng.random(BLOCK) < settings.share):
            if found.add(bool(in_new), float(rates[int(in_new)][number]), settings.share) is not None:
                return found
    return found


def repetition(settings: Settings, number: int) -> list[Round]:
    environment = users(settings)
    current: Policy = random_policy(environment)
    logs: list[pl.DataFrame] = []
    rounds = []
    for turn, method in enumerate(settings.methods):
        seed = stream_seed(number, "loop", turn)
        logs.append(rollout(environment, current, settings.sessions, seed))
        new = learned(method, logs, environment, settings)
        word = judged(new, current, logs[-1], environment, settings)
        found = None if word == "reject" else canary(new, current, environment, settings, stream_seed(seed, "canary"))
        looked = stream_seed(seed, "truth")
        before, after = (session_rates(environment, one, settings.truth, looked) for one in (current, new))
        gain = 100 * (after - before)
        decision = "none" if found is None else str(found.decision)
        if decision == "promote":
            current = new
        serving = 100 * float((after if decision == "promote" else before).mean())
        error = float(gain.std(ddof=1) / np.sqrt(len(gain)))
        sessions = 0 if found is None else found.sequence.sessions
        rounds.append(Round(number, turn, method, word, decision, sessions, float(gain.mean()), error, serving))
        last = rounds[-1]
        print(
            f"repetition {number}, round {turn + 1}, {method}: judged {word}; canary {decision} after {sessions}; "
            f"true gain {last.true_gain:+.1f} ± {2 * error:.1f}; serving {serving:.1f}",
            file=sys.stderr,
            flush=True,
        )
    return rounds


def told(rounds: list[Round], settings: Settings) -> list[str]:
    """The figures, in words."""
    repetitions = len({one.repetition for one in rounds})
    environment = users(settings)
    start = 100 * float(session_rates(environment, random_policy(environment), settings.truth, 0).mean())
    ends = np.array([one.serving for one in rounds if one.number == len(settings.methods) - 1])
    promoted = [one for one in rounds if one.canary == "promote"]
    worse = [one for one in rounds if one.true_gain < -2 * one.true_error]
    better = [one for one in rounds if one.true_gain > 2 * one.true_error]
    tried = sum(one.canary != "none" for one in rounds)
    wrong = sum(one.wrong for one in rounds)
    low, high = (float(part[0]) for part in wilson(np.array([float(wrong)]), np.array([float(max(tried, 1))])))
    spread = float(ends.std(ddof=1)) if len(ends) > 1 else 0.0
    words = {word: sum(one.judged == word for one in rounds) for word in ("ship", "cannot tell", "reject")}
    return [
        f"{repetitions} repetitions of {len(settings.methods)} rounds ({', '.join(settings.methods)})",
        f"clicks a step: {start:.1f} at the start, {ends.mean():.1f} at the end (standard deviation {spread:.1f})",
        f"new policies: {len(better)} better, {len(worse)} worse, {len(rounds) - len(better) - len(worse)} neither",
        "judged: " + ", ".join(f"{word} {count}" for word, count in words.items()),
        f"better ones promoted: {sum(one.canary == 'promote' for one in better)} of {len(better)}",
        f"worse ones rejected by the log: {sum(one.judged == 'reject' for one in worse)} of {len(worse)}; "
        f"better ones: {sum(one.judged == 'reject' for one in better)} of {len(better)}",
        f"promoted: {len(promoted)}, of them worse: {wrong}; {100 * wrong / max(tried, 1):.1f} % of {tried} canaries "
        f"(95 % interval {low:.1f} to {high:.1f}), allowed {100 * settings.error:g} %",
        f"sessions of a canary: median {np.median([one.canary_sessions for one in rounds if one.canary != 'none']):.0f}"
        if tried
        else "no canaries",
    ]


def main(arguments: list[str] | None = None) -> list[Round]:
    parser = argparse.ArgumentParser(description="The loop from log to traffic, on simulated users.")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="number of the first repetition")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--keep", type=Path, help="rounds as JSON lines; what is there is not played again")
    for name in ("sessions", "most", "truth", "items", "slate_size", "horizon"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Settings, name))
    given = vars(parser.parse_args(arguments))
    keep, count, first = given.pop("keep"), given.pop("repetitions"), given.pop("first")
    settings = Settings(**given | {"methods": tuple(given["methods"].split(","))})
    rounds = [] if keep is None or not keep.exists() else [Round(**json.loads(line)) for line in keep.open()]
    for number in sorted(set(range(first, first + count)) - {one.repetition for one in rounds}):
        played = repetition(settings, number)
        rounds += played
        if keep is not None:
            with keep.open("a") as file:
                file.writelines(json.dumps(asdict(one)) + "\n" for one in played)
    for line in told(rounds, settings):
        print(line)
    return rounds


if __name__ == "__main__":
    main()
