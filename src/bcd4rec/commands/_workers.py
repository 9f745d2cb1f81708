"""`bcd4rec train --workers`: one policy, trained by several workers together."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcd4rec.artifacts import atomic_directory, remove
from bcd4rec.commands._seeds import write_policy
from bcd4rec.commands._tasks import refuse_parted
from bcd4rec.console import emit_json, err, pairs_table, say, show
from bcd4rec.data.dataset import Dataset
from bcd4rec.errors import InputError
from bcd4rec.runner.bucket import open_store
from bcd4rec.workflows.judging import CLICKS_ONLY, clicks_only
from bcd4rec.workflows.several_workers import train_together

if TYPE_CHECKING:
    from bcd4rec.workflows.seeds import SeededPolicy

LINE_SECONDS = 2.0


def train_with_workers(
    task: "SeededPolicy", dataset: Path, out: Path, ray: str, store: str | None, resume: bool, force: bool, json: bool
) -> None:
    refuse_parted(store, ray)
    began = time.monotonic()
    data, beside = Dataset.load(dataset), out.with_name(f"{out.name}.tasks")
    checkpoint = out.with_name(f"{out.name}.checkpoint")
    if not resume:
        remove(checkpoint)  # of an earlier run
    kept = open_store(store or beside)
    last: dict[str, Any] = {}
    said = [time.monotonic()]

    def tell(report: dict[str, Any]) -> None:
        last.update(report)
        if time.monotonic() - said[0] > LINE_SECONDS:
            said[0] = time.monotonic()
            where = f"update {report['step']:,} of {report['updates']:,}: loss {report['loss']:.3f}"
            err().print(f"{where}  Q̄ {report['q_bar']:.2f}  {report['per_second']:,.0f} transitions/s")

    try:
        train_together(task, kept, checkpoint, resume, ray, tell)
    except KeyboardInterrupt:
        how = "run the same command with --resume to continue" if checkpoint.is_dir() else "no checkpoint was due yet"
        raise InputError(f"Interrupted; {how}.") from None
    with atomic_directory(out, force) as folder:
        write_policy(folder, task, kept, data)
    remove(checkpoint)
    told = task.result(kept)["training"]
    if store is None:
        remove(beside)
    seconds = time.monotonic() - began
    if clicks_only(data):
        say(CLICKS_ONLY)
    about = {"policy": str(out), "method": task.method, "seed": task.seed, "workers": task.workers}
    if json:
        waited = last.get("communication_seconds")
        emit_json(about | {"seconds": seconds, "communication_seconds": waited} | told)
        return
    pairs = [
        (name.replace("_", " "), f"{value:,.3f}" if isinstance(value, float) else f"{value:,}")
        for name, value in told.items()
    ]
    show(pairs_table(f"{task.method}, trained by {task.workers} workers in {seconds:.0f} s", pairs))
    say(f"The policy is in {out}. Try it:  bcd4rec recommend {out} --session ID,ID --top 3")
