"""Policies over evidence, in NumPy alone: by the expected reward of the next response, or by learned returns."""

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bcd4rec.data.knowledge import refuse_other_shape
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.models.evidence import SUMMARY, Evidence, summary
from bcd4rec.models.evidence_search import EvidenceSearch
from bcd4rec.models.response_regression import ResponseModel, ResponseWeights
from bcd4rec.policies.risk import MEAN, Risk
from bcd4rec.policies.scorer import Arrays, register


@dataclass(frozen=True)
class Folded:
    """The mean return, or another risk measure of it: what `ReturnWeights` says of no single fraction."""

    reward: FloatArray  # ()
    evidence: FloatArray  # (columns,)
    session: FloatArray  # ()
    constant: FloatArray  # ()


@dataclass(frozen=True)
class ReturnWeights:
    """Quantiles of the return, linear in the expected reward and the evidence: one row for each of N fractions."""

    reward: FloatArray  # (N,) what the expected reward counts
    evidence: FloatArray  # (N, columns)
    session: FloatArray  # (N,) what the session's own value counts
    constant: FloatArray  # (N,)
    hidden: FloatArray  # (H, SUMMARY + 1) the network of the session's value: weights and bias of its first layer …
    output: FloatArray  # (H + 1,) … and of its second

    def session_values(self, session: FloatArray) -> FloatArray:
        """(B,) of summaries (B, SUMMARY)."""
        hidden = np.maximum(session @ self.hidden[:, :-1].T + self.hidden[:, -1], 0.0)
        values: FloatArray = hidden @ self.output[:-1] + self.output[-1]
        return values

    def folded(self, risk: Risk) -> "Folded":
        """One weight where there were N."""
        reward, evidence, session, constant = map(risk.fold, (self.reward, self.evidence, self.session, self.constant))
        return Folded(reward, evidence, session, constant)

    def arrays(self) -> Arrays:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def restore(cls, arrays: Arrays, columns: int) -> Self:
        found = cls(**arrays)
        count, hidden = len(found.reward), len(found.hidden)
        shapes = [(count,), (count, columns), (count,), (count,), (hidden, SUMMARY + 1), (hidden + 1,)]
        for field, shape in zip(fields(cls), shapes, strict=True):
            refuse_other_shape(field.name, getattr(found, field.name), shape, np.float32)
        return found


@dataclass(frozen=True)
class BehaviourWeights:
    """log p(item | session) of the logging policy, up to a constant: weights · evidence."""

    evidence: FloatArray  # (columns,)
    beta: float = 0.0  # items less likely than β times the likeliest are not recommended; 0 allows all

    def allowed(self, logits: FloatArray) -> NDArray[np.bool_]:
        """(B, A) of logits (B, A); the likeliest item always is."""
        if self.beta == 0:
            return np.ones(logits.shape, np.bool_)
        allowed: NDArray[np.bool_] = logits >= logits.max(axis=1, keepdims=True) + math.log(self.beta)
        return allowed


