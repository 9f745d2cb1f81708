"""How often verdicts from a log are right, where the truth is known: many logs of simulated users.

A logger plays a large pool of sessions. Beside it, in the same states, every candidate says what it would have shown,
and the users tell what that would have achieved: the truth of one step. The truth of sessions comes from sessions of
the candidate's own. Logs are drawn from the pool with replacement, session by session: hundreds of them are cheap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.states import HISTORY, PAD, FloatArray, IntArray, States, append
from bcd4rec.evaluation.off_policy.decisions import Decisions, Doubles
from bcd4rec.evaluation.off_policy.pseudo_inverse import (
    Ranked,
    category_counts,
    category_means,
    category_products,
    directions,
    weights,
    weights_over_items,
)
from bcd4rec.evaluation.off_policy.slate_model import SlateModel, fit_slate_model
from bcd4rec.evaluation.off_policy.sums import SessionSums, rows_of
from bcd4rec.evaluation.off_policy.verdict import Verdict, verdict_of
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.ranking import Exploration, exclude, make_slates, top
from bcd4rec.seeding import generator
from bcd4rec.sim.interest_evolution import InterestEvolution
from bcd4rec.sim.rollout import RolloutConfig, rollout

OUTCOMES = ("click", "reward")
DRAWN = 4  # slates that a candidate draws in each state, for its expected outcomes


@dataclass(frozen=True)
class Player:
    """A policy as it is served: what it scores by, how it explores, and among which items."""

    policy: Policy
    epsilon: float = 0.0
    explores: NDArray[np.bool_] | None = None  # (A,) the items that are drawn by exploration; all by default

    @property
    def exploration(self) -> Exploration:
        return Exploration(kind="epsilon", epsilon=self.epsilon)

    def slates(self, scores: FloatArray, k: int, rng: np.random.Generator) -> IntArray:
        if self.explores is None:
            return make_slates(scores, k, self.exploration, rng).items
        items = np.full((len(scores), k), PAD, np.int32)
        scores, rows = scores.copy(), np.arange(len(scores))
        for place in range(k):
            best = scores.argmax(axis=1)
            luck = np.where(self.explores & (scores > -np.inf), rng.random(scores.shape), -1.0)
            items[:, place] = np.where(rng.random(len(rows)) < self.epsilon, luck.argmax(axis=1), best)
            scores[rows, items[:, place]] = -np.inf
        return items

    def propensities(self, scores: FloatArray, items: IntArray) -> Doubles:
        """(B, K) conditional, of slates (B, K) without empty places."""
        scores, rows = scores.copy(), np.arange(len(scores))
        found = np.ones(items.shape)
        for place in range(items.shape[1]):
            item, best = items[:, place], scores.argmax(axis=1)
            drawn = scores > -np.inf if self.explores is None else (scores > -np.inf) & self.explores
            luck = self.epsilon * drawn[rows, item] / drawn.sum(axis=1)
            found[:, place] = luck + (1.0 - self.epsilon) * (item == best)
            scores[rows, item] = -np.inf
        return found


@dataclass
class Pool:
    """What the logger did, and what every candidate would have done beside it."""

    sessions: dict[str, Decisions]
    one_step: dict[str, float]  # the candidate's true rate at the log's states
    rate: float  # and the logger's


def log_of(environment: InterestEvolution, player: Player, users: int, seed: int) -> pl.DataFrame:
    config = RolloutConfig(exploration=player.exploration, after_skip="exclude")
    return rollout(environment, player.policy, users, seed, config)


def session_rate(environment: InterestEvolution, player: Player, users: int, seed: int) -> float:
    """Clicks a step over whole sessions of the candidate's own."""
    return float((log_of(environment, player, users, seed)["response"] == "click").sum()) / users / environment.horizon


def click_chances(environment: InterestEvolution, slates: IntArray) -> Doubles:
    """(B,) how likely the users are to click something in these slates now."""
    interests = environment.interests
    chosen = interests[np.arange(len(slates))[:, None], environment.categories[slates]]
    pull = environment._weight(chosen).sum(axis=1)
    skip = environment._skip_weight(interests)
    found: Doubles = pull / (pull + skip)
    return found


@dataclass
class _Parts:
    """What is collected of one candidate, step by step."""

    propensities: list[Doubles] = field(default_factory=list)
    expected: list[Doubles] = field(default_factory=list)
    by_items: list[Doubles] = field(default_factory=list)
    by_categories: list[Doubles] = field(default_factory=list)
    truth: list[float] = field(default_factory=list)


