"""Training of the response model: plain log-loss, so that what it says are probabilities."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from bcd4rec.data.states import PAD, Doubles, FloatArray, IntArray, Rows
from bcd4rec.models.response import ResponseNetwork, ResponseShape, answer_probabilities

EVALUATED = 2048  # histories that are judged at once
SCALING_PENALTY = 1e-4
MOST = 16  # shown items that share a row; a history with more of them, such as the empty one, has several rows


class ResponseTraining(ResponseShape):
    """How a response model is trained. Adam on the log-loss; the best epoch is the one that held-out sessions like."""

    pretraining: Literal["svd", "none"] = Field(
        default="svd", description="How item vectors start: from co-clicks (svd), or at random (none)."
    )
    embedding_scale: float = Field(default=0.3, gt=0, description="Root mean square of the entries of such vectors.")
    epochs: int = Field(default=20, ge=1, description="At most so many passes over the shown items.")
    patience: int = Field(default=2, ge=1, description="Passes without a better held-out log-loss before it ends.")
    batch_size: int = Field(default=128, ge=1, description="Histories in a step, each with up to 16 items shown to it.")
    learning_rate: float = Field(default=2e-3, gt=0, description="Adam's step size.")
    vector_rate: float = Field(default=2e-4, gt=0, description="Adam's step size for the items' vectors and biases.")
    weight_decay: float = Field(default=3.0, ge=0, description="Decoupled weight decay of vectors and biases.")
    dropout: float = Field(default=0.3, ge=0, lt=1, description="Share of a state's entries left out in training.")


@dataclass(frozen=True)
class Answers:
    """Shown items with their responses, by history: those of row j are `items[offsets[j]:offsets[j + 1]]`."""

    histories: IntArray  # (n, L)
    items: IntArray  # (total,)
    responses: Rows  # (total,)
    sessions: Rows  # (total,) whose answer it was
    offsets: Rows  # (n + 1,)

    @classmethod
    def group(
        cls, histories: IntArray, rows: IntArray, items: IntArray, responses: NDArray[np.integer], sessions: Rows
    ) -> "Answers":
        """From impressions j with the history `histories[rows[j]]`: those of a history are later encoded together.

        At most `MOST` of them: all that was shown to empty sessions would be one step in a pass otherwise.
        """
        order = np.argsort(rows, kind="stable")
        new = np.diff(rows[order].astype(np.int64), prepend=-1) != 0
        since = np.arange(len(order)) - np.flatnonzero(new)[np.cumsum(new) - 1]  # place among those of its history
        starts = np.flatnonzero(since % MOST == 0)
        taken = np.asarray(histories[rows[order[starts]]])
        offsets = np.append(starts, len(order)).astype(np.int64)
        return cls(taken, items[order], responses[order].astype(np.int64), sessions[order].astype(np.int64), offsets)

    def __len__(self) -> int:
        return len(self.histories)

    @property
    def owner(self) -> Rows:
        """(total,) the row of the history that each item was shown to."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def take(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Histories (U, L), which of them each item was shown to (P,), the items (P,) and their responses (P,)."""
        sizes = self.offsets[rows + 1] - self.offsets[rows]
        owner = np.repeat(np.arange(len(rows)), sizes)
        place = np.arange(len(owner)) - (sizes.cumsum() - sizes)[owner] + self.offsets[rows][owner]
        histories = self.histories[rows]
        longest = max(int((histories != PAD).sum(axis=1).max(initial=1)), 1)
        return (
            torch.from_numpy(np.ascontiguousarray(histories[:, :longest])),
            torch.from_numpy(owner),
            torch.from_numpy(self.items[place].astype(np.int64)),
            torch.from_numpy(self.responses[place]),
        )


@dataclass(frozen=True)
class Epoch:
    """Where training stands."""

    number: int
    loss: float  # mean log-loss of the shown items of this pass
    held_out: float  # mean log-loss on held-out sessions
    best: bool  # whether it is the best so far


def make_model(
    config: ResponseTraining, similar: FloatArray, categories: IntArray, responses: int, rates: Doubles
) -> ResponseNetwork:
    """A model that knows the base rates and nothing else; `torch`'s global generator draws its weights."""
    shape = ResponseShape(**{name: getattr(config, name) for name in ResponseShape.model_fields})
    model = ResponseNetwork(similar, categories, responses, shape)
    safe = np.maximum(rates, 1e-6)
    with torch.no_grad():
        model.bias.copy_(torch.from_numpy(np.log(safe[1:] / safe[0])))
        if config.pretraining == "svd":
            known = torch.from_numpy(similar[:, : config.width])
            scale = known.square().mean().sqrt().clamp(min=1e-6)
            model.items[:, : known.shape[1]] += known * (config.embedding_scale / scale)
    return model


