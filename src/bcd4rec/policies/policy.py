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
