"""The response model: how a user answers an item, given what the session liked so far."""

import torch
from pydantic import Field
from torch import Tensor, nn

from bcd4rec.config import Config
from bcd4rec.data.states import PAD, FloatArray, IntArray
from bcd4rec.models.encoder import ENCODERS

FEATURES = 6  # how an item matches a session, see `ResponseNetwork.match`
RETURNS = 2  # whether it was liked before, see `ResponseNetwork.again`


class ResponseShape(Config):
    """The shape of a response model."""

    encoder: str = Field(default="bigru", description="How a session becomes a vector: bigru, gru, srgnn, meanpool.")
    width: int = Field(default=100, ge=2, description="D: entries of an item's vector.")
    category: bool = Field(default=True, description="Look at the items' categories, where there are any.")


class ResponseNetwork(nn.Module):
    """p(response r | session s, item i) = softmax over r of (W z + c)_r, with 0 for the first response.

    z_r = s_r · v_i + s_r0 + b_ri + w_r · match(s, i) + u_r · again(s, i). The item's vector v_i is one of
    its own plus its category's, and the encoder reads the same vectors. W and c, fitted last, mend what is left of
    miscalibration.
    """

    similar: Tensor
    categories: Tensor
    mixing: Tensor  # W
    shift: Tensor  # c

    def __init__(self, similar: FloatArray, categories: IntArray, responses: int, shape: ResponseShape):
        """`similar` (A, D′) are unit vectors of items that are liked together, `categories` (A,) codes or −1."""
        super().__init__()
        n_items, width = len(similar), shape.width
        self.shape, self.answers = shape, responses - 1
        self.register_buffer("similar", torch.tensor(similar))
        self.register_buffer("categories", torch.tensor(categories).long())
        self.items = nn.Parameter(torch.randn(n_items, width) * 0.05)
        self.kinds = nn.Parameter(torch.randn(int(categories.max(initial=-1)) + 2, width) * 0.3)  # the last is for −1
        self.encoder = ENCODERS[shape.encoder](width, self.answers * (width + 1))  # type: ignore[call-arg]
        self.item_bias = nn.Parameter(torch.zeros(n_items, self.answers))
        self.bias = nn.Parameter(torch.zeros(self.answers))
        self.matching = nn.Parameter(torch.zeros(FEATURES, self.answers))
        self.returning = nn.Parameter(torch.zeros(RETURNS, self.answers))
        self.dropout = nn.Dropout(0.0)
        self.register_buffer("mixing", torch.eye(self.answers))
        self.register_buffer("shift", torch.zeros(self.answers))

    def vectors(self) -> Tensor:
        """(A, D)"""
        kinds: Tensor = self.kinds[self.categories]
        return self.items + kinds if self.shape.category else self.items

    def encode(self, histories: Tensor, vectors: Tensor) -> Tensor:
        """(B, R − 1, D + 1) of the liked items `histories` (B, L), padded on the right."""
        states: Tensor = self.dropout(self.encoder(histories, vectors))
        return states.view(len(histories), self.answers, self.shape.width + 1)

    def logits(self, histories: Tensor, states: Tensor, vectors: Tensor, items: Tensor) -> Tensor:
        """(B, K, R − 1) the z of `items` (B, K), or (1, K) if they are the same for all the encoded `states`."""
        width = self.shape.width
        z = torch.einsum("bkd,brd->bkr", nn.functional.embedding(items, vectors), states[..., :width])
        z = z + states[:, None, :, width] + self.bias + nn.functional.embedding(items, self.item_bias)
        z = z + self.match(histories, items) @ self.matching
        return z + self.again(histories, items) @ self.returning

    def match(self, histories: Tensor, items: Tensor) -> Tensor:
        """(B, K, 6) how items match sessions.

        Is the item of the category liked last, of one liked at all, log(1 + how often was it), in which share of the
        liked items; how similar is it to the liked items on average, and to the last of them.
        """
        valid = histories != PAD
        count = valid.sum(dim=1, keepdim=True)  # (B, 1)
        last = histories.gather(1, (count - 1).clamp(min=0).to(torch.int64)).clamp(min=0)  # (B, 1)
        begun = (count > 0).float()
        liked = torch.where(valid, self.categories[histories.clamp(min=0)], -2)  # (B, L)
        category = self.categories[items]  # (B, K)
        same = ((category.unsqueeze(2) == liked.unsqueeze(1)) & (category >= 0).unsqueeze(2)).sum(dim=2).float()
        same_as_last = ((category == self.categories[last]) & (category >= 0)).float() * begun
        shown = nn.functional.embedding(items, self.similar)  # (B, K, D′)
        before = nn.functional.embedding(histories.clamp(min=0), self.similar) * valid.unsqueeze(2)
        mean = before.sum(dim=1) / count.clamp(min=1)
        alike = torch.einsum("bkd,bd->bk", shown, mean)
        alike_last = torch.einsum("bkd,bd->bk", shown, self.similar[last[:, 0]]) * begun
        of_category = (same_as_last, (same > 0).float(), same.log1p(), same / count.clamp(min=1))
        used = of_category if self.shape.category else tuple(torch.zeros_like(one) for one in of_category)
        return torch.stack((*used, alike, alike_last), dim=2)

    def again(self, histories: Tensor, items: Tensor) -> Tensor:
        """(B, K, 2) whether items come back: was the item itself liked before, was it liked last.

        Places to stay are looked at and booked later; where nothing is shown again, both are always 0.
        """
        count = (histories != PAD).sum(dim=1, keepdim=True)
        last = histories.gather(1, (count - 1).clamp(min=0).to(torch.int64))  # (B, 1), PAD in the empty session
        before = (items.unsqueeze(2) == histories.unsqueeze(1)).any(dim=2)
        return torch.stack((before, items == last), dim=2).float()

    def forward(self, histories: Tensor, items: Tensor) -> Tensor:
        """(B, K, R) log-probabilities of the responses to `items` (B, K)."""
        vectors = self.vectors()
        return self.scaled(self.logits(histories, self.encode(histories, vectors), vectors, items))

    def scaled(self, logits: Tensor) -> Tensor:
        """(…, R) log-probabilities of the z (…, R − 1)."""
        return answer_probabilities(logits, self.mixing.to(logits.dtype), self.shift.to(logits.dtype))


def answer_probabilities(z: Tensor, mixing: Tensor, shift: Tensor) -> Tensor:
    """(…, R) log-probabilities; the first response has the logit 0, the others those of W z + c."""
    return torch.log_softmax(nn.functional.pad(z @ mixing.T + shift, (1, 0)), dim=-1)
