"""Propensities that a log does not have, estimated from it, and whether they may be believed.

Behaviour models tell what was shown from random items (`agents.evidence_agent`), and slates are drawn by their chances.
There are three, each learned from a third of the sessions, so that every session has two models that have not seen it:
one estimates its propensities, the other checks them. Nobody can ask the logger, but of right propensities must hold:

- for any policy, the mean of its probability over theirs is 1, place by place: asked of equal chances, and of the item
  that the model holds to be the likeliest, which is where a logger that ranks shows itself;
- the logger as the other model sees it gets its own rate (`diagnostics.self_test`).

Passing is no proof: a logger may know what the models do not look at.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bcd4rec.agents.evidence_agent import fit_behaviour_weights
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.knowledge import folds
from bcd4rec.data.repeats import count_repeats
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.evaluation.off_policy.decisions import Decisions, Doubles, outcomes_of
from bcd4rec.evaluation.off_policy.diagnostics import OFF, self_test
from bcd4rec.evaluation.off_policy.replay import ReplayedSlates, Translation, replay
from bcd4rec.evaluation.off_policy.sums import SessionSums
from bcd4rec.models.evidence import Evidence
from bcd4rec.models.response_regression import fit_response
from bcd4rec.policies.policy import Memory, Policy
from bcd4rec.policies.slates import Exploration, SlateRule
from bcd4rec.seeding import generator

MODELS = 3
ASKED = {
    "equal chances": Exploration(kind="epsilon", epsilon=1.0),
    "the item that the model holds to be the likeliest": Exploration(),
}


class BehaviourScorer:
    """log p(item | session) of the logger up to a constant, as a behaviour model sees it."""

    def __init__(self, evidence: Evidence, weights: FloatArray):
        self._evidence, self._weights = evidence, weights

    @property
    def n_items(self) -> int:
        return self._evidence.n_items

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        if candidates is None:
            found: FloatArray = self._evidence.sums(states, self._weights[None])[0]
            return found
        scores: FloatArray = self._evidence.rows(states, candidates) @ self._weights
        scores[candidates == PAD] = -np.inf
        return scores


@dataclass
class EstimatedLogger:
    """Fill in chunks of a log one after the other, then ask whether to believe it."""

    fold: NDArray[np.int64]  # (sessions,)
    models: Sequence[Policy]  # each learned from the sessions of one fold
    dataset: Dataset
    own: SessionSums  # the logger as other models see it, against the estimates
    weights: Doubles  # (asked, 2) sums of weights of places, and their number

    def fill(self, slates: ReplayedSlates) -> ReplayedSlates:
        """The same slates with estimated propensities."""
        first, second = (self._of_fold(slates, number) for number in (1, 2))
        for number, exploration in enumerate(ASKED.values()):
            wanted = self._of_fold(slates, 1, exploration)
            there = slates.items != PAD
            self.weights[number] += [(wanted / first)[there].sum(), there.sum()]
        outcomes = outcomes_of(slates.responses, self.dataset.responses)[1]
        self.own.add(Decisions(slates.sessions[slates.session], first, second, outcomes))
        return replace(slates, propensities=first)

    def _of_fold(self, slates: ReplayedSlates, ahead: int, exploration: Exploration | None = None) -> Doubles:
        """(n, K) by the models so many folds ahead of each session's own, with another rule if one is given."""
        found = np.ones(slates.items.shape)
        fold = (self.fold[slates.sessions[slates.session]] + ahead) % MODELS
        for number, model in enumerate(self.models):
            asked = model if exploration is None else replace(model, rule=_explored(model.rule, exploration))
            for met in replay(asked, slates, Translation(self.dataset.vocabulary, model.vocabulary)):
                mine = np.flatnonzero(fold[met.rows] == number)
                if len(mine):
                    chances = asked.propensities(met.sessions[mine], met.items[mine])
                    found[met.rows[mine]] = chances.astype(np.float64)
        return found

    @property
    def problem(self) -> str | None:
        """Why the estimates are not to be believed, in words; None where they pass."""
        for (total, count), name in zip(self.weights, ASKED, strict=True):
            mean = total / max(count, 1.0)
            if abs(mean - 1.0) >= OFF:
                return f"the mean weight of {name} is {mean:.2f} and should be within {OFF} of 1"
        return self_test(self.own)


def _explored(rule: SlateRule, exploration: Exploration) -> SlateRule:
    return rule.model_copy(update={"exploration": exploration})


def estimate_logger(dataset: Dataset, seed: int, tick: Tick = no_tick) -> EstimatedLogger:
    """From all sessions, whatever split they are in."""
    fold = np.zeros(len(dataset.sessions), np.int64)
    models = []
    for number, mine in enumerate(folds(dataset.owners, MODELS, generator(seed, "behaviour folds"))):
        tick("estimating propensities", number / MODELS)
        fold[mine] = number
        part = dataset.sessions.with_columns(split=pl.Series(np.where(mine, "train", "judged")))
        some = Dataset(dataset.manifest, dataset.items, part, dataset.frame, dataset.states)
        models.append(_behaviour(some, seed + number))
    names = outcomes_of(np.zeros((0, 1), np.int32), dataset.responses)[0]
    return EstimatedLogger(fold, models, dataset, SessionSums(names, 1), np.zeros((len(ASKED), 2)))


def _behaviour(dataset: Dataset, seed: int) -> Policy:
    response, sample = fit_response(dataset, seed)
    scorer = BehaviourScorer(response.evidence, fit_behaviour_weights(sample, dataset, seed))
    rule = SlateRule(unavailable=count_repeats(dataset).unavailable()[0], exploration=Exploration(kind="softmax"))
    memory = Memory(length=dataset.states.positives.shape[1], skips=dataset.states.skips.shape[1])
    return Policy(scorer, dataset.vocabulary, memory, rule, dataset.responses, about={"method": "behaviour"})
