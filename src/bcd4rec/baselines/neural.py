"""What the neural next-item methods share: their policy, and training that is quick without a GPU.

Two things make it quick: batches hold sessions of similar length, so little is padded, and a large sample of the
catalogue stands for the whole of it in the loss.
"""

import logging
import math
import time
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from bcd4rec.baselines.baseline import Baseline
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, FloatArray, IntArray, Rows, States
from bcd4rec.models.large import is_large
from bcd4rec.models.next_item import NextItem
from bcd4rec.models.pretraining import initial
from bcd4rec.models.table_rows import RowAdamW
from bcd4rec.policies.ranking import top_scored
from bcd4rec.policies.scorer import Arrays, register
from bcd4rec.seeding import generator, stream_seed

POOL = 50  # batches that are sorted by length together
log = logging.getLogger(__name__)


@register
class NeuralPolicy:
    """score(i) = s · v_i, with s the encoded session and v_i the embedding of item i."""

    kind: ClassVar[str] = "neural"

    def __init__(self, model: NextItem, encoder: str, history: int):
        self.model, self.encoder, self.history = model.eval(), encoder, history

    @property
    def n_items(self) -> int:
        return len(self.model.embeddings)

    @torch.no_grad()
    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        vectors = self._encode(states.positives)
        table = self.model.embeddings
        if candidates is None:
            return np.asarray((vectors @ table.T).numpy(), np.float32)
        items = torch.from_numpy(candidates.astype(np.int64))
        values = (table[items.clamp(min=0)] @ vectors.unsqueeze(2)).squeeze(2)
        return np.asarray(values.masked_fill(items == PAD, -torch.inf).numpy(), np.float32)

    @torch.no_grad()
    def top(self, sessions: States | Sequences, k: int, batch: int = 128) -> tuple[IntArray, FloatArray]:
        """(B, K) the best items and their scores, K = min(k, A); of a long session the last `history` items count."""
        items = sessions.positives if isinstance(sessions, States) else last_items(sessions, self.history)
        shape = (len(items), min(k, self.n_items))
        best, scores = np.empty(shape, np.int32), np.empty(shape, np.float32)
        order = np.argsort((items != PAD).sum(axis=1), kind="stable")
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            every = self._encode(items[rows]) @ self.model.embeddings.T
            best[rows], scores[rows] = top_scored(every.numpy(), k)
        return best, scores

    def _encode(self, items: IntArray) -> Tensor:
        vectors: Tensor = self.model.encoder(torch.from_numpy(trim(items)), self.model.embeddings)
        return vectors

    def settings(self) -> dict[str, Any]:
        return {"encoder": self.encoder, "history": self.history}

    def arrays(self) -> Arrays:
        return {name: tensor.numpy() for name, tensor in self.model.state_dict().items()}

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: Arrays) -> Self:
        model = NextItem(arrays["embeddings"], settings["encoder"])
        model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
        return cls(model, settings["encoder"], settings["history"])


@dataclass(frozen=True)
class EpochReport:
    """Where training stands."""

    number: int
    loss: float  # mean over the predictions
    per_second: float  # predictions


class TrainingTask(Protocol):
    """Examples to learn from."""

    lengths: Rows  # (n,) how many items each example has to read
    batch_size: int  # examples of a step

    def loss(self, model: NextItem, rows: Rows, negatives: Tensor | None) -> tuple[Tensor, int]:
        """The sum of the losses of all predictions in these examples, and how many they are."""
        ...


