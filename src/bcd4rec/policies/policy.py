"""The protocol that everything which recommends fulfils."""

from typing import Protocol, runtime_checkable

from bcd4rec.data.states import FloatArray, IntArray, States


@runtime_checkable
class Policy(Protocol):
    """Scores items for a batch of states. Deterministic: the same states give the same scores, bit for bit."""

    @property
    def n_items(self) -> int:
        """A: how many items the catalogue has."""
        ...

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        """Larger is better, in whatever unit the policy has.

        Without `candidates` the result is (B, A), a column for each item. With `candidates` (B, C) of item
        indices, padded with `PAD`, it is (B, C), and padded places hold −inf. The result is the caller's to change.
        """
        ...


@runtime_checkable
class Explaining(Policy, Protocol):
    """A policy that can tell more about an item than its score."""

    @property
    def knows_quantiles(self) -> bool:
        """Whether `quantiles` can be asked for."""
        ...

    def quantiles(self, states: States, items: IntArray, count: int = 0) -> FloatArray:
        """(B, N) quantiles of the return of `items` (B,) at N evenly spread fractions, in ascending order."""
        ...

    @property
    def behaviour(self) -> object | None:
        """The model of the policy that wrote the log; without one there is no `log_likelihood`."""
        ...

    def log_likelihood(self, states: States) -> FloatArray:
        """(B, A) log p of every item under the behaviour model."""
        ...


@runtime_checkable
class Shortlisting(Policy, Protocol):
    """A policy that knows where its best items are, so that a large catalogue need not be scored whole."""

    @property
    def constrained(self) -> bool:
        """Whether only items that the behaviour model allows are recommended; that takes the whole catalogue."""
        ...

    def shortlist(self, states: States, most: int) -> IntArray:
        """(C,) items among which the best `most` of one state likely are, ascending."""
        ...
