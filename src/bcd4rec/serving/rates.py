"""Response rates of policies side by side."""

import math

from bcd4rec.serving.messages import ArmRates, Rate
from bcd4rec.serving.storage.records import ArmCounts

Z = 1.959963984540054


def wilson(share: float, observations: int) -> Rate:
    """Wilson's 95 % interval of a share; everything is possible while nothing was observed."""
    if observations == 0:
        return Rate(value=0.0, low=0.0, high=1.0)
    square = Z * Z / observations
    centre = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * math.sqrt(share * (1 - share) / observations + square / (4 * observations))
    return Rate(value=share, low=min(max(centre - half, 0.0), share), high=max(min(centre + half, 1.0), share))


def arm_rates(counts: ArmCounts, serving: bool) -> ArmRates:
    """Items of one session are not independent. Taking each session as one observation is the cautious extreme."""
    shown, requests = max(counts.impressions, 1), max(counts.requests, 1)
    return ArmRates(
        policy=counts.policy,
        arm=counts.arm,
        serving=serving,
        sessions=counts.sessions,
        requests=counts.requests,
        impressions=counts.impressions,
        responses=counts.responses,
        rates={name: wilson(min(number / shown, 1.0), counts.sessions) for name, number in counts.responses.items()},
        per_request={name: number / requests for name, number in counts.responses.items()},
    )
