"""Does a policy rank what was liked above what else was shown? Judged on held-out sessions of the log itself.

A case is a slate in which some items got a positive response and some did not: the policy scores its items in the
state before it. Logs with one item a step have no such slates; there the impressions of a session are compared with
each other, each by its place among other items in its own state. Logs of positive responses alone tell nothing about
what was passed over; there the next item is looked for in the whole catalogue.

Equal scores count as what a random order of them brings on average, so that a policy which cannot tell items apart
gains nothing by how they are numbered. All measures lie between 0 and 1; shares of cases are in percent.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.responses import Responses
from bcd4rec.data.states import PAD, Doubles, IntArray, States
from bcd4rec.errors import InputError
from bcd4rec.evaluation.placing import Rivals, enough_rivals, rivals_of
from bcd4rec.evaluation.statistics import LEVEL, Interval, percentile, resampled_sums
from bcd4rec.policies.scorer import Scorer
from bcd4rec.seeding import generator

Unit = Literal["slate", "session", "next item"]
Mask = NDArray[np.bool_]
Index = NDArray[np.int64]
Values = dict[str, Doubles]  # by measure: (cases,), NaN where a case says nothing about it

ALL, FIRST, LATER, KNOWN, NEW = "all", "first", "later", "known", "new"
TIED = "tied"
HEADLINES: dict[Unit, tuple[str, ...]] = {
    "slate": ("auc", "mrr", "ndcg@5", "top1"),
    "session": ("auc",),
    "next item": ("recall@20", "mrr@20"),
}
PLACES = 5  # that count for nDCG@5
LISTED = 20  # places of a list for the next item
SEVERAL = 0.1  # so large a share of the impressions must stand in slates of several items, or sessions are compared
BATCH = 1024  # lists scored at once, if they are short
CELLS = 1 << 18  # scores of listed items in memory at once
CATALOGUE_CELLS = 1 << 25  # the same where a policy looks at the whole catalogue


@dataclass(frozen=True)
class Cases:
    """What a split can tell. The rows of case j are `offsets[j]:offsets[j + 1]` of the columns (n,)."""

    unit: Unit
    split: str
    states: States  # of the data set
    responses: Responses
    n_items: int
    offsets: Index  # (cases + 1,)
    session: NDArray[np.uint32]  # (cases,)
    state: IntArray
    item: IntArray
    response: NDArray[np.uint8]
    reward: Doubles
    position: NDArray[np.int32] | None  # place in the slate; None where the log does not tell it
    parts: dict[str, Mask]  # (cases,) first and later slates, known and new items
    rivals: Rivals | None = None  # where items were shown one at a time

    def __len__(self) -> int:
        return len(self.session)

    def named(self, split: str) -> "Cases":
        """The same cases, told by another name."""
        return replace(self, split=split)

    @property
    def sizes(self) -> Index:
        return np.diff(self.offsets)

    @property
    def of_row(self) -> Index:
        """(n,) the case of each row."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def positive(self) -> Mask:
        return np.isin(self.response, [self.responses.code(name) for name in self.responses.positive])


