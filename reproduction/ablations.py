"""What the text claims or leaves open: the constraint's form, the state, the encoder, K, the size of the log."""

from bcd4rec.evaluation.wording import NAMES
from bcd4rec.report.page import Cell, Table
from reproduction.findings import Chart, Finding, Points
from reproduction.results import EvaluationRuns, Results
from reproduction.studies import Run
from reproduction.writing import ABSENT, entry, signed

METHOD = "bcd4rec"
WORDS = {
    ("behaviour", "joint"): "behaviour model trained along (joint)",
    ("constraint", "literal"): "constraint as printed: p > β (literal)",
    ("history", "positives"): "no skips in the state",
    ("rewards", "logged"): "rewards of the log in place of the response model's",
    ("shrink", 0.0): "values that are not drawn to the response model's",
}


def finding(results: Results) -> Finding:
    runs = [run for run in results.lab.runs("ablations") if run.method == METHOD and "sessions" not in dict(run.log)]
    return Finding(
        "ablations",
        "Ablations: one change at a time",
        prose=[
            "BCD4Rec with one thing changed; the rest is our default: values over evidence, rewards of the response "
            "model, skips in the state, K = 10. Below it the same for the paper's network (`--preset paper`): BiGRU, "
            "behaviour model trained first and frozen, relative constraint. Differences are paired over users."
        ],
        tables=[
            grid
            for domain in results.lab.domains_of(runs)
            for grid in _tables(results, domain, [run for run in runs if run.domain == domain])
        ],
        charts=[_sizes(results)] if _sized(results) else [],
        commands=results.again(),
    )


def _tables(results: Results, domain: str, runs: list[Run]) -> list[Table]:
    """One for each network; the first run of a network is what the others are a change of."""
    kinds = {True: "our default", False: "the paper's network"}
    by = {kind: [run for run in runs if dict(run.settings).get("evidence", True) == kind] for kind in kinds}
    return [_table(results, domain, kinds[kind], of) for kind, of in by.items() if of]


def _table(results: Results, domain: str, name: str, runs: list[Run]) -> Table:
    usual = results.evaluated(runs[0])
    rows: list[list[Cell | str]] = [["nothing", entry(usual), ""]] if usual else []
    for run in runs[1:]:
        met = results.evaluated(run)
        if met is not None:
            rows.append([_words(run, runs[0]), entry(met), _change(met, usual)])
    log = results.baseline("behaviour", domain)
    rows.append(["the log's policy", entry(log), _change(log, usual)])
    title = f"{results.lab.domain(domain).title}, {results.lab.domain(domain).rate} %: {name}"
    return Table(["changed", "rate", "minus no change"], rows, title=title)


def _change(met: EvaluationRuns | None, usual: EvaluationRuns | None) -> str:
    return signed(met.above(usual)) if met is not None and usual is not None else ABSENT


def _words(run: Run, usual: Run) -> str:
    before = {*usual.settings, *usual.log}
    changed = [pair for pair in (*run.settings, *run.log) if pair not in before]
    return ", ".join(WORDS.get(pair) or f"{'K' if pair[0] == 'quantiles' else pair[0]} = {pair[1]}" for pair in changed)


def _sized(results: Results) -> dict[str, list[tuple[int, EvaluationRuns]]]:
    """The rate by the number of sessions in the log, for each method."""
    found = dict[str, list[tuple[int, EvaluationRuns]]]()
    for run in results.lab.runs("ablations"):
        met = results.evaluated(run) if "sessions" in dict(run.log) else None
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
