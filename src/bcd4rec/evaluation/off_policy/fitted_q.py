"""Fitted Q evaluation in one pass over a log: indicative only, for no weights correct it.

With x = (summary of the session, expected outcome of the slate) at step t, and x′ the same of what the candidate would
show in the state after it, Q_t is linear in x and is fitted backwards by ridge regression:

    θ_t = (Σ x xᵀ + I)⁻¹ (Σ x y + Σ x x′ᵀ θ_{t+1}),   value = mean x′ of the first states · θ_0

so sums suffice, and memory does not grow with the log. Sessions are kept in groups; fits that leave out one group each
say how much the fit depends on who is in the log. They say nothing about what a line through so few columns misses:
on simulated users such values approve policies that are no better in most logs.
"""

import numpy as np

from bcd4rec.data.states import FloatArray
from bcd4rec.evaluation.off_policy.decisions import Decisions, Doubles, Index
from bcd4rec.evaluation.off_policy.sums import MOST_STEPS
from bcd4rec.evaluation.off_policy.verdict import Indicative, over_refits
from bcd4rec.models.evidence import SUMMARY

GROUPS = 10
COLUMNS = SUMMARY + 1
RIDGE = 1.0


class FittedQ:
    """Add chunks of whole sessions, then ask."""

    def __init__(self, outcomes: tuple[str, ...], longest: int):
        self.names, self._steps = outcomes, max(1, min(longest, MOST_STEPS))
        shape = (GROUPS, len(outcomes), self._steps, COLUMNS)
        self._squares, self._crosses = np.zeros((*shape, COLUMNS)), np.zeros((*shape, COLUMNS))
        self._products = np.zeros(shape)
        self._first = np.zeros((GROUPS, len(outcomes), COLUMNS))
        self._outcome = np.zeros((GROUPS, len(outcomes)))
        self._count = np.zeros((GROUPS, 2))  # sessions and steps

    def add(self, decisions: Decisions, summaries: FloatArray) -> None:
        """Decisions with what a model expects of them, and the summaries (n, SUMMARY) of the states before them."""
        logged, candidate = decisions.model_logged, decisions.model_candidate
        if logged is None or candidate is None or not len(decisions):
            return
        starts = np.flatnonzero(np.diff(decisions.session, prepend=decisions.session[0] - 1))
        step = np.arange(len(decisions)) - np.repeat(starts, np.diff(np.append(starts, len(decisions))))
        follows = np.append(step[1:] > 0, False) & (step + 1 < self._steps)
        group = decisions.session % GROUPS
        for number in range(GROUPS):
            for at in range(self._steps):
                rows = np.flatnonzero((group == number) & (step == at))
                if len(rows):
                    self._count[number] += [len(rows) if at == 0 else 0, len(rows)]
                    self._add(number, at, rows, follows[rows], decisions.outcomes, logged, candidate, summaries)

    def _add(
        self,
        group: int,
        step: int,
        rows: Index,
        follows: np.ndarray[tuple[int], np.dtype[np.bool_]],
        outcomes: Doubles,
        logged: Doubles,
        candidate: Doubles,
        summaries: FloatArray,
    ) -> None:
        for outcome in range(len(self.names)):
            here = np.column_stack([summaries[rows], logged[rows, outcome]])
            later = rows[follows] + 1
            after = np.column_stack([summaries[later], candidate[later, outcome]])
            self._squares[group, outcome, step] += here.T @ here
            self._products[group, outcome, step] += here.T @ outcomes[rows, outcome]
            self._crosses[group, outcome, step] += here[follows].T @ after
            self._outcome[group, outcome] += outcomes[rows, outcome].sum()
            if step == 0:
                start = np.column_stack([summaries[rows], candidate[rows, outcome]])
                self._first[group, outcome] += start.sum(axis=0)

    def lines(self) -> list[Indicative]:
        """One for each outcome; none where the log had no model or too few groups."""
        if (self._count[:, 0] > 0).sum() < GROUPS:
            return []
        every = np.ones(GROUPS, np.bool_)
        without = [every & (np.arange(GROUPS) != number) for number in range(GROUPS)]
        found = []
        for outcome, name in enumerate(self.names):
            whole = self._values(every, outcome)
            parts = np.array([self._values(some, outcome) for some in without])
            found.append(over_refits("fitted Q", name, whole, parts))
        return found

    def _values(self, groups: np.ndarray[tuple[int], np.dtype[np.bool_]], outcome: int) -> tuple[float, float]:
        """The candidate's and the logger's outcome a step, from the sessions of these groups."""
        squares, crosses, products, first = (
            part[groups, outcome].sum(axis=0) for part in (self._squares, self._crosses, self._products, self._first)
        )
        weights = np.zeros(COLUMNS)
        for step in reversed(range(self._steps)):
            target = products[step] + crosses[step] @ weights
            weights = np.linalg.solve(squares[step] + RIDGE * np.eye(COLUMNS), target)
        steps = self._count[groups, 1].sum()
        return float(first @ weights / steps), float(self._outcome[groups, outcome].sum() / steps)
