"""Table 4: the hyper-parameters that the log alone would choose, and what they are worth."""

from collections.abc import Mapping

from bcd4rec.evaluation.wording import NAMES, number
from bcd4rec.report.page import Cell, Table
from reproduction import printed, sweep
from reproduction.findings import Finding
from reproduction.results import Results
from reproduction.tasks.learners import AGENTS

COLUMNS = ["method", "by Q̄", "by R@3", "the paper's, by Q̄", "best rate", "worst rate", "settings"]
RATES = {"learning_rate": (0.003, 0.003)}

LETTERS = {"beta": "β", "quantiles": "K", "cosines": "n", "learning_rate": "rate"}


def finding(results: Results) -> Finding:
    return Finding(
        "table4",
        "Table 4: hyper-parameters chosen from the log alone",
        prose=[
            "Of the grid of table 5: what the mean value of the greedy action (Q̄) and what R@3 would choose on the "
            "validation sessions, the rate that users give the choice, and the best and the worst of the grid in the "
            "users' eyes, which nobody can know before. Learning rates are tried apart, with the other settings at "
            "their defaults. `bcd4rec tune` searches all of them together."
        ],
        tables=[
            *(_table(results, domain) for domain in sweep.domains(results)),
            *(_rates(results, domain) for domain in sweep.domains(results)),
        ],
        commands=[*results.again(), "bcd4rec tune bcd4rec DATASET --by q_bar --out tuned/"],
    )


def _table(results: Results, domain: str) -> Table:
    rows = []
    for method in sweep.METHODS:
        theirs = printed.HYPERPARAMETERS[method]
        rows += _row(results, domain, method, sweep.points(results, domain, method), theirs)
    return Table(COLUMNS, rows, title=f"{results.lab.domain(domain).title}: β, K and n")


def _rates(results: Results, domain: str) -> Table:
    rows = []
    for method in AGENTS:
        found = sweep.points(results, domain, method, "table4")
        rows += _row(results, domain, method, [one for one in found if "learning_rate" in one.settings], RATES)
    return Table(COLUMNS, rows, title=f"{results.lab.domain(domain).title}: learning rate")


def _row(
    results: Results,
    domain: str,
    method: str,
    points: list[sweep.Point],
    theirs: Mapping[str, tuple[float, float]],
) -> list[list[Cell | str]]:
    """One row, or none where nothing was tried."""
    found = sweep.means(points)
    if not found:
        return []
    rates = [rate for _, rate, _ in found]
    by = [sweep.best(found, name) for name in ("q_bar", "recall@3")]
    chosen = [Cell(_text(settings), f"gets {number(rate)}") for settings, rate, _ in by]
    place = 0 if printed.column(results.lab.domain(domain).title) == "DN" else 1
    paper = _text({name: values[place] for name, values in theirs.items()})
    return [[NAMES[method], *chosen, paper, number(max(rates)), number(min(rates)), str(len(found))]]


def _text(settings: Mapping[str, float]) -> str:
    return ", ".join(f"{LETTERS[name]} {value:g}" for name, value in settings.items())
