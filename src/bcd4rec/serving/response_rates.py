"""Response rates of policies side by side."""

import math

from scipy.special import stdtrit

from bcd4rec.serving.messages import ArmRates, Rate
from bcd4rec.serving.storage.records import ArmCounts

Z = 1.959963984540054


def wilson(share: float, observations: float) -> Rate:
    """Wilson's 95 % interval of a share; everything is possible while nothing was observed."""
    if observations == 0:
        return Rate(value=0.0, low=0.0, high=1.0)
    square = Z * Z / observations
    centre = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * math.sqrt(share * (1 - share) / observations + square / (4 * observations))
    return Rate(value=share, low=min(max(centre - half, 0.0), share), high=max(min(centre + half, 1.0), share))


def clustered(share: float, sessions: int, impressions: int, residuals: float) -> Rate:
    """The 95 % interval of a share of shown items, of which those of one session are not independent.

    The spread between sessions gives the variance of the ratio (the delta method), and that the number of independent
    items that would be as uncertain, which goes into Wilson's interval; few sessions are paid for as in Student's t.
    Where nothing was answered, or all, there is no spread to see, and each session is taken as one observation.
    """
    if sessions < 2 or share in (0.0, 1.0):
        return wilson(share, sessions)
    variance = sessions / (sessions - 1) * residuals / impressions**2
    independent = min(share * (1 - share) / variance, impressions) if variance > 0 else impressions
    return wilson(share, independent * (Z / float(stdtrit(sessions - 1, 0.975))) ** 2)


def arm_rates(counts: ArmCounts, serving: bool) -> ArmRates:
    shown, requests = max(counts.impressions, 1), max(counts.requests, 1)
    return ArmRates(
        policy=counts.policy,
        arm=counts.arm,
        serving=serving,
        sessions=counts.sessions,
        requests=counts.requests,
        impressions=counts.impressions,
        responses=counts.responses,
        rates={
            name: clustered(number / shown, counts.sessions, shown, counts.residuals[name])
            for name, number in counts.responses.items()
        },
        per_request={name: number / requests for name, number in counts.responses.items()},
    )
