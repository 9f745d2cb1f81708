"""SR-GNN (Wu et al., Session-based Recommendation with Graph Neural Networks, 2019) in tensor operations alone."""

import torch
from torch import Tensor, nn

from bcd4rec.data.states import PAD
from bcd4rec.models.encoder import ENCODERS, Encoder, look_up


def session_graph(items: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The graph of each session: `place` (B, L) and the in- and outgoing adjacency (B, L, L).

    A node stands where its item first occurs: `place[b, t]` is the first position of item `items[b, t]`. An edge
    leads from each item to its successor and weighs its occurrences over the degree of the node it is normalised by.
    """
    valid = items != PAD
    same = (items.unsqueeze(2) == items.unsqueeze(1)) & valid.unsqueeze(1)  # (B, L, L)
    place = same.to(torch.uint8).argmax(dim=2)
    nodes = nn.functional.one_hot(place, items.shape[1]).float() * valid.unsqueeze(2)
    edges = nodes[:, :-1].transpose(1, 2) @ nodes[:, 1:]  # (B, from, to): how often `to` follows `from`
    outgoing = edges / edges.sum(dim=2, keepdim=True).clamp(min=1)
    incoming = (edges / edges.sum(dim=1, keepdim=True).clamp(min=1)).transpose(1, 2)
    return place, incoming, outgoing


@ENCODERS.register("srgnn")
class SRGNN(Encoder):
    """One gated step over the session graph, soft attention guided by the last item, and a linear layer."""

    def __init__(self, width: int, outputs: int, steps: int = 1):
        super().__init__(outputs)
        self.steps = steps
        self.from_before = nn.Linear(width, width)
        self.from_after = nn.Linear(width, width)
        self.gate = nn.GRUCell(2 * width, width)
        self.attend_last = nn.Linear(width, width)
        self.attend_item = nn.Linear(width, width, bias=False)
        self.attention = nn.Linear(width, 1, bias=False)
        self.linear = nn.Linear(2 * width, outputs)

    def encode(self, items: Tensor, lengths: Tensor, embeddings: Tensor) -> Tensor:
        place, incoming, outgoing = session_graph(items)
        nodes = look_up(items, embeddings)  # repeated items are rows that no edge touches and no place points to
        for _ in range(self.steps):
            nodes = self._propagate(nodes, incoming, outgoing)
        visits = nodes.gather(1, place.unsqueeze(2).expand_as(nodes))  # (B, L, D) back in the order of the session
        last = visits[torch.arange(len(items), device=items.device), lengths - 1]
        weights = self.attention(torch.sigmoid(self.attend_last(last).unsqueeze(1) + self.attend_item(visits)))
        summary = (weights * visits * (items != PAD).unsqueeze(2)).sum(dim=1)
        states: Tensor = self.linear(torch.cat([last, summary], dim=1))
        return states

    def _propagate(self, nodes: Tensor, incoming: Tensor, outgoing: Tensor) -> Tensor:
        messages = torch.cat([incoming @ self.from_before(nodes), outgoing @ self.from_after(nodes)], dim=2)
        updated: Tensor = self.gate(messages.flatten(0, 1), nodes.flatten(0, 1))
        return updated.view_as(nodes)
