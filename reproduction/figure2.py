"""Figure 2: what pre-trained embeddings are worth, and offline metrics against what users say."""

from bcd4rec.evaluation.wording import NAMES
from bcd4rec.report.page import Cell, Table
from reproduction import sweep
from reproduction.findings import Chart, Claim, Finding, Points
from reproduction.results import EvaluationRuns, Results
from reproduction.studies import Run
from reproduction.writing import claim, entry, signed

STARTS = ("none", "item2vec", "srgnn")
Found = dict[str, dict[str, EvaluationRuns]]  # method -> start


def finding(results: Results) -> Finding:
    found = {domain: _starts(results, domain) for domain in results.lab.domains_of(_runs(results))}
    return Finding(
        "figure2",
        "Figure 2: gain from pre-training; offline metrics against users",
        prose=[
            "How item embeddings start: from nothing, from item2vec, or from an SR-GNN that predicts the next positive "
            "item, as in the paper. Everything else is the paper's network, as in `as_printed`. The agents of table 1 "
            "have no embeddings to pre-train.",
            "The scatter plots have one point for each run of the grid of β, K and n.",
        ],
        tables=[_table(results, domain, methods) for domain, methods in found.items()],
        charts=[
            *(_chart(results, domain, methods) for domain, methods in found.items()),
            *(_scatter(results, domain, metric) for domain in sweep.domains(results) for metric in sweep.METRICS),
        ],
        claims=[_claim(results, found)],
        commands=results.again(),
    )


def _runs(results: Results) -> list[Run]:
    return [run for run in results.lab.runs("figure2") if "pretraining" in dict(run.settings)]


def _starts(results: Results, domain: str) -> Found:
    found: Found = {}
    for run in _runs(results):
        met = results.evaluated(run) if run.domain == domain else None
        if met is not None:
            found.setdefault(run.method, {})[dict(run.settings)["pretraining"]] = met
    return found


def _table(results: Results, domain: str, methods: Found) -> Table:
    rows: list[list[Cell | str]] = []
    for method, by in methods.items():
        best = max(by, key=lambda start: by[start].mean())
        cells = [entry(by.get(start), start == best) for start in STARTS]
        rows.append([NAMES[method], *cells])
    kind = results.lab.domain(domain)
    return Table(["method", *STARTS], rows, title=f"{kind.title}, {kind.rate} %")


def _chart(results: Results, domain: str, methods: Found) -> Chart:
    series = {}
    for start in STARTS:
        there = [(place, by[start]) for place, by in enumerate(methods.values()) if start in by]
        series[start] = Points(
            [float(place) for place, _ in there],
            [one.rate.value for _, one in there],
            [one.rate.low for _, one in there],
            [one.rate.high for _, one in there],
        )
    kind = results.lab.domain(domain)
    labels = [NAMES[method] for method in methods]
    title = f"Pre-training, {kind.title}"
    return Chart(f"pretraining-{domain}", title, "groups", "agent", f"{kind.rate} %", series, labels)


def _scatter(results: Results, domain: str, metric: str) -> Chart:
    series = {}
    for method in sweep.METHODS:
        points = sweep.points(results, domain, method)
        if points:
            series[method] = Points([point.offline[metric] for point in points], [point.rate for point in points])
    kind, name = results.lab.domain(domain), sweep.METRICS[metric]
    label = f"scatter-{metric.replace('@', '').replace('_', '')}-{domain}"
    unit = f"{name}, in the unit of the rewards" if metric == "q_bar" else f"{name} %"
    return Chart(label, f"{name} against {kind.rate}, {kind.title}", "scatter", unit, f"{kind.rate} %", series)


def _claim(results: Results, found: dict[str, Found]) -> Claim:
    cases, evidence = {}, []
    for domain, methods in found.items():
        title = results.lab.domain(domain).title
        told = []
        for method, by in methods.items():
            if "srgnn" in by and "none" in by:
                gain = by["srgnn"].above(by["none"])
                cases[f"{domain} {method}"] = gain.low > 0
                told.append(f"{NAMES[method]} {signed(gain)}")
        evidence.append(f"{title}, SR-GNN minus none: {'; '.join(told)}")
    return claim("Pre-training item embeddings with an SR-GNN improves every agent.", cases, evidence)
