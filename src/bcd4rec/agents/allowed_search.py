"""Allowed sets of states in a large catalogue: candidates of an inverted file over the behaviour model's item vectors.

log p(a | s) is an inner product of state and item, up to a constant of the state, so the likeliest actions are those
with the largest inner products. faiss finds some of them, exact values decide which are allowed: p ≥ β · max p, where
the maximum is the largest found, so that each state has an action. What is missed is measured on states of the log.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bcd4rec.constraint import AllowedSets, Form, allowed_mask, mask_values
from bcd4rec.data.states import IntArray, Mask
from bcd4rec.models.behaviour import BehaviourModel
from bcd4rec.models.inner_products import import_faiss, inverted_file
from bcd4rec.seeding import generator

CANDIDATES = 1000  # likeliest actions that a set may hold, where no other limit is set
SPARE = 2  # times as many are looked for, because the inverted file rounds
STATES_AT_ONCE = 64
MEASURED = 64  # states that recall is measured on
WANTED = 0.97  # recall
OTHERS = 1000  # items that stand for those that are no candidates, in the normaliser of the literal form


class AllowedSearch:
    """Finds the allowed sets of sessions under a frozen behaviour model."""

    def __init__(
        self, model: BehaviourModel, sessions: IntArray, beta: float, form: Form, limit: int = 0, seed: int = 0
    ):
        """`sessions` (n, L) are those to measure on; of them, some."""
        self._model, self._beta, self._form = model, beta, form
        self._limit = limit or CANDIDATES
        table = model.embeddings.detach()
        self._index = inverted_file(np.ascontiguousarray(table.cpu().numpy()), seed=seed)
        rng = generator(seed, "allowed sets")
        self._others = torch.from_numpy(rng.integers(len(table), size=OTHERS)).to(table.device)
        some = sessions[np.sort(rng.permutation(len(sessions))[:MEASURED])]
        self.told = self._choose_probes(some)

    def sets(self, sessions: IntArray) -> AllowedSets:
        """Those of `sessions` (n, L)."""
        items, sizes = [], []
        for states in self._encoded(sessions):
            found, allowed = self._found(states)
            items.append(found[allowed].to(torch.int32))
            sizes.append(allowed.sum(dim=1))
        if not items:
            return AllowedSets(torch.zeros(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int64))
        return AllowedSets(torch.cat(items), torch.nn.functional.pad(torch.cat(sizes).cumsum(0), (1, 0)))

    @torch.no_grad()
    def _encoded(self, sessions: IntArray) -> Iterator[Tensor]:
        """(B, D) states, some at a time."""
        table = self._model.embeddings
        for first in range(0, len(sessions), STATES_AT_ONCE):
            some = torch.from_numpy(np.array(sessions[first : first + STATES_AT_ONCE])).to(table.device)
            yield self._model.encoder(some, table)

    @torch.no_grad()
    def _found(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C) candidates in ascending order, and which of them are allowed."""
        table, wanted = self._model.embeddings, min(SPARE * self._limit, len(self._model.embeddings))
        import_faiss().omp_set_num_threads(torch.get_num_threads())
        _, found = self._index.search(np.ascontiguousarray(states.cpu().numpy()), wanted)
        items = torch.from_numpy(np.sort(found, axis=1)).to(table.device)  # −1 where a search found fewer
        logits = (table[items.clamp(min=0)] @ states.unsqueeze(2)).squeeze(2).masked_fill(items < 0, -math.inf)
        if self._form == "literal":
            logits = logits - self._normaliser(states, logits).unsqueeze(1)
        return items, self._allowed(logits) & (items >= 0)

    def _normaliser(self, states: Tensor, logits: Tensor) -> Tensor:
        """(B,) log Σ exp over the catalogue: candidates as they are, the others by a sample of the items."""
        table = self._model.embeddings
        rest = (states @ table[self._others].T).clamp(max=logits.min(dim=1, keepdim=True).values.nan_to_num(neginf=0.0))
        weight = math.log(max(len(table) - logits.shape[1], 1) / OTHERS)
        return torch.logaddexp(logits.logsumexp(dim=1), rest.logsumexp(dim=1) + weight)

    def _allowed(self, logits: Tensor) -> Tensor:
        """(B, C) what β allows, and of that the likeliest."""
        mask = allowed_mask(logits, self._beta, self._form)
        if self._limit < mask.shape[1]:
            likeliest = mask_values(logits, mask).topk(self._limit, dim=1).indices
            mask &= torch.zeros_like(mask).scatter_(1, likeliest, True)
        return mask

    def _choose_probes(self, sessions: IntArray) -> dict[str, Any]:
        """Look into the fewest groups with the wanted recall, or into an eighth of them; what was measured."""
        states = torch.cat(list(self._encoded(sessions)))
        expected, cut = self._exact(states)
        probes, most = 8, min(self._index.nlist, max(64, self._index.nlist // 8))
        while True:
            self._index.nprobe = probes
            found, allowed = self._found(states)
            kept = [
                np.isin(wanted, one[ok].cpu().numpy()).mean()
                for wanted, one, ok in zip(expected, found, allowed, strict=True)
            ]
            recall = float(np.mean(kept))
            if recall >= WANTED or probes >= most:
                told = {"recall": round(recall, 4), "measured_on": len(states), "probes": probes}
                return told | {"groups": self._index.nlist, "cut": round(float(np.mean(cut)), 4)}
            probes = min(2 * probes, most)

    @torch.no_grad()
    def _exact(self, states: Tensor) -> tuple[list[IntArray], Mask]:
        """The exact set of each state, with the same limit, and whether it would be larger without."""
        expected, cut = [], []
        for state in states:
            likely: Tensor = torch.log_softmax(self._model.embeddings @ state, dim=0)[None]
            whole = allowed_mask(likely, self._beta, self._form)
            expected.append(self._allowed(likely)[0].nonzero()[:, 0].cpu().numpy())
            cut.append(bool(whole.sum() > self._limit))
        return expected, np.array(cut)