def play(
    environment: InterestEvolution,
    logger: Player,
    candidates: Mapping[str, Player],
    model: SlateModel,
    users: int,
    seed: int,
) -> Pool:
    """The logger plays, and the candidates say what they would have shown."""
    environment.reset(users, seed)
    rng, k = generator(seed, "judging study"), environment.slate_size
    states = States.empty(users, HISTORY, 0)
    gone, skipped = np.full((users, 0), PAD, np.int32), np.full((users, k), PAD, np.int32)
    parts = {name: _Parts() for name in candidates}
    logged, clicks, expected, truth = [], [], [], []
    for _ in range(environment.horizon):
        kept_out = np.append(gone, skipped, axis=1)
        scores = _scores([logger, *candidates.values()], states, kept_out)
        items = logger.slates(scores[id(logger.policy)], k, rng)
        logged.append(logger.propensities(scores[id(logger.policy)], items))
        beside = _Beside(environment, logger, scores[id(logger.policy)], items, model, states)
        expected.append(beside.outcomes(items))
        truth.append(float(click_chances(environment, items).mean()))
        for name, candidate in candidates.items():
            beside.add(parts[name], candidate, scores[id(candidate.policy)], rng)
        liked = environment.step(items).responses == 1
        clicks.append(liked.any(axis=1))
        states = _after(states, items, liked)
        gone = np.append(gone, np.where(liked, items, PAD), axis=1)
        skipped = np.where(liked.any(axis=1, keepdims=True), PAD, items)
    return _pool(users, logged, clicks, expected, parts, float(np.mean(truth)))


def _scores(players: Sequence[Player], states: States, kept_out: IntArray) -> dict[int, FloatArray]:
    """Of each policy once, however many players it is of."""
    found = {}
    for policy in {id(player.policy): player.policy for player in players}.values():
        found[id(policy)] = policy.scores(states)
        exclude(found[id(policy)], kept_out)
    return found


def _ranked(player: Player, scores: FloatArray, k: int) -> Ranked:
    return Ranked(top(scores, k), (scores > -np.inf).sum(axis=1), player.epsilon)


class _Beside:
    """One step of the log, which all candidates look at."""

    def __init__(
        self,
        environment: InterestEvolution,
        logger: Player,
        scores: FloatArray,
        items: IntArray,
        model: SlateModel,
        states: States,
    ):
        self.environment, self.items, self.model = environment, items, model
        self.logger = _ranked(logger, scores, items.shape[1])
        self.logits = model.logits(states)
        groups = environment.config.categories
        open_items = scores > -np.inf
        self.available = np.stack([open_items[:, environment.categories == c].sum(axis=1) for c in range(groups)], 1)
        self.available = self.available.astype(np.float64)
        gamma = category_products(self.logger, environment.categories, self.available)
        self.directions = directions(category_counts(items, environment.categories, groups), gamma)

    def outcomes(self, items: IntArray) -> Doubles:
        return self.model.outcomes_by(np.take_along_axis(self.logits, items[None], axis=2), items)

    def add(self, parts: _Parts, candidate: Player, scores: FloatArray, rng: np.random.Generator) -> None:
        k = self.items.shape[1]
        parts.propensities.append(candidate.propensities(scores, self.items))
        drawn = [candidate.slates(scores, k, rng) for _ in range(DRAWN if candidate.epsilon else 1)]
        parts.truth.append(float(np.mean([click_chances(self.environment, slates).mean() for slates in drawn])))
        parts.expected.append(np.mean([self.outcomes(slates) for slates in drawn], axis=0))
        ranked = _ranked(candidate, scores, k)
        means = category_means(ranked, self.environment.categories, self.available)
        parts.by_categories.append(weights(means, self.directions))
        parts.by_items.append(weights_over_items(self.items, self.logger, ranked))


def _after(states: States, items: IntArray, liked: NDArray[np.bool_]) -> States:
    positives = states.positives
    for place in range(items.shape[1]):
        rows = np.flatnonzero(liked[:, place]).astype(np.int32)
        positives = append(positives, rows, items[rows, place])
    return States(positives, states.skips)


def _pool(
    users: int,
    logged: list[Doubles],
    clicks: list[NDArray[np.bool_]],
    expected: list[Doubles],
    parts: Mapping[str, _Parts],
    truth: float,
) -> Pool:
    def flat(steps: Sequence[NDArray[np.generic]]) -> Doubles:
        """Step by step to session by session."""
        array = np.stack(steps, axis=1).astype(np.float64)  # (B, T, …)
        return array.reshape(-1, *array.shape[2:])

    session = np.repeat(np.arange(users), len(clicks))
    click = flat(clicks)
    outcomes = np.stack([click, 4.0 * click], axis=1)
    chances, known = flat(logged), flat(expected)
    sessions = {
        name: Decisions(
            session,
            chances,
            flat(one.propensities),
            outcomes,
            known,
            flat(one.expected),
            flat(one.by_items),
            flat(one.by_categories),
        )
        for name, one in parts.items()
    }
    return Pool(sessions, {name: float(np.mean(one.truth)) for name, one in parts.items()}, truth)


def verdicts(decisions: Decisions, longest: int, logs: int, sessions: int, seed: int) -> list[Verdict]:
    """Of so many logs of so many sessions, drawn from the pool with replacement."""
    empty = SessionSums(OUTCOMES, longest)
    rows = np.concatenate(list(rows_of(decisions, empty.layout)))
    found = []
    for number in range(logs):
        sums = SessionSums(OUTCOMES, longest)
        sums.add_rows(rows[generator(seed, "judged log", number).integers(len(rows), size=sessions)])
        found.append(verdict_of(sums, "click"))
    return found


def model_of(environment: InterestEvolution, logger: Player, users: int, seed: int) -> SlateModel:
    """Learned from other sessions of the logger."""
    log = log_of(environment, logger, users, seed)
    return fit_slate_model(Dataset.from_frame(log, environment.responses), seed)
