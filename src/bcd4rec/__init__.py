"""bcd4rec: from impression logs to a better recommendation policy, shown before it ships.

import bcd4rec
data = bcd4rec.Dataset.from_frame(frame, rewards={"skip": 0, "click": 1})
policy = bcd4rec.train("bcd4rec", data, seed=0)
bcd4rec.evaluate([policy, "ctr"], log=data).table()
bcd4rec.judge(policy, data, logger="old/").reason
policy.recommend([17, 4, (98, "skip")], k=3)
policy.save("policy/"); bcd4rec.load("policy/")
"""

import importlib
from typing import TYPE_CHECKING, Any

from bcd4rec.version import __version__

if TYPE_CHECKING:
    from bcd4rec.agents.agent import Agent
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.library import evaluate, judge, load, train
    from bcd4rec.policies.policy import Policy

__all__ = ["Agent", "Dataset", "Policy", "__version__", "evaluate", "judge", "load", "train"]

# Found when first asked for: `bcd4rec --help` and a server that needs no torch must not wait for all of it.
_WHERE = {
    "Agent": "agents.agent",
    "Dataset": "data.dataset",
    "Policy": "policies.policy",
    "evaluate": "library",
    "judge": "library",
    "load": "library",
    "train": "library",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'bcd4rec' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bcd4rec.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
