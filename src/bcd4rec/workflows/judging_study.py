"""How often verdicts from a log are right, where the truth is known: many independent logs of simulated users.

Every log is played anew and goes the way of `bcd4rec judge`. The truth of sessions comes from many sessions of each
policy's own; that of one step from the users themselves, who tell what any slate would have achieved.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.splits import SplitConfig
from bcd4rec.data.states import Doubles, IntArray
from bcd4rec.errors import InputError
from bcd4rec.evaluation.off_policy.collecting import Expected
from bcd4rec.evaluation.off_policy.estimators import Target
from bcd4rec.evaluation.off_policy.slate_model import cross_fit
from bcd4rec.evaluation.off_policy.verdict import Row, Verdict
from bcd4rec.evaluation.statistics import Interval, Z, wilson
from bcd4rec.policies.policy import Policy
from bcd4rec.seeding import generator, stream_seed
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig, preset
from bcd4rec.sim.rollout import liked_of, rollout
from bcd4rec.workflows.comparison import random_policy
from bcd4rec.workflows.fitting import fit
from bcd4rec.workflows.log_verdict import collect, conclude

WHOLE = PrepareConfig(split=SplitConfig(validation=0.0))
CASES = ("null", "null single", "exploration", "single", "popular", "bcd4rec", "better", "worse")
TARGETS: tuple[Target, ...] = ("one step", "session")


@dataclass(frozen=True)
class Case:
    """One logger, and candidates that are judged by each of its logs."""

    name: str
    environment: InterestEvolution
    logger: Policy
    candidates: Mapping[str, Policy]
    indifferent: bool = False  # users to whom all slates are the same: the truth is exactly 0
    with_model: bool = False  # vetoes need a model of the response; approvals do not


@dataclass(frozen=True)
class Settings:
    """How large the study is."""

    logs: int = 20
    sessions: int = 2000
    truth: int = 20_000  # sessions of each policy that the truth is taken from
    ranking: str = "markov"  # the baseline whose ranking the loggers show
    learn: int = 2000  # random sessions that it learns from
    with_model: bool = True  # vetoes take part where a case is about them
    seed: int = 0


class Truth(NamedTuple):
    """The true difference to the logger in outcomes a step, and its own standard error."""

    value: float
    error: float


class Said(NamedTuple):
    """What one log said about one candidate: words, and by target the difference, its ends and its error."""

    word: str
    accepting: str
    answers: dict[Target, tuple[float, float, float, float]]  # of sound weights alone

    @classmethod
    def of(cls, verdict: Verdict, accepting: Verdict, outcome: str) -> "Said":
        rows = {target: decisive(verdict, target, outcome) for target in TARGETS}
        answers = {
            target: (*row.estimate.difference, row.estimate.error)
            for target, row in rows.items()
            if row.problem is None
        }
        return cls(verdict.word, accepting.word, answers)


@dataclass
class Tally:
    """What so many logs said about one candidate."""

    case: str
    candidate: str
    truth: Mapping[Target, Truth]
    logs: int = 0
    words: Counter[str] = field(default_factory=Counter)
    accepting: Counter[str] = field(default_factory=Counter)  # where one step is accepted as enough
    answered: Counter[str] = field(default_factory=Counter)  # logs with sound weights, by target
    covered: Counter[str] = field(default_factory=Counter)  # of them, with the truth inside of the interval
    total: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TARGETS, 0.0))  # of their estimates

    def add(self, said: "Said") -> None:
        self.logs += 1
        self.words[said.word] += 1
        self.accepting[said.accepting] += 1
        for target, (value, low, high, error) in said.answers.items():
            # The truth is itself measured, and its own error belongs to the difference.
            slack = Z * float(np.hypot(error, self.truth[target].error)) - Z * error
            self.answered[target] += 1
            self.covered[target] += int(low - slack <= self.truth[target].value <= high + slack)
            self.total[target] += value

    def to_json(self) -> dict[str, Any]:
        targets = {
            target: {
                "truth_points": 100 * self.truth[target].value,
                "truth_error_points": 100 * self.truth[target].error,
                "answered": self.answered[target],
                "covered": share(self.covered[target], self.answered[target])._asdict(),
                "mean_estimate_points": 100 * self.total[target] / max(self.answered[target], 1),
            }
            for target in TARGETS
        }
        return {
            "case": self.case,
            "candidate": self.candidate,
            "logs": self.logs,
            "ship": share(self.words["ship"], self.logs)._asdict(),
            "ship_one_step": share(self.accepting["ship"], self.logs)._asdict(),
            "reject": share(self.words["reject"], self.logs)._asdict(),
            "targets": targets,
        }


def decisive(verdict: Verdict, target: Target, outcome: str) -> Row:
    """The line of the table that may ship."""
    rows = {
        row.estimate.method: row
        for row in verdict.rows
        if (row.estimate.target, row.estimate.outcome) == (target, outcome)
    }
    if target == "session":
        return rows["per decision"]
    return rows.get("doubly robust", rows["SNIPS"])


def share(part: int, whole: int) -> Interval:
    if not whole:
        return Interval(float("nan"), float("nan"), float("nan"))
    low, high = wilson(np.array([float(part)]), np.array([float(whole)]))
    return Interval(100.0 * part / whole, float(low[0]), float(high[0]))


def dataset_of(environment: InterestEvolution, policy: Policy, users: int, seed: int) -> Dataset:
    return Dataset.from_frame(rollout(environment, policy, users, seed), environment.responses, WHOLE)


def indifferent_users(slate_size: int) -> InterestEvolution:
    """Every item pulls alike, whatever the user likes: no policy is better than another, in any state."""
    config = InterestEvolutionConfig(slate_size=slate_size, smallest_weight=1.0, skip_weight=0.3 * slate_size)
    return InterestEvolution(config)


def users_of(name: str) -> InterestEvolution:
    """Who plays in the case of this name."""
    if name.startswith("null"):
        return indifferent_users(1 if name == "null single" else 7)
    return InterestEvolution(preset("single" if name == "single" else "paper"))


def with_epsilon(policy: Policy, epsilon: float) -> Policy:
    return policy.with_rule(exploration={"kind": "epsilon", "epsilon": epsilon})


def served(policy: Policy, environment: InterestEvolution) -> Policy:
    """As it would be served to these users: what they cannot get again is not shown, nor what they just skipped."""
    return policy.with_rule(unavailable=environment.unavailable, after_skip="exclude")


def known(name: str) -> None:
    if name not in CASES:
        raise InputError(f"Unknown case {name!r} of the study; known are {', '.join(CASES)}.")


def cases(names: Sequence[str], settings: Settings, tick: Tick = no_tick) -> Iterator[Case]:
    """The cases of these names, each made when it is its turn."""
    for name in names:
        known(name)
        tick(f"{name}: learning policies", 0.0)
        environment = users_of(name)
        random = random_policy(environment)
        first = dataset_of(environment, random, settings.learn, stream_seed(settings.seed, "judging first log"))
        method = "popular" if name.startswith("null") else settings.ranking  # to whom all is alike, any will do
        ranking = served(fit(method, first, seed=settings.seed).whole(first), environment)
        half = with_epsilon(ranking, 0.3)
        if name in ("null", "exploration"):
            yield Case(name, environment, with_epsilon(ranking, 0.6), {"ε 0.6 → 0.3": half}, name == "null")
        elif name in ("null single", "single"):
            less = with_epsilon(ranking, 0.15)
            yield Case(name, environment, half, {"one item, ε 0.3 → 0.15": less}, name == "null single")
        elif name == "popular":
            popular = fit("popular", first, seed=settings.seed).whole(first)
            yield Case(name, environment, random, {"random → popular": popular}, with_model=True)
        elif name == "bcd4rec":
            learned_from = dataset_of(environment, half, settings.learn, stream_seed(settings.seed, "judging half"))
            agent = fit("bcd4rec", learned_from, seed=settings.seed).whole(learned_from)
            yield Case(name, environment, half, {"ε 0.3 → BCD4Rec": agent}, with_model=True)
        elif name == "worse":
            popular = served(fit("popular", first, seed=settings.seed).whole(first), environment)
            worse = {"ε 0.3 → random": random, "ε 0.3 → popular": popular}
            yield Case(name, environment, half, worse, with_model=True)
        else:
            yield from _better(environment, random, ranking, first, settings)


def _better(
    environment: InterestEvolution, random: Policy, ranking: Policy, first: Dataset, settings: Settings
) -> Iterator[Case]:
    """Pairs of which the candidate is better, for vetoes that must not be."""
    other = served(fit("category_popular", first, seed=settings.seed).whole(first), environment)
    steps = {f"ε {epsilon:g}": with_epsilon(ranking, epsilon) for epsilon in (0.9, 0.6, 0.3, 0.1, 0.0)}
    others = {f"CategoryPop, ε {epsilon:g}": with_epsilon(other, epsilon) for epsilon in (0.6, 0.3, 0.0)}
    yield Case("better", environment, random, {f"random → {k}": v for k, v in (steps | others).items()}, False, True)
    later = {name: steps[name] for name in ("ε 0.3", "ε 0.1", "ε 0")} | others
    yield Case("better", environment, steps["ε 0.6"], {f"ε 0.6 → {k}": v for k, v in later.items()}, False, True)


def run(case: Case, settings: Settings, tick: Tick = no_tick) -> Iterator[list[Tally]]:
    """Judge every candidate by every log: what has been found so far, after each log."""
    tallies = tallies_of(case, settings)
    for number in range(settings.logs):
        tick(f"{case.name}: judging logs", number / settings.logs)
        for tally, said in zip(tallies, judged_log(case, number, settings), strict=True):
            tally.add(said)
        yield tallies


def judged_log(case: Case, number: int, settings: Settings) -> list[Said]:
    """What one log, the logger's in its order, says about every candidate."""
    seed = stream_seed(settings.seed, "judged log", number)
    dataset = dataset_of(case.environment, case.logger, settings.sessions, seed)
    model: Expected | None = _model(dataset, settings) if case.with_model else None
    said = []
    for policy in case.candidates.values():
        found = collect(policy, dataset, case.logger, None, model, number)
        verdict, accepting = (conclude(found, dataset, accept, knows_logger=True) for accept in (False, True))
        said.append(Said.of(verdict, accepting, case.environment.responses.target))
    return said


