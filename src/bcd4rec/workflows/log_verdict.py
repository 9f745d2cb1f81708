"""`bcd4rec judge`: what a log says about a policy that did not write it, and why it may not say anything."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.errors import InputError
from bcd4rec.evaluation.off_policy.collecting import Collected, Collector, Expected, longest_session
from bcd4rec.evaluation.off_policy.diagnostics import LEAST_SESSIONS, self_test
from bcd4rec.evaluation.off_policy.estimated import EstimatedLogger, estimate_logger
from bcd4rec.evaluation.off_policy.learned_users import learned_users
from bcd4rec.evaluation.off_policy.replay import logged_slates
from bcd4rec.evaluation.off_policy.slate_model import cross_fit
from bcd4rec.evaluation.off_policy.verdict import Coverage, Source, Verdict, verdict_of
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.slates import Exploration, SlateRule
from bcd4rec.policies.uniform import Uniform
from bcd4rec.workflows.comparison import RANDOM
from bcd4rec.workflows.judging import JudgedLog, open_judged_log

DIFFER = 0.01  # share of the logged propensities that may not be the logger's
STRANGE = 0.01  # share of a candidate's recommendations that the log may not have at all
INSTEAD = "log them (`bcd4rec serve` does), or name the policy that wrote the log with --logger"
ESTIMATED = (
    "The log has no propensities. What stands for them was estimated from it and passed, or failed, a test against "
    "itself; a logger that knew more than the estimate does can pass it too. With --logger nothing need be estimated."
)
UNKNOWN_LOGGER = (
    "Which policy wrote the log was not told, so only its own propensities count, and whole slates: with --logger the "
    "log can reject more."
)


def judge_log(
    new: Policy,
    dataset: Dataset,
    logger: Policy | None = None,
    split: str | None = None,
    accept_one_step: bool = False,
    slate_size: int | None = None,
    with_model: bool = True,
    seed: int = 0,
    tick: Tick = no_tick,
    indicative: bool = False,
) -> Verdict:
    """The verdict of the sessions of one split, or of all.

    The log's own propensities count; where it has none, those of `logger`, which then must be the policy that wrote it;
    where nobody knows that one either, estimates, if they pass a test against themselves. With `indicative` there is
    also what models alone say, which decides nothing.
    """
    refuse_misfits(new, dataset, slate_size)
    notes = []
    model: Expected | None = None
    if with_model:
        try:
            model = cross_fit(dataset, seed, tick=lambda stage, share: tick(f"response model: {stage}", share)).outcomes
        except InputError as error:
            notes.append(f"Judged without a model of the response. {error}")
    estimated: EstimatedLogger | None = None
    if logger is None and without_propensities(dataset):
        estimated = estimate_logger(dataset, seed, tick)
    found = collect(new, dataset, logger, split, model, seed, tick, estimated)
    if estimated is not None:
        notes.append(ESTIMATED)
    elif logger is None:
        notes.append(UNKNOWN_LOGGER)
    if new.rule.exploration.kind == "none":
        notes.append(
            "The policy does not explore: only slates that it would have shown exactly so say anything about it. "
            "Give it some exploration, or a smaller step (--largest-step)."
        )
    verdict = conclude(found, dataset, accept_one_step, logger is not None, estimated)
    if indicative:
        beside = learned_users(dataset, new, logger, seed, tick) + found.fitted.lines()
        verdict = replace(verdict, indicative=tuple(beside))
    return replace(verdict, notes=tuple(notes))


def collect(
    new: Policy,
    dataset: Dataset,
    logger: Policy | None,
    split: str | None,
    model: Expected | None,
    seed: int = 0,
    tick: Tick = no_tick,
    estimated: EstimatedLogger | None = None,
) -> Collected:
    """One pass over the log, whose propensities are `estimated` where it has none and nobody knows the logger."""
    trusted = logger is None or not without_propensities(dataset)
    collector = Collector(dataset, new, logger, model, longest_session(dataset), seed, trusted)
    n_items = max(dataset.n_items, new.n_items, logger.n_items if logger is not None else 0)
    for slates in logged_slates(dataset, split, n_items, tick):
        collector.add(slates if estimated is None else estimated.fill(slates))
    return collector.found


def without_propensities(dataset: Dataset) -> bool:
    return bool(dataset.frame.filter(~pl.col("organic"))["propensity"].is_null().all())


def conclude(
    found: Collected,
    dataset: Dataset,
    accept_one_step: bool,
    knows_logger: bool,
    estimated: EstimatedLogger | None = None,
) -> Verdict:
    """From what was collected to the verdict, with what the log knows and the step that it could judge."""
    target = dataset.responses.target
    refused = refusal(found, knows_logger)
    if estimated is not None and (problem := estimated.problem) is not None:
        refused = f"The log has no propensities, and estimates of them are not to be believed: {problem}; {INSTEAD}"
    verdict = verdict_of(found.sums, target, accept_one_step, refused)
    if estimated is not None and refused is None:
        verdict = replace(verdict, reason=f"By estimated propensities: {verdict.reason}")
    coverage = Coverage(found.support.exploration_only, found.support.outside)
    step = found.steps.approved(target) if refused is None else None
    source: Source = "estimated" if estimated is not None else "logged" if found.trusted else "logger"
    return replace(verdict, coverage=coverage, smaller_step=step, propensities=source)


def refusal(found: Collected, knows_logger: bool) -> str | None:
    """Why the log decides nothing, in words; None where it may."""
    check = found.check
    if check.problem is not None:
        wrote = "; is --logger the policy that wrote the log?" if check.zero and knows_logger else ""
        return f"The propensities cannot be believed: {check.problem}{wrote}"
    if found.sums.sessions < LEAST_SESSIONS:
        return f"The log has {found.sums.sessions} sessions, and {LEAST_SESSIONS:.0f} are needed at least"
    if found.own is not None and found.differ > DIFFER * found.impressions:
        return (
            f"{100 * found.differ / found.impressions:.0f} % of the log's propensities are not those of --logger "
            f"({self_test(found.own) or 'although it gets its own rate'}): leave --logger out if it did not write the "
            "log, or the propensities if they are estimates"
        )
    if found.strange > STRANGE * max(found.recommended, 1):
        share = 100 * found.strange / found.recommended
        return f"{share:.0f} % of what the policy recommends are items that the log has never shown"
    return None


def refuse_misfits(new: Policy, dataset: Dataset, slate_size: int | None) -> None:
    """What makes any comparison meaningless is bad input."""
    if not (new.vocabulary.positions_of(dataset.vocabulary) >= 0).any():
        raise InputError(
            f"The policy knows none of the log's {dataset.n_items:,} items; it has learned another catalogue."
        )
    if slate_size is not None:
        shown = dataset.frame.filter(~pl.col("organic")).group_by("session", "step").len()["len"]
        usual = int(np.median(shown.to_numpy())) if len(shown) else 0
        if usual != slate_size:
            raise InputError(
                f"--slate-size {slate_size}: the log's slates have {usual} items; what people do with slates of "
                f"another size it cannot tell. Log slates of {slate_size}, or judge with --slate-size {usual}."
            )


def logger_of(name: str, dataset: Dataset) -> Policy:
    """The folder of a policy, or `random`: any of the log's items that are still available, with equal chances."""
    if Path(name).is_dir():
        return bundle.load(Path(name))
    if name != RANDOM:
        raise InputError(f"--logger {name}: there is no such folder; expected a policy's folder, or random.")
    again = dataset.manifest.get("availability", {}).get("of_items_liked_before", 0)
    rule = SlateRule(unavailable="nothing" if again else "liked", exploration=Exploration(kind="epsilon", epsilon=1.0))
    uniform = Uniform(dataset.n_items)
    return Policy(uniform, dataset.vocabulary, rule=rule, responses=dataset.responses, about={"method": RANDOM})