def fit_responses(
    model: ResponseNetwork, config: ResponseTraining, answers: Answers, held_out: Answers, rng: np.random.Generator
) -> Iterator[Epoch]:
    """Train in place, pass by pass, until held-out sessions get no better; then `model` is that of the best pass."""
    optimiser = _optimiser(model, config)
    best, since, kept = np.inf, 0, copy.deepcopy(model.state_dict())
    for number in range(1, config.epochs + 1):
        loss = _pass(model, config, answers, rng, optimiser)
        found = log_loss(log_probabilities(model, held_out), held_out)
        better = found < best
        if better:
            best, since, kept = found, 0, copy.deepcopy(model.state_dict())
        yield Epoch(number, loss, found, better)
        since += not better
        if since >= config.patience:
            break
    model.load_state_dict(kept)
    scale(model, held_out)
    model.eval()


def _optimiser(model: ResponseNetwork, config: ResponseTraining) -> torch.optim.Optimizer:
    of_items = [model.items, model.kinds, model.item_bias]
    rest = [one for one in model.parameters() if not any(one is other for other in of_items)]
    groups = [
        {"params": of_items, "lr": config.vector_rate, "weight_decay": config.weight_decay},
        {"params": rest, "lr": config.learning_rate, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups)


def _pass(
    model: ResponseNetwork,
    config: ResponseTraining,
    answers: Answers,
    rng: np.random.Generator,
    optimiser: torch.optim.Optimizer,
) -> float:
    model.train()
    model.dropout.p = config.dropout
    order, total = rng.permutation(len(answers)), 0.0
    for start in range(0, len(order), config.batch_size):
        histories, owner, items, responses = answers.take(order[start : start + config.batch_size])
        z = _pair_logits(model, histories, owner, items)
        loss = nn.functional.nll_loss(model.scaled(z), responses, reduction="sum")
        optimiser.zero_grad(set_to_none=True)
        (loss / len(items)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        total += loss.item()
    return total / len(answers.items)


def _pair_logits(model: ResponseNetwork, histories: Tensor, owner: Tensor, items: Tensor) -> Tensor:
    """(P, R − 1) for items (P,) shown to the histories `owner` (P,), each history encoded once."""
    vectors = model.vectors()
    states = model.encode(histories, vectors)
    return model.logits(histories[owner], states[owner], vectors, items.unsqueeze(1))[:, 0]


@torch.no_grad()
def _raw_logits(model: ResponseNetwork, answers: Answers) -> Tensor:
    """(total, R − 1) before scaling, in the order of the answers."""
    model.eval()
    parts = [
        _pair_logits(model, *answers.take(np.arange(start, min(start + EVALUATED, len(answers))))[:3])
        for start in range(0, len(answers), EVALUATED)
    ]
    return torch.cat(parts)


@torch.no_grad()
def log_probabilities(model: ResponseNetwork, answers: Answers) -> Doubles:
    """(total, R) what the model says of each shown item, in the order of the answers."""
    return model.scaled(_raw_logits(model, answers).double()).numpy()


def log_loss(log_p: Doubles, answers: Answers) -> float:
    return float(-log_p[np.arange(len(log_p)), answers.responses].mean())


def scale(model: ResponseNetwork, held_out: Answers, steps: int = 100) -> None:
    """Matrix scaling (Guo et al., 2017): the W and c that held-out sessions like best.

    A handful of numbers from many answers, drawn a little towards changing nothing.
    """
    z, truth = _raw_logits(model, held_out).double(), torch.from_numpy(held_out.responses)
    identity = torch.eye(model.answers, dtype=torch.float64)
    mixing = identity.clone().requires_grad_()
    shift = torch.zeros(model.answers, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([mixing, shift], max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        penalty = SCALING_PENALTY * ((mixing - identity).square().sum() + shift.square().sum())
        value = nn.functional.nll_loss(answer_probabilities(z, mixing, shift), truth) + penalty
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    model.mixing.copy_(mixing.detach())
    model.shift.copy_(shift.detach())
