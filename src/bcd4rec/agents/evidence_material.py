"""What agents over evidence learn from, and which actions the states of the log have."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bcd4rec.agents.agent import Notify
from bcd4rec.agents.evidence_agent import LearningMaterial
from bcd4rec.agents.next_actions import AT_ONCE
from bcd4rec.agents.q_learning import QLearningConfig
from bcd4rec.data.dataset import Dataset, Transitions
from bcd4rec.data.responses import Responses
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.models.evidence import summary
from bcd4rec.models.evidence_kernels import LIKED
from bcd4rec.models.response_regression import ResponseModel, Sample, fit_response
from bcd4rec.policies.evidence_policy import EvidencePolicy
from bcd4rec.seeding import generator

STATES = 20_000  # whose possible actions are kept; other states are only seen with the action that was logged


@dataclass(frozen=True)
class PossibleActions:
    """Actions that states have, drawn from the catalogue; sets may be smaller than C.

    All items are drawn alike: against the best ones alone, a random log would look as if it shunned what is good.
    """

    place: IntArray  # (n,) row of the arrays below for each transition, −1 where its state is not among them
    items: IntArray  # (m, C) padded with `PAD`
    inputs: FloatArray  # (m, C, inputs)


class EvidenceMaterial(LearningMaterial):
    """The table, and what agents need that look at other actions than the logged ones."""

    def __init__(self, config: QLearningConfig, dataset: Dataset, model: ResponseModel, sample: Sample, seed: int):
        super().__init__(config, dataset, model, sample, seed)
        self._sample = sample
        self.nothing_to_learn = nothing_to_look_ahead_to(sample.transitions, dataset.responses)

    @property
    def start(self) -> EvidencePolicy:
        return EvidencePolicy(self.model)

    @cached_property
    def possible(self) -> PossibleActions:
        """Of a sample of the states that the transitions are in, seen by the evidence of other sessions."""
        sample, states = self._sample, self.states
        keys = sample.fold.astype(np.int64) * len(states) + sample.transitions.state
        wanted = np.unique(keys)
        if len(wanted) > STATES:
            wanted = np.sort(generator(self.seed, "possible actions").choice(wanted, STATES, replace=False))
        place = np.minimum(np.searchsorted(wanted, keys), len(wanted) - 1)
        place = np.where(wanted[place] == keys, place, -1).astype(np.int32)
        items = np.zeros((len(wanted), min(self.next_actions, self.model.evidence.n_items)), np.int32)
        inputs = np.zeros((*items.shape, 1 + sample.rows.shape[1]), np.float32)
        again = bool((sample.rows[:, LIKED] > 0).any())
        rng = generator(self.seed, "drawn actions")
        for number, evidence in enumerate(sample.evidence):
            mine = np.flatnonzero(wanted // len(states) == number)
            for first in range(0, len(mine), AT_ONCE):
                some = mine[first : first + AT_ONCE]
                asked = states[wanted[some] % len(states)]
                items[some] = _drawn(asked, evidence.n_items, items.shape[1], again, rng)
                inputs[some] = self._inputs(evidence.rows(asked, items[some]), summary(asked)[:, None])
        return PossibleActions(place, items, inputs)


def _drawn(states: States, n_items: int, width: int, again: bool, rng: np.random.Generator) -> IntArray:
    """(B, C) items drawn uniformly, or the whole catalogue where it is no larger; `PAD` for what came twice."""
    if n_items <= width:
        items = np.tile(np.arange(n_items, dtype=np.int32), (len(states), 1))
    else:
        items = np.sort(rng.integers(n_items, size=(len(states), width), dtype=np.int32), axis=1)
        items[:, 1:][items[:, 1:] == items[:, :-1]] = PAD
    if not again:
        items[(items[:, :, None] == states.positives[:, None]).any(axis=2)] = PAD
    return items


def evidence_material(config: QLearningConfig, dataset: Dataset, seed: int, notify: Notify) -> EvidenceMaterial:
    """Count the evidence, fit the response model, and lay out what agents learn on top of it."""
    model, sample = fit_response(dataset, seed, lambda stage, share: notify(f"response model: {stage}", math.nan))
    notify("next actions", math.nan)
    return EvidenceMaterial(config, dataset, model, sample, seed)


def nothing_to_look_ahead_to(shown: Transitions, responses: Responses) -> str | None:
    """Why values beyond the next response cannot be learned from this log; None where they can."""
    if np.isin(shown.response, [responses.code(name) for name in responses.positive]).all():
        return "nothing was skipped in this log, so it tells which items follow each other and not what they are worth"
    if not (shown.discount > 0).any():
        return "every session ends with its first slate, so there is nothing to look ahead to"
    return None
