"""The paper's studies as data, and small reproductions from end to end."""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bcd4rec.agents.agent import AGENTS
from bcd4rec.artifacts import read_json, write_json
from bcd4rec.baselines.baseline import BASELINES
from bcd4rec.data.dataset import Dataset
from bcd4rec.errors import InputError
from bcd4rec.evaluation.wording import NAMES
from bcd4rec.runner.running import run
from bcd4rec.runner.store import TaskStore, plan
from bcd4rec.workflows.fitting import fit
from reproduction import figure1, printed, studies, table1
from reproduction.gathering import reproduce
from reproduction.results import EvaluationRuns, Results
from reproduction.studies import Laboratory, Run, Studies
from reproduction.tasks.logs import Checkpoint
from reproduction.writing import judge
from test_cli import run_here

TINY = {
    "seeds": 2,
    "sessions": 60,
    "users": 25,
    "rounds": 2,
    "round_users": 15,
    "days": 121,
    "scale": 0.02,
    "online_rounds": 1,
    "online_users": 20,
    "agents": {"updates": 6, "batch_size": 16},
    "methods": {"gru4rec": {"least_steps": 2, "epochs": 1}, "srgnn": {"least_steps": 2, "epochs": 1}},
}


@pytest.fixture
def tiny(monkeypatch) -> Studies:
    """The paper's studies, at a size that takes seconds."""
    real = studies.load()
    small = real.model_copy(update={"sizes": {name: type(one).parse(TINY, "tiny") for name, one in real.sizes.items()}})
    monkeypatch.setattr(studies, "load", lambda: small)
    return small


def test_every_study_has_a_finding_and_every_run_can_be_begun():
    for quick in (True, False):
        lab = Laboratory(quick, sources=(("trivago", Path(__file__)), ("diginetica", Path(__file__).parent)))
        for study in studies.names():
            assert callable(importlib.import_module(f"reproduction.{study}").finding)
            for one in lab.runs(study):
                if one.method in AGENTS:
                    AGENTS[one.method].parse(dict(lab.trained(one, 0).settings), study)
                else:
                    BASELINES[one.method].parse(dict(lab.trained(one, 0).settings), study)


def test_the_grid_is_the_papers():
    lab = Laboratory(domains=("recsim-2",))
    counts = {method: sum(one.method == method for one in lab.runs("table5")) for method in ("bcq", "qrbcq", "bcd4rec")}
    assert counts == {"bcq": 5, "qrbcq": 15, "bcd4rec": 45}
    assert len(Laboratory().runs("table1")) == 4 * 17  # real logs are not there unless given
    assert lab.sizes.seeds == 3


def test_what_two_studies_have_in_common_is_one_task():
    lab = Laboratory(domains=("recsim-2",))
    alone = [len(plan(lab.tasks(study), TaskStore(Path("nowhere"))).tasks) for study in ("table5", "figure4")]
    both = plan([*lab.tasks("table5"), *lab.tasks("figure4")], TaskStore(Path("nowhere")))
    assert len(both.tasks) == alone[0] == alone[1]


def test_the_filter_meets_recsims_users_once_for_all_columns_and_nobody_else():
    tasks = {task.key: task for task in Laboratory().tasks("table1") if getattr(task, "player", None) == "filter"}
    assert sorted(task.seed for task in tasks.values()) == [0, 1, 2]
    assert {task.world.name for task in tasks.values()} == {"RecSim-1"}


def test_shares_of_the_gap_are_those_of_the_readings():
    assert [round(printed.gap(title, "bcd4rec")) for title in ("RecSim-1", "RecSim-2", "RecSim-3", "DN (shop)")] == [
        58,
        62,
        55,
        89,
    ]
    assert printed.gap("trivago", "oracle") is None


def test_the_gap_is_the_way_to_the_online_agent(tmp_path):
    store = TaskStore(tmp_path)

    def met(player: str, rate: float) -> EvaluationRuns:
        task = Laboratory().baseline(player, "recsim-1", 0)
        store.path(task).mkdir()
        ids = [str(number) for number in range(30)]
        hits = [float(round(10 * rate) + number % 3 - 1) for number in range(30)]
        sessions = pl.DataFrame({"session_id": ids, "targets": hits, "steps": [10.0] * 30})
        sessions.write_parquet(store.path(task) / "sessions.parquet")
        return EvaluationRuns(store, [task], 1)

    ends = {"behaviour": met("behaviour", 0.2), "online": met("online", 0.6), "oracle": met("oracle", 0.8)}
    column = table1.Column("recsim-1", "RecSim-1", "CTR", {"bcd4rec": met("random", 0.5)}, ends)
    assert (column.gap("bcd4rec"), column.gap("bcd4rec", "oracle"), column.gap("online", "oracle")) == (
        "75",
        "50",
        "67",
    )
    told = table1._gaps([column])
    assert told.verdict == "holds"
    assert told.evidence == ["RecSim-1: 75 [75, 75] %, the paper 58 %; of the gap to the oracle 50 %"]
    with_filter = replace(column, ends=ends | {"filter": met("filter", 0.7)})
    assert ", the Bayes filter 125 %; of the gap" in table1._gaps([with_filter]).evidence[0]
    assert table1._gaps([replace(column, methods={"bcd4rec": ends["behaviour"]})]).verdict == "does not hold here"
    assert table1._gaps([replace(column, ends={"behaviour": ends["behaviour"]})]).verdict == "not measured"


