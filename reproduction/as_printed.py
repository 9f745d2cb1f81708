"""The agents with the paper's own network, beside ours: is it the network that makes agents alike?"""

from dataclasses import replace

from bcd4rec.evaluation.wording import NAMES, number
from bcd4rec.report.page import Cell, Table
from reproduction.findings import Claim, Finding
from reproduction.results import Results
from reproduction.studies import Run
from reproduction.table1 import Column, above_behaviour, columns_of, order
from reproduction.writing import entry, signed


def finding(results: Results) -> Finding:
    runs = [run for run in results.lab.runs("as_printed") if run.settings]
    columns = columns_of(results, runs)
    return Finding(
        "as_printed",
        "As printed: the agents of table 1 with the paper's network",
        prose=[
            "The paper's network and settings (`bcd4rec train --preset paper`); of the updates it does not say how "
            "many. States hold clicks alone. The rest is as in table 1: the constraint is relative, its model is "
            "trained first, β = 0.5, K = 10.",
            *map(_settings, runs[:1]),
        ],
        tables=[_table(results, column) for column in columns],
        claims=[_as_printed(one) for one in (above_behaviour(columns), *order(columns))],
        commands=results.again(),
    )


def _settings(run: Run) -> str:
    """They are the same in all runs of the paper's network."""
    return f"Settings: {', '.join(f'{name} = {value}' for name, value in (*run.settings, *run.log))}."


def _table(results: Results, column: Column) -> Table:
    behaviour, rows = column.ends["behaviour"], list[list[Cell | str]]()
    for name, found in column.methods.items():
        ours = results.evaluated(Run(column.domain, name))
        theirs = number(column.printed(name)[0])
        above = signed(found.above(behaviour))
        rows.append([NAMES[name], entry(found, column.is_best(name)), above, theirs, entry(ours)])
    log = entry(behaviour)
    rows.append([NAMES["behaviour"], log, "", number(column.printed("behaviour")[0]), log])
    heads = ["agent", "as printed", "above the log's policy", "the paper's", "ours, of table 1"]
    return Table(heads, rows, title=f"{column.title}, {column.rate} %")


def _as_printed(one: Claim) -> Claim:
    return replace(one, text=f"With the network as printed: {one.text}")
