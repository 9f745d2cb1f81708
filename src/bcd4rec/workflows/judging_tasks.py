"""The study of verdicts as tasks: truths and logs are independent of each other, so they are made side by side.

A worker learns the policies of a case once and keeps them. They follow from the settings alone, so whoever learns them
learns the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from bcd4rec.artifacts import read_json, write_json
from bcd4rec.errors import InputError
from bcd4rec.evaluation.off_policy.estimators import Target
from bcd4rec.runner.running import Crew, Tell
from bcd4rec.runner.store import TaskStore
from bcd4rec.runner.tasks import Task
from bcd4rec.workflows import judging_study as study
from bcd4rec.workflows.judging_study import Case, Said, Settings, Tally, Truth

RESULT = "result.json"


@lru_cache(maxsize=2)
def _cases(name: str, settings: Settings) -> tuple[Case, ...]:
    return tuple(study.cases([name], settings))


@dataclass(frozen=True)
class CaseTruths(Task):
    """How much better the candidates of a case truly are."""

    case: str
    settings: Settings
    cost: ClassVar[float] = 60.0

    @property
    def label(self) -> str:
        return f"{self.case}: truths"

    def make(self, folder: Path, store: TaskStore) -> None:
        found = [study.tallies_of(case, self.settings) for case in _cases(self.case, self.settings)]
        write_json(folder / RESULT, [[(one.case, one.candidate, dict(one.truth)) for one in case] for case in found])


@dataclass(frozen=True)
class JudgedCaseLog(Task):
    """What one log of a case says about its candidates."""

    case: str
    settings: Settings
    number: int
    cost: ClassVar[float] = 15.0

    @property
    def label(self) -> str:
        return f"{self.case}: log {self.number}"

    def make(self, folder: Path, store: TaskStore) -> None:
        cases = _cases(self.case, self.settings)
        found = [[one._asdict() for one in study.judged_log(case, self.number, self.settings)] for case in cases]
        write_json(folder / RESULT, found)


def study_side_by_side(names: Sequence[str], settings: Settings, crew: Crew, tell: Tell) -> list[Tally]:
    """The tallies of all cases, the same as one after the other."""
    for name in names:
        study.known(name)
    truths = {name: CaseTruths(name, settings) for name in names}
    logs = {name: [JudgedCaseLog(name, settings, number) for number in range(settings.logs)] for name in names}
    if failed := crew.make([task for name in names for task in (truths[name], *logs[name])], tell):
        raise InputError(next(iter(failed.values())))
    return [tally for name in names for tally in _told(truths[name], logs[name], crew.store)]


def _tally(case: str, candidate: str, truth: dict[Target, list[float]]) -> Tally:
    return Tally(case, candidate, {target: Truth(*found) for target, found in truth.items()})


def _told(truths: CaseTruths, logs: Sequence[JudgedCaseLog], store: TaskStore) -> list[Tally]:
    def read(task: Task) -> Any:
        return read_json(store.path(task) / RESULT)

    found = [[_tally(*one) for one in case] for case in read(truths)]
    for log in logs:
        for tallies, case in zip(found, read(log), strict=True):
            for tally, said in zip(tallies, case, strict=True):
                tally.add(Said(**said))
    return [tally for tallies in found for tally in tallies]
