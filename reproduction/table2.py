"""Table 2: the variants of agents, read off their configurations."""

from bcd4rec.agents.q_learning import parse_q_learning
from bcd4rec.evaluation.wording import NAMES
from bcd4rec.report.page import Table
from reproduction.findings import Finding
from reproduction.results import Results
from reproduction.tasks.learners import AGENTS


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
        tables=[Table(columns, rows, title="Variants")],
        commands=results.again(),
    )


def _mark(yes: bool) -> str:
    return "yes" if yes else "no"