def tallies_of(case: Case, settings: Settings) -> list[Tally]:
    """Every candidate with its truth, before any log has said anything."""
    return [_tally(case, name, policy, settings) for name, policy in case.candidates.items()]


def _model(dataset: Dataset, settings: Settings) -> Expected | None:
    return cross_fit(dataset, settings.seed).outcomes if settings.with_model else None


def _tally(case: Case, name: str, policy: Policy, settings: Settings) -> Tally:
    if case.indifferent:
        return Tally(case.name, name, dict.fromkeys(TARGETS, Truth(0.0, 0.0)))
    users, seed = settings.truth, stream_seed(settings.seed, "judging truth")
    rates = [session_rates(case.environment, one, users, seed) for one in (case.logger, policy)]
    chances = one_step_truth(case.environment, case.logger, policy, users, seed)
    return Tally(case.name, name, {"session": _truth(rates[1] - rates[0]), "one step": _truth(chances[1] - chances[0])})


def _truth(differences: Doubles) -> Truth:
    """From the same users with either policy."""
    return Truth(float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences))))


def session_rates(environment: InterestEvolution, policy: Policy, users: int, seed: int) -> Doubles:
    """(users,) clicks a step over whole sessions of the policy's own."""
    log = rollout(environment, policy, users, seed)
    clicks = log.filter(log["response"] == environment.responses.target)["session_id"].to_numpy()
    return np.bincount(clicks, minlength=users) / environment.horizon


