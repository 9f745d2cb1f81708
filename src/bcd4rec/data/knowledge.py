"""What a log knows about its items: response rates, popularity, and which items are liked together.

Everything here is counted, over all sessions of a split or over some of them: weights that are learned on top of counts
must be learned on sessions that were not counted, or they trust the counts too much (see `folds`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray
from scipy.special import gammaln

from bcd4rec.data.cooccurrence import incidence, supported_vectors
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, Doubles, FloatArray, IntArray, Mask, Rows

if TYPE_CHECKING:
    from bcd4rec.data.foresight import Foreseen

NEIGHBOURS = 100  # of each item, the most similar ones; a session's evidence is a sum over its items' neighbours
PAIR_PRIOR = 5.0  # sessions that are added to both items' counts in a similarity, so that one session proves little
STEPS = 3  # items so many places later still count as followers, the n-th by 1/n
TASTE_SUPPORT = 5  # an axis of taste is no taste if it is one session: items liked less often have none
TASTE_RANK = 32
STRENGTHS = np.geomspace(0.2, 300.0, 25)  # prior strengths that are tried, in expected responses


@dataclass(frozen=True)
class Neighbours:
    """A sparse matrix: the neighbours of item j are `items[offsets[j]:offsets[j + 1]]`, with their weights."""

    offsets: Rows  # (A + 1,)
    items: IntArray
    weights: FloatArray

    @classmethod
    def of(cls, matrix: sparse.csr_matrix, most: int = NEIGHBOURS) -> Self:
        """The `most` largest entries of each row; among equals the lower columns."""
        rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        order = np.lexsort((matrix.indices, -matrix.data, rows))
        rank = np.arange(len(rows)) - matrix.indptr[rows]
        kept = np.sort(order[rank < most])
        offsets = np.append(0, np.cumsum(np.bincount(rows[kept], minlength=matrix.shape[0]))).astype(np.int64)
        return cls(offsets, matrix.indices[kept].astype(np.int32), matrix.data[kept].astype(np.float32))


@dataclass(frozen=True)
class Counted:
    """The rows of a log that knowledge is counted from. All arrays have one entry for each impression."""

    session: NDArray[np.uint32]
    item: IntArray
    positive: Mask
    target: Mask
    expected_positive: Doubles  # what the circumstances alone (place, slate size, length of the session) led to expect
    expected_target: Doubles


@dataclass(frozen=True)
class Knowledge:
    """One entry, or row, for each item of the catalogue. Nothing known is 0 everywhere."""

    categories: IntArray  # (A,) codes, −1 for none
    positive: FloatArray  # log of the smoothed lift: positive responses over expected ones
    target: FloatArray  # the same of the target response
    popularity: FloatArray  # log of 1 + positive responses, less its mean over impressions
    shown: FloatArray  # log of 1 + sessions it was shown in, less its mean over impressions
    similar: Neighbours  # liked in the same sessions: n_ij / √((n_i + 5)(n_j + 5))
    followers: Neighbours  # liked next: P(i within the next three | j), drawn to 0
    tastes: FloatArray  # (A, D) axes of taste

    @property
    def n_items(self) -> int:
        return len(self.categories)

    @classmethod
    def count(cls, rows: Counted, likes: Sequences, categories: IntArray, foreseen: "Foreseen | None" = None) -> Self:
        """From impressions, and the positive items of the same sessions, organic ones among them.

        Where features tell what to expect of items, lifts are drawn to `foreseen` and not to the category's.
        """
        n_items = len(categories)
        weight = once_a_session(rows, n_items)

        def per_item(values: Doubles | Mask) -> Doubles:
            return np.bincount(rows.item, values * weight, n_items).astype(np.float64)

        def lift(answers: Mask, expected: Doubles, prior: FloatArray | None) -> FloatArray:
            n, e = per_item(answers), per_item(expected)
            return log_lift(n, e, categories) if prior is None else drawn_lift(n, e, np.exp(prior.astype(np.float64)))

        seen = per_item(np.ones(len(rows.item)))
        liked = np.bincount(likes.items, minlength=n_items)
        clicks = incidence(likes, n_items)
        # An item that nobody was shown is not unpopular: of these two columns, nothing is known of it.
        known = np.ones(n_items, np.bool_) if foreseen is None else ~foreseen.new
        return cls(
            categories,
            lift(rows.positive, rows.expected_positive, None if foreseen is None else foreseen.positive),
            lift(rows.target, rows.expected_target, None if foreseen is None else foreseen.target),
            np.where(known, _centred(np.log1p(liked), seen), np.float32(0)),
            np.where(known, _centred(np.log1p(seen), seen), np.float32(0)),
            _similar(clicks),
            _followers(likes, n_items),
            supported_vectors(likes, n_items, TASTE_RANK, TASTE_SUPPORT),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Flat, by name, for a file."""
        found: dict[str, NDArray[Any]] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Neighbours):
                found |= {f"{field.name}.{part.name}": getattr(value, part.name) for part in fields(value)}
            else:
                found[field.name] = value
        return found

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """What `arrays` gave; refuses any other, because compiled code does not look where it reads."""
        found: dict[str, Any] = {}
        for name, kind in cls.__annotations__.items():
            parts = [arrays[f"{name}.{part.name}"] for part in fields(Neighbours)] if kind is Neighbours else []
            found[name] = Neighbours(*parts) if parts else arrays[name]
        known = cls(**found)
        n_items = known.n_items
        refuse_other_shape("categories", known.categories, (n_items,), np.int32)
        if known.categories.min(initial=PAD) < PAD:
            raise ValueError(f"categories hold {known.categories.min()}, expected at least {PAD}")
        for name in ("positive", "target", "popularity", "shown"):
            refuse_other_shape(name, found[name], (n_items,), np.float32)
        refuse_other_shape("tastes", known.tastes, (n_items, *known.tastes.shape[1:2]), np.float32)
        for name in ("similar", "followers"):
            neighbours = found[name]
            refuse_other_lists(name, neighbours.offsets, neighbours.items, n_items, n_items)
            refuse_other_shape(f"{name}.weights", neighbours.weights, neighbours.items.shape, np.float32)
        return known


