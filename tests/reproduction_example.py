"""A reproduction with everything that can be in one; its numbers are made up."""

import numpy as np

from bcd4rec.report.page import Cell, Table
from reproduction.findings import Chart, Claim, Finding, Points, Reproduction

NASTY = "<b>&|</b> *a* _b_ ` \\ [d](e) ~f~"
LONG = "Donaudampfschifffahrtsgesellschaftskapitän" * 3
METHODS = {
    **{"popular": "MostPop", "sknn": "SKNN", "stan": "STAN", "gru4rec": "GRU", "srgnn": "SRGNN", "dqn": "DQN"},
    **{"bcq": "BCQ", "qrdqn": "QRDQN", "qrbcq": "QRBCQ", "iqn": "IQN", "bcd4rec": "BCD4Rec"},
    **{"behaviour": "Behaviour", "online": "Online"},
}
NAMES = list(METHODS.values())
DOMAINS = ["RecSim-1", "RecSim-2", "RecSim-3", "DN"]
AGENTS = ["dqn", "bcq", "qrdqn", "qrbcq", "iqn", "bcd4rec"]
BETAS = (0.1, 0.3, 0.5, 0.7, 0.9)


def table_1(rng: np.random.Generator) -> Finding:
    rates = 40 + 45 * np.sort(rng.random((len(NAMES), len(DOMAINS))), axis=0)
    rows = []
    for name, row in zip(NAMES, rates, strict=True):
        cells: list[Cell | str] = [name]
        for rate in row:
            best = name == "BCD4Rec"
            cells += [
                Cell(f"{rate:.1f}", f"[{rate - 1.1:.1f}, {rate + 1.3:.1f}]", best),
                Cell(f"{rng.uniform(5, 99):.1f}", f"± {rng.uniform(0, 4):.1f}"),
                Cell(f"{rate - 60:.0f}".replace("-", "−"), "[−12, 104]") if name != "Online" else "–",
                f"{rate - 2:.1f}" if rate > 45 else "–",
            ]
        rows.append(cells)
    spans = [(domain, 4) for domain in DOMAINS]
    columns = ["Method", *(["CTR %", "C@3 %", "gap %", "paper"] * 3), "BR %", "C@3 %", "gap %", "paper"]
    flat = ["Method", *(f"{span} {name}" for span in DOMAINS[:3] for name in ("CTR %", "C@3 %", "gap %", "paper"))]
    return Finding(
        "table1",
        "Table 1: every method on four logs",
        [
            "Each method learns from the log alone and then meets 2,000 fresh users, three times with other seeds. "
            "Gap is the share of the way from the behaviour policy (0 %) to the online one (100 %).",
            f"A name with every sign in it: {NASTY}.",
        ],
        [
            Table(
                columns,
                rows,
                title="Rates, coverage and gap closed",
                note="The rule after a skipped slate is `repeat`, for all methods. Best of the "
                "offline methods is bold.",
                spans=spans,
            ),
            Table(flat, [row[:13] for row in rows], title="The same without spans"),
        ],
        [
            Chart(
                "gap",
                "Gap closed on each log",
                "groups",
                "",
                "Gap closed in %",
                {
                    agent: Points(
                        range(len(DOMAINS)),
                        gap := 15.0 * place + rng.uniform(-25, 10, len(DOMAINS)),
                        gap - 6,
                        gap + 6,
                    )
                    for place, agent in enumerate(AGENTS)
                },
                DOMAINS,
                note="Lines are 95 % intervals over users.",
            )
        ],
        [
            Claim(
                "BCD4Rec significantly improves upon the behaviour policy in all cases.",
                "holds",
                ["RecSim-1: 76.4 against 63.1, paired difference 13.3 [12.1, 14.4].", "DN: 24.1 against 4.1."],
            ),
            Claim(
                "DQN and all non-RL baselines struggle to improve upon the behaviour policy.",
                "holds partly",
                ["DQN is 9.8 points below it on RecSim-1; STAN is 1.2 points above it on RecSim-2."],
            ),
            Claim(
                "Batch-constraining improves all agents, DQN most and IQN least.",
                "does not hold here",
                [f"QRBCQ − QRDQN on RecSim-3: −0.4 [−1.9, 1.1]; the file is {NASTY}"],
            ),
        ],
        ["bcd4rec reproduce table1 --out reproduction/ --seeds 3", "bcd4rec evaluate 'a & b' --report table1.html"],
    )