def judge_files(
    new: Path,
    log: Path,
    logger: str | None = None,
    learned_from: Path | None = None,
    split: str | None = None,
    accept_one_step: bool = False,
    slate_size: int | None = None,
    with_model: bool = True,
    seed: int = 0,
    tick: Tick = no_tick,
    indicative: bool = False,
) -> tuple[Verdict, Policy, Policy | None]:
    """The verdict of a log in files, the policy that it is about, and the one that wrote the log if that is known."""
    policy = bundle.load(new)
    bundles = {str(new): policy}
    if logger is not None and Path(logger).is_dir():
        bundles[logger] = bundle.load(Path(logger))
    data = Dataset.load(learned_from) if learned_from is not None else None
    with open_judged_log(log, split, bundles, data, tick) as judged:
        old = None if logger is None else bundles.get(logger) or logger_of(logger, judged.dataset)
        part = None if judged.whole else judged.split
        found = judge_log(
            policy, judged.dataset, old, part, accept_one_step, slate_size, with_model, seed, tick, indicative
        )
        notes = found.notes + tuple(cautions(policy, judged))
    return replace(found, notes=notes), policy, old


def cautions(policy: Policy, judged: JudgedLog) -> list[str]:
    """Where the policy may have learned from the sessions that judge it."""
    if judged.whole:
        return []
    if judged.split == "train":
        return ["The policy may have learned from the split train: then this says how well it remembers, not how good."]
    if policy.about.get("data", {}).get("content_hash") != judged.dataset.content_hash:
        return ["The policy has learned from another data set; were these sessions in it, the verdict flatters."]
    return []