def logged_cases(
    dataset: Dataset, split: str, seen: Mask | None = None, most: int | None = None, seed: int = 0
) -> Cases:
    """The cases of a split, or `most` of them drawn by `seed`.

    `seen` (A,) are the items that count as known, by default those with impressions in the train split.
    """
    rows = dataset.transitions(split)
    responses = dataset.responses
    positive = np.isin(rows.response, [responses.code(name) for name in responses.positive])
    if not positive.any():
        raise InputError(f"No impression of split {split!r} has a positive response, so no ranking can be judged.")
    by_session = np.flatnonzero(np.diff(rows.session.astype(np.int64), prepend=-1))
    moved = np.diff(rows.step.astype(np.int64), prepend=-1) != 0
    moved[by_session] = True
    by_slate = np.flatnonzero(moved)
    starts, sizes, unit = _unit(positive, by_slate, by_session)
    if not len(starts):
        raise InputError(
            f"No session of split {split!r} has both a positive response and another, so no ranking can be judged."
        )
    if most is not None and len(starts) > most:
        drawn = np.sort(generator(seed, "logged slates").choice(len(starts), most, replace=False))
        starts, sizes = starts[drawn], sizes[drawn]
    offsets = np.append(0, np.cumsum(sizes))
    taken = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
    known = (dataset.items["impressions"] > 0).to_numpy() if seen is None else seen
    new = np.add.reduceat((positive & ~known[rows.action])[taken], offsets[:-1], dtype=np.int64) > 0
    parts = {KNOWN: ~new, NEW: new}
    if unit != "session":
        begun = dataset.states.positives[rows.state[starts], 0] != PAD
        parts = {FIRST: ~begun, LATER: begun} | parts
    position = rows.position[taken] if (rows.position[taken] >= 0).all() else None
    return Cases(
        unit,
        split,
        dataset.states,
        responses,
        dataset.n_items,
        offsets,
        rows.session[starts],
        rows.state[taken],
        rows.action[taken],
        rows.response[taken],
        rows.reward[taken].astype(np.float64),
        position,
        parts,
        rivals_of(dataset, seed, enough_rivals(len(taken))) if unit == "session" else None,
    )


def _unit(positive: Mask, by_slate: Index, by_session: Index) -> tuple[Index, Index, Unit]:
    """The first rows of the cases and their sizes, and what a case is."""
    if positive.all():
        return np.arange(len(positive)), np.ones(len(positive), np.int64), "next item"
    sizes = np.diff(np.append(by_slate, len(positive)))
    if sizes[sizes > 1].sum() >= SEVERAL * len(positive):
        starts, sizes = _mixed(positive, by_slate)
        if len(starts):
            return starts, sizes, "slate"
    return *_mixed(positive, by_session), "session"


def _mixed(positive: Mask, starts: Index) -> tuple[Index, Index]:
    """Those with at least one positive row and at least one other."""
    sizes = np.diff(np.append(starts, len(positive)))
    liked = np.add.reduceat(positive, starts, dtype=np.int64)
    kept = (liked > 0) & (liked < sizes)
    return starts[kept], sizes[kept]


class Ranker(NamedTuple):
    """A policy as it takes part: for the items of the data set, with the view of the session that it has learned."""

    name: str
    scorer: Scorer
    known: Mask | None = None  # (A,) items that it has learned about; None for all
    length: int | None = None  # positive items it sees; None for all that the data set keeps
    skips: int | None = None

    def view(self, states: States) -> States:
        return States(_last(states.positives, self.length), _last(states.skips, self.skips))

    def unknown(self, cases: Cases) -> Mask:
        """(n,) rows whose item it has never heard of."""
        return np.zeros(len(cases.item), np.bool_) if self.known is None else ~self.known[cases.item]


def _last(history: IntArray, width: int | None) -> IntArray:
    """The last `width` items of each row, still filled from the left."""
    if width is None or history.shape[1] <= width:
        return history
    first = np.maximum((history != PAD).sum(axis=1) - width, 0)
    return np.take_along_axis(history, first[:, None] + np.arange(width), axis=1)


def row_scores(ranker: Ranker, cases: Cases) -> Doubles:
    """(n,) what a policy says of each shown item in the state in which it was shown: its score, or its place.

    Items that the policy does not know get the mean of the others of their case, which favours nobody.
    """
    scores = _scores(ranker, cases) if cases.rivals is None else _places(ranker, cases, cases.rivals)
    unknown = ranker.unknown(cases)
    return _neutral(scores, unknown, cases.of_row, len(cases)) if unknown.any() else scores


def _scores(ranker: Ranker, cases: Cases) -> Doubles:
    lists = cases.offsets
    sizes = np.diff(lists)
    scores = np.empty(len(cases.item))
    for part in _chunks(sizes, ranker.scorer.n_items):
        width = int(sizes[part].max())
        inside = np.arange(width) < sizes[part][:, None]
        rows = lists[part][:, None] + np.where(inside, np.arange(width), 0)
        candidates = np.where(inside, cases.item[rows], np.int32(PAD))
        states = ranker.view(cases.states[cases.state[lists[part]]])
        scores[rows[inside]] = ranker.scorer.scores(states, candidates)[inside]
    scores[np.isnan(scores)] = -np.inf
    return scores


