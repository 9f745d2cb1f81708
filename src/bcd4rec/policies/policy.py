"""A policy as one whole: from what happened in a session to the slate that is shown, and how likely that slate was."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bcd4rec.config import Config
from bcd4rec.data.cooccurrence import RANK, item_vectors, supported_vectors
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.knowledge import TASTE_SUPPORT
from bcd4rec.data.responses import DIGINETICA, Responses
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import HISTORY, PAD, FloatArray, IntArray, States, after_slate
from bcd4rec.data.vocabulary import ItemId, Vocabulary
from bcd4rec.errors import InputError
from bcd4rec.models.large import is_large
from bcd4rec.policies.ranking import exclude
from bcd4rec.policies.scorer import Drawing, Explaining, Scorer
from bcd4rec.policies.slates import (
    Exploration,
    Filling,
    SlateRule,
    Slates,
    Spread,
    Unavailable,
    deviation,
    make_slates,
    slate_propensities,
)

GREEDY = Exploration()
LONGEST = 1_000  # items that a policy remembers; some networks need its square
MANY = 100_000  # items; which are alike among more is kept only where slates are diverse
FRACTIONS = tuple(round(0.1 * step, 1) for step in range(1, 10))  # of the quantiles that people are told
Event = ItemId | tuple[ItemId, str | None]
"""An item that was liked, or an item with the response it got; None where it was shown and nobody answered."""


Unanswered = Literal["skip", "unknown"]


class Memory(Config):
    """What a policy remembers of a session."""

    length: int = Field(default=HISTORY, ge=0, le=LONGEST)
    """L: how many liked items."""
    skips: int = Field(default=0, ge=0, le=LONGEST)
    """S: how many skipped items."""
    unanswered: Unanswered = "skip"
    """What was shown and not answered counts as skipped once the session goes on, or as if it had not been shown."""


@dataclass(frozen=True)
class Sessions:
    """B sessions as a policy sees them, just before a slate."""

    states: States
    unavailable: IntArray  # (B, E) items that are not recommended again, padded with `PAD`
    skipped: IntArray  # (B, E′) the slate before, where all of it was skipped

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, rows: object) -> Self:
        return type(self)(self.states[rows], self.unavailable[rows], self.skipped[rows])  # type: ignore[call-overload]


class SessionReading(NamedTuple):
    """A session by ids in a policy's numbers."""

    sessions: Sessions  # one
    unknown: list[ItemId]  # items that the policy has never heard of
    unknown_responses: int = 0  # how many responses it has never heard of


