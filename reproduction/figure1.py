"""Figure 1: do agents stay in the category people came for, and do they show popular items only?"""

import numpy as np
import polars as pl

from bcd4rec.evaluation.wording import NAMES, number
from bcd4rec.report.page import Cell, Table
from reproduction.findings import Chart, Claim, Finding, Points
from reproduction.results import EvaluationRuns, Results
from reproduction.table1 import TWINS
from reproduction.writing import claim, spread

BANDS = 10  # of categories, by popularity
RANKS = {"shop": 850, "recsim-2": 200}  # as many of the most shown items as the paper draws
LOW, HIGH = ("qrbcq", "iqn", "bcd4rec"), ("dqn", "bcq", "qrdqn")  # popularity bias, in the paper's words


def finding(results: Results) -> Finding:
    players = {domain: _players(results, domain) for domain in results.lab.domains_of(results.lab.runs("figure1"))}
    with_categories = {domain: found for domain, found in players.items() if _knows_categories(found)}
    return Finding(
        "figure1",
        "Figure 1: the category people came for, and popularity bias",
        prose=[
            "Category accuracy is the share of recommendations from the category of the session's first item. The "
            "curve goes over categories from the most to the least asked for, in tenths of the sessions. Popularity "
            "bias is the share of all recommendations that an item gets, by its rank under the same policy; the Gini "
            "coefficient says it in one number: 0 when all items are shown alike, near 1 when a few get everything."
        ],
        tables=[_table(results, domain, found) for domain, found in players.items()],
        charts=[
            *(_category_chart(results, domain, found) for domain, found in with_categories.items()),
            *(_popularity_chart(results, domain, found) for domain, found in players.items()),
        ],
        claims=[
            *(_category_claim(results, domain, found) for domain, found in with_categories.items()),
            _popularity_claim(results, players),
        ],
        commands=results.again(),
    )


def _players(results: Results, domain: str) -> dict[str, EvaluationRuns]:
    found = {run.method: results.evaluated(run) for run in results.lab.runs("figure1") if run.domain == domain}
    found |= {name: results.baseline(name, domain) for name in ("behaviour", "online", "oracle")}
    return {name: one for name, one in found.items() if one is not None}


def _knows_categories(found: dict[str, EvaluationRuns]) -> bool:
    return any(one.values("category_accuracy") for one in found.values())


def _table(results: Results, domain: str, found: dict[str, EvaluationRuns]) -> Table:
    known = _knows_categories(found)
    rows: list[list[Cell | str]] = [
        [
            NAMES[name],
            *([spread(one, "category_accuracy") if one.values("category_accuracy") else ""] if known else []),
            number(one.mean("gini"), 2),
            spread(one, "coverage@3"),
        ]
        for name, one in found.items()
    ]
    columns = ["policy", *(["category accuracy %"] if known else []), "Gini", "C@3 %"]
    return Table(columns, rows, title=results.lab.domain(domain).title)


def _category_chart(results: Results, domain: str, found: dict[str, EvaluationRuns]) -> Chart:
    series = {name: _by_popularity(one) for name, one in found.items() if one.values("category_accuracy")}
    return Chart(
        f"categories-{domain}",
        f"Category accuracy, {results.lab.domain(domain).title}",
        "lines",
        "categories, from the most asked for: tenths of all sessions",
        "recommendations of that category %",
        series,
    )


def _by_popularity(found: EvaluationRuns) -> Points:
    """Accuracy within each tenth of what was shown, the sessions ordered by how often their category is asked for."""
    tables = [found.table(number, "categories") for number in range(len(found.tasks))]
    total = pl.concat(tables).group_by("wanted").agg(pl.col("shown", "right").sum())
    total = total.sort(["shown", "wanted"], descending=[True, False])
    shown, right = total["shown"].to_numpy(), total["right"].to_numpy()
    middle = (np.cumsum(shown) - shown / 2) / shown.sum()
    band = np.minimum((middle * BANDS).astype(int), BANDS - 1)
    there = np.unique(band)
    rates = [100 * float(right[band == one].sum() / shown[band == one].sum()) for one in there]
    return Points([float(one + 1) for one in there], rates)


def _popularity_chart(results: Results, domain: str, found: dict[str, EvaluationRuns]) -> Chart:
    series = {}
    for name, one in found.items():
        share = np.mean(
            [one.table(number, "popularity")["share"].to_numpy() for number in range(len(one.tasks))], axis=0
        )
        drawn = share[: RANKS.get(domain, len(share))]
        drawn = drawn[drawn > 0]
        series[name] = Points([float(rank) for rank in range(1, len(drawn) + 1)], drawn.tolist())
    return Chart(
        f"popularity-{domain}",
        f"Popularity bias, {results.lab.domain(domain).title}",
        "lines",
        "items by how often they were shown",
        "share of recommendations %",
        series,
        logarithmic=True,
    )


def _category_claim(results: Results, domain: str, found: dict[str, EvaluationRuns]) -> Claim:
    """It counts as more where it is more in every run: what sessions of a run have in common, no interval tells."""
    cases, evidence = {}, []
    for without, with_it in TWINS.items():
        if without in found and with_it in found:
            free, bound = (found[name].by_seed("category_accuracy") for name in (without, with_it))
            apart = [bound[seed] - free[seed] for seed in bound if seed in free]
            cases[with_it] = bool(apart) and min(apart) > 0
            told = ", ".join(f"{'+' if one > 0 else ''}{number(one)}" for one in apart)
            evidence.append(
                f"{NAMES[with_it]} {number(found[with_it].mean('category_accuracy'))} %, "
                f"{NAMES[without]} {number(found[without].mean('category_accuracy'))} %; by run {told}"
            )
    title = results.lab.domain(domain).title
    return claim(f"{title}: agents with the constraint recommend more from the right category.", cases, evidence)


def _popularity_claim(results: Results, players: dict[str, dict[str, EvaluationRuns]]) -> Claim:
    cases, evidence = {}, []
    for domain, found in players.items():
        bias = {name: one.mean("gini") for name, one in found.items()}
        if not set(LOW) | set(HIGH) <= set(bias):
            continue
        cases[domain] = max(bias[name] for name in LOW) < min(bias[name] for name in HIGH)
        told = ", ".join(f"{NAMES[name]} {value:.2f}" for name, value in sorted(bias.items(), key=lambda x: x[1]))
        evidence.append(f"{results.lab.domain(domain).title}, Gini: {told}")
    text = "Distributional agents (QRBCQ, IQN, BCD4Rec) have less popularity bias than DQN, BCQ and QRDQN."
    return claim(text, cases, evidence)
