"""What the text claims or leaves open: the constraint's form, the state, the encoder, K, the size of the log."""

from bcd4rec.evaluation.findings import Chart, Entry, Finding, Grid, Points
from bcd4rec.evaluation.wording import NAMES
from bcd4rec.experiments.paper.results import Meetings, Results
from bcd4rec.experiments.paper.studies import Run
from bcd4rec.experiments.paper.writing import ABSENT, entry, signed

METHOD = "bcd4rec"
WORDS = {
    (("behaviour", "joint"),): "behaviour model trained along (joint)",
    (("constraint", "literal"),): "constraint as printed: p > β (literal)",
}


def finding(results: Results) -> Finding:
    return Finding(
        "ablations",
        "Ablations: one change at a time",
        prose=[
            "BCD4Rec with one thing changed; the rest is our default: behaviour model trained first and frozen, "
            "relative constraint, skips in the state, tastes as encoder and pre-training, K = 10. The paper's BiGRU, "
            "an SR-GNN and mean pooling are compared on the paper's pre-training (SR-GNN). Differences are paired over "
            "users."
        ],
        grids=[_grid(results, domain) for domain in results.lab.domains_of(results.lab.runs("ablations"))],
        charts=[_sizes(results)] if _sized(results) else [],
        commands=results.again(),
    )


def _grid(results: Results, domain: str) -> Grid:
    usual = results.met(Run(domain, METHOD))
    rows: list[list[Entry | str]] = [["the default", entry(usual), ""]] if usual else []
    for run in results.lab.runs("ablations"):
        met = results.met(run)
        changed = run.domain == domain and run.method == METHOD and (run.settings or "history" in dict(run.log))
        if changed and met is not None:
            rows.append([_words(run), entry(met), _change(met, usual)])
    log = results.baseline("behaviour", domain)
    rows.append(["the log's policy", entry(log), _change(log, usual)])
    title = f"{results.lab.domain(domain).title}, {results.lab.domain(domain).rate} %"
    return Grid(title, ["BCD4Rec with", "rate", "minus the default"], rows)


def _change(met: Meetings | None, usual: Meetings | None) -> str:
    return signed(met.above(usual)) if met is not None and usual is not None else ABSENT


def _words(run: Run) -> str:
    if run.settings in WORDS:
        return WORDS[run.settings]
    if dict(run.log).get("history") == "positives":
        return "no skips in the state"
    settings = dict(run.settings)
    if "encoder" in settings:
        return f"{settings['encoder']} on {settings['pretraining']} embeddings"
    return ", ".join(f"{'K' if name == 'quantiles' else name} = {value}" for name, value in settings.items())


def _sized(results: Results) -> dict[str, list[tuple[int, Meetings]]]:
    """The rate by the number of sessions in the log, for each method."""
    found = dict[str, list[tuple[int, Meetings]]]()
    for run in results.lab.runs("ablations"):
        met = results.met(run) if "sessions" in dict(run.log) else None
        if met is not None:
            found.setdefault(run.method, []).append((dict(run.log)["sessions"], met))
    return found


def _sizes(results: Results) -> Chart:
    series = {
        method: Points(
            [float(sessions) for sessions, _ in values],
            [met.rate.value for _, met in values],
            [met.rate.low for _, met in values],
            [met.rate.high for _, met in values],
        )
        for method, values in _sized(results).items()
    }
    note = f"Logs of random recommendations; {NAMES[METHOD]} beside the best of the neighbours."
    return Chart("data-size", "Sessions in the log, RecSim-1", "lines", "sessions", "CTR %", series, note=note)