def refuse_other_shape(name: str, array: NDArray[Any], shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    if array.shape != shape or array.dtype != dtype:
        expected = f"expected {np.dtype(dtype)} of shape {shape}"
        raise ValueError(f"{name} is {array.dtype} of shape {array.shape}, {expected}")


def refuse_other_lists(name: str, offsets: NDArray[Any], items: NDArray[Any], count: int, n_items: int) -> None:
    """Ragged lists of items, `count` of them."""
    refuse_other_shape(f"{name}.offsets", offsets, (count + 1,), np.int64)
    refuse_other_shape(f"{name}.items", items, items.shape[:1], np.int32)
    if offsets[0] != 0 or offsets[-1] != len(items) or (np.diff(offsets) < 0).any():
        raise ValueError(f"{name}.offsets do not fit {len(items)} items")
    if len(items) and not (items.min() >= 0 and items.max() < n_items):
        raise ValueError(f"{name}.items run from {items.min()} to {items.max()} in a catalogue of {n_items} items")


def folds(owners: Rows, count: int, rng: np.random.Generator) -> Iterator[Mask]:
    """Masks (sessions,) of as many folds: each in turn is left out of the counts, and its rows are learned from.

    All sessions of an owner (sessions,), see `Dataset.owners`, are in one fold: what she liked in one of them may stand
    in the history of the next.
    """
    people = int(owners.max(initial=-1)) + 1
    fold = (rng.permutation(people) % count)[owners]
    for number in range(min(count, max(people, 1))):
        yield fold == number


def once_a_session(rows: Counted, n_items: int) -> Doubles:
    """(n,) weights: a place to stay that was shown in ten lists of one session was judged once and not ten times."""
    pairs = rows.session.astype(np.int64) * n_items + rows.item
    _, place, times = np.unique(pairs, return_inverse=True, return_counts=True)
    weights: Doubles = 1.0 / times[place]
    return weights


def log_lift(responses: Doubles, expected: Doubles, categories: IntArray) -> FloatArray:
    """(A,) log((n + m · prior) / (e + m)): n responses where e were expected, drawn to the lift of the item's category.

    The category's lift is drawn to 1 in the same way. How strongly, m, is chosen for both by what explains the counts
    best, if they are Poisson with a Gamma-distributed lift: a log of few clicks gets a strong prior, and where items
    do not differ the lifts vanish.
    """
    prior = np.ones(len(responses))
    known = categories >= 0
    if known.any():
        groups = int(categories.max()) + 1
        by_group = [np.bincount(categories[known], counts[known], groups) for counts in (responses, expected)]
        n, e = by_group[0].astype(np.float64), by_group[1].astype(np.float64)
        m = strength(n, e, np.ones(groups))
        prior[known] = ((n + m) / (e + m))[categories[known]]
    return drawn_lift(responses, expected, prior)


def drawn_lift(responses: Doubles, expected: Doubles, prior: Doubles) -> FloatArray:
    """(A,) log((n + m · prior) / (e + m)), with the m that explains the counts best."""
    m = strength(responses, expected, prior)
    return np.log((responses + m * prior) / (expected + m)).astype(np.float32)


def strength(n: Doubles, e: Doubles, prior: Doubles) -> float:
    """The m of `STRENGTHS` under which counts n with expectations e are likeliest."""
    seen = e > 0
    n, e, prior = n[seen], e[seen], prior[seen]
    return float(STRENGTHS[int(np.argmax([likelihoods(n, e, prior, m).sum() for m in STRENGTHS]))])


def likelihoods(n: Doubles, e: Doubles, prior: Doubles, m: float) -> Doubles:
    """Their logarithms, up to constants, of counts n with expectations e > 0 and lifts drawn to `prior` by m."""
    drawn = m * prior
    found: Doubles = gammaln(n + drawn) - gammaln(drawn) + drawn * np.log(m / (e + m)) + n * np.log(e / (e + m))
    return found


def _centred(values: Doubles, weights: Doubles) -> FloatArray:
    middle = np.average(values, weights=weights) if weights.sum() else 0.0
    return (values - middle).astype(np.float32)


def _similar(clicks: sparse.csr_matrix) -> Neighbours:
    count = np.asarray(clicks.sum(axis=0)).ravel()
    together = (clicks.T @ clicks).tocsr()
    together.setdiag(0)
    together.eliminate_zeros()
    scale = sparse.diags(1.0 / np.sqrt(count + PAIR_PRIOR))
    return Neighbours.of((scale @ together @ scale).tocsr())


def _followers(likes: Sequences, n_items: int) -> Neighbours:
    session = np.repeat(np.arange(len(likes)), likes.lengths)
    before, after, weight = [np.empty(0, np.int32)], [np.empty(0, np.int32)], [np.empty(0)]
    for distance in range(1, STEPS + 1):
        here = np.flatnonzero(session[distance:] == session[:-distance])
        here = here[likes.items[here] != likes.items[here + distance]]
        before.append(likes.items[here])
        after.append(likes.items[here + distance])
        weight.append(np.full(len(here), 1.0 / distance))
    pairs = (np.concatenate(before), np.concatenate(after))
    counts = sparse.coo_matrix((np.concatenate(weight), pairs), (n_items, n_items)).tocsr()
    total = np.asarray(counts.sum(axis=1)).ravel()
    return Neighbours.of((sparse.diags(1.0 / (total + PAIR_PRIOR)) @ counts).tocsr())