def _places(ranker: Ranker, cases: Cases, rivals: Rivals) -> Doubles:
    known = np.ones(len(rivals.items), np.bool_) if ranker.known is None else ranker.known[rivals.items]
    places = np.empty(len(cases.item))
    width = 1 + len(rivals.items)
    for rows in _chunks(np.full(len(cases.item), width), ranker.scorer.n_items):
        states = cases.states[cases.state[rows]]
        candidates = np.empty((len(rows), width), np.int32)
        candidates[:, 0], candidates[:, 1:] = cases.item[rows], rivals.items
        scores = ranker.scorer.scores(ranker.view(states), candidates)
        scores[np.isnan(scores)] = -np.inf
        counted = rivals.available(states, cases.n_items) & known
        places[rows] = rivals.places(scores[:, 0], scores[:, 1:], counted)
    return places


def _chunks(sizes: Index, n_items: int) -> Iterator[Index]:
    """Lists of similar size, so many at once that neither they nor a row of the catalogue for each fill the memory."""
    order = np.argsort(sizes, kind="stable")
    most = max(1, min(BATCH, CATALOGUE_CELLS // n_items))
    begin = 0
    while begin < len(order):
        end = min(begin + most, len(order))
        while end - begin > 1 and (end - begin) * sizes[order[end - 1]] > CELLS:
            end = begin + (end - begin) // 2
        yield order[begin:end]
        begin = end


def _neutral(scores: Doubles, unknown: Mask, of_row: Index, cases: int) -> Doubles:
    usable = ~unknown & np.isfinite(scores)
    count = np.bincount(of_row[usable], minlength=cases)
    mean = _totals(of_row[usable], scores[usable], cases) / np.maximum(count, 1)
    return np.where(unknown, np.where(count > 0, mean, -np.inf)[of_row], scores)


class Ranking:
    """The rows of cases (n,) in groups of equal scores, the best group of each case first."""

    def __init__(self, scores: Doubles, offsets: Index):
        self.offsets = offsets
        self.cases = len(offsets) - 1
        of_row = np.repeat(np.arange(self.cases), np.diff(offsets))
        self._order = np.lexsort((-scores, of_row))
        ranked = scores[self._order]
        begins = np.append(True, ranked[1:] != ranked[:-1])
        begins[offsets[:-1]] = True
        self._starts = np.flatnonzero(begins)
        self.case: Index = of_row[self._starts]  # (G,) of each group
        self.size = np.diff(np.append(self._starts, len(scores)))
        self.above = self._starts - offsets[self.case]  # rows of the same case in better groups
        self.best = np.flatnonzero(np.diff(self.case, prepend=-1))  # (cases,) the best group of each

    def sums(self, values: Doubles) -> Doubles:
        """(G,) of the rows of each group."""
        total: Doubles = np.add.reduceat(values[self._order], self._starts)
        return total

    def by_case(self, values: Doubles) -> Doubles:
        """(cases,) sums over the groups of each case."""
        return _totals(self.case, values, self.cases)

    def concordance(self, worth: Doubles) -> Doubles:
        """(cases,) the share of pairs of different `worth` (n,) that are ranked by it, equal scores counting half.

        With two values it is the AUC. NaN where all rows of a case are worth the same.
        """
        right, pairs = np.zeros(self.cases), np.zeros(self.cases)
        for value in np.unique(worth)[1:]:
            upper = self.sums((worth == value).astype(np.float64))
            lower = self.sums((worth < value).astype(np.float64))
            total = self.by_case(lower)
            passed = np.cumsum(lower)
            passed -= (passed - lower)[self.best][self.case]  # rows of the case up to and with the group
            right += self.by_case(upper * (total[self.case] - passed + lower / 2))
            pairs += self.by_case(upper) * total
        return _share(right, pairs)

    def reciprocal_rank(self, liked: Mask) -> Doubles:
        """(cases,) the mean of 1 / place of the first liked row; NaN without one."""
        count = self.sums(liked.astype(np.float64))
        with_any = np.flatnonzero(count)
        cases, first = np.unique(self.case[with_any], return_index=True)
        group = with_any[first]
        size, likes, above = self.size[group], count[group], self.above[group]
        found, none_yet = np.zeros(len(group)), np.ones(len(group))  # the chance that none was liked so far
        for place in range(1, int((size - likes).max(initial=0)) + 2):
            left = np.maximum(size - place + 1, 1)
            found += none_yet * likes / left / (above + place)
            none_yet *= np.maximum(left - likes, 0) / left
        values = np.full(self.cases, np.nan)
        values[cases] = found
        return values

    def ndcg(self, gains: Doubles, places: int = PLACES) -> Doubles:
        """(cases,) the mean of Σ gain / log₂(place + 1) over the first places, as a share of the best order's."""
        discounts = 1.0 / np.log2(np.arange(places) + 2.0)
        reached = np.append(0.0, np.cumsum(discounts))
        last = np.minimum(self.above + self.size, places)
        weight = reached[last] - reached[np.minimum(self.above, places)]  # of a group, shared by its rows
        got = self.by_case(self.sums(gains) / self.size * weight)
        return _share(got, _ideal(gains, self.offsets, discounts))

    def top_one(self, liked: Mask) -> Doubles:
        """(cases,) the share of liked rows among those with the best score."""
        share: Doubles = (self.sums(liked.astype(np.float64)) / self.size)[self.best]
        return share

    @property
    def tied(self) -> Doubles:
        """(cases,) 100 where several rows share the best score, else 0."""
        return np.where(self.size[self.best] > 1, 100.0, 0.0)


def _totals(of: Index, values: Doubles, length: int) -> Doubles:
    """(length,) sums of the values by the number that each belongs to."""
    return np.bincount(of, values, minlength=length).astype(np.float64)


def _share(part: Doubles, whole: Doubles) -> Doubles:
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), np.nan)


