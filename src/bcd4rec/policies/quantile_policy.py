"""A trained Q-network as a policy: greedy over the mean, or another risk measure, of its quantiles."""

import math
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from bcd4rec.constraint import Form, allowed_mask, mask_values
from bcd4rec.data.states import PAD, FloatArray, IntArray, States
from bcd4rec.models.behaviour import BehaviourModel
from bcd4rec.models.heads import midpoints
from bcd4rec.models.q_network import QNetwork, QNetworkConfig, as_tensor
from bcd4rec.policies.risk import MEAN, Risk
from bcd4rec.policies.scorer import Arrays, register


@register
class QuantilePolicy:
    """Scores are mean returns in the unit of the rewards, or what `risk` makes of their quantiles.

    `offset` is what the training took off the returns (centred rewards). Items that the
    behaviour model does not allow score −inf; with β = 0 it allows everything and only explains.
    """

    kind: ClassVar[str] = "quantile_network"

    def __init__(
        self,
        network: QNetwork,
        offset: float = 0.0,
        behaviour: BehaviourModel | None = None,
        beta: float = 0.0,
        form: Form = "relative",
        risk: Risk = MEAN,
    ):
        self.network = network.eval()
        weights = risk.weights(network.head.folded)
        self.risk, self._weights = risk, None if weights is None else torch.from_numpy(weights)
        self.offset, self.behaviour, self.beta, self.form = offset, behaviour, beta, form

    @property
    def n_items(self) -> int:
        return len(self.network.embeddings)

    @torch.no_grad()
    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        vectors = self.network.encode_states(states)
        if candidates is None:
            values = self.network.mean_values(vectors, self._weights)
            values = self._constrain(values, states)
        else:
            items = torch.from_numpy(candidates.astype(np.int64))
            values = self.network.item_values(vectors, items.clamp(min=0), self._weights)
            values = self._constrain(values, states, items.clamp(min=0)).masked_fill(items == PAD, -math.inf)
        return np.asarray((values + self.offset).numpy(), np.float32)

    @torch.no_grad()
    def quantiles(self, states: States, items: IntArray, count: int = 0) -> FloatArray:
        """(B, N) quantiles of the return of `items` (B,) at N evenly spread fractions, in ascending order.

        N is `count` where the head can answer any fraction, and the head's own number otherwise.
        """
        head = self.network.head
        count = count if count and head.samples_taus else head.count
        taus = midpoints(count).expand(len(states), -1)
        actions = self.network.actions(torch.from_numpy(items.astype(np.int64)))
        values = head.quantiles(self.network.encode_states(states), actions, taus)
        return np.asarray((values.sort(dim=1).values + self.offset).numpy(), np.float32)

    def _constrain(self, values: Tensor, states: States, items: Tensor | None = None) -> Tensor:
        if self.behaviour is None or self.beta == 0:
            return values
        allowed = allowed_mask(self.behaviour.log_probabilities(as_tensor(states.positives)), self.beta, self.form)
        return mask_values(values, allowed if items is None else allowed.gather(1, items))

    def settings(self) -> dict[str, Any]:
        return {
            "network": self.network.config.model_dump(),
            "offset": self.offset,
            "constrained": self.behaviour is not None,
            "beta": self.beta,
            "form": self.form,
            "risk": self.risk.model_dump(),
        }

    def arrays(self) -> Arrays:
        parts = {"network": self.network} | ({"behaviour": self.behaviour} if self.behaviour is not None else {})
        return {
            f"{part}.{name}": value.numpy()
            for part, module in parts.items()
            for name, value in module.state_dict().items()
        }

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: Arrays) -> Self:
        network = QNetwork(arrays["network.embeddings"], QNetworkConfig.parse(settings["network"], "policy"))
        _load(network, arrays, "network.")
        behaviour = None
        if settings["constrained"]:
            behaviour = BehaviourModel(arrays["behaviour.embeddings"])
            _load(behaviour, arrays, "behaviour.")
        return cls(network, settings["offset"], behaviour, settings["beta"], settings["form"], Risk(**settings["risk"]))


def _load(module: torch.nn.Module, arrays: Arrays, prefix: str) -> None:
    named = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    module.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in named.items()})
