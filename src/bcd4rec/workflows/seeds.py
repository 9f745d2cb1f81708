"""The same training with several seeds, as tasks: how much of a result is luck, and which policy to take."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar

from bcd4rec.artifacts import read_json, write_json
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.sessions import Tick, no_tick
from bcd4rec.evaluation.logged_slates import Judgement
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Policy
from bcd4rec.runner.store import TaskStore
from bcd4rec.runner.tasks import Given, Task
from bcd4rec.workflows.fitting import Fitted, fit
from bcd4rec.workflows.judging import Validation, judge_on_log
from bcd4rec.workflows.searching import Search

POLICY, RESULT = "policy", "result.json"


def finished(fitted: Fitted, data: Dataset, seed: int, tick: Tick = no_tick) -> tuple[Validation, Policy]:
    """Judged on validation sessions, and with the slate rule that the log chooses."""
    validation = judge_on_log(fitted, data, seed, tick)
    fitted.about["validation"] = validation.to_json()
    tick("choosing the slate rule", 0.0)
    return validation, fitted.whole(data)


@dataclass(frozen=True)
class SeededPolicy(Task):
    """What `bcd4rec train --seed` makes, wherever it is made."""

    data: Given
    method: str
    settings: tuple[tuple[str, Any], ...]
    search: Search
    seed: int
    device: str = "cpu"
    cost: ClassVar[float] = 120.0

    @property
    def label(self) -> str:
        return f"{self.method}, seed {self.seed}"

    def make(self, folder: Path, store: TaskStore) -> None:
        data = Dataset.load(store.path(self.data) / self.data.name)
        fitted = fit(self.method, data, dict(self.settings), self.seed, search=self.search, device=self.device)
        _, policy = finished(fitted, data, self.seed)
        (folder / POLICY).mkdir()
        bundle.write(policy, folder / POLICY)
        untimed = [asdict(one) | {"per_second": 0.0} for one in fitted.reports]  # the same seed, the same bits
        write_json(folder / RESULT, {"training": fitted.about.get("training", {}), "reports": untimed})

    def result(self, store: TaskStore) -> Any:
        return read_json(store.path(self) / RESULT)


def spread(judgement: Judgement, policies: Mapping[str, Policy]) -> dict[str, Any]:
    """The headline measure of each on the same validation cases, how far they lie apart, and the best."""
    found = {name: judgement.interval(name) for name in policies}
    scores = {name: one for name, one in found.items() if one is not None}
    values = {name: one.value for name, one in scores.items()}
    if not values:
        return {"measure": judgement.headline, "scores": {}, "best": None}
    return {
        "measure": judgement.headline,
        "cases": len(judgement.cases),
        "scores": {name: one._asdict() for name, one in scores.items()},
        "mean": fmean(values.values()),
        "standard_deviation": stdev(values.values()) if len(values) > 1 else 0.0,
        "lowest": min(values.values()),
        "highest": max(values.values()),
        "best": max(values, key=values.__getitem__),  # the first of equals
    }
