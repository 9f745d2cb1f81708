"""The search for settings: its grid, its trials, and that it goes on where it stopped."""

import json
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner, Result

from bcd4rec.cli import build
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.responses import RECSIM
from bcd4rec.data.schema import Log
from bcd4rec.data.splits import SplitConfig
from bcd4rec.errors import InputError
from bcd4rec.evaluation.recall import recall
from bcd4rec.training import DivergenceError
from bcd4rec.workflows import tuning
from bcd4rec.workflows.fitting import fit
from bcd4rec.workflows.tuning import Knob, Trial, best, knobs, propose, tune

ITEMS = 13
QUICK = {"shrink": 5, "updates": 2, "batch_size": 8}
NARROW = QUICK | {"cosines": 32, "quantiles": 5}  # leaves learning_rate and beta
SET = [word for key, value in NARROW.items() for word in ("--set", f"{key}={value}")]


def prepared(folder: Path, validation: float = 0.3) -> Path:
    """Logged choices of which some items are liked by one half of the sessions."""
    rng = np.random.default_rng(0)
    rows = [
        (
            session,
            step,
            int(item := rng.integers(ITEMS)),
            "click" if (item + session) % 2 or rng.random() < 0.1 else "skip",
        )
        for session in range(30)
        for step in range(rng.integers(3, 8))
    ]
    log = pl.DataFrame(rows, schema=["session_id", "step", "item_id", "response"], orient="row")
    log.write_parquet(folder / "log.parquet")
    prepare(
        Log(folder / "log.parquet"), RECSIM, PrepareConfig(split=SplitConfig(validation=validation)), folder / "data"
    )
    return folder / "data"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("tuning"))


def found(trials: list[Trial]) -> list[tuple[object, ...]]:
    """Trials without their time."""
    return [(one.number, one.settings, one.q_bar, one.recall, one.recall_low, one.recall_high) for one in trials]


def test_the_grid_is_the_papers_and_the_strength_of_shrinking() -> None:
    rates = Knob((0.0003, 0.001, 0.003), 0.003, 0.003)
    betas = Knob((0.1, 0.3, 0.5, 0.7, 0.9), 0.3, 0.5)
    cosines, layers = Knob((32, 64, 128), 64, 128), Knob((2, 3), 2, 2)
    assert knobs("dqn") == {"learning_rate": rates, "shrink": Knob((1, 10, 100))}
    assert knobs("bcq") == knobs("dqn") | {"beta": betas}
    assert knobs("qrdqn") == knobs("dqn") | {"quantiles": Knob((5, 7, 10), 5, 5)}
    assert knobs("qrbcq") == knobs("qrdqn") | {"beta": betas}
    assert knobs("iqn") == knobs("dqn") | {"quantiles": Knob((5, 7, 10), 5, 10), "cosines": cosines}
    assert knobs("bcd4rec") == knobs("iqn") | {"beta": betas}
    printed = knobs("bcd4rec", {"evidence": "false"})
    assert printed == {key: knob for key, knob in knobs("bcd4rec").items() if key != "shrink"} | {"layers": layers}
    pooled = knobs("bcd4rec", {"evidence": False, "encoder": "meanpool"})
    assert set(pooled) == set(printed) - {"layers"}
    assert set(knobs("bcd4rec", {"beta": "0.2", "quantiles": 4})) == {"learning_rate", "cosines", "shrink"}


def test_the_whole_grid_and_what_a_trial_tells(dataset: Path, tmp_path: Path) -> None:
    data, told = Dataset.load(dataset), list[float]()
    trials = tune("bcq", data, "recall", 0, 4, tmp_path / "tuned", QUICK, lambda _, share: told.append(share))
    cells = [trial.settings for trial in trials]
    assert [(one["learning_rate"], one["beta"]) for one in cells] == list(
        product(*(k.values for k in knobs("bcq", QUICK).values()))
    )
    assert told == sorted(told)
    assert told[-1] == 1
    last = fit("bcq", data, QUICK | cells[-1], 4)
    assert trials[-1].q_bar == last.reports[-1].q_bar
    assert (trials[-1].recall, trials[-1].recall_low) == recall(last.scorer, data, seed=4).interval[:2]
    summary = json.loads((tmp_path / "tuned" / "best.json").read_text())
    highest = max(trial.recall or 0 for trial in trials)
    assert summary["recall"] == highest
    assert summary["trial"] == [trial.recall for trial in trials].index(highest)
    assert summary["settings"] == QUICK | trials[summary["trial"]].settings


