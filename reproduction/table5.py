"""Table 5: do R@3 and Q̄, which need the log alone, tell what users will say?"""

from typing import NamedTuple

from bcd4rec.evaluation.correlation import Correlation, correlate
from bcd4rec.evaluation.statistics import Interval
from bcd4rec.evaluation.wording import NAMES, number
from bcd4rec.report.page import Cell, Table
from reproduction import printed, sweep
from reproduction.findings import Claim, Finding
from reproduction.results import Results
from reproduction.writing import ABSENT, bounds, claim


class Swept(NamedTuple):
    """The runs of one method: what users say of them, and how R@3 and Q̄ go along with it."""

    rates: list[float]
    by: dict[str, Correlation]


Found = dict[str, dict[str, Swept]]  # domain -> method


def finding(results: Results) -> Finding:
    found = {domain: _swept(results, domain) for domain in sweep.domains(results)}
    return Finding(
        "table5",
        "Table 5: offline metrics against what users say",
        prose=[
            "Pearson's correlation, over all runs of the grid of β, K and n, of the online rate with R@3 and with Q̄ "
            "on validation sessions: of the values and of their ranks. Brackets are 95 % bootstrap intervals over runs."
            " Where the rates of the whole grid lie close together, there is little to correlate with."
        ],
        tables=[_table(results, domain, methods) for domain, methods in found.items()],
        claims=[_claim(results, found)],
        commands=results.again(),
    )


def _swept(results: Results, domain: str) -> dict[str, Swept]:
    found = {}
    for method in sweep.METHODS:
        points = sweep.points(results, domain, method)
        rates = [point.rate for point in points]
        if points:
            offline = {metric: [point.offline[metric] for point in points] for metric in sweep.METRICS}
            found[method] = Swept(rates, {metric: correlate(rates, values) for metric, values in offline.items()})
    return found


def _table(results: Results, domain: str, methods: dict[str, Swept]) -> Table:
    title = results.lab.domain(domain).title
    rows: list[list[Cell | str]] = []
    for method, (rates, by) in methods.items():
        theirs = printed.CORRELATIONS[printed.column(title)][method]
        ours = [by["recall@3"].values, by["q_bar"].values, by["recall@3"].ranks, by["q_bar"].ranks]
        cells = [cell for one, paper in zip(ours, theirs, strict=True) for cell in (_entry(one), number(paper, 3))]
        rows.append([NAMES[method], *cells, str(by["q_bar"].runs), f"{number(min(rates))} to {number(max(rates))}"])
    heads = [head for kind in ("values", "ranks") for name in ("R@3", "Q̄") for head in (f"{name}, {kind}", "paper")]
    return Table(["method", *heads, "runs", "their rates, %"], rows, title=title)


def _entry(found: Interval | None) -> Cell:
    return Cell(ABSENT) if found is None else Cell(number(found.value, 2), bounds(found, 2))


def _claim(results: Results, found: Found) -> Claim:
    cases, evidence = {}, []
    for domain, methods in found.items():
        title = results.lab.domain(domain).title
        for method, (_, by) in methods.items():
            ours, theirs = by["q_bar"].values, by["recall@3"].values
            if ours is None or theirs is None:
                continue
            cases[f"{title} {method}"] = ours.value > theirs.value and ours.low > 0
            evidence.append(
                f"{title}, {NAMES[method]}: Q̄ {number(ours.value, 2)} {bounds(ours, 2)}, "
                f"R@3 {number(theirs.value, 2)} {bounds(theirs, 2)}"
            )
    text = "Q̄ on held-out sessions correlates with the online metric, and better than R@3 does."
    return claim(text, cases, evidence)