def one_step_truth(
    environment: InterestEvolution, logger: Policy, candidate: Policy, users: int, seed: int
) -> tuple[Doubles, Doubles]:
    """(users,) each: clicks a step of the logger and, at its states, of the candidate; as likely as the users say."""
    environment.reset(users, seed)
    rng, k = generator(seed, "judging study"), environment.slate_size
    by_logger, by_candidate = logger.begin(users), candidate.begin(users)
    total = np.zeros((2, users))
    for _ in range(environment.horizon):
        items = logger.slates(by_logger, k, rng).items
        beside = candidate.slates(by_candidate, k, rng).items
        total += [click_chances(environment, slates) for slates in (items, beside)]
        liked = liked_of(environment.responses, environment.step(items).responses)
        by_logger = logger.after(by_logger, items, liked)
        by_candidate = candidate.after(by_candidate, items, liked)
    one, other = total / environment.horizon
    return one, other


def click_chances(environment: InterestEvolution, slates: IntArray) -> Doubles:
    """(B,) how likely the users are to click something in these slates now."""
    interests = environment.interests
    chosen = interests[np.arange(len(slates))[:, None], environment.categories[slates]]
    pull = environment._weight(chosen).sum(axis=1)
    skip = environment._skip_weight(interests)
    found: Doubles = pull / (pull + skip)
    return found
