"""Table 3: what the logs hold, beside the paper's."""

from typing import Any

from bcd4rec.artifacts import MANIFEST, read_json
from bcd4rec.report.page import Table
from reproduction import printed
from reproduction.findings import Finding
from reproduction.results import Results
from reproduction.studies import load
from reproduction.tasks.logs import AnyLog, Checkpoints, RecSimLog

SEED = 0  # the data of the other seeds differ by luck alone


def finding(results: Results) -> Finding:
    rows = []
    for name in load().studies["table3"].logs:
        if not results.lab.present(name):
            continue
        domain = results.lab.domain(name)
        log = domain.log(SEED)
        if results.store.has(log):
            rows.append([domain.title, *_counts(results, log)])
    rows += [[f"the paper's {name}", *values, ""] for name, values in printed.DATA.items()]
    columns = ["log", "train sessions", "train tuples", "test sessions", "items", "responses", "target"]
    return Finding(
        "table3",
        "Table 3: the logs",
        prose=[
            "Seed 0. Train sessions and tuples include the fifth that is kept for validation. A RecSim step shows "
            "seven items and each is a tuple; the paper's 30 k are one a step. On RecSim everybody is "
            "tested on fresh users."
        ],
        tables=[Table([*columns, "categories", "written by"], rows, title="Sizes")],
        commands=results.again(),
    )


def _counts(results: Results, log: AnyLog) -> list[str]:
    manifest: dict[str, Any] = read_json(results.store.path(log) / "dataset" / MANIFEST)
    counts, responses = manifest["counts"], manifest["responses"]

    def of(what: str, *splits: str) -> str:
        return f"{sum(counts[what].get(split, 0) for split in splits):,}"

    users = results.lab.sizes.users
    fresh = f"{users:,} users" if isinstance(log, RecSimLog) else of("sessions_by_split", "test")
    return [
        of("sessions_by_split", "train", "validation"),
        of("impressions_by_split", "train", "validation"),
        fresh,
        f"{counts['items']:,}",
        ", ".join(f"{name} {count:,}" for name, count in counts["responses"].items()),
        str(responses["target"]),
        f"{counts['categories']:,}",
        _author(results, log),
    ]


def _author(results: Results, log: AnyLog) -> str:
    if not isinstance(log, RecSimLog):
        return "the shop's behaviour policy" if log.name == "shop" else "the site"
    if not isinstance(log.checkpoints, Checkpoints) or log.rate is None:
        return "random"
    rounds = read_json(results.store.path(log.checkpoints) / "rounds.json")
    best = min(rounds, key=lambda one: abs(one["rate"] - (log.rate or 0.0)))
    return (
        f"online IQN after round {best['round']} of {len(rounds)}, ε = {best['epsilon']:.2f}, CTR {best['rate']:.1f} "
        f"(asked for {log.rate})"
    )
