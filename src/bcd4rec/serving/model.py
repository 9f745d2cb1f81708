"""A network policy on onnxruntime: scores, quantiles and likelihoods.

The models that run are always made of the bundle's arrays. Those that `bcd4rec export` wrote are for others; one that
differs from ours is refused, so that nobody's files outside of the bundle and no operators but ours are ever run.
"""

import math
from typing import Any

import numpy as np
import onnxruntime

from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.errors import InputError
from bcd4rec.policies.bundle import EXPORT_ANEW, Bundle
from bcd4rec.serving.arrays import ARRAYS, StoredArrays
from bcd4rec.serving.exporting import BEHAVIOUR, MODEL, QUANTILES, network_of, serialized
from bcd4rec.serving.heads import midpoints

Session = onnxruntime.InferenceSession
Preference = tuple[FloatArray, FloatArray]
"""(B, D) and (B, 1): a value is the inner product with an item's row of the table, plus the second."""


def _options() -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # requests are small, and there are many
    options.log_severity_level = 3
    return options


class Tower:
    """states → vectors whose inner products with the rows of a table are the values of items."""

    def __init__(self, model: bytes, table: FloatArray):
        options = _options()
        self._embeddings = onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(table))
        options.add_external_initializers(["embeddings"], [self._embeddings])  # the same memory, not a copy
        self._session = Session(model, options, providers=["CPUExecutionProvider"])
        self._names = [output.name for output in self._session.get_outputs()]
        self._inputs = {one.name for one in self._session.get_inputs()}
        self.table = np.asarray(table)

    def __call__(self, states: States) -> dict[str, FloatArray]:
        """Outputs by name: `preference` (B, D), `state` (B, D′) and, for some, `bias` (B, 1)."""
        if not len(states):  # for none at all, onnxruntime's GRU ends the process by a segmentation fault
            one = States.empty(1, states.positives.shape[1], states.skips.shape[1])
            return {name: values[:0] for name, values in self(one).items()}
        given = {"positives": states.positives.astype(np.int64), "skips": states.skips.astype(np.int64)}
        return dict(zip(self._names, self._session.run(None, given), strict=True))

    def values(self, preference: FloatArray, items: IntArray | None = None) -> FloatArray:
        """(B, A), or (B, C) of `items` (B, C)."""
        if items is None:
            return np.asarray(preference @ self.table.T)
        if len(items) == 1:
            return np.asarray((self.table[np.maximum(items[0], 0)] @ preference[0])[None])
        return np.asarray(np.einsum("bcd,bd->bc", self.table[np.maximum(items, 0)], preference))


class OnnxPolicy:
    """The same scores as the torch policy of the bundle, up to rounding."""

    def __init__(self, saved: Bundle):
        settings, arrays = saved.manifest["settings"], StoredArrays(saved.read(ARRAYS))
        network = network_of(saved.manifest["scorer"], settings, arrays)
        models = serialized(saved, arrays)
        for name in models.keys() & saved.checksums.keys():
            if saved.read(name) != models[name]:
                raise InputError(f"{saved.folder / name} is not the model of this policy; {EXPORT_ANEW}")
        self.tower = Tower(models[MODEL], arrays[network.table])
        self.behaviour = Tower(models[BEHAVIOUR], arrays["behaviour.embeddings"]) if BEHAVIOUR in models else None
        self._quantiles = (
            Session(models[QUANTILES], _options(), ["CPUExecutionProvider"]) if QUANTILES in models else None
        )
        self._any_fraction, self._count = network.head == "implicit", network.count
        with np.errstate(over="ignore"):  # infinite values are found when the policy is asked
            self._offset = np.float32(settings.get("offset", 0.0))
        self._beta, self._form = settings.get("beta", 0.0), settings.get("form", "relative")

    @property
    def n_items(self) -> int:
        return len(self.tower.table)

    @property
    def constrained(self) -> bool:
        """Whether only items that the behaviour model allows are recommended."""
        return self.behaviour is not None and self._beta > 0

    def preference(self, states: States) -> Preference:
        found = self.tower(states)
        bias = found.get("bias")
        nothing = np.zeros((len(states), 1), np.float32)
        return found["preference"], (nothing if bias is None else bias) + self._offset

    def scores(self, states: States, candidates: IntArray | None = None, known: Preference | None = None) -> FloatArray:
        """As of every policy; `known` is the states' preference, where it is known already."""
        preference, bias = known or self.preference(states)
        values = self.tower.values(preference, candidates) + bias
        if self.constrained:
            allowed = _allowed(self.log_likelihood(states), self._beta, self._form)
            if candidates is not None:
                allowed = np.take_along_axis(allowed, np.maximum(candidates, 0), axis=1)
            values[~allowed] = -np.inf
        if candidates is not None:
            values[candidates == PAD] = -np.inf
        return values

    def log_likelihood(self, states: States) -> FloatArray:
        """(B, A) log p_M of every item under the behaviour model."""
        if self.behaviour is None:
            raise ValueError("the bundle has no behaviour model")
        logits = self.behaviour.values(self.behaviour(states)["preference"])
        logits -= logits.max(axis=1, keepdims=True)
        return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))

    def quantiles(self, states: States, items: IntArray, count: int = 0) -> FloatArray:
        """(B, N) quantiles of the return of `items` (B,) at N evenly spread fractions, in ascending order."""
        if self._quantiles is None:
            raise ValueError("the policy knows no distributions")
        taus = midpoints(count if count and self._any_fraction else self._count)
        state = self.tower(states)["state"]
        (vectors,) = self._quantiles.run(None, {"state": state, "taus": taus})
        actions = self.tower.table[items]
        if state.shape[1] > actions.shape[1]:
            actions = np.pad(actions, ((0, 0), (0, 1)), constant_values=1.0)
        return np.sort(np.einsum("bnd,bd->bn", vectors, actions), axis=1) + self._offset

    @property
    def knows_quantiles(self) -> bool:
        return self._quantiles is not None


def _allowed(log_likelihood: FloatArray, beta: float, form: str) -> Any:
    """(B, A) as `constraint.allowed_mask`, without torch: the mode is always allowed."""
    mode = log_likelihood.argmax(axis=1)
    top = np.take_along_axis(log_likelihood, mode[:, None], axis=1)
    mask = log_likelihood >= top + math.log(beta) if form == "relative" else log_likelihood > math.log(beta)
    mask[np.arange(len(mode)), mode] = True
    return mask
