"""What the runs of a study have found, over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from bcd4rec.artifacts import read_json
from bcd4rec.evaluation.statistics import RATE, Interval, difference, gap_interval, interval
from bcd4rec.runner.store import TaskStore
from reproduction.studies import Laboratory, Run, World
from reproduction.tasks.evaluations import AnyEvaluationRun
from reproduction.tasks.learners import Trained


@dataclass(frozen=True)
class EvaluationRuns:
    """One policy and the users of every seed; what the seeds say is averaged, their sessions are pooled."""

    store: TaskStore
    tasks: Sequence[AnyEvaluationRun]
    asked: int  # for so many seeds, some of which may be missing

    @cached_property
    def results(self) -> list[dict[str, Any]]:
        return [read_json(self.store.path(task) / "result.json") for task in self.tasks]

    def values(self, name: str) -> list[float]:
        return [one[name] for one in self.results if one.get(name) is not None]

    def by_seed(self, name: str) -> dict[int, float]:
        pairs = zip(self.tasks, self.results, strict=True)
        return {task.seed: one[name] for task, one in pairs if one.get(name) is not None}

    def mean(self, name: str = "rate") -> float:
        return float(np.mean(self.values(name)))

    def deviation(self, name: str = "rate") -> float | None:
        """Between seeds; None of a single one."""
        values = self.values(name)
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    @cached_property
    def sessions(self) -> pl.DataFrame:
        """`per_session` of all seeds; a user of one seed is another one than the user of that number of the next."""
        tables = [self.table(number, "sessions") for number in range(len(self.tasks))]
        named = [
            table.with_columns(pl.format(f"{number}/{{}}", "session_id").alias("session_id"))
            for number, table in enumerate(tables)
        ]
        return pl.concat(named)

    def table(self, number: int, name: str) -> pl.DataFrame:
        return pl.read_parquet(self.store.path(self.tasks[number]) / f"{name}.parquet")

    @cached_property
    def rate(self) -> Interval:
        return interval(self.sessions, RATE)

    def above(self, other: "EvaluationRuns") -> Interval:
        """How much better than another policy, with an interval that is paired where both met the same users."""
        return difference(self.sessions, other.sessions, RATE)

    def gap(self, behaviour: "EvaluationRuns", online: "EvaluationRuns") -> Interval | None:
        return gap_interval(self.sessions, behaviour.sessions, online.sessions, RATE)


@dataclass(frozen=True)
class Results:
    """What a study reads from the store; a run that failed or was not made is absent."""

    lab: Laboratory
    store: TaskStore
    study: str

    @property
    def seeds(self) -> range:
        return self.lab.seeds_of(self.study)

    def again(self) -> list[str]:
        """How to run the study again."""
        return [self.lab.command(self.study)]

    def evaluated(self, run: Run, world: World = "learned") -> EvaluationRuns | None:
        return self._runs([self.lab.evaluated(run, seed, world) for seed in self.seeds])

    def baseline(self, name: str, domain: str, world: World = "learned") -> EvaluationRuns | None:
        return self._runs([self.lab.baseline(name, domain, seed, world) for seed in self.seeds])

    def _runs(self, tasks: Sequence[AnyEvaluationRun]) -> EvaluationRuns | None:
        made = [task for task in tasks if self.store.has(task)]
        return EvaluationRuns(self.store, made, len(tasks)) if made else None

    def offline(self, task: Trained) -> dict[str, float | None]:
        """`q_bar` and `recall@3`."""
        found: dict[str, float | None] = read_json(self.store.path(task) / "offline.json")
        return found

    def rate(self, task: AnyEvaluationRun) -> float:
        return float(read_json(self.store.path(task) / "result.json")["rate"])
