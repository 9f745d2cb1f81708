"""Table 4: the hyper-parameters that the log alone would choose, and what they are worth."""

from bcd4rec.evaluation.findings import Entry, Finding, Grid
from bcd4rec.experiments.paper import printed, sweep
from bcd4rec.experiments.paper.results import Results
from bcd4rec.experiments.paper.writing import number

LETTERS = {"beta": "β", "quantiles": "K", "cosines": "n"}


def finding(results: Results) -> Finding:
    return Finding(
        "table4",
        "Table 4: hyper-parameters chosen from the log alone",
        prose=[
            "Of the grid of table 5: what the mean value of the greedy action (Q̄) and what R@3 would choose on the "
            "validation sessions, the rate that users give the choice, and the best and the worst of the grid in the "
            "users' eyes, which nobody can know before. `bcd4rec tune` searches the same grid, with learning rates."
        ],
        grids=[_grid(results, domain) for domain in sweep.domains(results)],
        commands=["bcd4rec reproduce table4", "bcd4rec tune bcd4rec DATASET --by q_bar --out tuned/"],
    )


def _grid(results: Results, domain: str) -> Grid:
    rows: list[list[Entry | str]] = []
    place = 0 if printed.column(results.lab.domain(domain).title) == "DN" else 1
    for method in sweep.METHODS:
        found = sweep.means(sweep.points(results, domain, method))
        if not found:
            continue
        by = {name: sweep.best(found, name) for name in sweep.METRICS}
        rates = [rate for _, rate, _ in found]
        theirs = {name: values[place] for name, values in printed.HYPERPARAMETERS[method].items()}
        chosen = [Entry(_text(by[name][0]), f"rate {number(by[name][1])}") for name in ("q_bar", "recall@3")]
        rows.append(
            [printed.NAMES[method], *chosen, _text(theirs), number(max(rates)), number(min(rates)), str(len(found))]
        )
    columns = ["method", "by Q̄", "by R@3", "the paper's, by Q̄", "best rate", "worst rate", "settings"]
    return Grid(results.lab.domain(domain).title, columns, rows)


def _text(settings: dict[str, float]) -> str:
    return ", ".join(f"{LETTERS[name]} {value:g}" for name, value in settings.items())