def figure_2(rng: np.random.Generator) -> Finding:
    ranks = np.arange(1.0, 851.0)
    popularity = {
        name: Points(ranks, 30 * ranks**-power + 1e-4)
        for name, power in {"dqn": 2.2, "bcq": 1.8, "iqn": 0.9, "bcd4rec": 0.8, "behaviour": 1.1, "online": 0.7}.items()
    }
    wild = np.cumsum(rng.normal(0, 0.4, 850)) + 20
    training = {"DQN": wild + ranks / 20, "BCD4Rec": wild / 2}
    lines = {name: Points(ranks * 100, y, y - 2, y + 2) for name, y in training.items()}
    spread = np.sort(rng.gamma(4, 3, (3, 50)), axis=1)
    returns = {
        name: Points(values, np.arange(1, 51) / 50.0)
        for name, values in zip(("online", "bcd4rec", "dqn"), spread, strict=True)
    }
    categories = [f"category {number}" for number in (7, 12, 103)] + [LONG]
    accuracy = {name: Points(range(4), rng.uniform(20, 100, 4)) for name in METHODS}
    return Finding(
        "figure2",
        "Figure 2: categories and popularity",
        ["How often each item was recommended, most popular first, and whether items are of the session's category."],
        [
            Table(
                ["Method", "DN", "RecSim-2"],
                [["DQN", "0.97", "0.88"], ["IQN", "0.61", "0.50"]],
                title="Gini coefficients",
            )
        ],
        [
            Chart(
                "popularity",
                "Popularity bias (DN)",
                "lines",
                "Item, most shown first",
                "Share in %",
                popularity,
                logarithmic=True,
            ),
            Chart("training", "Q̄ while learning", "lines", "Update", "Q̄, in rewards", lines, note="Bands: 3 seeds."),
            Chart("returns", "Returns of user type 1", "lines", "Return", "Share of users below", returns),
            Chart("accuracy", "Category accuracy", "groups", "Category", "Same category in %", accuracy, categories),
        ],
        [
            Claim("Distributional agents have low popularity bias.", "holds", ["Gini 0.61 for IQN, 0.97 for DQN."]),
            Claim("BCD4Rec almost perfectly recommends the category of interest.", "not measured", []),
        ],
    )


def figure_3(rng: np.random.Generator) -> Finding:
    clouds = {}
    for name, slope in {"R@3": 4.0, "Q̄": 9.0}.items():
        x = rng.random(45)
        clouds[name] = Points(x, 60 + slope * x + rng.normal(0, 2, 45))
    starts = {
        name: Points(range(2), y := 60.0 + 4 * place + rng.uniform(0, 3, 2), y - 1.5, y + 1.5)
        for place, name in enumerate(("none", "item2vec", "srgnn"))
    }
    by_beta = {name: Points(BETAS, y := 60 + 10 * rng.random(5), y - 2, y + 2) for name in ("bcd4rec", "qrbcq", "bcq")}
    return Finding(
        "figure3",
        "Figure 3: pre-training and the choice of settings",
        ["Items start from nothing, from item2vec or from SRGNN; settings are chosen by R@3 or by Q̄."],
        [],
        [
            Chart(
                "start",
                "Where the item vectors start",
                "groups",
                "",
                "CTR or BR in %",
                starts,
                ["DN, 6,666 items", "RecSim-2, 200 items"],
            ),
            Chart("choice", "CTR against offline metrics", "scatter", "Offline, scaled to 0…1", "CTR %", clouds),
            Chart("beta", "CTR by β", "lines", "β", "CTR in %", by_beta),
            Chart("empty", "Nothing here", "scatter", "x", "y", {"none": Points([], [])}),
        ],
        [Claim("Q̄ correlates better with the online metrics than R@3.", "holds", ["Pearson 0.81 against 0.42."])],
        ["bcd4rec reproduce figure3 --out reproduction/ --seeds 3"],
    )


def settings() -> Finding:
    rows: list[list[Cell | str]] = [
        ["Quantiles K (IQN, BCD4Rec)", "5, 7, 10", "5", "10", "chosen by Q̄ on the validation split, as the paper says"],
        ["β (BCD4Rec, QRBCQ, BCQ)", "0.1, 0.3, 0.5, 0.7, 0.9", "0.3", "0.5", "relative to the most likely action"],
        ["Response types", "–", "{s,c,b}", "{s,c}", ""],
        [LONG, "1", "2", "3", LONG],
    ]
    columns = ["Setting", "tried", "DN", "RecSim", "why"]
    return Finding(
        "table3",
        f"Table 3: {LONG}",
        [f"`bcd4rec tune` searches for {LONG}."],
        [Table(columns, rows, title=LONG)],
        claims=[Claim(LONG, "holds", [LONG])],
        commands=[f"bcd4rec tune {LONG}"],
    )


def reproduction(quick: bool = False) -> Reproduction:
    rng = np.random.default_rng(0)
    return Reproduction(
        [table_1(rng), figure_2(rng), figure_3(rng), settings()],
        quick,
        {
            "Date": "2025-11-16",
            "Commit": "d01e2103f7a4b6d6f4c6f2b0c1e9a8d7c6b5a493",
            "Machine": "2 cores, 8 GB, Linux, Python 3.11, torch 2.13.0",
            "Seeds": "0, 1, 2",
            LONG: LONG,
            "Time": "7 h 12 min",
        },
        Table(
            ["Step", "Runs", "Time", "Share %"],
            [["Online agent", "3", "1 h 20 min", "18.5"], ["Offline agents", "72", "5 h 2 min", "69.9"]],
            title="Where the time went",
            note="Time on the wall; two runs at a time.",
        ),
    )
