"""The returns that agents foretell beside those that three types of users bring."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bcd4rec.artifacts import write_json
from bcd4rec.policies import bundle
from bcd4rec.runner.store import TaskStore
from bcd4rec.runner.tasks import Task
from bcd4rec.sim.interest_evolution import InterestEvolution
from reproduction.tasks.learners import Trained
from reproduction.tasks.logs import RecSimLog, dataset_of
from reproduction.value_distribution import Distributional, value_distributions


@dataclass(frozen=True)
class Distributions(Task):
    """Of agents that learned from the same log."""

    log: RecSimLog
    agents: tuple[Trained, ...]
    seed: int
    users: int = 50
    cost: ClassVar[float] = 3.0

    @property
    def label(self) -> str:
        return f"value distributions on {self.log.name}, seed {self.seed}"

    def make(self, folder: Path, store: TaskStore) -> None:
        loaded = {agent.method: bundle.load(store.path(agent) / "policy").scorer for agent in self.agents}
        policies = {name: policy for name, policy in loaded.items() if isinstance(policy, Distributional)}
        dataset = dataset_of(self.log, store)
        found = value_distributions(InterestEvolution(), policies, dataset, self.seed, self.users)
        types = [
            {
                "category": one.category,
                "returns": {unit: returns.tolist() for unit, returns in one.returns.items()},
                "distances": {unit: dict(distances) for unit, distances in one.distances.items()},
            }
            for one in found.types
        ]
        quantiles = {name: values.tolist() for name, values in found.quantiles.items()}
        write_json(
            folder / "distributions.json",
            {"item": found.item, "feasible": found.feasible, "quantiles": quantiles, "types": types},
        )
