"""The protocol of what scores items: the part of a policy that has learned."""

from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.states import FloatArray, IntArray, States
from bcd4rec.registry import Registry

Arrays = dict[str, NDArray[Any]]


@runtime_checkable
class Scorer(Protocol):
    """Scores items for a batch of states. Deterministic: the same states give the same scores, bit for bit."""

    @property
    def n_items(self) -> int:
        """A: how many items the catalogue has."""
        ...

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        """Larger is better, in whatever unit the scorer has.

        Without `candidates` the result is (B, A), a column for each item. With `candidates` (B, C) of item
        indices, padded with `PAD`, it is (B, C), and padded places hold −inf. The result is the caller's to change.
        """
        ...


@runtime_checkable
class Explaining(Scorer, Protocol):
    """A scorer that can tell more about an item than its score."""

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
class Shortlisting(Scorer, Protocol):
    """A scorer that knows where its best items are, so that a large catalogue need not be scored whole."""

    @property
    def constrained(self) -> bool:
        """Whether only items that the behaviour model allows are recommended; that takes the whole catalogue."""
        ...

    def shortlist(self, states: States, most: int) -> IntArray:
        """(C,) items among which the best `most` of one state likely are, ascending."""
        ...


@runtime_checkable
class Drawing(Protocol):
    """A scorer that is random by nature and draws its slates itself."""

    def draw(
        self, states: States, unavailable: IntArray, k: int, rng: np.random.Generator
    ) -> tuple[IntArray, FloatArray]:
        """Items (B, K), none twice and none of `unavailable` (B, E), which holds none twice; and propensities.

        Both are padded with `PAD`.
        """
        ...


class SavedScorer(Scorer, Protocol):
    """A scorer that can be written and read back."""

    kind: ClassVar[str]
    """The name under which it is registered, and which a bundle keeps."""

    def settings(self) -> dict[str, Any]:
        """All that is not an array, as JSON values."""
        ...

    def arrays(self) -> Arrays: ...

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: Arrays) -> Self:
        """The inverse of `settings` and `arrays`: scores are identical, bit for bit."""
        ...


SCORERS: Registry[type[SavedScorer]] = Registry(
    "kind of scorer", "bcd4rec.policies", "bcd4rec.baselines", "bcd4rec.agents"
)


def register(scorer: type[SavedScorer]) -> type[SavedScorer]:
    """Decorator: makes a scorer known by its `kind`."""
    return SCORERS.register(scorer.kind)(scorer)
