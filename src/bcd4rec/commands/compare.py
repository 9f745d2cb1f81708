"""`bcd4rec compare`: is one policy better than another, or was it luck?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bcd4rec.commands._options import Force, Json, Seed

if TYPE_CHECKING:
    from rich.table import Table

    from bcd4rec.evaluation.paired_tests import PairedComparison
    from bcd4rec.evaluation.statistics import Interval

EPILOG = "Example:  bcd4rec compare sknn.parquet stan.parquet"


def add_to(app: typer.Typer) -> None:
    app.command("compare", epilog=EPILOG)(compare)


def compare(
    results: Annotated[
        list[Path],
        typer.Argument(help="Files of `benchmark sessions --lists`, one per method, or of `evaluate --sessions`."),
    ],
    against: Annotated[str | None, typer.Option(help="Only the pairs with this policy. Default: all pairs.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the metrics of each session or case to Parquet.")] = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Differences between policies that met the same sessions: paired intervals, and tests corrected for many pairs."""
    from bcd4rec.artifacts import atomic_file, refuse_existing
    from bcd4rec.console import emit_json, say, show
    from bcd4rec.evaluation.paired_tests import compare_paired
    from bcd4rec.workflows.results import read_results

    if out is not None:
        refuse_existing(out, force, inputs=results)
    read = read_results(results)
    found = compare_paired(read.tables, read.ratios, seed, against)
    if out is not None:
        with atomic_file(out, force) as path:
            read.long().write_parquet(path)
    count = len(next(iter(read.tables.values())))
    if json:
        emit_json({"unit": read.unit, "count": count, "seed": seed} | to_json(found))
        return
    show(table(found, f"{len(read.tables)} policies on the same {count:,} {read.unit}s"))
    say("p is corrected by Holm for the pairs of a metric; * is below 5 %: luck is not likely to have done that.")


def to_json(found: "PairedComparison") -> dict[str, Any]:
    policies: dict[str, dict[str, Any]] = {}
    for metric, by_policy in found.values.items():
        for policy, value in by_policy.items():
            policies.setdefault(policy, {"policy": policy}).update(_flat(metric, value))
    pairs = [
        {"metric": one.metric, "first": one.first, "second": one.second}
        | _flat("difference", one.difference)
        | {"p_value": one.p_value, "p_holm": one.p_holm, "significant": one.significant}
        for one in found.pairs
    ]
    return {"policies": list(policies.values()), "pairs": pairs}


def _flat(name: str, value: "Interval") -> dict[str, float]:
    return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}


def table(found: "PairedComparison", title: str) -> "Table":
    from rich.table import Table

    shown = Table(title=title, title_justify="left")
    shown.add_column("metric", style="bold")
    for name in ("first", "second", "first − second", "p"):
        shown.add_column(name, justify="right")
    for one in found.pairs:
        values = found.values[one.metric]
        shown.add_row(
            one.metric.replace("_", " "),
            *(f"{name} {values[name].value:.2f}" for name in (one.first, one.second)),
            one.difference.text(2),
            f"{one.p_holm:.4f}{' *' if one.significant else '  '}",
        )
    return shown
