"""Policies side by side on the same simulated users."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.origin import Origin
from bcd4rec.data.preparing import PrepareConfig
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.splits import SplitConfig
from bcd4rec.errors import InputError
from bcd4rec.evaluation.metrics import per_session
from bcd4rec.evaluation.summary import Curves, Evaluation, Gap, curves, summarise
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.slates import Exploration, SlateRule
from bcd4rec.policies.uniform import Uniform
from bcd4rec.policies.vocabulary_mapping import map_policy
from bcd4rec.seeding import stream_seed
from bcd4rec.sim.environment import Environment, Logged, catalogue, origin_of
from bcd4rec.sim.rollout import Candidates, Oracle, policy_of, rollout, with_ids, with_openings
from bcd4rec.workflows.fitting import fit

RANDOM, ORACLE, BEHAVIOUR = "random", "oracle", "behaviour"
MOSTLY = 50.0  # percent of what a policy shows, from which on a learned user only guesses about it
FIRST_SESSIONS = 2000  # random sessions that a baseline learns from when no data set is given


def contestant(name: str, environment: Environment, dataset: Dataset | None = None, seed: int = 0) -> Policy:
    """A policy by name (`random`, `oracle`, a baseline, which is fitted now) or by the folder of its bundle.

    `behaviour` is the policy that writes the logs of an environment that has one.
    """
    if name == RANDOM:
        return random_policy(environment)
    if name == ORACLE:
        return policy_of(Oracle(environment), environment, ORACLE)
    if name == BEHAVIOUR and isinstance(environment, Logged):
        rule = SlateRule(unavailable=environment.unavailable, exploration=Exploration(kind="own"))
        return policy_of(environment.behaviour(), environment, BEHAVIOUR, rule)
    if Path(name).is_dir():
        policy = bundle.load(Path(name))
        about = {"method": Path(name).name} | policy.about
        return for_users(replace(policy, about=about), environment, name)
    if name in BASELINES:
        dataset = dataset or random_dataset(environment, seed)
        return for_users(fit(name, dataset, seed=seed).whole(dataset), environment, name)
    own = [BEHAVIOUR] if isinstance(environment, Logged) else []
    known = ", ".join([RANDOM, ORACLE, *own, *BASELINES])
    raise InputError(f"Unknown policy {name!r}; expected the folder of a trained policy or one of {known}.")


def for_users(policy: Policy, environment: Environment, name: str) -> Policy:
    """A policy that numbers items as the environment does; `InputError` where it knows none of them."""
    spoken = catalogue(environment)
    if not (policy.vocabulary.positions_of(spoken) >= 0).any():
        raise InputError(f"{name} knows none of these users' {len(spoken):,} items; it has learned another catalogue.")
    return map_policy(policy, spoken)


def random_policy(environment: Environment) -> Policy:
    """Any of the items that may be shown, with equal chances."""
    rule = SlateRule(unavailable=environment.unavailable, exploration=Exploration(kind="epsilon", epsilon=1.0))
    return policy_of(Uniform(environment.n_items), environment, RANDOM, rule)


def with_options(policy: Policy, options: dict[str, Any]) -> Policy:
    """A policy with what the command line says about slates in place of its own rule.

    Policies that are random by nature stay as they are, and those that do not know which items are alike cannot be
    made diverse.
    """
    changes = {name: value for name, value in options.items() if value is not None}
    if policy.rule.exploration.kind == "own" or isinstance(policy.scorer, Uniform):
        return policy
    if policy.vectors is None:
        changes.pop("diversity", None)
    return policy.with_rule(**changes) if changes else policy


def refuse_foreign(names: Sequence[str], environment: Environment, dataset: Path | None) -> None:
    """Only what was learned from logs of an environment can be tried on it: elsewhere item 7 is another item."""
    expected = origin_of(environment)
    if expected is None:
        return
    folders = {name: Path(name) for name in names if Path(name).is_dir()}
    manifests = {name: bundle.read_manifest(folder)["about"] for name, folder in folders.items()}
    if dataset is not None:
        manifests[f"--dataset {dataset}"] = Dataset.load(dataset).manifest
    for name, manifest in manifests.items():
        told = manifest.get("origin")
        origin = Origin.parse(told, name) if told is not None else None
        if origin is None or not origin.fits(expected):
            found = f"was learned from {origin}" if origin else "does not tell which users it was learned from"
            raise InputError(
                f"{name} {found}, expected a Parquet log of {expected}, as `bcd4rec simulate` writes it; "
                "judge it on its own log with --log, or here all the same with --foreign."
            )


def refuse_outside(evaluations: Sequence[Evaluation]) -> None:
    """A learned user cannot judge a policy most of whose recommendations it has never seen the like of.

    Random and oracle only mark the ends.
    """
    for one in evaluations:
        if one.outside is not None and one.outside.value > MOSTLY and one.policy not in (RANDOM, ORACLE):
            raise InputError(
                f"{one.outside.value:.0f} % of what {one.policy} recommends lies outside of what the learned user has "
                "seen, so its answers to it are guesses; leave this policy out, judge it on the log itself (--log), or "
                "ask the user all the same with --doubtful."
            )


def default_policy(environment: Environment) -> str:
    """Who writes the logs of an environment unless somebody is named."""
    return BEHAVIOUR if isinstance(environment, Logged) else RANDOM


def random_dataset(environment: Environment, seed: int) -> Dataset:
    """How users answered random recommendations, for baselines that are to be tried without a data set."""
    log = rollout(environment, random_policy(environment), FIRST_SESSIONS, stream_seed(seed, "first log"))
    log = with_ids(with_openings(log, environment), environment)
    return Dataset.from_frame(log, environment.responses, PrepareConfig(split=SplitConfig(validation=0.0)), seed)


@dataclass(frozen=True)
class Comparison:
    """What the table and the plots show."""

    evaluations: list[Evaluation]
    curves: dict[str, Curves]
    sessions: dict[str, pl.DataFrame]  # `per_session` of each policy

    def table(self) -> pl.DataFrame:
        """A row for each policy: values in percent, and the ends of their 95 % intervals."""
        return pl.DataFrame([one.to_json() for one in self.evaluations])


def compare(
    environment: Environment,
    policies: Sequence[Policy],
    users: int,
    seed: int,
    candidates: Candidates = "all",
    behaviour: str = RANDOM,
    online: str = ORACLE,
    tick: Tick = no_tick,
) -> Comparison:
    """Every policy on the same fresh users. The users of `seed` here are never those of `simulate --seed` there."""
    all_names = [one.name for one in policies]
    names = [f"{name} #{place}" if all_names.count(name) > 1 else name for place, name in enumerate(all_names, 1)]
    for end in (behaviour, online):
        if end not in (RANDOM, ORACLE, *names):
            raise InputError(f"The gap needs the policy {end!r}, but there are only {', '.join(names)}.")
    logs: dict[str, pl.DataFrame] = {}
    fresh = stream_seed(seed, "evaluation")
    for number, (name, policy) in enumerate(zip(names, policies, strict=True)):

        def share(stage: str, done: float, number: int = number, name: str = name) -> None:
            tick(f"{stage} {name}", (number + done) / len(names))

        logs[name] = rollout(environment, policy, users, fresh, candidates, share)
    responses, n_items = environment.responses, environment.n_items
    sessions = {name: per_session(log, responses) for name, log in logs.items()}
    gap = Gap(sessions[behaviour], sessions[online]) if behaviour in logs and online in logs else None
    evaluations = [summarise(name, log, responses, n_items, seed, gap) for name, log in logs.items()]
    return Comparison(evaluations, {name: curves(log, responses, n_items) for name, log in logs.items()}, sessions)
