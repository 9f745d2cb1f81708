"""Figure 4: the threshold β and the number of quantiles K, online and offline."""

from reproduction import sweep
from reproduction.findings import Chart, Finding, Points
from reproduction.results import Results
from reproduction.table4 import LETTERS


def finding(results: Results) -> Finding:
    charts = [
        chart
        for domain in sweep.domains(results)
        for setting in ("beta", "quantiles")
        for chart in _charts(results, domain, setting)
    ]
    return Finding(
        "figure4",
        "Figure 4: β and K",
        prose=[
            "Means over all runs of the grid with the same value, so over the other settings and over seeds: the "
            "online rate, and below it R@3 and Q̄ of the same runs."
        ],
        charts=charts,
        commands=results.again(),
    )


def _charts(results: Results, domain: str, setting: str) -> list[Chart]:
    kind, letter = results.lab.domain(domain), LETTERS[setting]
    measures = {"rate": f"{kind.rate} %"} | sweep.METRICS
    charts = []
    for measure, name in measures.items():
        series = {}
        for method in sweep.METHODS:
            found = _curve(results, domain, method, setting, measure)
            if len(found.x) > 1:
                series[method] = found
        if series:
            label = f"sweep-{setting}-{measure.replace('@', '').replace('_', '')}-{domain}"
            charts.append(Chart(label, f"{name} by {letter}, {kind.title}", "lines", letter, name, series))
    return charts


def _curve(results: Results, domain: str, method: str, setting: str, measure: str) -> Points:
    values: dict[float, list[float]] = {}
    for point in sweep.points(results, domain, method):
        if setting in point.settings:
            found = point.rate if measure == "rate" else point.offline[measure]
            values.setdefault(float(point.settings[setting]), []).append(found)
    places = sorted(values)
    return Points(places, [sum(values[place]) / len(values[place]) for place in places])
