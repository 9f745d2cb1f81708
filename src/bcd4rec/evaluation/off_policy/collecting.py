"""From a log and a policy to the sums that estimates are made of, in one pass."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.evaluation.off_policy.decisions import Decisions, Doubles, Index, outcomes_of
from bcd4rec.evaluation.off_policy.diagnostics import LoggedSupport, PropensityCheck
from bcd4rec.evaluation.off_policy.fitted_q import FittedQ
from bcd4rec.evaluation.off_policy.pseudo_inverse import (
    MOST_PLACES,
    Ranked,
    category_counts,
    category_means,
    category_products,
    directions,
    weights,
    weights_over_items,
)
from bcd4rec.evaluation.off_policy.replay import ReplayedSlates, ReplayedStep, Translation, replay
from bcd4rec.evaluation.off_policy.sums import SessionSums
from bcd4rec.evaluation.off_policy.verdict import StepSizes
from bcd4rec.models.evidence import summary
from bcd4rec.policies.policy import Policy
from bcd4rec.policies.ranking import top

DRAWN = 2  # slates that a policy that explores draws in each state, for its expected outcomes
SAME = 0.01  # propensities that differ by less, relatively, are the same
MOST_CATEGORIES = 50  # whose moments are looked at; with more, items are

Expected = Callable[[Index, States, IntArray], Doubles]
"""Outcomes (n, O) that slates (n, K) lead to expect in these states, of these rows of `Dataset.sessions`."""


class Player:
    """A policy at work on a data set's items."""

    def __init__(self, policy: Policy, dataset: Dataset):
        self.policy = policy
        self.translation = Translation(dataset.vocabulary, policy.vocabulary)
        there = self.translation.of_policy
        self.categories = np.where(there == PAD, np.int32(-1), dataset.categories[np.maximum(there, 0)])
        self.explores = policy.rule.exploration.kind != "none"

    @property
    def ranks(self) -> bool:
        """Whether places are filled by one ranking, with ε: then its moments are known exactly."""
        rule = self.policy.rule
        return type(self.policy) is Policy and not rule.diversity and rule.exploration.kind in ("none", "epsilon")

    def scores(self, met: ReplayedStep) -> FloatArray | None:
        """(b, A) −inf for what is not available; None where the policy is not one ranking."""
        return self.policy.available_scores(met.sessions) if type(self.policy) is Policy else None

    def propensities(self, met: ReplayedStep, scores: FloatArray | None) -> Doubles:
        """(b, K) of what was shown; 0 for what the policy does not know."""
        found = self.policy.propensities(met.sessions, met.items, scores=scores)
        return np.where(met.unknown, 0.0, found.astype(np.float64))

    def draws(
        self, met: ReplayedStep, k: int, scores: FloatArray | None, rng: np.random.Generator, count: int = DRAWN
    ) -> list[IntArray]:
        """Slates (b, K) that it would show, in its own numbers."""
        chosen = rng if self.explores else None
        times = range(count if self.explores else 1)
        return [self.policy.slates(met.sessions, k, chosen, scores=scores).items for _ in times]

    def ranked(self, scores: FloatArray, k: int) -> Ranked:
        exploration = self.policy.rule.exploration
        epsilon = exploration.epsilon if exploration.kind == "epsilon" else 0.0
        return Ranked(top(scores, k), (scores > -np.inf).sum(axis=1), epsilon)

    def available(self, scores: FloatArray, groups: int) -> Doubles:
        """(b, C) how many items of each category may be shown."""
        member = (self.categories[:, None] == np.arange(groups)).astype(np.float32)
        found: Doubles = ((scores > -np.inf).astype(np.float32) @ member).astype(np.float64)
        return found


@dataclass
class _Columns:
    """What is found of the slates of a chunk, step by step."""

    logged: Doubles
    candidate: Doubles
    model_logged: Doubles | None
    model_candidate: Doubles | None
    veto: Doubles | None


