"""Who takes part when policies are judged on a log itself, and which log: see `evaluation.logged_slates`."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bcd4rec.artifacts import MANIFEST
from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.responses import Responses
from bcd4rec.data.schema import Log, default_responses
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.splits import SplitConfig
from bcd4rec.data.states import HISTORY
from bcd4rec.data.transitions import TransitionConfig
from bcd4rec.errors import InputError
from bcd4rec.evaluation.logged_slates import Cases, Judgement, Mask, Ranker, logged_cases, logged_order, values_of
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.uniform import Uniform
from bcd4rec.policies.vocabulary_mapping import map_scorer
from bcd4rec.workflows.fitting import Fitted, fit

RANDOM, LOGGED = "random", "logged order"
REFERENCE = "ctr"  # the floor that a policy has to clear: one number for each item, from the log
OPPONENTS = (REFERENCE, "popular", "stan")  # of a policy that has just been trained
MOST = 5000  # cases that judge a policy at the end of its training
MOST_CELLS = 1 << 30  # scores of the whole catalogue that are worth computing for it
MANY_SESSIONS = 300_000  # of train, from which on neighbours take long to be found
CLICKS_ONLY = (
    "Every impression of this data set is positive: that teaches which item comes next, and neither how likely an item "
    "is liked nor which policy people would like better, because nothing tells what they passed over. Log that, too."
)
EVERY = "all"  # the split of a log that is not split


def clicks_only(dataset: Dataset) -> bool:
    """Whether nothing of what was shown was passed over."""
    counts: dict[str, int] = dataset.manifest["counts"]["responses"]
    return not any(count for name, count in counts.items() if name not in dataset.responses.positive)


@dataclass(frozen=True)
class JudgedLog:
    """A data set and the part of it that judges."""

    dataset: Dataset
    split: str
    whole: bool = False  # a log as it is, all of whose sessions judge

    def cases(self, known: Mask | None, seed: int) -> Cases:
        found = logged_cases(self.dataset, self.split, known if self.whole else None, seed=seed)
        return found if not self.whole else found.named(EVERY)


def usual_split(dataset: Dataset) -> str:
    """The sessions that judge unless others are named: those that nothing has learned from, where there are any."""
    there = set(dataset.sessions["split"].unique())
    return next((name for name in ("test", "validation") if name in there), "train")


def is_dataset(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def load_bundles(names: Sequence[str], learned_from: bool) -> dict[str, Policy]:
    """The bundles among the policies, by the names of their folders; others must be baselines that can be fitted."""
    loaded = {name: bundle.load(Path(name)) for name in names if Path(name).is_dir()}
    for name in names:
        if name in loaded or name == RANDOM:
            continue
        known = f"one of the baselines {', '.join(BASELINES)}"
        if name not in BASELINES:
            raise InputError(f"Unknown policy {name!r}: there is no such folder; expected a trained policy or {known}.")
        if not learned_from:
            raise InputError(
                f"The baseline {name} has nothing to learn from: --log is a log and no data set; "
                "give a data set with --dataset, or a policy that has learned already."
            )
    return loaded


@contextlib.contextmanager
def open_judged_log(
    path: Path, split: str | None, bundles: Mapping[str, Policy], learned_from: Dataset | None, tick: Tick = no_tick
) -> Iterator[JudgedLog]:
    """A data set with its split, or a canonical log, which is prepared for these policies in a temporary folder."""
    if is_dataset(path):
        dataset = Dataset.load(path)
        there = set(dataset.sessions["split"].unique())
        if split is not None and split not in there:
            raise InputError(f"{path} has no split {split!r}; its splits are {', '.join(sorted(there))}.")
        yield JudgedLog(dataset, split or usual_split(dataset))
        return
    if split is not None:
        raise InputError(f"--split chooses from a data set, but {path} is a log, all of whose sessions count.")
    log = Log(path)
    responses = _responses(bundles, learned_from) or default_responses(log)
    config = PrepareConfig(transitions=_history(bundles, learned_from), split=SplitConfig(validation=0.0))
    with tempfile.TemporaryDirectory(prefix="bcd4rec-") as folder:
        prepare(log, responses, config, Path(folder) / "dataset", tick=tick)
        yield JudgedLog(Dataset.load(Path(folder) / "dataset"), "train", whole=True)


def _responses(bundles: Mapping[str, Policy], learned_from: Dataset | None) -> Responses | None:
    """What the policies have learned that responses are worth; None where none of them tells."""
    found: tuple[str, Responses] | None = None
    told = {name: one.responses for name, one in bundles.items()}
    if learned_from is not None:
        told["--dataset"] = learned_from.responses
    for name, responses in told.items():
        if found is not None and responses != found[1]:
            raise InputError(
                f"{found[0]} and {name} have learned with different rewards ({_rewards(found[1])} and "
                f"{_rewards(responses)}); prepare a data set with the rewards that are to count, and judge on it."
            )
        found = found or (name, responses)
    return found[1] if found is not None else None


def _rewards(responses: Responses) -> str:
    return ",".join(f"{name}={reward:g}" for name, reward in responses.rewards.items())


def _history(bundles: Mapping[str, Policy], learned_from: Dataset | None) -> TransitionConfig:
    """States that hold what the policy with the longest memory wants to see."""
    length = max([one.memory.length for one in bundles.values()], default=HISTORY)
    skips = max([one.memory.skips for one in bundles.values()], default=0)
    if learned_from is not None:
        length = max(length, learned_from.states.positives.shape[1])
        skips = max(skips, learned_from.states.skips.shape[1])
    values = {"length": length} | ({"history": "all", "skips": skips} if skips else {})
    return TransitionConfig.parse(values, "history")


def cautions(bundles: Mapping[str, Policy], log: JudgedLog) -> list[str]:
    """What a reader of the numbers has to know, in words."""
    kept = log.dataset.states.skips.shape[1]
    found = []
    if log.split == "train" and not log.whole:
        found.append("The policies have learned from the split train: this says how well they remember, not how good.")
    for name, one in bundles.items():
        if (skips := one.memory.skips) > kept:
            found.append(
                f"{name} has learned from the last {skips} skipped items, but the states of this data set hold {kept}; "
                "it is judged without them."
            )
        if not log.whole and one.about.get("data", {}).get("content_hash") != log.dataset.content_hash:
            found.append(
                f"{name} was learned from another data set; where that holds sessions of this split, "
                "this says how well it remembers them."
            )
    return found


def judge(
    names: Sequence[str],
    bundles: Mapping[str, Policy],
    log: JudgedLog,
    learned_from: Dataset | None,
    seed: int,
    tick: Tick = no_tick,
) -> Judgement:
    """The policies, and beside them what always takes part: the reference, the logged order and chance."""
    rankers: dict[str, Ranker] = {}
    fitted = [REFERENCE] if learned_from is not None and REFERENCE in BASELINES else []
    for name in dict.fromkeys([*names, *fitted]):
        if name == RANDOM:
            continue
        tick(f"reading {name}", 0.0)
        one = (
            _of_bundle(name, bundles[name], log.dataset)
            if name in bundles
            else _of_baseline(name, learned_from, log.dataset, seed)
        )
        free = one.name if one.name not in rankers and one.name not in fitted else f"{one.name} ({name})"
        rankers[free if name in bundles else one.name] = one
    known = np.ones(log.dataset.n_items, np.bool_)
    for one in rankers.values():
        known &= True if one.known is None else one.known
    return _judged(log.cases(known, seed), list(rankers.items()), seed, tick)


def _of_bundle(folder: str, loaded: Policy, dataset: Dataset) -> Ranker:
    known = loaded.vocabulary.positions_of(dataset.vocabulary) >= 0
    if not known.any():
        raise InputError(f"{folder} knows none of the log's {len(known):,} items; it has learned another catalogue.")
    scorer = map_scorer(loaded.scorer, loaded.vocabulary, dataset.vocabulary)
    name = str(loaded.about.get("method", Path(folder).name))
    return Ranker(name, scorer, known, loaded.memory.length, loaded.memory.skips)


def _of_baseline(name: str, learned_from: Dataset | None, dataset: Dataset, seed: int) -> Ranker:
    assert learned_from is not None  # noqa: S101 (`load_bundles` has seen to it; for the type checker)
    scorer = fit(name, learned_from, seed=seed).scorer
    known = learned_from.vocabulary.positions_of(dataset.vocabulary) >= 0
    return Ranker(name, map_scorer(scorer, learned_from.vocabulary, dataset.vocabulary), known)


def _judged(cases: Cases, rankers: Sequence[tuple[str, Ranker]], seed: int, tick: Tick) -> Judgement:
    values, unknown = {}, {}
    for number, (name, one) in enumerate(rankers):
        tick(f"judging {name}", number / len(rankers))
        values[name] = values_of(one, cases)
        unknown[name] = 100 * float(one.unknown(cases).mean())
    if (order := logged_order(cases)) is not None:
        values[LOGGED] = order
    values[RANDOM] = values_of(Ranker(RANDOM, Uniform(cases.n_items)), cases)
    return Judgement(cases, values, unknown, seed)


def reference_of(judgement: Judgement) -> str:
    """Whom policies are compared with: chance where the reference does not take part."""
    return REFERENCE if REFERENCE in judgement.values else RANDOM


def pairs_of(judgement: Judgement) -> list[tuple[str, str]]:
    """Every policy with the reference."""
    reference = reference_of(judgement)
    return [(name, reference) for name in judgement.values if name not in (reference, RANDOM)]


@dataclass(frozen=True)
class Validation:
    """What the validation sessions of its data set say about a policy that has just been trained."""

    method: str
    judgement: Judgement | None
    notes: tuple[str, ...] = ()  # what could not be done, in words

    @property
    def pairs(self) -> list[tuple[str, str]]:
        others = () if self.judgement is None else tuple(self.judgement.values)
        return [(self.method, name) for name in others if name != self.method]

    def sentences(self) -> list[str]:
        return [self.judgement.sentence(*pair) for pair in self.pairs] if self.judgement is not None else []

    def to_json(self) -> dict[str, Any] | None:
        if self.judgement is None:
            return None
        return self.judgement.to_json(self.pairs) | {"notes": list(self.notes)}


def _validation_cases(dataset: Dataset, seed: int) -> Cases:
    """At most `MOST`, or fewer where each looks at a large catalogue."""
    cases = logged_cases(dataset, "validation", most=MOST, seed=seed)
    if cases.unit == "next item" and len(cases) * dataset.n_items > MOST_CELLS:
        return logged_cases(dataset, "validation", most=max(100, MOST_CELLS // dataset.n_items), seed=seed)
    return cases


def judge_policies(policies: Mapping[str, Policy], dataset: Dataset, seed: int, tick: Tick = no_tick) -> Judgement:
    """Policies that have learned from a data set beside each other on the same validation cases."""
    rankers = [(name, _of_bundle(name, policy, dataset)) for name, policy in policies.items()]
    return _judged(_validation_cases(dataset, seed), rankers, seed, tick)


def guesses_better(methods: Sequence[str], dataset: Dataset, seed: int, tick: Tick = no_tick) -> str:
    """Which of these baselines is best on at most `MOST` validation cases; the first where nothing tells them apart."""
    try:
        cases = _validation_cases(dataset, seed)
    except InputError:
        return methods[0]
    rankers = [(name, Ranker(name, fit(name, dataset, seed=seed).scorer)) for name in methods]
    found = _judged(cases, rankers, seed, tick)
    return max(methods, key=lambda name: float(np.nanmean(found.values[name][found.headline])))


def judge_on_log(fitted: Fitted, dataset: Dataset, seed: int, tick: Tick = no_tick) -> Validation:
    """A trained policy beside simple ones on at most `MOST` validation cases of its data set."""
    method = str(fitted.about["method"])
    notes = [CLICKS_ONLY] if clicks_only(dataset) else []
    try:
        cases = _validation_cases(dataset, seed)
    except InputError as error:
        return Validation(method, None, (*notes, f"Nothing tells whether this policy is any good. {error}"))
    rankers = [(method, Ranker(method, fitted.scorer))]
    for name in OPPONENTS:
        if name == method or name not in BASELINES:
            continue
        sessions = int((dataset.sessions["split"] == "train").sum())
        if name == "stan" and sessions > MANY_SESSIONS:
            notes.append(f"Not compared with stan, which takes long on {sessions:,} sessions.")
            continue
        tick(f"fitting {name}", 0.0)
        rankers.append((name, Ranker(name, fit(name, dataset, seed=seed).scorer)))
    return Validation(method, _judged(cases, rankers, seed, tick), tuple(notes))