class NeuralConfig(Baseline):
    """Adam over mini-batches; for the last part of training the learning rate is a tenth."""

    encoder: ClassVar[str]
    width: int = Field(100, ge=1, description="D: entries of an item's embedding and of a state.")
    history: int = Field(20, ge=1, description="How many of the last items of a session are looked at.")
    epochs: int = Field(4, ge=1, description="Passes over the training sessions.")
    least_steps: int = Field(1000, ge=0, description="Few sessions are passed over more often, for so many steps.")
    decay_after: float = Field(0.75, ge=0, le=1, description="Share of the epochs at the full learning rate.")
    batch_size: int = Field(512, ge=1, description="Predictions of a step, on average.")
    learning_rate: float = Field(2e-3, gt=0, description="Adam's step size at the beginning.")
    weight_decay: float = Field(1e-5, ge=0, description="L2 penalty.")
    negatives: int = Field(4096, ge=0, description="Items that stand for the catalogue in the loss; 0 for all items.")

    def fit(self, dataset: Dataset, seed: int) -> NeuralPolicy:
        sequences = dataset.sequences("train")
        rng = generator(seed, self.encoder)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(seed, self.encoder, "torch") % 2**63)
            model = NextItem(initial(dataset.n_items, self.width, rng), self.encoder)
            for epoch in self.train(model, sequences, rng):
                log.info("epoch %d: loss %.4f, %.0f predictions/s", epoch.number, epoch.loss, epoch.per_second)
        fit_empty(model, sequences)
        return NeuralPolicy(model, self.encoder, self.history)

    @abstractmethod
    def task(self, sequences: Sequences) -> TrainingTask:
        """What the sessions teach."""

    def train(self, model: NextItem, sequences: Sequences, rng: np.random.Generator) -> Iterator[EpochReport]:
        """Train `model` in place, epoch by epoch."""
        kind = RowAdamW if is_large(len(model.embeddings)) else torch.optim.Adam
        optimiser = kind(model.parameters(), weight_decay=self.weight_decay, fused=True)
        task, n_items = self.task(sequences), len(model.embeddings)
        sampled = 0 < self.negatives < n_items
        model.train()
        steps = math.ceil(len(task.lengths) / task.batch_size)
        epochs = max(self.epochs, math.ceil(self.least_steps / steps)) if steps else 0
        for number in range(epochs):
            slow = number >= self.decay_after * epochs
            optimiser.param_groups[0]["lr"] = self.learning_rate * (0.1 if slow else 1.0)
            total, predictions, began = 0.0, 0, time.perf_counter()
            for rows in batches(task.lengths, task.batch_size, rng):
                negatives = torch.from_numpy(rng.integers(n_items, size=self.negatives)) if sampled else None
                loss, count = task.loss(model, rows, negatives)
                optimiser.zero_grad(set_to_none=True)
                (loss / count).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                total, predictions = total + loss.item(), predictions + count
            yield EpochReport(number + 1, total / predictions, predictions / (time.perf_counter() - began))
        model.eval()


def batches(lengths: Rows, size: int, rng: np.random.Generator) -> Iterator[Rows]:
    """All rows once, in random batches of similar length."""
    order, found = rng.permutation(len(lengths)), []
    for start in range(0, len(order), POOL * size):
        pool = order[start : start + POOL * size]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        found += [pool[place : place + size] for place in range(0, len(pool), size)]
    for place in rng.permutation(len(found)):
        yield found[place]


def fit_empty(model: NextItem, sequences: Sequences, steps: int = 100) -> None:
    """The state of a session that has just begun: the vector that best predicts the first items of sessions."""
    first = sequences.items[sequences.offsets[:-1][sequences.lengths > 0]]
    shares = torch.from_numpy(np.bincount(first, minlength=len(model.embeddings)) / max(len(first), 1)).float()
    table, empty = model.embeddings.detach(), model.encoder.empty
    with torch.no_grad():
        empty.zero_()
    optimiser = torch.optim.LBFGS([empty], max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        logits = table @ empty
        value = logits.logsumexp(dim=0) - shares @ logits + 1e-3 * empty.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    if len(first):
        optimiser.step(loss)  # type: ignore[no-untyped-call]


def last_items(sequences: Sequences, length: int) -> IntArray:
    """(n, length) the last items of each sequence, padded on the right."""
    start = np.maximum(sequences.offsets[1:] - length, sequences.offsets[:-1])
    place = start[:, None] + np.arange(length)
    inside = place < sequences.offsets[1:, None]
    if not len(sequences.items):
        return np.full(place.shape, PAD, np.int32)
    return np.where(inside, sequences.items[np.where(inside, place, 0)], PAD).astype(np.int32)


def trim(items: IntArray) -> IntArray:
    """Without the columns on the right in which all is padding; at least one column is kept."""
    longest = int((items != PAD).sum(axis=1).max(initial=1))
    return items[:, : max(longest, 1)].copy()