@pytest.mark.parametrize(
    ("cases", "verdict"),
    [
        ([True, True], "holds"),
        ([True, False], "holds partly"),
        ([False, False], "does not hold here"),
        ([], "not measured"),
    ],
)
def test_verdicts(cases, verdict):
    assert judge(cases) == verdict
    assert judge({str(place): case for place, case in enumerate(cases)}) == verdict


def test_more_of_the_right_category_means_more_in_every_run(tmp_path):
    store = TaskStore(tmp_path)

    def met(player: str, accuracies: dict[int, float]) -> EvaluationRuns:
        tasks = [Laboratory().baseline(player, "shop", seed) for seed in accuracies]
        for task, accuracy in zip(tasks, accuracies.values(), strict=True):
            store.path(task).mkdir()
            write_json(store.path(task) / "result.json", {"category_accuracy": accuracy})
        return EvaluationRuns(store, tasks, 3)

    found = {
        "dqn": met("random", {0: 50.0, 1: 60.0}),
        "bcq": met("oracle", {0: 50.5, 1: 61.0, 2: 10.0}),
        "iqn": met("behaviour", {2: 40.0, 1: 70.0, 0: 60.0}),
    }
    found["bcd4rec"] = found["bcq"]
    told = figure1._category_claim(Results(Laboratory(), store, "figure1"), "shop", found)
    assert told.verdict == "holds partly"
    assert told.evidence == [
        "BCQ 40.5 %, DQN 55.0 %; by run +0.5, +1.0",
        "BCD4Rec 40.5 %, IQN 56.7 %; by run −9.5, −9.0, −30.0",
    ]


def test_the_checkpoint_with_the_nearest_rate_writes_the_log(tmp_path):
    rounds = [{"round": 1, "epsilon": 0.7, "rate": 66.0}, {"round": 2, "epsilon": 0.2, "rate": 70.2}]
    (tmp_path / "rounds.json").write_text(json.dumps(rounds))
    assert Checkpoint.nearest(tmp_path, 68.3) == Checkpoint(tmp_path / "round-2", 0.2)
    assert Checkpoint.nearest(tmp_path, 60.0) == Checkpoint(tmp_path / "round-1", 0.7)


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="There is no 'table9' to reproduce; there are table1"):
        studies.known(["table1", "table9"])
    assert studies.known(["all", "table1"]) == studies.names()


def test_shared_pre_training_changes_nothing(tiny, tmp_path):
    lab, store = Laboratory(domains=("recsim-1",)), TaskStore(tmp_path / "store")
    log = lab.log(Run("recsim-1", "bcd4rec"), 0)
    run([log], store)
    dataset = Dataset.load(store.path(log) / "dataset")
    settings = {"evidence": False, "updates": 6, "batch_size": 16, "encoder": "meanpool", "pretraining_epochs": 1}
    alone = fit("bcd4rec", dataset, settings).scorer.arrays()
    for _ in range(2):  # the first writes what the second reads
        together = fit("bcd4rec", dataset, settings, shared=tmp_path / "shared").scorer.arrays()
        assert all(np.array_equal(alone[name], together[name]) for name in alone)
    assert len(list((tmp_path / "shared").iterdir())) == 2
    fit("bcq", dataset, settings, shared=tmp_path / "shared")  # another head, the same pre-training
    assert len(list((tmp_path / "shared").iterdir())) == 2
    fit("bcq", dataset, settings | {"behaviour_epochs": 2}, seed=1, shared=tmp_path / "shared")
    assert len(list((tmp_path / "shared").iterdir())) == 4


