"""The cheapest state encoder: the mean of the session's item embeddings."""

from torch import Tensor, nn

from bcd4rec.models.encoder import ENCODERS, Encoder, look_up


@ENCODERS.register("meanpool")
class MeanPool(Encoder):
    """s = W · mean(items) + b. It forgets the order, which costs nothing where interests change slowly."""

    def __init__(self, width: int, outputs: int):
        super().__init__(outputs)
        self.linear = nn.Linear(width, outputs)

    def encode(self, items: Tensor, lengths: Tensor, embeddings: Tensor) -> Tensor:
        states: Tensor = self.linear(look_up(items, embeddings).sum(dim=1) / lengths.unsqueeze(1))
        return states
