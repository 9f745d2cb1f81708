"""`train` and `recommend` as people run them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import polars as pl
import pytest
import torch

from bcd4rec.agents.presets import PRESETS
from bcd4rec.commands.train import TrainingProgress, learn
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.responses import RECSIM
from bcd4rec.data.schema import Log
from bcd4rec.errors import InputError
from bcd4rec.policies import bundle
from bcd4rec.sim.interest_evolution import InterestEvolution
from bcd4rec.sim.rollout import rollout
from bcd4rec.training import device_of
from bcd4rec.workflows.comparison import random_policy

SETTINGS = ("evidence=false", "pretraining=svd", "behaviour_epochs=1", "dimension=8", "encoder=meanpool")
QUICK = [part for setting in SETTINGS for part in ("--set", setting)]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "bcd4rec.cli", *map(str, arguments)]


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=environment, timeout=600)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    environment = InterestEvolution()
    rollout(environment, random_policy(environment), 60, 0).write_parquet(folder / "log.parquet")
    prepare(Log(folder / "log.parquet"), RECSIM, PrepareConfig(), folder / "dataset")
    return folder / "dataset"


@pytest.fixture(scope="module")
def policy(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("policy") / "policy"
    done = run("train", "bcd4rec", dataset, "--out", out, "--set", "updates=40", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["method"] == "bcd4rec"
    assert found["step"] == 40
    return out


@pytest.fixture(scope="module")
def plain(policy: Path) -> Path:
    """The same policy with slates in the order of its values."""
    out = policy.parent / "plain"
    bundle.load(policy).with_rule(diversity=0.0, after_skip="repeat").save(out)
    return out


def test_the_bundle_says_what_it_is(policy: Path, dataset: Path) -> None:
    manifest = json.loads((policy / "manifest.json").read_text())
    about = manifest["about"]
    assert about["method"] == "bcd4rec"
    assert about["config"]["beta"] == 0.5
    assert about["data"]["content_hash"] == json.loads((dataset / "manifest.json").read_text())["content_hash"]
    assert manifest["versions"]["torch"]
    assert "Q̄" in (policy / "training.html").read_text()
    assert not (policy.parent / "policy.checkpoint").exists()


def test_recommend_ranks_items_with_quantiles(plain: Path) -> None:
    done = run("recommend", plain, "--session", "3,zebra,4", "--top", "5", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["unknown"] == ["zebra"]
    assert "zebra" in done.stderr
    values = [one["value"] for one in found["items"]]
    assert len(values) == 5
    assert values == sorted(values, reverse=True)
    assert not {3, 4} & {one["item"] for one in found["items"]}
    for one in found["items"]:
        spread = list(one["quantiles"].values())
        assert spread == sorted(spread)
        assert spread[0] <= one["value"] <= spread[-1]


def test_recommend_takes_candidates_and_empty_sessions(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("7\n12\n3\n")
    done = run("recommend", policy, "--session", "3", "--candidates", tmp_path / "some.txt", "--json")
    assert {one["item"] for one in json.loads(done.stdout)["items"]} == {7, 12}
    assert len(json.loads(run("recommend", policy, "--json").stdout)["items"]) == 3


def test_recommend_agrees_with_the_scores_of_the_policy(plain: Path) -> None:
    from bcd4rec.data.states import States

    loaded = bundle.load(plain)
    scores = loaded.scorer.scores(States.of([[3, 4]]))[0]
    scores[[3, 4]] = -np.inf
    expected = np.argsort(-scores, kind="stable")[:3].tolist()
    done = run("recommend", plain, "--session", "3,4", "--json")
    assert [one["item"] for one in json.loads(done.stdout)["items"]] == expected


def test_recommend_makes_slates_by_the_policys_rule(policy: Path, tmp_path: Path) -> None:
    loaded = bundle.load(policy)
    assert loaded.vectors is not None
    loaded.with_rule(diversity=0.0, after_skip="repeat", unavailable="liked").save(tmp_path / "plain")
    best = [item for item, _ in bundle.load(tmp_path / "plain").recommend([3, 4], k=3)]
    loaded.with_rule(diversity=5.0, after_skip="exclude", unavailable="nothing").save(tmp_path / "other")
    shown = []
    for folder in (tmp_path / "plain", tmp_path / "other"):
        one = bundle.load(folder)
        skipped = ",".join(map(str, best))
        found = json.loads(run("recommend", folder, "--session", "3,4", "--skipped", skipped, "--json").stdout)
        session = [3, 4, *((item, "skip") for item in best)]
        shown.append([item["item"] for item in found["items"]])
        assert shown[-1] == [item for item, _ in one.recommend(session)]
        assert found["rule"] == one.rule.model_dump(mode="json")
    assert shown[0] != shown[1]
    assert not set(best) & set(shown[1])


def test_baselines_train_by_the_same_command(dataset: Path, tmp_path: Path) -> None:
    assert run("train", "popular", dataset, "--out", tmp_path / "popular").returncode == 0
    found = json.loads(run("recommend", tmp_path / "popular", "--top", "1", "--json").stdout)
    items = pl.read_parquet(dataset / "items.parquet")
    assert found["items"][0]["value"] == items["positives"].max()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "nonsense", "DATA", "--out", "OUT"], "Unknown method 'nonsense'"),
        (["train", "iqn", "DATA", "--out", "OUT", "--set", "betta=1"], "unknown key 'betta'"),
        (["train", "iqn", "DATA", "--out", "OUT", "--set", "beta=2"], "beta: found '2'"),
        (["train", "iqn", "DATA", "--out", "OUT", "--set", "beta"], "expected key=value"),
        (["train", "iqn", "DATA", "--out", "OUT", "--set", "layers=3"], "layers is for evidence=false; add --set ev"),
        (["train", "iqn", "DATA", "--out", "OUT", "--preset", "book"], "Unknown preset 'book' of iqn; known are paper"),
        (["train", "stan", "DATA", "--out", "OUT", "--preset", "paper"], "--preset is for agents (bcd4rec, bcq"),
        (["train", "iqn", "DATA", "--out", "OUT", "--device", "tpu"], "--device: found 'tpu', expected auto, cpu or"),
        (["train", "stan", "DATA", "--out", "OUT", "--device", "cuda"], "--device cuda is for agents, and stan is a"),
        (["train", "iqn", "DATA", "--out", "OUT", "--set", "level=0.1"], "level is for risk=cvar and risk=optimistic"),
        (["train", "iqn", "DATA/none", "--out", "OUT"], "is not a folder"),
        (["train", "iqn", "DATA", "--out", "DATA"], "exists already"),
        (["train", "iqn", "DATA", "--out", "OUT", "--resume"], "nothing to resume"),
        (["recommend", "DATA"], "is not a policy"),
        (["recommend", "OUT/none"], "is not a folder"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], words: str, dataset: Path, tmp_path: Path) -> None:
    places = {"DATA": str(dataset), "OUT": str(tmp_path / "out")}
    done = run(*(part.replace("DATA", places["DATA"]).replace("OUT", places["OUT"]) for part in arguments))
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from bcd4rec.cli import main; main()"


def run_without_torch(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """As on a machine where torch is not installed."""
    command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize("name", ["category_popular", "ctr", "markov", "popular", "response", "sknn", "stan", "vsknn"])
def test_baselines_that_need_no_torch_train_without_it(name: str, dataset: Path, tmp_path: Path) -> None:
    done = run_without_torch("train", name, dataset, "--out", tmp_path / "policy", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == name


@pytest.mark.parametrize("name", ["bcd4rec", "cql", "item2vec", "gru4rec"])
def test_without_torch_agents_say_what_they_need(name: str, dataset: Path, tmp_path: Path) -> None:
    done = run_without_torch("train", name, dataset, "--out", tmp_path / "policy")
    assert done.returncode == 2
    assert "needs torch: pip install 'bcd4rec[train]'." in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_device_is_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, found in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert device_of("auto") == found
        assert device_of("cpu") == "cpu"
    assert device_of("cuda") == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"--device cuda: torch .* finds no GPU; use --device cpu, or install"):
        device_of("cuda")


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_training_on_a_device_and_by_a_risk_measure(device: str, dataset: Path, tmp_path: Path) -> None:
    if device == "auto" and torch.cuda.is_available():
        pytest.skip("the machine has a GPU, whose bits are its own")
    quick = ["--set", "updates=3", "--set", "risk=cvar", "--set", "level=0.3", "--search", "none"]
    done = run("train", "qrdqn", dataset, "--out", tmp_path / "policy", "--device", device, *quick)
    assert done.returncode == 0, done.stderr
    settings = json.loads((tmp_path / "policy" / "manifest.json").read_text())["settings"]
    assert settings["risk"] == {"measure": "cvar", "level": 0.3}


def test_the_papers_settings_have_a_name_and_can_be_changed(dataset: Path, tmp_path: Path) -> None:
    changed = ["--set", "updates=3", "--set", "pretraining_epochs=1", "--set", "encoder=meanpool"]
    done = run("train", "qrbcq", dataset, "--out", tmp_path / "policy", "--preset", "paper", *changed)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "policy" / "manifest.json").read_text())["about"]["config"]
    given = {"updates": 3, "pretraining_epochs": 1, "encoder": "meanpool"}
    assert {name: config[name] for name in PRESETS["paper"] | given} == PRESETS["paper"] | given


def test_without_resume_an_earlier_checkpoint_is_forgotten(dataset: Path, tmp_path: Path) -> None:
    """Its other strengths may be of another log."""
    (tmp_path / "policy.checkpoint" / "another").mkdir(parents=True)
    watcher = TrainingProgress(tmp_path / "policy.checkpoint")
    stopped = mock.patch("bcd4rec.workflows.fitting.fit", side_effect=KeyboardInterrupt)
    with stopped, pytest.raises(KeyboardInterrupt):
        learn("dqn", Dataset.load(dataset), tmp_path / "policy", watcher, {}, resume=True)
    assert (tmp_path / "policy.checkpoint").exists()
    with stopped, pytest.raises(KeyboardInterrupt):
        learn("dqn", Dataset.load(dataset), tmp_path / "policy", watcher, {})
    assert not (tmp_path / "policy.checkpoint").exists()


@pytest.mark.parametrize("network", [[], QUICK], ids=["evidence", "embeddings"])
def test_ctrl_c_keeps_a_checkpoint_and_resume_gives_the_same_bits(
    network: list[str], dataset: Path, tmp_path: Path
) -> None:
    settings = [*network, "--set", "updates=2000", "--set", "batch_size=64"]
    arguments = ["train", "iqn", dataset, "--out", tmp_path / "policy", *settings]
    with subprocess.Popen(
        command(*arguments, "--tensorboard", tmp_path / "board"), stderr=subprocess.PIPE, text=True
    ) as process:
        board = tmp_path / "board"
        for _ in range(3000):  # the first report of the training has been written
            if board.exists() and any(file.stat().st_size > 300 for file in board.iterdir()):
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 2, said
    assert "--resume" in said
    assert not (tmp_path / "policy").exists()
    assert run(*arguments, "--resume").returncode == 0
    assert not (tmp_path / "policy.checkpoint").exists()
    assert run("train", "iqn", dataset, "--out", tmp_path / "whole", *settings).returncode == 0
    pair = [(tmp_path / name / "arrays.safetensors").read_bytes() for name in ("policy", "whole")]
    assert pair[0] == pair[1]


def test_a_data_set_without_a_discount(dataset: Path, tmp_path: Path) -> None:
    """What a session can bring is then bounded by the longest of the log."""
    config = PrepareConfig.parse({"transitions": {"gamma": 1.0}}, "test")
    prepare(Log(dataset.parent / "log.parquet"), RECSIM, config, tmp_path / "dataset")
    done = run(
        "train", "qrdqn", tmp_path / "dataset", "--out", tmp_path / "policy", "--set", "updates=20", *QUICK, "--json"
    )
    assert done.returncode == 0, done.stderr
    about = json.loads((tmp_path / "policy" / "manifest.json").read_text())["about"]
    assert about["training"]["feasible"] == 20 * 4.0  # steps of the longest session, and the reward of a click
