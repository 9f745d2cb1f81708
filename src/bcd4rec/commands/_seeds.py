"""`bcd4rec train --seeds`: several policies that differ by luck alone, side by side."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcd4rec.artifacts import MANIFEST, atomic_directory, remove, write_json
from bcd4rec.commands._tasks import make, refuse_parted
from bcd4rec.console import emit_json, progress, say, show
from bcd4rec.data.dataset import Dataset
from bcd4rec.errors import InputError
from bcd4rec.evaluation.offline import realised_return
from bcd4rec.policies import bundle
from bcd4rec.report.training import write_training_report
from bcd4rec.runner.bucket import open_store
from bcd4rec.runner.tasks import Given
from bcd4rec.training import Report
from bcd4rec.workflows.judging import CLICKS_ONLY, clicks_only, judge_policies
from bcd4rec.workflows.seeds import POLICY, SeededPolicy, spread

if TYPE_CHECKING:
    from rich.table import Table

    from bcd4rec.runner.store import TaskStore
    from bcd4rec.workflows.searching import Search

KIND = "seeds"


def train_seeds(
    method: str,
    dataset: Path,
    out: Path,
    settings: dict[str, Any],
    search: "Search",
    seeds: range,
    device: str,
    jobs: int | None,
    ray: str | None,
    store: str | None,
    force: bool,
    json: bool,
) -> None:
    """The folder `out` gets a policy for each seed. What is finished is kept beside it until all are."""
    refuse_parted(store, ray)
    data, given = Dataset.load(dataset), Given.of("dataset", dataset)
    beside = out.with_name(f"{out.name}.tasks")
    kept = open_store(store or beside)
    tasks = {f"seed-{one}": SeededPolicy(given, method, tuple(settings.items()), search, one, device) for one in seeds}
    try:
        failed = make(tasks.values(), kept, jobs, ray)
    except KeyboardInterrupt:
        raise InputError(f"Interrupted; what is finished is in {kept.name}: run the same command to go on.") from None
    if failed:
        raise InputError(f"{next(iter(failed.values()))} What is finished is kept in {kept.name}.")
    policies = {name: bundle.load(kept.path(task) / POLICY) for name, task in tasks.items()}
    try:
        with progress() as tick:
            found = spread(judge_policies(policies, data, seeds[0], tick), policies)
    except InputError as error:
        found = {"measure": None, "scores": {}, "best": None, "note": f"Nothing tells which is best. {error}"}
    found |= {"trained": {name: task.result(kept)["training"] for name, task in tasks.items()}}
    if clicks_only(data):
        say(CLICKS_ONLY)
    _write(out, method, data, tasks, kept, found, force)
    if store is None:
        remove(beside)
    if json:
        emit_json({"policies": str(out), "method": method, "seeds": list(seeds)} | found)
    else:
        _show(method, out, found)


def _write(
    out: Path,
    method: str,
    data: Dataset,
    tasks: dict[str, SeededPolicy],
    kept: "TaskStore",
    found: dict[str, Any],
    force: bool,
) -> None:
    """Each folder is what `train` with that seed would have written."""
    with atomic_directory(out, force) as folder:
        for name, task in tasks.items():
            with atomic_directory(folder / name) as own:
                write_policy(own, task, kept, data)
        write_json(folder / MANIFEST, {"kind": KIND, "method": method} | found)


def write_policy(folder: Path, task: SeededPolicy, kept: "TaskStore", data: Dataset) -> None:
    """What a task has learned, and its page, into an existing folder."""
    shutil.copytree(kept.path(task) / POLICY, folder, dirs_exist_ok=True)
    if reports := [Report(**one) for one in task.result(kept)["reports"]]:
        write_training_report(folder / "training.html", task.method, reports, realised_return(data))


def _show(method: str, out: Path, found: dict[str, Any]) -> None:
    if found["best"] is None:
        say(found.get("note", "No validation case tells which is best."))
        say(f"The policies are in {out}.")
        return
    show(_table(method, found))
    show(
        f"Spread over {len(found['scores'])} seeds: {found['mean']:.3f} ± {found['standard_deviation']:.3f} "
        f"({found['lowest']:.3f} to {found['highest']:.3f}). Best by validation: {found['best']}, whose own number is "
        "the luckiest of them: judge it by other sessions."
    )
    say(f"The policies are in {out}. Try the best:  bcd4rec recommend {out / found['best']} --session ID,ID --top 3")


def _table(method: str, found: dict[str, Any]) -> "Table":
    from rich.table import Table

    from bcd4rec.evaluation.logged_slates import MEASURES

    measure = MEASURES.get(found["measure"], found["measure"])
    table = Table(title=f"{method} on {found['cases']:,} validation cases", title_justify="left")
    for name in ("policy", measure, "Q̄"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for name, one in found["scores"].items():
        value = found["trained"][name].get("q_bar")
        shown = f"{one['value']:.3f} [{one['low']:.3f}, {one['high']:.3f}]"
        table.add_row(name, shown, "–" if value is None else f"{value:.2f}")
    return table