def test_a_stopped_search_goes_on_to_the_same_trials(dataset: Path, tmp_path: Path) -> None:
    data = Dataset.load(dataset)
    at_once = tune("bcd4rec", data, "q_bar", 9, 2, tmp_path / "once", NARROW)
    stopped = tune("bcd4rec", data, "q_bar", 4, 2, tmp_path / "twice", NARROW)
    kept = (tmp_path / "twice" / "trials.json").read_bytes()
    assert found(tune("bcd4rec", data, "q_bar", 4, 2, tmp_path / "twice", NARROW)) == found(stopped)
    assert (tmp_path / "twice" / "trials.json").read_bytes() == kept  # nothing was trained again
    gone_on = tune("bcd4rec", data, "q_bar", 9, 2, tmp_path / "twice", {key: str(one) for key, one in NARROW.items()})
    assert found(gone_on) == found(at_once)
    assert gone_on[:4] == stopped
    assert len({tuple(trial.settings.values()) for trial in at_once}) == 9
    other = tune("bcd4rec", data, "q_bar", 4, 3, tmp_path / "other", NARROW)
    assert [one.settings for one in other] != [one.settings for one in stopped]


def test_another_search_is_refused_its_folder(dataset: Path, tmp_path: Path) -> None:
    data, out = Dataset.load(dataset), tmp_path / "tuned"
    tune("dqn", data, "q_bar", 1, 0, out, QUICK)
    for arguments, words in {
        ("iqn", "q_bar", 0, "next_actions", 32): "method 'dqn' instead of 'iqn'",
        ("dqn", "recall", 0, "next_actions", 32): "by 'q_bar' instead of 'recall'",
        ("dqn", "q_bar", 1, "next_actions", 32): "seed 0 instead of 1",
        ("dqn", "q_bar", 0, "next_actions", 7): "other settings",
        ("dqn", "q_bar", 0, "rewards", "logged"): "other settings",
    }.items():
        method, by, seed, key, value = arguments
        with pytest.raises(InputError, match=words):
            tune(method, data, by, 1, seed, out, QUICK | {key: value})
    (tmp_path / "again").mkdir()
    with pytest.raises(InputError, match=r"data '.*' instead of"):
        tune("dqn", Dataset.load(prepared(tmp_path / "again", 0.4)), "q_bar", 1, 0, out, QUICK)
    with pytest.raises(InputError, match="something else than a search"):
        tune("dqn", data, "q_bar", 1, 0, dataset.parent, QUICK)
    (out / "trials.json").write_text('[{"number": 0}]')
    with pytest.raises(InputError, match=r"trials.json is damaged"):
        tune("dqn", data, "q_bar", 1, 0, out, QUICK)