@dataclass(frozen=True)
class Policy:
    """What it has learned (`scorer`), which items it speaks of, what it remembers, and how it makes slates.

    `evaluate`, `simulate`, `recommend` and `serve` all call `slates`, so what is measured is what is served.
    """

    scorer: Scorer
    vocabulary: Vocabulary
    memory: Memory = field(default_factory=Memory)
    rule: SlateRule = field(default_factory=SlateRule)
    responses: Responses = DIGINETICA
    vectors: FloatArray | None = None  # (A, D) which items are alike, for diverse slates
    popularity: IntArray | None = None  # (A,) positive responses in the log it has learned from
    about: dict[str, Any] = field(default_factory=dict)  # method, seed, data, why this rule, …

    def __post_init__(self) -> None:
        if self.scorer.n_items != len(self.vocabulary):
            raise ValueError(f"the scorer has {self.scorer.n_items} items, the vocabulary {len(self.vocabulary)}")
        if self.rule.diversity and self.vectors is None:
            raise InputError("Diverse slates need to know which items are alike, and this policy does not tell.")

    @property
    def n_items(self) -> int:
        return self.scorer.n_items

    @property
    def name(self) -> str:
        """The method, for tables."""
        return str(self.about.get("method", "policy"))

    def with_rule(self, **changes: Any) -> Self:
        """The same policy with another slate rule, e.g. `with_rule(diversity=1.0, after_skip="exclude")`."""
        rule = SlateRule.parse(self.rule.model_dump() | changes, "slate rule")
        return replace(self, rule=rule)

    def with_unanswered(self, unanswered: Unanswered) -> Self:
        """The same policy for which an item that nobody answered counts as this."""
        return replace(self, memory=self.memory.model_copy(update={"unanswered": unanswered}))

    # ---- sessions

    def begin(self, count: int, opening: IntArray | None = None) -> Sessions:
        """Sessions before their first slate; `opening` (B, E) are items that were liked before, oldest first."""
        nothing = np.full((count, 0), PAD, np.int32)
        opening = nothing if opening is None else opening
        states = after_slate(States.empty(count, self.memory.length, self.memory.skips), opening, opening != PAD)
        unavailable = opening if self.rule.unavailable in ("liked", "shown") else nothing
        return Sessions(states, unavailable, nothing)

    def after(self, sessions: Sessions, items: IntArray, liked: NDArray[np.bool_]) -> Sessions:
        """The sessions after slates (B, K), of which `liked` (B, K) says what pleased."""
        states = after_slate(sessions.states, items, liked)
        unavailable = not_again(self.rule.unavailable, sessions.unavailable, items, liked)
        skipped = np.where(liked.any(axis=1, keepdims=True), np.int32(PAD), items)
        return Sessions(states, unavailable, skipped)

    def read(
        self, steps: Sequence[Sequence[tuple[ItemId, str | None]]], opening: Sequence[Event] = ()
    ) -> SessionReading:
        """One session by ids: its slates in order, each with the response to every item (None: nobody answered).

        `opening` is what happened before the first slate, as far as anybody knows: responses in their order. Items
        that were skipped one after the other count as one slate.
        """
        reader = _SessionReader(self)
        pairs = [one if isinstance(one, tuple) else (one, self.responses.positive[0]) for one in opening]
        for _, together in groupby(pairs, key=lambda pair: pair[1] in self.responses.positive):
            reader.add(list(together), recommended=False)
        for slate in steps:
            reader.add(slate, recommended=True)
        states = States(_row(reader.liked, self.memory.length), _row(reader.passed, self.memory.skips))
        barred, skipped = (np.array([part], np.int32) for part in (reader.barred, reader.skipped))
        return SessionReading(Sessions(states, barred, skipped), reader.unknown, reader.unknown_responses)

    # ---- slates

    def slates(
        self,
        sessions: Sessions,
        k: int,
        rng: np.random.Generator | None = None,
        candidates: IntArray | None = None,
        unavailable: IntArray | None = None,
        only: NDArray[np.intp] | None = None,
        scores: FloatArray | None = None,
        loss: FloatArray | None = None,
    ) -> Slates:
        """Slates of `k` items; without `rng` the policy does not explore.

        `candidates` (B, C), padded with `PAD`: nothing else may be shown. `unavailable` (B, E): these may not, beside
        those that the rule leaves out. `only`: the scorer is asked about these rows alone, and the slates of the others
        mean nothing. `scores` (B, A or C) and `loss` (B,) spare the work where they are known already.
        """
        exploration = self.rule.exploration if rng is not None else GREEDY
        rng = np.random.default_rng(0) if rng is None else rng
        if exploration.kind == "own":
            if not isinstance(self.scorer, Drawing) or self.rule.diversity:
                raise InputError("Exploration of kind 'own' is for policies that draw their slates, without diversity.")
            left_out = _distinct(self._left_out(sessions, unavailable))
            items, propensities = self.scorer.draw(sessions.states, left_out, k, rng)
            return Slates(items, propensities, np.full(items.shape, np.nan, np.float32))
        candidates = some_pool(candidates)
        scores = self.available_scores(sessions, candidates, unavailable, only, scores)
        made = make_slates(scores, k, exploration, rng, self._penalty(scores, candidates, loss))
        return made if candidates is None else made._replace(items=of_pool(candidates, made.items))

    def propensities(
        self,
        sessions: Sessions,
        items: IntArray,
        candidates: IntArray | None = None,
        unavailable: IntArray | None = None,
        scores: FloatArray | None = None,
    ) -> FloatArray:
        """(B, K) with which probability this policy puts each of `items` (B, K) in its place, given those above.

        `scores` (B, A or C) spare the work where they are known already.
        """
        candidates = some_pool(candidates)
        scores = self.available_scores(sessions, candidates, unavailable, scores=scores)
        if candidates is None:
            return slate_propensities(scores, items, self.rule.exploration, self._penalty(scores, None))
        columns, found = _columns(candidates, items)
        chances = slate_propensities(scores, columns, self.rule.exploration, self._penalty(scores, candidates))
        return np.where(found, chances, np.float32(0))

    def filling(
        self,
        sessions: Sessions,
        candidates: IntArray | None = None,
        unavailable: IntArray | None = None,
        only: NDArray[np.intp] | None = None,
    ) -> Filling:
        """Slates to be filled together with another policy; columns are items, or those of `candidates`."""
        if self.rule.exploration.kind == "own":
            raise InputError(f"{self.name} draws whole slates itself, so its places cannot be mixed with another's.")
        scores = self.available_scores(sessions, candidates, unavailable, only)
        return Filling(scores, self.rule.exploration, self._penalty(scores, candidates))

    def available_scores(
        self,
        sessions: Sessions,
        candidates: IntArray | None = None,
        unavailable: IntArray | None = None,
        only: NDArray[np.intp] | None = None,
        scores: FloatArray | None = None,
    ) -> FloatArray:
        """(B, A or C) the scores, −inf for what may not be shown."""
        if scores is None:
            scores = self._scored(sessions.states, candidates, only)
        left_out = self._left_out(sessions, unavailable)
        if candidates is None:
            exclude(scores, left_out)
        else:
            row = np.arange(len(candidates))[:, None] * self.n_items  # one number for each session and item
            barred = np.isin(candidates + row, (left_out + row)[left_out != PAD])
            scores[barred | (candidates == PAD)] = -np.inf
        return scores

    def _scored(self, states: States, candidates: IntArray | None, only: NDArray[np.intp] | None) -> FloatArray:
        if only is None or len(only) == len(states):
            return self.scorer.scores(states, candidates)
        asked = self.scorer.scores(states[only], None if candidates is None else candidates[only])
        scores = np.zeros((len(states), asked.shape[1]), asked.dtype)
        scores[only] = asked  # the others keep their rows, because draws go by the number of sessions
        return scores

    def _left_out(self, sessions: Sessions, unavailable: IntArray | None) -> IntArray:
        parts = [sessions.unavailable]
        if self.rule.after_skip == "exclude":
            parts.append(sessions.skipped)
        if unavailable is not None:
            parts.append(unavailable)
        return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]

    def _penalty(self, scores: FloatArray, pool: IntArray | None, loss: FloatArray | None = None) -> Spread | None:
        if not self.rule.diversity or self.vectors is None:
            return None
        loss = self.rule.diversity * deviation(scores) if loss is None else loss
        return Spread(loss.astype(np.float32), self.vectors, pool)

    # ---- for people

    def recommend(
        self, session: Sequence[Event] = (), k: int = 3, candidates: Sequence[ItemId] | None = None
    ) -> list[tuple[ItemId, float]]:
        """The best `k` items for a session with their values, e.g. `recommend([17, 4, (98, "skip")], k=3)`.

        A bare item was liked; items that the policy does not know play no part.
        """
        pool = None if candidates is None else self.pool(candidates)
        slate = self.slates(self.read([], session).sessions, k, candidates=pool)
        pairs = zip(slate.items[0].tolist(), slate.values[0].tolist(), strict=True)
        return [(self.vocabulary.id(item), value) for item, value in pairs if item != PAD]

    def pool(self, candidates: Sequence[ItemId]) -> IntArray:
        """(1, C) the known ones among some items, ascending, so that ties go to the lower index."""
        known = self.vocabulary.encode(list(candidates))[0]
        if not known:
            raise InputError("None of the candidates is known to the policy; give ids that were in its data set.")
        return np.unique(np.array(known, np.int32))[None]

    def quantiles(self, sessions: Sessions, items: IntArray) -> list[dict[str, float]] | None:
        """For one session and each of `items` (K,) the quantiles of its return; None where they are not known."""
        scorer = self.scorer
        if not isinstance(scorer, Explaining) or not scorer.knows_quantiles or not len(items):
            return None
        known = scorer.quantiles(sessions.states[np.zeros(len(items), np.int64)], items, 50)
        middles = (np.arange(known.shape[1]) + 0.5) / known.shape[1]
        rows = [np.interp(FRACTIONS, middles, row) for row in known]
        return [dict(zip(map(str, FRACTIONS), map(float, row), strict=True)) for row in rows]

    def save(self, folder: str | Path, force: bool = False) -> None:
        """Write the policy as a folder, which appears whole or not at all."""
        from bcd4rec.policies import bundle  # which reads policies, so it knows this class

        bundle.save(self, Path(folder), force)


