"""`bcd4rec demo`: the whole way once, from a simulated log to a table and a report."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bcd4rec.commands._options import Force, Json, Seed, Users

if TYPE_CHECKING:
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.data.sessions import Tick
    from bcd4rec.evaluation.off_policy.verdict import Verdict
    from bcd4rec.training import Report, Trainer
    from bcd4rec.workflows.comparison import Comparison

EPILOG = "Example:  bcd4rec demo --out demo/"
BASELINES = ("popular", "ctr", "stan", "response")  # quick enough to be fitted while somebody watches
AGENTS = ("dqn", "iqn", "bcd4rec")


JUDGED = "bcd4rec"


def add_to(app: typer.Typer) -> None:
    app.command("demo", epilog=EPILOG)(demo)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the log, the data set and the report.")] = Path("demo"),
    users: Users = 2000,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Simulate a log, check it, prepare it, compare policies on fresh users, write report.html."""
    from bcd4rec.artifacts import MANIFEST, atomic_directory, write_json
    from bcd4rec.commands.evaluate import rules_note, table
    from bcd4rec.console import emit_json, progress, say, show

    began = time.monotonic()
    with atomic_directory(out, force) as folder, progress() as tick:
        found = _run(folder, users, seed, tick)
        tick("judging", 0.0)
        verdict = _verdict(folder, seed)
        _report(folder / "report.html", found, users, seed)
        results = [one.to_json() for one in found.evaluations]
        told = {"word": verdict.word, "reason": verdict.reason}
        write_json(folder / MANIFEST, {"kind": "demo", "users": users, "seed": seed, "policies": results} | told)
    report = out / "report.html"
    if json:
        emit_json({"report": str(report), "policies": results, "verdict": told, "seconds": time.monotonic() - began})
    else:
        show(table(found.evaluations, f"{users:,} fresh users. {rules_note({})}"))
        show(f"What the log alone says of {JUDGED} (bcd4rec judge): {verdict.word}. {verdict.reason}")
        say(f"Done in {time.monotonic() - began:.0f} s. The report is in {report}: open it in a browser.")


def _run(folder: Path, users: int, seed: int, tick: "Tick") -> "Comparison":
    from bcd4rec.console import say
    from bcd4rec.data import checking, preparing
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.data.schema import BadLog, Log
    from bcd4rec.sim.interest_evolution import InterestEvolution
    from bcd4rec.sim.rollout import rollout, write_log
    from bcd4rec.workflows import comparison

    environment = InterestEvolution()
    say(f"1/4  {users:,} simulated users meet random recommendations …")
    log = rollout(environment, comparison.random_policy(environment), users, seed, tick=tick)
    write_log(log, folder / "log.parquet", environment)
    say("2/4  checking and preparing their log …")
    written = Log(folder / "log.parquet")
    found = checking.check(written, environment.responses, tick)
    if found.problems:
        raise BadLog(found.problems)
    preparing.prepare(written, environment.responses, preparing.PrepareConfig(), folder / "dataset", seed, tick=tick)
    dataset = Dataset.load(folder / "dataset")
    say(f"3/4  learning from {dataset.manifest['counts']['impressions']:,} impressions …")
    names = ["random", *BASELINES, *_train_agents(folder, dataset, seed, tick), "oracle"]
    contestants = [comparison.contestant(name, environment, dataset, seed) for name in names]
    say(f"4/4  {len(names)} policies meet {users:,} new users …")
    return comparison.compare(environment, contestants, users, seed, tick=tick)


def _verdict(folder: Path, seed: int) -> "Verdict":
    """Of the paper's agent, by the log that it was learned from."""
    from bcd4rec.data.dataset import Dataset
    from bcd4rec.library import judge

    dataset = Dataset.load(folder / "dataset")
    return judge(folder / "policies" / JUDGED, dataset, logger="random", with_model=False, seed=seed)


def _train_agents(folder: Path, dataset: "Dataset", seed: int, tick: "Tick") -> list[str]:
    """The folders of the trained agents."""
    import torch

    from bcd4rec.workflows.fitting import Watcher, fit

    class Ticks(Watcher):
        def report(self, trainer: "Trainer", report: "Report") -> None:
            tick(f"training {method}", report.step / report.updates)

    torch.set_num_threads(1)
    folders = []
    for method in AGENTS:
        tick(f"training {method}", 0.0)
        path = folder / "policies" / method
        path.mkdir(parents=True)
        fit(method, dataset, seed=seed, watcher=Ticks()).save(dataset, path)
        folders.append(str(path))
    return folders


def _report(path: Path, found: "Comparison", users: int, seed: int) -> None:
    from bcd4rec.commands.evaluate import rules_note
    from bcd4rec.report.comparison import write_report

    intro = [
        "Simulated users with drifting interests were shown random recommendations. The policies below learned from "
        "that log alone, and then met new users. Random is what wrote the log; Oracle sees into the users' minds and "
        "is the upper bound that nobody reaches from logs.",
    ]
    rules: dict[str, Any] = {
        "environment": "interest evolution, preset paper: 200 items in 20 categories, slates of 7, 20 steps",
        "log": f"{users:,} sessions of the random policy",
        "tested on": f"{users:,} new users, the same for all policies",
        "seed": str(seed),
    }
    folders = [f"policies/{method}" for method in AGENTS]
    commands = [
        f"bcd4rec simulate --env recsim --policy random --users {users} --seed {seed} --logs log.parquet",
        "bcd4rec check log.parquet",
        f"bcd4rec prepare log.parquet --out dataset --rewards skip=0,click=4 --seed {seed}",
        *(f"bcd4rec train {method} dataset --out policies/{method} --seed {seed}" for method in AGENTS),
        f"bcd4rec evaluate random {' '.join([*BASELINES, *folders])} oracle --dataset dataset --users {users} "
        f"--seed {seed}",
    ]
    title, note = "From a log to a better policy", rules_note({})
    write_report(path, title, intro, found.evaluations, found.curves, rules, commands, note=note)
