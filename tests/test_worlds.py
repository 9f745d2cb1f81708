"""One default on many logs, in small, and the search by the log that stands behind it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from bcd4rec.agents.agent import AGENTS
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig
from bcd4rec.data.splits import SplitConfig
from bcd4rec.errors import InputError
from bcd4rec.policies.evidence_policy import EvidencePolicy
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig
from bcd4rec.training import Trainer, checkpoint_of
from bcd4rec.workflows import worlds
from bcd4rec.workflows.fitting import fit
from bcd4rec.workflows.worlds import World


def environment() -> InterestEvolution:
    return InterestEvolution(InterestEvolutionConfig(categories=4, items=24, slate_size=3, horizon=8))


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    env = environment()
    log = World("tiny", environment, sessions=400).log(env, seed=1)
    return Dataset.from_frame(log, env.responses, PrepareConfig(split=SplitConfig(validation=0.3)), seed=1)


def test_a_run_goes_on_where_it_was_and_gives_the_same(tmp_path, monkeypatch):
    monkeypatch.setitem(worlds.WORLDS, "tiny", World("tiny", environment, sessions=150))
    methods = ("popular", "response")
    first = worlds.run(tmp_path / "run", ["tiny"], {}, methods, seeds=2, users=60)
    kept = (tmp_path / "run" / "tiny-0.json").read_bytes()
    (tmp_path / "run" / "tiny-1.json").unlink()
    assert worlds.run(tmp_path / "run", ["tiny"], {}, methods, seeds=2, users=60) == first
    assert (tmp_path / "run" / "tiny-0.json").read_bytes() == kept
    values = first["tiny"][0]["values"]
    assert values["response"]["value"] > values["popular"]["value"]
    assert first["tiny"][0]["to response"]["popular"]["high"] < 0
    with pytest.raises(InputError, match="another run"):
        worlds.run(tmp_path / "run", ["tiny"], {}, methods, seeds=2, users=61)


def test_a_log_without_held_out_sessions_judges_nobody(dataset, tmp_path):
    assert worlds.held_out(dataset, tmp_path) == "validation"
    env = environment()
    log = World("tiny", environment, sessions=20).log(env, seed=1)
    bare = Dataset.from_frame(log, env.responses, PrepareConfig(split=SplitConfig(validation=0.0)), seed=1)
    with pytest.raises(InputError, match="held-out"):
        worlds.held_out(bare, tmp_path)


def test_a_checkpoint_of_other_settings_is_refused(dataset, tmp_path):
    config = AGENTS["iqn"].parse({"updates": 4}, "test")
    trainer = Trainer(config, dataset, seed=2)
    next(iter(trainer.run(2)))
    trainer.save(checkpoint_of(config, tmp_path / "checkpoint"))
    fit("iqn", dataset, {"updates": 4}, seed=2, checkpoint=tmp_path / "checkpoint", search="none")
    with pytest.raises(InputError, match="config differs"):
        fit("iqn", dataset, {"updates": 6}, seed=2, checkpoint=tmp_path / "checkpoint", search="none")


def test_means_over_seeds_by_hand():
    def one(value: float, half: float) -> dict[str, object]:
        return {
            "title": "t",
            "measure": "rate",
            "values": {"m": {"value": value, "low": value - half, "high": value + half}},
        }

    ((_, _, found),) = list(worlds.rows({"w": [one(10.0, 3.0), one(14.0, 4.0)]}))
    assert found["m"] == pytest.approx((12.0, 2.5))  # √(9 + 16) / 2


def test_the_search_takes_the_run_that_ranks_validation_slates_best(dataset):
    found = fit("bcd4rec", dataset, {"updates": 30}, seed=2)
    told = found.about["search"]
    measures = [one["measure"] for one in told["tried"]]
    assert [one["strength"] for one in told["tried"]] == [1.0, 10.0, 100.0]
    assert told["chosen"] == told["tried"][int(np.argmax(measures))]["strength"] == found.about["config"]["shrink"]


@pytest.mark.parametrize(("settings", "search"), [({"shrink": 3.0}, "quick"), ({}, "none")])
def test_nothing_is_searched_where_nothing_is_left_to_choose(dataset, settings, search):
    found = fit("iqn", dataset, settings | {"updates": 5}, seed=2, search=search)
    assert found.about["search"]["tried"] == []
    assert found.about["config"]["shrink"] == settings.get("shrink", 10.0)


def test_without_validation_sessions_the_default_stands():
    env = environment()
    log = World("tiny", environment, sessions=60).log(env, seed=1)
    bare = Dataset.from_frame(log, env.responses, PrepareConfig(split=SplitConfig(validation=0.0)), seed=1)
    assert fit("iqn", bare, {"updates": 5}, seed=2).about["search"]["tried"] == []


def test_where_sessions_end_at_once_the_response_model_is_the_policy():
    env = InterestEvolution(InterestEvolutionConfig(categories=4, items=24, slate_size=3, horizon=1))
    log = World("short", lambda: env, sessions=200).log(env, seed=1)
    found = fit("bcd4rec", Dataset.from_frame(log, env.responses, seed=1), seed=2)
    assert isinstance(found.scorer, EvidencePolicy)
    assert found.scorer.returns is None
    assert "nothing to look ahead to" in found.about["search"]["reason"]


def test_bad_options_of_the_command(tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bcd4rec.cli", *arguments], capture_output=True, text=True, check=False
        )

    done = run("benchmark", "worlds", "--out", str(tmp_path / "out"), "--only", "moon")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'moon'" in done.stderr
    assert "random" in done.stderr
    done = run("benchmark", "worlds", "--out", str(tmp_path / "out"), "--only", "small", "--methods", "magic")
    assert done.returncode == 2
    assert "'magic'" in done.stderr
    done = run("train", "bcd4rec", str(tmp_path), "--out", str(tmp_path / "policy"), "--search", "slow")
    assert done.returncode == 2
    assert "expected none, quick, full" in done.stderr
    done = run("benchmark", "worlds", "--out", str(tmp_path / "out"), "--only", "none", "--json")
    assert done.returncode == 2
    assert "nothing to measure" in done.stderr
    assert not (tmp_path / "out").exists()
    assert not done.stdout or json.loads(done.stdout)