@pytest.fixture
def small_table(tiny, monkeypatch) -> Studies:
    """Table 1 of three methods, and what rests on a few agents."""
    agents_run = {"domains": ["recsim-1"], "methods": ["iqn", "bcd4rec"]}
    printed = {"preset": "paper", "log": {"history": ["positives"]}}
    short = {"updates": [6], "pretraining_epochs": [1]}
    replaced = {
        "table1": {"runs": [agents_run | {"methods": ["popular", "iqn", "bcd4rec"]}], "worlds": ["learned", "true"]},
        "table5": {
            "runs": [{"domains": ["recsim-2"], "methods": ["bcq"], "settings": {"beta": [0.1, 0.5, 0.9]}}],
        },
        "ablations": {
            "runs": [
                agents_run,
                agents_run | {"methods": ["bcd4rec"], "log": {"history": ["positives"]}},
                agents_run | {"methods": ["bcd4rec"], "settings": {"rewards": ["logged"]}},
                agents_run | {"methods": ["bcd4rec"], "settings": short} | printed,
                agents_run | {"methods": ["bcd4rec"], "settings": short | {"encoder": ["meanpool"]}} | printed,
                agents_run | {"methods": ["bcd4rec", "popular"], "log": {"sessions": [30, TINY["sessions"]]}},
            ],
        },
        "as_printed": {
            "runs": [agents_run, agents_run | {"settings": short} | printed],
        },
        "figure1": {"runs": [{"domains": ["recsim-2"], "methods": ["bcq"], "settings": {"beta": [0.5]}}]},
        "figure2": {
            "same_as": "table5",
            "runs": [
                {
                    "domains": ["recsim-2"],
                    "methods": ["bcq"],
                    "settings": short | {"pretraining": ["none", "srgnn"], "encoder": ["meanpool"]},
                }
                | printed
            ],
        },
    }
    kept = {name: tiny.studies[name].model_dump() for name in tiny.studies}
    kept["table4"]["runs"] = []
    changed = {name: kept[name] | replaced.get(name, {}) for name in kept}
    small = Studies.parse({"sizes": {"full": TINY, "quick": TINY | {"seeds": 1}}, "studies": changed}, "test")
    monkeypatch.setattr(studies, "load", lambda: small)
    return small


def test_a_reproduction_from_end_to_end(small_table, tmp_path):
    lab, store = Laboratory(domains=("recsim-1", "recsim-2")), TaskStore(tmp_path / "store")
    asked = [
        "table1",
        "table2",
        "table3",
        "table4",
        "table5",
        "figure1",
        "figure2",
        "figure4",
        "ablations",
        "as_printed",
    ]
    wanted = [task for study in asked for task in lab.tasks(study)]
    assert run(wanted, store) == {}
    found = reproduce(asked, lab, store, {}, "bcd4rec reproduce all")
    by_name = {one.name: one for one in found.findings}
    _check_rates(by_name["table1"], lab, store)
    assert [row[0] for row in by_name["table1"].tables[1].rows][-3:] == ["Bayes filter", "Online", "Oracle"]
    unmeasured = [one.text for one in by_name["table1"].claims if one.verdict == "not measured"]
    # Two rounds of 15 users teach the online agent nothing, so there is no way to it of which a share could be told.
    assert unmeasured == [
        "BCD4Rec closes at least the share of the gap to the online policy that the paper's does.",
        "Distributional agents without the constraint (QRDQN, IQN) are better than DQN.",
    ]
    assert [row[0] for row in by_name["table3"].tables[0].rows][:2] == ["RecSim-1", "RecSim-2"]
    assert by_name["table5"].tables[0].rows[0][-2] == "3"  # three values of β, and one seed is enough there
    rates = [
        json.loads((store.path(lab.evaluated(one, 0)) / "result.json").read_text())["rate"]
        for one in lab.runs("table5")
    ]
    assert by_name["table5"].tables[0].rows[0][-1] == f"{min(rates):.1f} to {max(rates):.1f}"
    assert "left out" not in found.made
    with_real = Laboratory(domains=("recsim-1", "recsim-2", "diginetica"))
    assert reproduce(["table2"], with_real, store, {}, "").made["left out"] == "diginetica: no log was given"
    assert found.costs is not None
    assert found.costs.rows[-1][1] == str(len(plan(wanted, store).tasks))
    assert "RecSim-2" in by_name["table3"].tables[0].rows[1]
    told = {one.name: [text for text in one.prose if text.startswith("Seeds")] for one in found.findings}
    fewer = {name: small_table.studies[name].seeds == 1 for name in asked}
    assert told == {name: ["Seeds of these runs: 0."] if fewer[name] else [] for name in asked}
    ours, paper = ([row[0] for row in grid.rows] for grid in by_name["ablations"].tables)
    changes = ["no skips in the state", "rewards of the log in place of the response model's"]
    assert ours == ["nothing", *changes, "the log's policy"]
    assert paper == ["nothing", "encoder = meanpool", "the log's policy"]
    _check_sizes(by_name["ablations"], lab, store)
    _check_printed(by_name["as_printed"], by_name["table1"], lab, store)