def learned_policy(
    scorer: Scorer, dataset: Dataset, about: dict[str, Any] | None = None, rule: SlateRule | None = None
) -> Policy:
    """The policy of a scorer that has learned from the train split of a data set."""
    liked = dataset.sequences("train")
    rule = rule or SlateRule()
    alike = rule.diversity > 0 or dataset.n_items <= MANY
    return Policy(
        scorer,
        dataset.vocabulary,
        Memory(length=dataset.states.positives.shape[1], skips=dataset.states.skips.shape[1]),
        rule,
        dataset.responses,
        _vectors(liked, dataset.n_items) if alike else None,
        np.bincount(liked.items, minlength=dataset.n_items).astype(np.int32),
        about or {},
    )


def _vectors(liked: Sequences, n_items: int) -> FloatArray:
    """Of large catalogues, items that hardly anybody liked have none."""
    return supported_vectors(liked, n_items, RANK, TASTE_SUPPORT) if is_large(n_items) else item_vectors(liked, n_items)


def not_again(kind: Unavailable, before: IntArray, items: IntArray, liked: NDArray[np.bool_]) -> IntArray:
    """(B, E + K) the items that may not be recommended again after slates (B, K), by the rule `kind`."""
    if kind == "nothing":
        return before
    more = np.where(liked, items, np.int32(PAD)) if kind == "liked" else items
    return np.append(before, more, axis=1)


