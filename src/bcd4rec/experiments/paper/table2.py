"""Table 2: the variants of agents, read off their configurations."""

from bcd4rec.agents.q_learning import parse_q_learning
from bcd4rec.evaluation.findings import Finding, Grid
from bcd4rec.evaluation.wording import NAMES
from bcd4rec.experiments.paper.results import Results
from bcd4rec.experiments.second_domain import AGENTS


def finding(results: Results) -> Finding:
    rows = []
    for name in AGENTS:
        config = parse_q_learning(name, {}, name)
        rows.append([NAMES[name], _mark(config.beta > 0), _mark(config.head != "expected"), config.head])
    columns = ["method", "batch-constrained", "distributional", "our head"]
    return Finding(
        "table2",
        "Table 2: the variants of agents",
        prose=["One implementation; the named agents differ in the head and in β, and in nothing else."],
        grids=[Grid("Variants", columns, rows)],
        commands=results.again(),
    )


def _mark(yes: bool) -> str:
    return "yes" if yes else "no"