def _check_rates(table, lab, store):
    """Means over seeds and the best method, by a plain loop over the files."""
    grid = table.tables[1]
    rates = {}
    for one in lab.runs("table1"):
        if one.domain == "recsim-1":
            by_seed = []
            for seed in range(2):
                sessions = pl.read_parquet(store.path(lab.evaluated(one, seed)) / "sessions.parquet")
                hits = steps = 0
                for row in sessions.iter_rows(named=True):
                    hits, steps = hits + row["targets"], steps + row["steps"]
                by_seed.append(100 * hits / steps)
            rates[NAMES[one.method]] = sum(by_seed) / 2
    shown = {row[0]: row[1] for row in grid.rows if row[0] in rates}
    assert shown.keys() == rates.keys()
    for name, rate in rates.items():
        assert shown[name].text.split(" ± ")[0] == f"{rate:.1f}"
        assert shown[name].best == (rate == max(rates.values()))
    _check_gaps(grid, lab, store)


def _check_gaps(grid, lab, store):
    """Shares of the way to the oracle, by the sessions of all seeds."""
    meetings = {"Bayes filter": "filter", "Behaviour": "behaviour", "Oracle": "oracle"}
    rates = {}
    for name, player in meetings.items():
        tables = [
            pl.read_parquet(store.path(lab.baseline(player, "recsim-1", seed)) / "sessions.parquet")
            for seed in range(2)
        ]
        rates[name] = sum(table["targets"].sum() for table in tables) / sum(table["steps"].sum() for table in tables)
    shown = {row[0]: row[5] for row in grid.rows}
    share = 100 * (rates["Bayes filter"] - rates["Behaviour"]) / (rates["Oracle"] - rates["Behaviour"])
    assert (shown["Bayes filter"], shown["Behaviour"], shown["Oracle"]) == (f"{share:.0f}", "0", "100")


def _check_sizes(found, lab, store):
    """A point for each size of the log, the usual one among them."""
    (chart,) = found.charts
    usual = store.path(lab.evaluated(Run("recsim-1", "bcd4rec"), 0)) / "result.json"
    sizes = [30, TINY["sessions"]]
    assert {name: points.x for name, points in chart.series.items()} == {"bcd4rec": sizes, "popular": sizes}
    assert chart.series["bcd4rec"].y[1] == pytest.approx(json.loads(usual.read_text())["rate"])


def _check_printed(found, table, lab, store):
    """The printed network stands beside ours of table 1, and is not taken for it."""
    shown = {row[0]: row for row in found.tables[0].rows}
    assert list(shown) == ["IQN", "BCD4Rec", "Behaviour"]
    ours = {row[0]: row[1].text for row in table.tables[1].rows}
    for one in lab.runs("as_printed"):
        rates = [
            json.loads((store.path(lab.evaluated(one, seed)) / "result.json").read_text())["rate"] for seed in range(2)
        ]
        place = 1 if one.settings else 4
        assert shown[NAMES[one.method]][place].text.split(" ± ")[0] == f"{sum(rates) / 2:.1f}"
        assert shown[NAMES[one.method]][4].text == ours[NAMES[one.method]]
    assert found.prose[1].startswith("Settings: evidence = False, encoder = bigru, layers = 2, pretraining = srgnn, ")
    assert found.prose[1].endswith(", updates = 6, pretraining_epochs = 1, history = positives.")
    assert [one.text.split(": ")[0] for one in found.claims] == ["With the network as printed"] * 3


def test_the_command_goes_on_and_says_so(small_table, tmp_path):
    out = tmp_path / "out"
    options = ["--quick", "--domains", "recsim-1", "--out", str(out)]
    first = run_here("reproduce", "table1", *options, "--json")
    assert first.returncode == 0, first.stderr
    told = json.loads(first.stdout)
    assert told["quick"] is True
    assert told["findings"][0]["name"] == "table1"
    assert {Path(path).name for path in told["files"].values()} == {"report.html", "reproduction.md", "results.json"}
    assert "quick" in (out / "report.html").read_text(encoding="utf-8").lower()
    assert read_json(out / "results.json")["findings"] == told["findings"]
    second = run_here("reproduce", "table1", *options)
    assert second.returncode == 0
    assert "12 tasks, of which 12 are there already" in second.stderr
    assert "BCD4Rec" in second.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["table7"], "There is no 'table7' to reproduce"),
        (["table1", "--domains", "recsim-9"], "--domains: found 'recsim-9', expected some of recsim-1"),
        (["table1", "--domains", "trivago"], "trivago needs your copy of its log; give it with --trivago PATH"),
        (["table1", "--trivago", "nowhere.parquet"], "--trivago: nowhere.parquet does not exist"),
    ],
)
def test_bad_input(arguments, sentence, tmp_path):
    done = run_here("reproduce", *arguments, "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert sentence in done.stderr
    assert not (tmp_path / "out").exists()
