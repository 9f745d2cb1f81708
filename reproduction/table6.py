"""Table 6: how far the returns that agents foretell are from those that users bring."""

from typing import Any

import numpy as np

from bcd4rec.artifacts import read_json
from bcd4rec.evaluation.wording import NAMES, number
from bcd4rec.report.page import Cell, Table
from reproduction import printed
from reproduction.findings import Claim, Finding
from reproduction.results import Results
from reproduction.writing import claim

DOMAIN = "recsim-2"
UNITS = {"item": "one shown item a step, as the agents count", "slate": "the mean over a step's items"}


def distributions(results: Results) -> list[dict[str, Any]]:
    """What was found with each seed."""
    lab = results.lab
    runs = lab.runs("table6")
    tasks = [lab.distributions(DOMAIN, runs, seed) for seed in results.seeds] if runs else []
    return [read_json(results.store.path(task) / "distributions.json") for task in tasks if results.store.has(task)]


def finding(results: Results) -> Finding:
    found = distributions(results)
    return Finding(
        "table6",
        "Table 6: foretold returns beside those of users (Wasserstein distances)",
        prose=[
            "RecSim-2. Three types of 50 users each, who like one category best, are shown the same item first and the "
            "oracle's choice from then on, for 20 steps, γ = 0.9. Distances between their discounted returns and the "
            "agent's quantiles of that item in an empty session, divided by the largest feasible return, mean over "
            f"{len(found)} {'run' if len(found) == 1 else 'runs'}. The paper states no unit. DQN and BCQ know one "
            "value only. Agents foretell what their own policy brings, and the users' returns are of a better one."
        ],
        tables=[_table(found, unit) for unit in UNITS] if found else [],
        claims=[_claim(found)] if found else [],
        commands=results.again(),
    )


def _distances(found: list[dict[str, Any]], unit: str) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """(types,) for every agent, in shares of the largest feasible return."""

    def of(name: str) -> list[list[float]]:
        return [[one["distances"][unit][name] / run["feasible"] for one in run["types"]] for run in found]

    return {name: np.array(of(name)).mean(axis=0) for name in found[0]["quantiles"]}


def _table(found: list[dict[str, Any]], unit: str) -> Table:
    distances = _distances(found, unit)
    rows: list[list[Cell | str]] = []
    for place in range(len(found[0]["types"])):
        best = min(distances, key=lambda name: distances[name][place])
        cells = [
            Cell(number(float(values[place]), 3), f"paper {printed.WASSERSTEIN[name][place]:.3f}", name == best)
            for name, values in distances.items()
        ]
        rows.append([f"User {place + 1}", *cells])
    columns = ["users", *(NAMES[name] for name in distances)]
    return Table(columns, rows, title=f"Distances, {UNITS[unit]}")


def _claim(found: list[dict[str, Any]]) -> Claim:
    distances = _distances(found, "item")
    cases, evidence = {}, []
    for place in range(len(found[0]["types"])):
        ranked = sorted(distances, key=lambda name: distances[name][place])
        cases[f"User {place + 1}"] = ranked[0] == "bcd4rec"
        told = ", ".join(f"{NAMES[name]} {distances[name][place]:.3f}" for name in ranked)
        evidence.append(f"User {place + 1}: {told}")
    return claim("BCD4Rec's value distribution is the closest to that of the online policy.", cases, evidence)
