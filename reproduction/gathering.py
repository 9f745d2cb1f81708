"""All findings together, with when, where and with what they were made, and what they cost."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import bcd4rec
from bcd4rec.artifacts import library_versions
from bcd4rec.report.page import Table
from bcd4rec.runner.store import TaskStore, plan
from bcd4rec.runner.tasks import Task
from reproduction.findings import Finding, Reproduction
from reproduction.results import Results
from reproduction.studies import Laboratory
from reproduction.tasks.learners import Trained


def reproduce(
    studies: Sequence[str], lab: Laboratory, store: TaskStore, failed: Mapping[str, str], command: str
) -> Reproduction:
    """What the runs of some studies have found. Each study is a module of this folder with a function `finding`."""
    findings = [_finding(study, Results(lab, store, study)) for study in studies]
    tasks = plan((task for study in studies for task in lab.tasks(study)), store).tasks
    return Reproduction(findings, lab.quick, _made(lab, store, tasks, failed, command), _costs(store, tasks))


def _finding(study: str, results: Results) -> Finding:
    """Without the tables of domains that have no runs, and with a word where there are fewer seeds than in table 1."""
    found: Finding = import_module(f"reproduction.{study}").finding(results)
    seeds = ", ".join(map(str, results.seeds))
    fewer = [f"Seeds of these runs: {seeds}."] if len(results.seeds) < results.lab.sizes.seeds else []
    return replace(found, tables=[table for table in found.tables if table.rows], prose=[*found.prose, *fewer])


def _made(
    lab: Laboratory, store: TaskStore, tasks: Sequence[Task], failed: Mapping[str, str], command: str
) -> dict[str, str]:
    sizes = lab.sizes
    codes = sorted({about["code"] for task in tasks if (about := store.about(task)) is not None})
    versions = library_versions()
    made = {
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
        "version": f"bcd4rec {versions['bcd4rec'] or 'from its source'}{_commit()}",
        "code of the runs": ", ".join(code[:8] for code in codes),
        "machine": _machine(),
        "libraries": ", ".join(f"{name} {value}" for name, value in versions.items() if name != "bcd4rec" and value),
        "seeds": ", ".join(map(str, range(sizes.seeds))),
        "users": f"{sizes.users:,} for each policy and seed",
    }
    made |= {"left out": f"{', '.join(lab.absent)}: no log was given"} if lab.absent else {}
    return made | ({"failed": "; ".join(failed.values())} if failed else {})


def _commit() -> str:
    """The commit, where the package lies in a checkout."""
    try:
        found = subprocess.run(  # noqa: S603
            ["git", "-C", str(Path(bcd4rec.__file__).parent), "describe", "--always", "--dirty"],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return f", commit {found.stdout.strip()}"


def _machine() -> str:
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (ValueError, OSError, AttributeError):
        return f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}"
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.machine()}, {platform.system()}"


def _costs(store: TaskStore, tasks: Sequence[Task]) -> Table:
    """Seconds of all tasks, by what they do; a task that served several tables counts once."""
    totals: dict[str, list[float]] = {}
    for task in tasks:
        about: dict[str, Any] | None = store.about(task)
        if about is not None:
            name = f"training {task.method}" if isinstance(task, Trained) else _kind(task)
            totals.setdefault(name, []).append(float(about["seconds"]))
    ranked = sorted(totals.items(), key=lambda one: -sum(one[1]))
    rows = [[name, str(len(times)), f"{sum(times) / 60:.1f}", f"{max(times):.0f}"] for name, times in ranked]
    every = [seconds for times in totals.values() for seconds in times]
    rows.append(["all", str(len(every)), f"{sum(every) / 60:.1f}", f"{max(every, default=0):.0f}"])
    return Table(["work", "tasks", "minutes of one core", "longest, s"], rows, title="Where the time went")


KINDS = {
    "Checkpoints": "online IQN for the logs of RecSim-2 and -3",
    "RecSimLog": "logs of RecSim",
    "ShopLog": "logs of the shop",
    "RealLog": "reading raw logs",
    "User": "learned users",
    "TrainedOnline": "online IQN on learned users",
    "EvaluationRun": "policies meeting users",
    "ObservingEvaluationRun": "online IQN that sees interests",
    "Distributions": "value distributions",
}


def _kind(task: Task) -> str:
    return KINDS.get(type(task).__name__, type(task).__name__)