def test_a_trial_that_diverges_is_told_and_not_fatal(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(method: str, data: Dataset, settings: dict[str, float], *rest: object) -> object:
        if settings["learning_rate"] > 0.0005:
            raise DivergenceError("Training diverged at update 7.")
        return fit(method, data, settings, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(tuning, "fit", fails)
    data = Dataset.load(dataset)
    trials = tune("bcq", data, "q_bar", 12, 1, tmp_path / "tuned", QUICK)
    lost = [one for one in trials if one.reason]
    assert {one.settings["learning_rate"] for one in lost} == {0.001, 0.003}
    assert all(one.q_bar is None and one.reason == "Training diverged at update 7." for one in lost)
    assert best(trials, "q_bar").settings["learning_rate"] == 0.0003
    with pytest.raises(InputError, match="None of the 1 trials came to an end; the first: Training diverged"):
        tune("bcq", data, "q_bar", 1, 1, tmp_path / "lost", QUICK | {"learning_rate": 0.1})


def test_the_sampler_learns_from_the_trials_so_far() -> None:
    grid = {"one": Knob(tuple(range(12)), 0, 0), "two": Knob(tuple(range(11)), 0, 0)}

    def searched(seed: int) -> list[Trial]:
        done: list[Trial] = []
        while len(done) < 40:
            chosen = propose(grid, done, "q_bar", seed)
            done.append(Trial(len(done), chosen, 0.0, q_bar=float(chosen["one"] == 7) + float(chosen["two"] == 3)))
        return done

    trials = searched(0)
    late = np.mean([trial.q_bar for trial in trials[20:]])
    assert late > 2 * (1 / 12 + 1 / 11)  # chance would give half of this
    assert trials == searched(0) != searched(1)


def test_equal_trials_and_zeros() -> None:
    trials = [Trial(0, {}, 1.0, q_bar=-1.0), Trial(1, {}, 1.0, q_bar=0.0), Trial(2, {}, 1.0, q_bar=0.0)]
    assert best(trials, "q_bar").number == 1


def invoke(*arguments: object) -> Result:
    """A command in this process; starting torch anew takes seconds."""
    return CliRunner().invoke(build(str(arguments[0])), [*map(str, arguments)])


def test_the_command_ends_with_a_command_that_trains(dataset: Path, tmp_path: Path) -> None:
    asked = ["tune", "bcd4rec", dataset, "--out", tmp_path / "tuned", "--trials", 3, *SET]
    shown = invoke(*asked)
    assert shown.exit_code == 0, shown.output
    assert "paper, RecSim" in shown.stdout
    assert "The first 3 of 3 trials by q_bar" in shown.stdout
    told = json.loads(invoke(*asked, "--json").stdout)
    assert len(told["tried"]) == told["trials"] == 3
    assert told["command"] in shown.stderr
    words = told["command"].replace("policy/", str(tmp_path / "policy")).split()[1:]
    assert json.loads(invoke(*words, "--json").stdout)["q_bar"] == told["q_bar"]


def test_no_environment_is_ever_imported(dataset: Path, tmp_path: Path) -> None:
    code = (
        "import atexit, os, sys; from bcd4rec.cli import main; "
        "atexit.register(lambda: os._exit(7) if 'bcd4rec.sim' in sys.modules else None); main()"
    )
    asked = ["tune", "bcq", dataset, "--out", tmp_path / "tuned", "--trials", 1, *SET]
    done = subprocess.run([sys.executable, "-c", code, *map(str, asked)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tuned" / "best.json").exists()


def test_an_interrupted_command_says_how_to_go_on(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    longer = [word.replace("updates=2", "updates=2000") for word in SET]
    asked = ["tune", "bcd4rec", str(dataset), "--out", str(out), "--trials", "15", *longer]
    process = subprocess.Popen(
        [sys.executable, "-m", "bcd4rec.cli", *asked],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job inherits it ignored
    )
    deadline = time.monotonic() + 240
    while not (out / "manifest.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 2, said
    assert "run the same command again" in said
    assert not (out / "best.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sknn", "DATA"], "found 'sknn'; expected one of bcd4rec, bcq"),
        (["bcq", "DATA", "--by", "ctr"], "--by: found 'ctr', expected q_bar or recall"),
        (["bcq", "DATA", "--set", "betta=1"], "unknown key 'betta'"),
        (
            ["dqn", "DATA", "--set", "learning_rate=0.1", "--set", "shrink=1"],
            "all that is searched (learning_rate, shrink)",
        ),
        (["bcq", "DATA/none"], "is not a folder"),
        (["bcq", "DATA", "--trials", "-1"], "--trials"),
        (["bcq", "UNSPLIT"], "no validation split"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], words: str, dataset: Path, tmp_path: Path) -> None:
    places = {"DATA": str(dataset), "UNSPLIT": str(prepared(tmp_path, 0.0)) if "UNSPLIT" in arguments else ""}
    filled = [word.replace("UNSPLIT", places["UNSPLIT"]).replace("DATA", places["DATA"]) for word in arguments]
    refused = invoke("tune", *filled, "--out", tmp_path / "tuned")
    assert words in (str(refused.exception) if refused.exit_code == 1 else refused.output)
    assert isinstance(refused.exception, InputError | SystemExit)
    assert not (tmp_path / "tuned").exists()


def test_without_optuna_it_says_what_to_install(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"pip install 'bcd4rec\[tune\]'"):
        tune("bcq", Dataset.load(dataset), "q_bar", 1, 0, tmp_path / "tuned", QUICK)
    assert len(tune("dqn", Dataset.load(dataset), "q_bar", 0, 0, tmp_path / "whole", QUICK)) == 3
