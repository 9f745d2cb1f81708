"""Figure 5: the distributions behind table 6."""

from collections.abc import Sequence

import numpy as np

from reproduction.findings import Chart, Finding, Points
from reproduction.results import Results
from reproduction.table6 import distributions

SHARES = np.linspace(0.02, 0.98, 49)  # of the users


def finding(results: Results) -> Finding:
    found = distributions(results)
    charts = []
    for place, one in enumerate(found[0]["types"] if found else []):
        series = {"online": _quantiles(one["returns"]["item"])}
        series |= {name: _quantiles(values) for name, values in found[0]["quantiles"].items()}
        title = f"User {place + 1}: what an item brings"
        charts.append(
            Chart(f"values-{place + 1}", title, "lines", "share of users %", "return, at most so much", series)
        )
    return Finding(
        "figure5",
        "Figure 5: value distributions",
        prose=[
            "Quantile functions, seed 0: of the discounted returns of 50 users of each type under the oracle (Online), "
            "counted as the agents count, one shown item a step; and of what each agent foretells for the same item in "
            "an empty session. An agent cannot tell the types apart there, so its line is the same in all three."
        ],
        charts=charts,
        commands=results.again(),
    )


def _quantiles(values: Sequence[float]) -> Points:
    return Points((100 * SHARES).tolist(), np.quantile(np.asarray(values), SHARES).tolist())
