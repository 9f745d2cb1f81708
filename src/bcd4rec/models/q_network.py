"""The Q-network: shared item embeddings, a state encoder and a quantile head."""

import torch
from pydantic import Field
from torch import Tensor, nn

from bcd4rec.config import Config
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.models.encoder import ENCODERS
from bcd4rec.models.heads import HeadName, make_head
from bcd4rec.models.table_rows import by_rows, rows_of


def as_tensor(array: IntArray) -> Tensor:
    """A tensor over the same memory, or over a copy where the array is read-only (memory-mapped)."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def pool(items: Tensor, embeddings: Tensor) -> Tensor:
    """(B, D) the sum of the embeddings of `items` (B, n), padded with −1, over n."""
    if items.shape[1] == 0:
        return embeddings.new_zeros(len(items), embeddings.shape[1])
    valid = items != PAD
    offsets = nn.functional.pad(valid.sum(dim=1).cumsum(0)[:-1], (1, 0)).to(items.dtype)
    some, sparse = items[valid], by_rows(embeddings)
    if sparse:
        some, offsets = some.long(), offsets.long()
    return nn.functional.embedding_bag(some, embeddings, offsets, mode="sum", sparse=sparse) / items.shape[1]


class QNetworkConfig(Config):
    """The shape of a Q-network over item embeddings."""

    head: HeadName = Field(description="expected (one value), fixed (K fixed quantiles) or implicit (any quantile).")
    quantiles: int = Field(default=10, ge=1, description="K: quantiles in a training batch; the expected head has one.")
    cosines: int = Field(default=64, ge=1, description="n: cosines that embed a fraction; implicit head only.")
    encoder: str = Field(default="bigru", description="How a session becomes a vector: bigru, gru, srgnn, meanpool.")
    layers: int = Field(default=2, ge=1, description="Layers of the recurrence; encoder bigru only.")
    pooling: bool = Field(
        default=False,
        description="Add the sums of the liked and of the skipped items' embeddings to the state, each times a number.",
    )
    state_value: bool = Field(default=True, description="Learn the state's own value apart from the actions'.")
    freeze_embeddings: bool = Field(default=True, description="Keep the pre-trained item embeddings as they are.")


class QNetwork(nn.Module):
    """Q^τ(s, a) = s_τ · a over item embeddings shared by states and actions.

    With `state_value` every action vector gets one more entry, a constant 1: the state's own value is then learned
    apart from what tells the actions from each other. With `pooling` the state is g₀ · encoder(s) + g₁ · Σ positives
    + g₂ · Σ skips with three learned numbers: an item is worth more the more items like it were liked, and less the
    more were skipped. Three numbers are learned from few sessions; the encoder learns what they leave.
    """

    def __init__(self, embeddings: FloatArray, config: QNetworkConfig):
        super().__init__()
        self.config, self.width = config, embeddings.shape[1]
        outputs = self.width + int(config.state_value)
        self.embeddings = nn.Parameter(torch.tensor(embeddings), requires_grad=not config.freeze_embeddings)
        encoder = ENCODERS[config.encoder]
        depth = (config.layers,) if encoder.takes_layers else ()
        self.encoder = encoder(self.width, outputs, *depth)  # type: ignore[call-arg]
        self.gains = nn.Parameter(torch.tensor([0.1, 0.0, 0.0])) if config.pooling else None
        self.head = make_head(config.head, outputs, config.quantiles, config.cosines)

    def encode(self, positives: Tensor, skips: Tensor) -> Tensor:
        """(B, D) states of sessions with the last positive items (B, L) and the last skipped items (B, S)."""
        states: Tensor = self.encoder(positives, self.embeddings)
        if self.gains is None:
            return states
        pooled = self.gains[1] * pool(positives, self.embeddings) + self.gains[2] * pool(skips, self.embeddings)
        return self.gains[0] * states + nn.functional.pad(pooled, (0, int(self.config.state_value)))

    def encode_states(self, states: States) -> Tensor:
        device = self.embeddings.device
        return self.encode(as_tensor(states.positives).to(device), as_tensor(states.skips).to(device))

    def actions(self, items: Tensor) -> Tensor:
        """The vectors of `items`, with one more axis of D entries behind those of `items`."""
        vectors = rows_of(items, self.embeddings)
        return nn.functional.pad(vectors, (0, 1), value=1.0) if self.config.state_value else vectors

    def preferences(self, states: Tensor) -> Tensor:
        """(B, width) vectors whose inner products with the embeddings rank the items of each state by mean value."""
        return self.head.mean_vector(states)[:, : self.width]

    def mean_values(self, states: Tensor, weights: Tensor | None = None) -> Tensor:
        """(B, A) the mean over quantiles of every item, weighted where there are `weights`: one matrix product."""
        vectors = self.head.mean_vector(states, weights)
        values = vectors[:, : self.width] @ self.embeddings.T
        return values + vectors[:, self.width :] if self.config.state_value else values

    def item_values(self, states: Tensor, items: Tensor, weights: Tensor | None = None) -> Tensor:
        """(B, C) the mean over quantiles of `items` (B, C)."""
        return (self.actions(items) @ self.head.mean_vector(states, weights).unsqueeze(2)).squeeze(2)