def _ideal(gains: Doubles, offsets: Index, discounts: Doubles) -> Doubles:
    """(cases,) the discounted gain of each case's best order."""
    of_row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    best = gains[np.lexsort((-gains, of_row))]
    place = np.arange(len(gains)) - offsets[of_row]
    inside = place < len(discounts)
    return _totals(of_row[inside], best[inside] * discounts[place[inside]], len(offsets) - 1)


def ranking_values(scores: Doubles, cases: Cases) -> Values:
    """The measures of slates (or of sessions, where only the AUC makes sense) by the scores (n,) of their rows.

    By any positive response, by the target where it is one of several, and for the reward, whose negative values are
    worth nothing to nDCG.
    """
    ranking = Ranking(scores, cases.offsets)
    responses = cases.responses
    liked = {"": cases.positive}
    if len(responses.positive) > 1:
        liked[f"{responses.target}_"] = cases.response == responses.code(responses.target)
    found: Values = {}
    for prefix, mask in liked.items():
        count = np.add.reduceat(mask, cases.offsets[:-1], dtype=np.int64)
        usable = (count > 0) & (count < cases.sizes)
        measures = {"auc": ranking.concordance(mask.astype(np.float64))}
        if cases.unit == "slate":
            gained = ranking.ndcg(mask.astype(np.float64))
            measures |= {"mrr": ranking.reciprocal_rank(mask), f"ndcg@{PLACES}": gained, "top1": ranking.top_one(mask)}
        found |= {prefix + name: np.where(usable, values, np.nan) for name, values in measures.items()}
    found["reward_auc"] = ranking.concordance(cases.reward)
    if cases.unit == "slate":
        found[f"reward_ndcg@{PLACES}"] = ranking.ndcg(np.maximum(cases.reward, 0.0))
    return found | {TIED: ranking.tied}


