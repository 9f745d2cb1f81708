"""Settings of agents that have a name; they need no torch."""

from typing import Any

from bcd4rec.errors import InputError

PRESETS: dict[str, dict[str, Any]] = {
    # The network and the settings that the paper prints; how many updates it had, it does not say. Its states hold
    # clicks alone: `bcd4rec prepare --history positives`.
    "paper": {
        "evidence": False,
        "encoder": "bigru",
        "layers": 2,
        "pretraining": "srgnn",
        "freeze_embeddings": False,
        "state_value": False,
        "centre_rewards": False,
        "warm_up": 0.0,
        "target": "hard",
        "learning_rate": 0.003,
        "decay": 0.0,
        "cosines": 128,
        "batch_size": 64,
        "updates": 2500,
    }
}


def preset(name: str) -> dict[str, Any]:
    """The settings of the preset of this name; an unknown name is bad input."""
    if name not in PRESETS:
        raise InputError(f"Unknown preset {name!r} of the agents; known are {', '.join(PRESETS)}.")
    return PRESETS[name]
