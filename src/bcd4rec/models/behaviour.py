"""The behaviour model M: which actions the logging policy would take in a state."""

from collections.abc import Callable

import numpy as np

from bcd4rec.data.states import FloatArray, IntArray
from bcd4rec.models.next_item import Examples, NextItem, fit


class BehaviourModel(NextItem):
    """p_M(a | s) ≈ π_b(a | s), an SR-GNN trained on every logged action, whatever the response was."""


def fit_behaviour(
    embeddings: FloatArray,
    sessions: IntArray,
    states: IntArray,
    actions: IntArray,
    rng: np.random.Generator,
    *,
    epochs: int,
    negatives: int = 0,
    notify: Callable[[float], None] = lambda loss: None,
) -> BehaviourModel:
    """M from the pairs (sessions[states[j]], actions[j]), started from pre-trained item embeddings."""
    model = BehaviourModel(embeddings)
    fit(model, Examples.group(sessions, states, actions), rng, epochs=epochs, negatives=negatives, notify=notify)
    return model