def next_item_values(ranker: Ranker, cases: Cases) -> Values:
    """R@20 and MRR@20 of the item that came next, among all items; one that the policy does not know is missed."""
    names = (f"recall@{LISTED}", f"mrr@{LISTED}", TIED)
    found = {name: np.empty(len(cases)) for name in names}
    harmonic = np.append(0.0, np.cumsum(1.0 / np.arange(1, LISTED + 1)))
    rows = max(1, min(BATCH, CELLS * 16 // cases.n_items))
    for begin in range(0, len(cases), rows):
        part = slice(begin, begin + rows)
        scores = ranker.scorer.scores(ranker.view(cases.states[cases.state[part]]))
        scores = np.where(np.isnan(scores), -np.inf, scores)
        wanted = np.take_along_axis(scores, cases.item[part, None], axis=1)
        above, equal = (scores > wanted).sum(axis=1), (scores == wanted).sum(axis=1)
        hit = wanted[:, 0] > -np.inf
        first, last = np.minimum(above, LISTED), np.minimum(above + equal, LISTED)
        found[names[0]][part] = np.where(hit, (last - first) / equal, 0.0)
        found[names[1]][part] = np.where(hit, (harmonic[last] - harmonic[first]) / equal, 0.0)
        found[TIED][part] = 100.0 * ((scores == scores.max(axis=1, keepdims=True)).sum(axis=1) > 1)
    return found


def values_of(ranker: Ranker, cases: Cases) -> Values:
    if cases.unit == "next item":
        return next_item_values(ranker, cases)
    return ranking_values(row_scores(ranker, cases), cases)


def logged_order(cases: Cases) -> Values | None:
    """The measures of the order in which the log showed its slates; None where it does not tell."""
    if cases.unit != "slate" or cases.position is None:
        return None
    return ranking_values(-cases.position.astype(np.float64), cases)


@dataclass(frozen=True)
class Judgement:
    """Policies side by side on the same cases: means over cases, intervals by the bootstrap over sessions."""

    cases: Cases
    values: Mapping[str, Values]  # by policy
    unknown: Mapping[str, float] = field(default_factory=dict)  # percent of the shown items a policy does not know
    seed: int = 0

    def table(self) -> pl.DataFrame:
        """A row for each policy and measure: the mean over cases, and the ends of its 95 % interval."""
        rows = [
            {"policy": policy, "measure": name, **found._asdict()}
            for policy, values in self.values.items()
            for name in values
            if (found := self.interval(policy, name)) is not None
        ]
        return pl.DataFrame(rows)

    @property
    def headline(self) -> str:
        """The measure that a verdict goes by."""
        return HEADLINES[self.cases.unit][0]

    @cached_property
    def _tables(self) -> dict[tuple[str, str], tuple[Doubles, Doubles]]:
        """By part and measure: exact means (policies,) and those of resamples (policies, resamples)."""
        rows, session = np.unique(self.cases.session, return_inverse=True)
        first = next(iter(self.values.values()))
        wanted = [(ALL, name) for name in first]
        wanted += [(part, name) for part in self.cases.parts for name in HEADLINES[self.cases.unit]]
        columns: list[Doubles] = []
        place: dict[bytes, int] = {}  # many measures count the same cases
        cells: dict[tuple[str, str], tuple[int, int]] = {}
        for part, name in wanted:
            counted = ~np.isnan(first[name]) & (self.cases.parts[part] if part != ALL else True)
            if not counted.any():
                continue
            key = counted.tobytes()
            if key not in place:
                place[key] = len(columns)
                columns.append(_totals(session, counted.astype(np.float64), len(rows)))
            cells[part, name] = place[key], len(columns)
            owns = (np.where(counted, own[name], 0.0) for own in self.values.values())
            columns += [_totals(session, own, len(rows)) for own in owns]
        table = np.array(columns)
        exact, drawn = table.sum(axis=1), resampled_sums(table, generator(self.seed, "bootstrap", 0))
        found = {}
        for cell, (below, begin) in cells.items():
            own = slice(begin, begin + len(self.values))
            usable = drawn[below] > 0  # a resample may miss every session of a small part
            found[cell] = exact[own] / exact[below], drawn[own, usable] / drawn[below, usable]
        return found

    def _row(self, policy: str) -> int:
        return list(self.values).index(policy)

    def interval(self, policy: str, measure: str | None = None, part: str = ALL) -> Interval | None:
        """None where no case of the part tells."""
        if (cell := (part, measure or self.headline)) not in self._tables:
            return None
        exact, drawn = self._tables[cell]
        row = self._row(policy)
        return percentile(float(exact[row]), drawn[row], LEVEL)

    def difference(self, first: str, second: str, measure: str | None = None, part: str = ALL) -> Interval | None:
        """first − second, on the same cases and draws."""
        if (cell := (part, measure or self.headline)) not in self._tables:
            return None
        exact, drawn = self._tables[cell]
        one, other = self._row(first), self._row(second)
        return percentile(float(exact[one] - exact[other]), drawn[one] - drawn[other], LEVEL)

    def verdict(self, first: str, second: str) -> str:
        """`better`, `no better` or `worse`, by the headline measure; `no better` where luck may have decided."""
        apart = self.difference(first, second)
        if apart is None or apart.low <= 0 <= apart.high:
            return "no better"
        return "better" if apart.value > 0 else "worse"

    def sentence(self, first: str, second: str) -> str:
        apart = self.difference(first, second)
        numbers = "" if apart is None else f" ({MEASURES[self.headline]} {_signed(apart)})"
        return f"{first} is {self.verdict(first, second)} than {second}{numbers}."

    def sessions(self, ids: pl.Series) -> dict[str, pl.DataFrame]:
        """Of each policy a row for each session: how many `cases` it has, and the sums of their headline measures.

        `ids` are the ids of the data set's sessions.
        """
        rows, session = np.unique(self.cases.session, return_inverse=True)
        counts = np.bincount(session)
        return {
            policy: pl.DataFrame(
                {"session_id": ids.gather(rows), "cases": counts}
                | {name: np.bincount(session, own[name]) for name in HEADLINES[self.cases.unit]}
            )
            for policy, own in self.values.items()
        }

    def to_json(self, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """All measures, and for each of `pairs` its verdict and differences."""
        return {
            "unit": self.cases.unit,
            "split": self.cases.split,
            "cases": len(self.cases),
            "sessions": len(np.unique(self.cases.session)),
            "parts": {part: int(mask.sum()) for part, mask in self.cases.parts.items()},
            "policies": [self._policy_json(name) for name in self.values],
            "comparisons": [self._pair_json(first, second) for first, second in pairs],
        }

    def _policy_json(self, policy: str) -> dict[str, Any]:
        found: dict[str, Any] = {"policy": policy, "unknown": self.unknown.get(policy, 0.0)}
        for name in self.values[policy]:
            found |= _flat(name, self.interval(policy, name))
        for part in self.cases.parts:
            measured = [_flat(name, self.interval(policy, name, part)) for name in HEADLINES[self.cases.unit]]
            found[part] = {key: value for one in measured for key, value in one.items()}
        return found

    def _pair_json(self, first: str, second: str) -> dict[str, Any]:
        found: dict[str, Any] = {"first": first, "second": second, "verdict": self.verdict(first, second)}
        for name in self.values[first]:
            if name != TIED:
                found |= _flat(name, self.difference(first, second, name))
        return found | {"sentence": self.sentence(first, second)}


MEASURES = {"auc": "AUC", "mrr": "MRR", "ndcg@5": "nDCG@5", "top1": "top 1", "recall@20": "R@20", "mrr@20": "MRR@20"}


def _flat(name: str, found: Interval | None) -> dict[str, float | None]:
    value, low, high = found if found is not None else (None, None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _signed(found: Interval) -> str:
    text = f"{found.value:+.3f} [{found.low:.3f}, {found.high:.3f}]"
    return text.replace("-", "−")
