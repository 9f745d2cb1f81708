"""Table 1: every method on every domain, and what the paper's text says about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bcd4rec.evaluation.paired_tests import compare_paired
from bcd4rec.evaluation.statistics import RATE, Interval
from bcd4rec.evaluation.wording import NAMES, number
from bcd4rec.report.page import Cell, Table
from reproduction import printed
from reproduction.findings import Claim, Finding
from reproduction.results import EvaluationRuns, Results
from reproduction.studies import Run, World
from reproduction.writing import claim, entry, signed, spread, with_bounds

ENDS = ("random", "behaviour", "filter", "online", "oracle")
TWINS = {"dqn": "bcq", "qrdqn": "qrbcq", "iqn": "bcd4rec"}  # without and with the constraint
OTHERS = ("popular", "sknn", "stan", "gru4rec", "srgnn", "dqn")  # which the text says cannot beat the log
OURS = "bcd4rec"
OPPONENTS = (
    "CTR (response rates), CategoryPop, Markov and Response (the supervised model that agents start from, which does "
    "not look ahead) are not in the paper. Every method has its default settings on every domain."
)
ONLINE = (
    "The online agent may try things on users. On RecSim it sees their interests, too. On learned users it starts from "
    "the log, and is no upper line: it ends about where the offline agents are."
)
FILTER = (
    "The Bayes filter of RecSim knows every rule that users follow but sees no more of them than their sessions, as "
    "the methods do. What lies between it and the oracle, sessions do not tell."
)


@dataclass(frozen=True)
class Column:
    """A domain with one kind of users: every method that met them."""

    domain: str
    title: str
    rate: str
    methods: Mapping[str, EvaluationRuns]
    ends: Mapping[str, EvaluationRuns]  # those of `ENDS` that are there

    @property
    def everyone(self) -> dict[str, EvaluationRuns]:
        return {**self.methods, **self.ends}

    def is_best(self, name: str) -> bool:
        """Of the methods that learn from the log; twins may be the same bits, and then both are."""
        rates = {method: found.mean() for method, found in self.methods.items()}
        return name in rates and rates[name] == max(rates.values())

    def printed(self, name: str) -> tuple[float | None, float | None]:
        """The paper's rate and C@3."""
        paper = printed.TABLE1[printed.column(self.title)]
        return paper.get(name, (None, None))

    def share(self, name: str, end: str) -> Interval | None:
        """How much of the way from the log's policy to one of `ENDS` a policy goes, in percent."""
        if end not in self.ends:
            return None
        return self.everyone[name].gap(self.ends["behaviour"], self.ends[end])

    def gap(self, name: str, end: str = "online") -> str:
        found = self.share(name, end)
        return number(None if found is None else found.value, 0)


def finding(results: Results) -> Finding:
    columns = columns_of(results, results.lab.runs("table1"))
    sizes = results.lab.sizes
    return Finding(
        "table1",
        "Table 1: all methods against the log's policy and the best there is",
        prose=[
            f"Every policy met {sizes.users:,} fresh users in each of {len(results.seeds)} "
            f"{'run' if len(results.seeds) == 1 else 'runs'}; a run has its own log, training and users. Figures "
            "are means ± standard deviations over runs; brackets are 95 % intervals over all sessions, runs pooled. "
            "The gap is the share of the way from the log's policy to the online agent, as in the paper, and beside it "
            "to the oracle, which sees into the users.",
            OPPONENTS,
            ONLINE,
            *([FILTER] if any("filter" in column.ends for column in columns) else []),
            "Slates on RecSim are made as they would be served: every method has the rule that its own log chose. The "
            "Bayes filter and the online agent have no log to choose by: items of a slate that was just skipped are "
            "kept out once, and items lose by others of their category in the same slate (λ = 1). On DN and trivago "
            "one item is shown at a time.",
        ],
        tables=[_overview(columns), *(_table(column) for column in columns)],
        claims=[above_behaviour(columns), _best(columns), _gaps(columns), _others(columns), *order(columns)],
        commands=results.again(),
    )


def columns_of(results: Results, runs: Sequence[Run]) -> list[Column]:
    """Those of the runs' domains on which BCD4Rec was run."""
    lab = results.lab
    pairs = [(name, world) for name in lab.domains_of(runs) for world in lab.worlds(results.study, name)]
    columns = [_column(results, [run for run in runs if run.domain == name], name, world) for name, world in pairs]
    return [column for column in columns if OURS in column.methods]


def _column(results: Results, runs: Sequence[Run], name: str, world: World) -> Column:
    domain = results.lab.domain(name)
    met = {run.method: results.evaluated(run, world) for run in runs}
    ends = {end: results.baseline(end, name, world) for end in ENDS}
    title = domain.title + (f", {world} users" if len(domain.worlds) > 1 else "")
    return Column(
        name,
        title,
        domain.rate,
        {method: one for method, one in met.items() if one is not None},
        {end: one for end, one in ends.items() if one is not None},
    )


def _overview(columns: list[Column]) -> Table:
    rows: list[list[Cell | str]] = []
    for name in dict.fromkeys(name for column in columns for name in column.everyone):
        row: list[Cell | str] = [NAMES[name]]
        for column in columns:
            row += [entry(column.everyone.get(name), column.is_best(name)), number(column.printed(name)[0])]
        rows.append(row)
    heads = [head for column in columns for head in (f"{column.rate} %", "paper")]
    note = "Bold is the best of the methods that learn from the log."
    if any(printed.column(column.title) == "DN" for column in columns):
        note += " Logs of lists stand beside the paper's DN, with learned users and, where they are known, true ones."
    spans = [(column.title, 2) for column in columns]
    return Table(["method", *heads], rows, title="Rates beside the paper's", note=note, spans=spans)


