"""bcd4rec from Python: what the commands do, without a file in between."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.origin import Origin
from bcd4rec.errors import InputError
from bcd4rec.evaluation.logged_slates import Judgement
from bcd4rec.evaluation.off_policy.verdict import Verdict
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Policy
from bcd4rec.sim.environment import ENVIRONMENTS, Environment, EnvironmentOptions, origin_of
from bcd4rec.sim.rollout import Candidates
from bcd4rec.workflows import comparison, judging, log_verdict
from bcd4rec.workflows.comparison import Comparison
from bcd4rec.workflows.fitting import fit, with_preset
from bcd4rec.workflows.searching import Search

Player = Policy | str | Path
"""A policy, the folder of one, or a name: `random`, `oracle`, a baseline."""


def train(
    method: str,
    data: Dataset,
    *,
    settings: Mapping[str, Any] | None = None,
    preset: str | None = None,
    search: Search = "quick",
    seed: int = 0,
    device: str = "auto",
) -> Policy:
    """Learn a policy from the train split of a data set; an agent such as `bcd4rec`, or a baseline such as `stan`.

    `settings` and `preset` are those of `bcd4rec train --set` and `--preset`. What still needs choosing, the slate rule
    among it, is chosen by the data set's validation sessions; `policy.about` tells what was chosen and why.

        policy = bcd4rec.train("bcd4rec", data, seed=0)
    """
    given = with_preset(method, preset, dict(settings or {}))
    if judging.clicks_only(data):
        warnings.warn(judging.CLICKS_ONLY, stacklevel=2)
    return fit(method, data, given, seed, search=search, device=device).whole(data)


def load(folder: str | Path) -> Policy:
    """The policy that `bcd4rec train` or `policy.save` wrote."""
    return bundle.load(Path(folder))


def evaluate(
    policies: Player | Sequence[Player],
    env: str | Environment | None = None,
    log: Dataset | None = None,
    *,
    data: Dataset | None = None,
    users: int = 1000,
    seed: int = 0,
    candidates: Candidates = "all",
    preset: str | None = None,
    split: str | None = None,
    doubtful: bool = False,
) -> "Comparison | Judgement":
    """Policies side by side on the same fresh simulated users (`env`), or on held-out slates of a data set (`log`).

    Baselines that are given by name learn from `data` (default: `log`; on users a log of random recommendations).
    A learned user without skill, and policies mostly outside its support, are refused unless `doubtful` asks all the
    same. `result.table()` is a Polars frame with intervals.

        bcd4rec.evaluate([policy, "stan"], env="recsim", users=1000).table()
        bcd4rec.evaluate([policy, "ctr"], log=data).table()
    """
    players = [policies] if isinstance(policies, Policy | str | Path) else list(policies)
    if (env is None) == (log is None):
        raise InputError("evaluate takes simulated users (env) or a data set (log); give one of them.")
    if log is not None:
        return _on_log(players, log, data or log, split, seed)
    environment = ENVIRONMENTS[env](EnvironmentOptions(preset)) if isinstance(env, str) else env
    assert environment is not None  # noqa: S101 (one of the two is given; for the type checker)
    taking_part = [_player(one, environment, data, seed) for one in players]
    if not doubtful and (folder := getattr(environment, "folder", None)) is not None:
        from bcd4rec.workflows.users import refuse_without_skill

        refuse_without_skill(folder)
    found = comparison.compare(environment, taking_part, users, seed, candidates)
    if not doubtful:
        comparison.refuse_outside(found.evaluations)
    return found


def judge(
    new: Policy | str | Path,
    log: Dataset,
    logger: Policy | str | Path | None = None,
    *,
    split: str | None = None,
    accept_one_step: bool = False,
    with_model: bool = True,
    indicative: bool = False,
    seed: int = 0,
) -> Verdict:
    """What a log with propensities says about a policy that did not write it: ship, reject, or cannot tell, and why.

    `logger` is the policy that wrote it (`random` is one), with which more can be told; `split` names the sessions that
    judge, by default those that no policy has learned from. `indicative` adds what models alone say.

        verdict = bcd4rec.judge(policy, data, logger="old/")
        print(verdict.word, verdict.reason)
    """
    policy = new if isinstance(new, Policy) else bundle.load(Path(new))
    old = logger if isinstance(logger, Policy) or logger is None else log_verdict.logger_of(str(logger), log)
    part = split or judging.usual_split(log)
    found = log_verdict.judge_log(
        policy, log, old, part, accept_one_step, with_model=with_model, seed=seed, indicative=indicative
    )
    more = log_verdict.cautions(policy, judging.JudgedLog(log, part))
    return replace(found, notes=(*found.notes, *more))


def _player(player: Player, environment: Environment, data: Dataset | None, seed: int) -> Policy:
    if not isinstance(player, Policy):
        return comparison.contestant(str(player), environment, data, seed)
    expected, told = origin_of(environment), player.about.get("origin")
    if expected is not None and told is not None and not Origin.parse(told, player.name).fits(expected):
        raise InputError(f"{player.name} was learned from {Origin.parse(told, player.name)}, expected {expected}.")
    if expected is not None and told is None:
        warnings.warn(
            f"{player.name} does not tell which users it was learned from; it is tried on {expected} all the same.",
            stacklevel=3,
        )
    return comparison.for_users(player, environment, player.name)


def _on_log(players: Sequence[Player], log: Dataset, data: Dataset, split: str | None, seed: int) -> "Judgement":
    names: list[str] = []
    given: dict[str, Policy] = {}
    for one in players:
        name = one.name if isinstance(one, Policy) else str(one)
        while name in names:
            name += "′"
        names.append(name)
        if isinstance(one, Policy):
            given[name] = one
    bundles = given | judging.load_bundles([name for name in names if name not in given], learned_from=True)
    judged = judging.JudgedLog(log, split or judging.usual_split(log))
    for caution in judging.cautions(bundles, judged):
        warnings.warn(caution, stacklevel=4)
    return judging.judge(names, bundles, judged, data, seed)