@dataclass
class Collected:
    """All that a log tells about a candidate."""

    sums: SessionSums
    steps: StepSizes
    fitted: FittedQ
    own: SessionSums | None  # the logger against itself
    check: PropensityCheck
    support: LoggedSupport = field(default_factory=LoggedSupport)
    recommended: int = 0  # places of the candidate's slates
    strange: int = 0  # of them those with items that the log does not have
    slates: int = 0
    impressions: int = 0
    trusted: bool = True  # the log's propensities count, or their estimates; else the logger's
    differ: int = 0  # of them those whose logged propensity is not the logger's


class Collector:
    """Adds chunks of a log, one after the other."""

    def __init__(
        self,
        dataset: Dataset,
        candidate: Policy,
        logger: Policy | None,
        model: Expected | None,
        longest: int,
        seed: int = 0,
        trust_log: bool = True,
    ):
        """`trust_log`: the log's propensities count; else the logger's, which must then be given."""
        self._dataset, self._model, self._trust = dataset, model, trust_log
        self._new = Player(candidate, dataset)
        self._old = Player(logger, dataset) if logger is not None else None
        self._rng = np.random.default_rng(seed)
        names = outcomes_of(np.zeros((0, 1), np.int32), dataset.responses)[0]
        groups = int(dataset.categories.max(initial=-1)) + 1
        self._groups = groups if 1 < groups <= MOST_CATEGORIES else 0
        own = SessionSums(names, longest) if logger is not None and trust_log else None
        n_items = max(dataset.n_items, logger.n_items if logger is not None else 0)
        sums, fitted = SessionSums(names, longest), FittedQ(names, longest)
        self.found = Collected(sums, StepSizes(names, longest), fitted, own, PropensityCheck(n_items))
        self.found.trusted = trust_log

    def add(self, slates: ReplayedSlates) -> None:
        if not len(slates):
            return
        columns = self._replayed(slates)
        decisions = self._decisions(slates, columns)
        found = self.found
        found.slates += len(slates)
        found.impressions += int((slates.items != PAD).sum())
        found.sums.add(decisions)
        found.steps.add(decisions)
        found.fitted.add(decisions, summary(self._dataset.states[slates.state]))
        begun = np.zeros(len(slates), np.bool_)
        begun[slates.step == 0] = True
        opened = np.unique(slates.organic[:, 0])
        found.check.add(slates.items, decisions.logged, begun & ~np.isin(slates.session, opened))
        if self._old is None:
            found.support.add_logged(decisions, slates.items)

    def _decisions(self, slates: ReplayedSlates, columns: _Columns) -> Decisions:
        outcomes = outcomes_of(slates.responses, self._dataset.responses)[1]
        session = slates.sessions[slates.session]
        logged = slates.propensities if self._trust else columns.logged
        if self.found.own is not None:
            apart = np.abs(logged - columns.logged) > SAME * np.maximum(logged, columns.logged)
            self.found.differ += int((apart & (slates.items != PAD)).sum())
            self.found.own.add(Decisions(session, logged, columns.logged, outcomes))
        by_items, by_categories = (None, columns.veto) if self._groups else (columns.veto, None)
        return Decisions(
            session,
            logged,
            columns.candidate,
            outcomes,
            columns.model_logged,
            columns.model_candidate,
            by_items,
            by_categories,
        )

    def _replayed(self, slates: ReplayedSlates) -> _Columns:
        n, outcomes = len(slates), len(self._dataset.responses.positive) + 1
        known = self._model is not None
        columns = _Columns(
            np.ones(slates.items.shape),
            np.ones(slates.items.shape),
            np.zeros((n, outcomes)) if known else None,
            np.zeros((n, outcomes)) if known else None,
            np.zeros(n) if known and self._can_veto(slates) else None,
        )
        if self._model is not None and columns.model_logged is not None:
            states = self._dataset.states[slates.state]
            columns.model_logged[:] = self._model(slates.sessions[slates.session], states, slates.items)
        met_by_old = None if self._old is None else replay(self._old.policy, slates, self._old.translation)
        for met in replay(self._new.policy, slates, self._new.translation):
            self._step(slates, columns, met, None if met_by_old is None else next(met_by_old))
        return columns

    def _can_veto(self, slates: ReplayedSlates) -> bool:
        """The logger's moments must be known; items need both rankings, and the same items to choose from."""
        if self._old is None or not self._old.ranks or slates.items.shape[1] > MOST_PLACES:
            return False
        old, new = self._old.policy, self._new.policy
        alike = old.vocabulary.ids.equals(new.vocabulary.ids) and old.rule.unavailable == new.rule.unavailable
        return bool(self._groups) or (self._new.ranks and alike and old.rule.after_skip == new.rule.after_skip)

    def _step(self, slates: ReplayedSlates, columns: _Columns, met: ReplayedStep, by_old: ReplayedStep | None) -> None:
        new, old, rows = self._new, self._old, met.rows
        scores = new.scores(met)
        columns.candidate[rows] = new.propensities(met, scores)
        sizes = slates.sizes[rows]
        drawn = new.draws(met, slates.items.shape[1], scores, self._rng)
        for one in drawn:
            one[np.arange(one.shape[1]) >= sizes[:, None]] = PAD
        shown = [new.translation.to_dataset(one) for one in drawn]
        for own, theirs in zip(drawn, shown, strict=True):
            self.found.recommended += int((own != PAD).sum())
            self.found.strange += int(((own != PAD) & (theirs == PAD)).sum())
        if self._model is not None and columns.model_candidate is not None:
            states, session = self._dataset.states[slates.state[rows]], slates.sessions[slates.session[rows]]
            columns.model_candidate[rows] = np.mean([self._model(session, states, one) for one in shown], axis=0)
        if old is None or by_old is None:
            return
        by_logger = old.scores(by_old)
        columns.logged[rows] = old.propensities(by_old, by_logger)
        self._support(drawn[0], shown[0], by_old, by_logger)
        if columns.veto is not None and by_logger is not None:
            for size in np.unique(sizes):
                some = np.flatnonzero(sizes == size)
                columns.veto[rows[some]] = self._veto(by_old, by_logger, scores, drawn, some, int(size))

    def _support(self, own: IntArray, shown: IntArray, by_old: ReplayedStep, scores: FloatArray | None) -> None:
        """What the logger would do with the candidate's slates, place by place; items it does not know, never."""
        assert self._old is not None  # noqa: S101 (asked for with a logger only; for the type checker)
        known = self._old.translation.to_policy(shown)
        chance = self._old.policy.propensities(by_old.sessions, known, scores=scores).astype(np.float64)
        self.found.support.add(own, np.where(known == PAD, 0.0, chance))

    def _veto(
        self,
        by_old: ReplayedStep,
        theirs: FloatArray,
        scores: FloatArray | None,
        drawn: list[IntArray],
        some: Index,
        size: int,
    ) -> Doubles:
        """(b,) weights by the pseudo-inverse for slates of `size` items."""
        assert self._old is not None  # noqa: S101 (`_can_veto` has seen to it; for the type checker)
        logger, items = self._old.ranked(theirs[some], size), by_old.items[some, :size]
        if not self._groups:
            assert scores is not None  # noqa: S101 (both are rankings)
            return weights_over_items(items, logger, self._new.ranked(scores[some], size))
        groups, categories = self._groups, self._old.categories
        gamma = category_products(logger, categories, self._old.available(theirs[some], groups))
        toward = directions(category_counts(items, categories, groups), gamma)
        if self._new.ranks and scores is not None:
            open_items = self._new.available(scores[some], groups)
            means = category_means(self._new.ranked(scores[some], size), self._new.categories, open_items)
        else:
            counts = [category_counts(one[some, :size], self._new.categories, groups) for one in drawn]
            means = np.mean(counts, axis=0)
        return weights(means, toward)


def longest_session(dataset: Dataset) -> int:
    """How many slates the longest session has."""
    last = dataset.frame["step"].max()
    return 1 if last is None else int(last) + 1  # type: ignore[arg-type]  # a number