def _table(column: Column) -> Table:
    behaviour, rows = column.ends["behaviour"], list[list[Cell | str]]()
    for name, found in column.everyone.items():
        rate, coverage = column.printed(name)
        rows.append(
            [
                NAMES[name],
                entry(found, column.is_best(name)),
                number(rate),
                column.gap(name),
                number(printed.gap(column.title, name), 0),
                column.gap(name, "oracle"),
                spread(found, "coverage@3"),
                number(coverage),
                signed(found.above(behaviour)) if name != "behaviour" else "",
            ]
        )
    rates, gaps = [f"{column.rate} %", "paper"], ["gap %", "paper", "to the oracle"]
    heads = ["method", *rates, *gaps, "C@3 %", "paper", "above the log's policy"]
    return Table(heads, rows, title=column.title, note=_significance(column))


def _significance(column: Column) -> str:
    """The best method against the second best, and BCD4Rec against the best other one."""
    ranked = sorted(column.methods, key=lambda name: -column.methods[name].mean())
    if len(ranked) < 2:
        return ""
    pairs = [(ranked[0], ranked[1])]
    if OURS not in pairs[0]:
        pairs.append((OURS, ranked[0]))
    return " ".join(_compared(column, first, second) for first, second in pairs)


def _compared(column: Column, first: str, second: str) -> str:
    tables = {name: column.methods[name].sessions for name in (first, second)}
    found = compare_paired(tables, {"rate": RATE}).pairs[0]
    significant = "significant" if found.significant else "not significant"
    return (
        f"{NAMES[first]} against {NAMES[second]}: {signed(found.difference)}, p = {found.p_value:.4f}, {significant}."
    )


def order(columns: list[Column]) -> list[Claim]:
    """What the paper says about how the agents stand to each other."""
    return [
        _pairs(
            columns,
            "Distributional agents without the constraint (QRDQN, IQN) are better than DQN.",
            [("qrdqn", "dqn"), ("iqn", "dqn")],
        ),
        _pairs(
            columns,
            "The batch constraint improves every agent: BCQ over DQN, QRBCQ over QRDQN, BCD4Rec over IQN.",
            [(with_it, without) for without, with_it in TWINS.items()],
        ),
    ]


def above_behaviour(columns: list[Column]) -> Claim:
    apart = {column.title: column.methods[OURS].above(column.ends["behaviour"]) for column in columns}
    return claim(
        "BCD4Rec is significantly better than the policy that wrote the log, in all cases.",
        {title: found.low > 0 for title, found in apart.items()},
        [f"{title}: {signed(found)} points" for title, found in apart.items()],
    )


def _best(columns: list[Column]) -> Claim:
    cases, evidence = {}, []
    for column in columns:
        others = [name for name in column.methods if name != OURS]
        if not others:
            continue
        second = max(others, key=lambda name: column.methods[name].mean())
        apart = column.methods[OURS].above(column.methods[second])
        cases[column.title] = apart.low > 0
        evidence.append(f"{column.title}: {signed(apart)} to {NAMES[second]}, the best of the others")
    return claim("BCD4Rec is the best method in every column, significantly.", cases, evidence)


def _gaps(columns: list[Column]) -> Claim:
    cases, evidence = {}, []
    for column in columns:
        found, theirs = column.share(OURS, "online"), printed.gap(column.title, OURS)
        if found is None or theirs is None:
            continue
        cases[column.title] = found.value >= theirs
        told = f"{column.title}: {with_bounds(found, 0)} %, the paper {number(theirs, 0)} %"
        known = f", the Bayes filter {column.gap('filter')} %" if "filter" in column.ends else ""
        evidence.append(f"{told}{known}; of the gap to the oracle {column.gap(OURS, 'oracle')} %")
    return claim(
        "BCD4Rec closes at least the share of the gap to the online policy that the paper's does.", cases, evidence
    )


def _others(columns: list[Column]) -> Claim:
    cases, evidence = {}, []
    for column in columns:
        above = []
        for name in OTHERS:
            found = column.methods.get(name)
            if found is None:
                continue
            better = found.above(column.ends["behaviour"]).low > 0
            cases[f"{column.title} {name}"] = not better
            above += [f"{NAMES[name]} {number(found.mean())}"] if better else []
        log = number(column.ends["behaviour"].mean())
        evidence.append(f"{column.title}, log {log}: significantly above it are {', '.join(above) or 'none'}")
    return claim("DQN and the methods without rewards struggle to improve on the log's policy.", cases, evidence)


def _pairs(columns: list[Column], text: str, pairs: list[tuple[str, str]]) -> Claim:
    cases, evidence = {}, []
    for column in columns:
        told = []
        for first, second in pairs:
            if first in column.methods and second in column.methods:
                apart = column.methods[first].above(column.methods[second])
                cases[f"{column.title} {first}"] = apart.low > 0
                told.append(f"{NAMES[first]} − {NAMES[second]} {signed(apart)}")
        if told:
            evidence.append(f"{column.title}: {'; '.join(told)}")
    return claim(text, cases, evidence)
