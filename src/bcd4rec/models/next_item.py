"""A softmax over items given a session: what pre-training and the behaviour model have in common."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bcd4rec.data.states import FloatArray, IntArray, Rows
from bcd4rec.models.encoder import ENCODERS
from bcd4rec.models.large import is_large
from bcd4rec.models.table_rows import RowAdamW, rows_of

SAMPLED = 1000  # negatives in large catalogues, where the full softmax would take a state's time for each item


@dataclass(frozen=True)
class Examples:
    """Sessions with the items that followed them. Those of session j are `items[offsets[j]:offsets[j + 1]]`."""

    sessions: IntArray  # (n, L)
    items: IntArray  # (total,)
    offsets: Rows  # (n + 1,)

    @classmethod
    def group(cls, sessions: IntArray, rows: IntArray, items: IntArray) -> "Examples":
        """From pairs (sessions[rows[j]], items[j]): sessions that repeat are kept, and later encoded, once."""
        distinct, inverse = np.unique(rows, return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        sizes = np.bincount(inverse, minlength=len(distinct))
        return cls(np.asarray(sessions[distinct]), items[order], np.concatenate([[0], sizes.cumsum()]).astype(np.int64))

    def __len__(self) -> int:
        return len(self.sessions)

    def take(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Sessions (U, L), the following items (P,), and the session that each of them follows (P,)."""
        sizes = self.offsets[rows + 1] - self.offsets[rows]
        owner = np.repeat(np.arange(len(rows)), sizes)
        position = np.arange(len(owner)) - (sizes.cumsum() - sizes)[owner] + self.offsets[rows][owner]
        items = torch.from_numpy(self.items[position].astype(np.int64))
        return torch.from_numpy(self.sessions[rows]), items, torch.from_numpy(owner)


class NextItem(nn.Module):
    """p(a | s) = softmax over items of s · a, with embeddings of its own."""

    def __init__(self, embeddings: FloatArray, encoder: str = "srgnn"):
        super().__init__()
        self.embeddings = nn.Parameter(torch.tensor(embeddings))
        self.encoder = ENCODERS[encoder](embeddings.shape[1], embeddings.shape[1])  # type: ignore[call-arg]

    def log_probabilities(self, sessions: Tensor) -> Tensor:
        """(B, A)"""
        states: Tensor = self.encoder(sessions, self.embeddings)
        return torch.log_softmax(states @ self.embeddings.T, dim=1)

    def loss(self, sessions: Tensor, items: Tensor, owner: Tensor, negatives: Tensor | None = None) -> Tensor:
        """−Σ log p(items[j] | sessions[owner[j]]), each session encoded once.

        With `negatives`, items drawn uniformly, they stand for the catalogue in the normaliser (sampled softmax).
        """
        states: Tensor = self.encoder(sessions, self.embeddings)
        if negatives is None:
            logits = states @ self.embeddings.T
            return (logits.logsumexp(dim=1)[owner] - logits[owner, items]).sum()
        positive = (states[owner] * rows_of(items, self.embeddings)).sum(dim=1)
        others = (states @ rows_of(negatives, self.embeddings).T).logsumexp(dim=1)
        weight = math.log(len(self.embeddings) / len(negatives))
        return (torch.logaddexp(positive, others[owner] + weight) - positive).sum()


def fit(
    model: NextItem,
    examples: Examples,
    rng: np.random.Generator,
    *,
    epochs: int,
    learning_rate: float = 1e-3,
    batch_size: int = 256,
    negatives: int = 0,
    weight_decay: float = 0.0,
    notify: Callable[[float], None] = lambda loss: None,
) -> None:
    """Cross-entropy over all examples, `batch_size` distinct sessions a step; `notify` gets each epoch's mean loss.

    Of large catalogues, `SAMPLED` items stand for the rest unless `negatives` says otherwise.
    """
    if not len(examples):  # no session has two positive items: nothing follows anything
        return
    large = is_large(len(model.embeddings))
    negatives = negatives or (SAMPLED if large else 0)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kind = RowAdamW if large else torch.optim.Adam
    optimiser = kind(parameters, learning_rate, weight_decay=weight_decay)
    scale = max(1.0, len(examples.items) / len(examples) * batch_size)  # pairs of an average batch
    for _ in range(epochs):
        total = 0.0
        order = rng.permutation(len(examples))
        for start in range(0, len(order), batch_size):
            sample = torch.from_numpy(rng.integers(len(model.embeddings), size=negatives)) if negatives else None
            loss = model.loss(*examples.take(order[start : start + batch_size]), sample)
            optimiser.zero_grad(set_to_none=True)
            (loss / scale).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            total += loss.item()
        notify(total / len(examples.items))