@register
class EvidencePolicy:
    """Scores are mean returns in the unit of the rewards where returns were learned, else expected next rewards.

    `risk` says what is made of the quantiles of a return in place of their mean. `learned` are the weights that the
    returns were made of: nothing is recommended by them, but training can go on from there.
    Items that the behaviour model does not allow score −inf; with β = 0 it only explains.
    """

    kind: ClassVar[str] = "evidence"

    def __init__(
        self,
        model: ResponseModel,
        returns: ReturnWeights | None = None,
        behaviour: BehaviourWeights | None = None,
        risk: Risk = MEAN,
        learned: Arrays | None = None,
    ):
        self.model, self.returns, self.behaviour, self.risk = model, returns, behaviour, risk
        self.learned = learned or {}
        self._mean = None if returns is None else returns.folded(risk)
        # All weights that are asked for at once: of the responses, of the mean return, of the behaviour.
        rows = [model.weights.evidence]
        if self._mean is not None:
            rows.append(self._mean.evidence[None])
        if behaviour is not None and behaviour.beta > 0:
            rows.append(behaviour.evidence[None])
        self._weights = np.concatenate(rows).astype(np.float32)
        self._own = model.evidence.own_sums(self._weights)
        self.search = EvidenceSearch(model.evidence, self._weights, self._own, self._values)

    @property
    def n_items(self) -> int:
        return self.model.evidence.n_items

    @property
    def constrained(self) -> bool:
        """Whether only items that the behaviour model allows are recommended."""
        return self.behaviour is not None and self.behaviour.beta > 0

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        evidence, session = self.model.evidence, summary(states)
        if candidates is None:
            sums = evidence.sums(states, self._weights, self._own)
        else:
            sums = np.moveaxis(evidence.rows(states, candidates) @ self._weights.T, -1, 0)
        scores = self._values(sums, session)
        if self.constrained:
            allowed = self._allowed(states, sums if candidates is None else None)
            scores[~(allowed if candidates is None else np.take_along_axis(allowed, candidates, axis=1))] = -np.inf
        if candidates is not None:
            scores[candidates == PAD] = -np.inf
        return scores

    def _values(self, sums: FloatArray, session: FloatArray) -> FloatArray:
        """(B, C) of weights · evidence (R, B, C) in sessions with summaries (B, SUMMARY)."""
        response, mean = self.model.weights, self._mean
        responses = len(response.gains)
        values = response.rewards(sums[:responses] + (response.session @ session.T)[:, :, None])
        if mean is not None and self.returns is not None:
            values *= mean.reward
            values += sums[responses]
            values += (mean.session * self.returns.session_values(session) + mean.constant)[:, None]
        return values

    def shortlist(self, states: States, most: int) -> IntArray:
        """(C,) the items among which the best `most` of one state are, ascending: what to score of many."""
        found: IntArray = self.search.pools(states, most)[0]
        return found

    def best_of_shortlist(self, states: States) -> FloatArray:
        """(B,) the largest scores, as far as shortlists hold them."""
        found: FloatArray = self.scores(states, self.search.pools(states, 1)).max(axis=1)
        return found

    def _allowed(self, states: States, sums: FloatArray | None) -> NDArray[np.bool_]:
        if self.behaviour is None:
            raise ValueError("the bundle has no behaviour model")
        return self.behaviour.allowed(self._behaviour_logits(states) if sums is None else sums[-1])

    def _behaviour_logits(self, states: States) -> FloatArray:
        if self.behaviour is None:
            raise ValueError("the bundle has no behaviour model")
        logits: FloatArray = self.model.evidence.sums(states, self.behaviour.evidence[None])[0]
        return logits

    def log_likelihood(self, states: States) -> FloatArray:
        """(B, A) log p of every item under the behaviour model."""
        logits = self._behaviour_logits(states)
        logits -= logits.max(axis=1, keepdims=True)
        return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))

    @property
    def knows_quantiles(self) -> bool:
        return self.returns is not None and len(self.returns.reward) > 1

    def quantiles(self, states: States, items: IntArray, count: int = 0) -> FloatArray:
        """(B, N) quantiles of the return of `items` (B,) at N evenly spread fractions, in ascending order.

        N is `count`, or the number that was learned; in between the learned ones they are interpolated.
        """
        returns = self.returns
        if returns is None:
            raise ValueError("the policy knows no returns")
        rows = self.model.evidence.rows(states, items[:, None])[:, 0]
        session = summary(states)
        rewards = self.model.weights.of_rows(rows, session)
        known = rewards[:, None] * returns.reward + rows @ returns.evidence.T
        known += returns.session_values(session)[:, None] * returns.session + returns.constant
        known = np.sort(known, axis=1).astype(np.float32)
        if not count or count == known.shape[1]:
            return known
        have, want = ((np.arange(size) + 0.5) / size for size in (known.shape[1], count))
        return np.stack([np.interp(want, have, row) for row in known]).astype(np.float32)

    def settings(self) -> dict[str, Any]:
        return {
            "least": self.model.weights.least,
            "returns": self.returns is not None,
            "beta": None if self.behaviour is None else self.behaviour.beta,
            "risk": self.risk.model_dump(),
            "learned": _shapes(self.learned),
        }

    def arrays(self) -> Arrays:
        parts = {"evidence": self.model.evidence.arrays(), "response": self.model.weights.arrays()}
        if self.returns is not None:
            parts["returns"] = self.returns.arrays()
        if self.behaviour is not None:
            parts["behaviour"] = {"evidence": self.behaviour.evidence}
        parts["learned"] = self.learned
        return {f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()}

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: Arrays) -> Self:
        def part(prefix: str) -> Arrays:
            return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

        evidence = Evidence.restore(part("evidence."))
        columns = evidence.columns
        model = ResponseModel(evidence, ResponseWeights.restore(settings["least"], part("response."), columns))
        returns = behaviour = None
        if settings["returns"]:
            returns = ReturnWeights.restore(part("returns."), columns)
        if settings["beta"] is not None:
            refuse_other_shape("behaviour.evidence", arrays["behaviour.evidence"], (columns,), np.float32)
            behaviour = BehaviourWeights(arrays["behaviour.evidence"], settings["beta"])
        learned = part("learned.")
        if (found := _shapes(learned)) != settings["learned"]:
            raise ValueError(f"learned weights have shapes {found}, expected {settings['learned']}")
        return cls(model, returns, behaviour, Risk(**settings["risk"]), learned)


def _shapes(arrays: Arrays) -> dict[str, list[int]]:
    return {name: list(array.shape) for name, array in sorted(arrays.items())}