class _SessionReader:
    """One session, slate by slate, in a policy's numbers: as `Policy.after`, with lists in place of arrays."""

    def __init__(self, policy: Policy):
        self._policy, self._names = policy, frozenset(policy.responses.names)
        self._positive = frozenset(policy.responses.positive)
        self.liked: list[int] = []
        self.passed: list[int] = []
        self.barred: list[int] = []
        self.skipped: list[int] = []
        self.unknown: list[ItemId] = []
        self.unknown_responses = 0

    def add(self, slate: Sequence[tuple[ItemId, str | None]], recommended: bool) -> None:
        shown: list[tuple[int, bool]] = []
        for item, response in slate:
            index = self._policy.vocabulary.index(item)
            if index is None:
                self.unknown.append(item)
            elif response in self._names or (response is None and self._policy.memory.unanswered == "skip"):
                shown.append((index, response in self._positive))
            elif response is not None:
                self.unknown_responses += 1
        if not shown:
            return
        pleased = [index for index, liked in shown if liked]
        self.liked += pleased
        self.passed += [index for index, liked in shown if not liked]
        self.skipped = [] if pleased else [index for index, _ in shown]
        kind = self._policy.rule.unavailable
        if kind == "liked":
            self.barred += pleased
        elif kind == "shown" or (kind == "recommended" and recommended):
            self.barred += [index for index, _ in shown]


def _row(items: list[int], width: int) -> IntArray:
    """(1, width) the last items, padded; for one session a list is faster than arrays."""
    recent = items[-width:] if width else []
    return np.array([recent + [PAD] * (width - len(recent))], np.int32)


def _distinct(items: IntArray) -> IntArray:
    """(B, E′) each item of a row (B, E) once, ascending behind the padding; what was skipped was also shown."""
    ordered = np.sort(items, axis=1)
    ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = PAD
    most = int((ordered != PAD).sum(axis=1).max(initial=0))
    return np.sort(ordered, axis=1)[:, ordered.shape[1] - most :]


def some_pool(pool: IntArray | None) -> IntArray | None:
    """A pool of at least one column, so that nobody has to think of none."""
    return pool if pool is None or pool.shape[1] else np.full((len(pool), 1), PAD, np.int32)


def of_pool(pool: IntArray, columns: IntArray) -> IntArray:
    """(B, K) the items of `pool` (B, C) in these columns."""
    return np.where(columns == PAD, np.int32(PAD), np.take_along_axis(pool, np.maximum(columns, 0), axis=1))


def _columns(pool: IntArray, items: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
    """(B, K) where items stand in `pool` (B, C), `PAD` where they do not, and which are there or were not asked for."""
    same = (pool[:, None, :] == items[:, :, None]) & (items[:, :, None] != PAD)
    found = same.any(axis=2)
    return np.where(found, same.argmax(axis=2), PAD).astype(np.int32), found | (items == PAD)
