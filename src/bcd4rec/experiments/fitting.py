"""One way to learn a policy from a data set, whatever the method."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.data.dataset import Dataset
from bcd4rec.errors import InputError
from bcd4rec.policies import bundle
from bcd4rec.policies.bundle import SavedPolicy

if TYPE_CHECKING:
    from bcd4rec.agents.agent import AgentConfig
    from bcd4rec.registry import Registry
    from bcd4rec.training import Report, Trainer


@dataclass(frozen=True)
class Fitted:
    """A policy that has learned, and what a bundle says about it."""

    policy: SavedPolicy
    kind: str
    about: dict[str, Any]
    reports: "list[Report]" = field(default_factory=list)

    def save(self, dataset: Dataset, folder: Path) -> None:
        counts = np.bincount(dataset.sequences("train").items, minlength=dataset.n_items).astype(np.int32)
        bundle.save(self.policy, self.kind, dataset.vocabulary, folder, self.about, counts)


class Watcher:
    """What the caller wants to know while an agent trains."""

    def stage(self, name: str, loss: float) -> None:
        """Pre-training or the behaviour model has finished a pass."""

    def report(self, trainer: "Trainer", report: "Report") -> None:
        """The agent has trained a while; it is whole here, so this is the place for checkpoints."""


def agents() -> "Registry[type[AgentConfig]]":
    """The registry of agents, which needs torch."""
    try:
        from bcd4rec.agents.agent import AGENTS
    except ModuleNotFoundError:
        raise InputError("Agents need torch: pip install 'bcd4rec[train]'.") from None
    return AGENTS


def fit(
    method: str,
    dataset: Dataset,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
    watcher: Watcher | None = None,
    checkpoint: Path | None = None,
    shared: Path | None = None,
) -> Fitted:
    """Train the method called `method`, with `settings` in place of its defaults.

    Runs with the same folder `shared` do alike pre-training once.
    """
    about = {
        "method": method,
        "seed": seed,
        "data": {"content_hash": dataset.content_hash, "counts": dataset.manifest["counts"]},
        "responses": dataset.manifest["responses"],
        "history": _history(dataset),
        "origin": dataset.manifest.get("origin"),
    }
    if method in agents():
        return _fit_agent(method, dataset, settings or {}, seed, watcher or Watcher(), checkpoint, about, shared)
    if method not in BASELINES:
        raise InputError(f"Unknown method {method!r}; known are {', '.join([*agents(), *BASELINES])}.")
    config = BASELINES[method].parse(settings or {}, f"{method} --set")
    policy = config.fit(dataset, seed)
    return Fitted(policy, _kind(policy), about | {"config": config.model_dump(mode="json")})


def _fit_agent(
    method: str,
    dataset: Dataset,
    settings: dict[str, Any],
    seed: int,
    watcher: Watcher,
    checkpoint: Path | None,
    about: dict[str, Any],
    shared: Path | None,
) -> Fitted:
    from bcd4rec.training import Trainer

    config = agents()[method].parse(settings, f"{method} --set")
    trainer = Trainer(config, dataset, seed, checkpoint, watcher.stage, shared)
    reports = []
    for report in trainer.run():
        reports.append(report)
        watcher.report(trainer, report)
    policy = trainer.agent.policy()
    last = {key: value for key, value in asdict(reports[-1]).items() if key != "per_second"} if reports else {}
    return Fitted(policy, _kind(policy), about | {"config": config.model_dump(mode="json"), "training": last}, reports)


def _history(dataset: Dataset) -> dict[str, int]:
    return {"length": dataset.states.positives.shape[1], "skips": dataset.states.skips.shape[1]}


def _kind(policy: SavedPolicy) -> str:
    """A policy's kind is the name of its module."""
    return type(policy).__module__.rpartition(".")[2]
