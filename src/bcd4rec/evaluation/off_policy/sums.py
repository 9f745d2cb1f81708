"""Everything that the estimators need of a log, in memory that does not grow with it.

Sessions are independent, the steps of one are not. So each session becomes one row of sums, and what is kept is how
many rows there are, their sum, and the sum of their outer products. Every estimator is a function of the rows' mean;
how sure it is follows from their covariance (the delta method), so intervals cluster by session.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bcd4rec.errors import InputError
from bcd4rec.evaluation.off_policy.decisions import Decisions, Doubles, Index

MOST_STEPS = 100  # of a session that the session target is about; memory grows with its square
LARGEST = 1e100  # of a session's weights, which are sound nowhere near it; its square is still a number
AT_ONCE = 1 << 22  # numbers of session rows that are held at once


@dataclass(frozen=True)
class Layout:
    """Which column of a session's row is what, for O outcomes and sessions of up to T steps."""

    outcomes: int
    steps: int

    STEPS, WEIGHT, SQUARED, BY_ITEMS, BY_CATEGORIES, KEPT = range(6)
    PARTS = ("outcome", "weighted", "model", "weighted_model", "items", "categories", "kept")

    def of(self, part: str, outcome: int) -> int:
        """The column of an outcome's sum: as it was, weighted, of the model, and so on; `kept` is of the first T."""
        return 6 + self.PARTS.index(part) * self.outcomes + outcome

    @property
    def _session_start(self) -> int:
        return 6 + len(self.PARTS) * self.outcomes

    @property
    def session_weight(self) -> slice:
        """(T,) the weight of the session up to each step; that of the last step after it."""
        return slice(self._session_start, self._session_start + self.steps)

    def session_outcome(self, outcome: int) -> slice:
        """(T,) that weight times the outcome of the step."""
        start = self._session_start + (1 + outcome) * self.steps
        return slice(start, start + self.steps)

    @property
    def width(self) -> int:
        return self._session_start + (1 + self.outcomes) * self.steps


class SessionSums:
    """Add chunks of whole sessions, then ask. Sums of two parts of a log can be put together with `merge`."""

    def __init__(self, outcomes: tuple[str, ...], longest: int):
        """`longest` is the number of steps of the longest session; the session target is of the first 100 of them."""
        self.names = outcomes
        self.layout = Layout(len(outcomes), max(1, min(longest, MOST_STEPS)))
        self.sessions = 0
        self._total = np.zeros(self.layout.width)
        self._products = np.zeros((self.layout.width, self.layout.width))
        self.has_model = self.has_items = self.has_categories = True

    def add(self, decisions: Decisions) -> None:
        """Whole sessions: one that is cut in two would count as two."""
        self.has_model &= decisions.model_candidate is not None
        self.has_items &= decisions.by_items is not None
        self.has_categories &= decisions.by_categories is not None
        for rows in rows_of(decisions, self.layout):
            self.add_rows(rows)

    def add_rows(self, rows: Doubles) -> None:
        """(sessions, D) as `rows_of` makes them."""
        self.sessions += len(rows)
        self._total += rows.sum(axis=0)
        self._products += rows.T @ rows
        self.__dict__.pop("covariance", None)

    def merge(self, other: "SessionSums") -> None:
        """Add what another part of the same log gave."""
        if (self.names, self.layout) != (other.names, other.layout):
            raise ValueError("sums of other outcomes or other longest sessions cannot be merged")
        self.sessions += other.sessions
        self._total += other._total
        self._products += other._products
        self.has_model &= other.has_model
        self.has_items &= other.has_items
        self.has_categories &= other.has_categories
        self.__dict__.pop("covariance", None)

    @property
    def mean(self) -> Doubles:
        """(D,) of the sessions' rows."""
        if not self.sessions:
            raise InputError("The log has no sessions to judge by; expected at least one.")
        return self._total / self.sessions

    @property
    def mean_squares(self) -> Doubles:
        """(D,) of the squares of the sessions' rows."""
        found: Doubles = np.diagonal(self._products) / self.sessions
        return found

    @cached_property
    def covariance(self) -> Doubles:
        """(D, D) of a session's row."""
        mean = self.mean
        found: Doubles = self._products / self.sessions - np.outer(mean, mean)
        return found * (self.sessions / max(self.sessions - 1, 1))


def rows_of(decisions: Decisions, layout: Layout) -> Iterator[Doubles]:
    """(sessions, D) the rows of whole sessions, some thousand at a time."""
    if not len(decisions):
        return
    starts = np.flatnonzero(np.diff(decisions.session, prepend=decisions.session[0] - 1))
    sizes = np.diff(np.append(starts, len(decisions)))
    columns = step_columns(decisions, layout)
    at_once = max(1, AT_ONCE // layout.width)
    for first in range(0, len(starts), at_once):
        some = slice(first, first + at_once)
        yield session_rows(decisions, columns, starts[some], sizes[some], layout)


def step_columns(decisions: Decisions, layout: Layout) -> Doubles:
    """(n, 6 + 7 O) what one step adds to the row of its session; `kept` is filled in by `session_rows`."""
    n, weight, outcomes = len(decisions), decisions.weights, decisions.outcomes
    nothing = np.zeros_like(outcomes)
    logged = nothing if decisions.model_logged is None else decisions.model_logged
    candidate = nothing if decisions.model_candidate is None else decisions.model_candidate
    items = np.zeros(n) if decisions.by_items is None else decisions.by_items
    categories = np.zeros(n) if decisions.by_categories is None else decisions.by_categories
    surprise = outcomes - logged
    parts = [outcomes, weight[:, None] * outcomes, candidate, weight[:, None] * logged]
    parts += [items[:, None] * surprise, categories[:, None] * surprise, nothing]
    ones = np.ones(n)
    return np.concatenate([np.stack([ones, weight, weight**2, items, categories, ones], axis=1), *parts], axis=1)


def session_rows(decisions: Decisions, columns: Doubles, starts: Index, sizes: Index, layout: Layout) -> Doubles:
    """(sessions, D) the rows of the sessions that begin at `starts` and have `sizes` steps."""
    rows = np.zeros((len(starts), layout.width))
    first, end = starts[0], starts[-1] + sizes[-1]
    rows[:, : columns.shape[1]] = np.add.reduceat(columns[first:end], starts - first, axis=0)
    step = np.arange(layout.steps)
    place = starts[:, None] + np.minimum(step, sizes[:, None] - 1)  # (sessions, T)
    inside = step < sizes[:, None]
    weight = np.minimum(np.cumprod(np.where(inside, columns[place, layout.WEIGHT], 1.0), axis=1), LARGEST)
    rows[:, layout.session_weight] = weight
    rows[:, layout.KEPT] = inside.sum(axis=1)
    for outcome in range(layout.outcomes):
        values = np.where(inside, decisions.outcomes[place, outcome], 0.0)
        rows[:, layout.session_outcome(outcome)] = weight * values
        rows[:, layout.of("kept", outcome)] = values.sum(axis=1)
    return rows
