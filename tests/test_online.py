"""An agent that may explore on simulated users."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from bcd4rec.experiments.online import OnlineConfig, learn_online
from bcd4rec.sim.interest_evolution import InterestEvolution
from bcd4rec.sim.rollout import RolloutConfig

QUICK = {"updates": 150, "batch_size": 256}
RULES = RolloutConfig(after_skip="exclude", skips=20, diversity=1.0)


def test_exploration_falls_from_one() -> None:
    config = OnlineConfig(rounds=4, last_epsilon=0.1)
    assert [config.epsilon(number) for number in range(4)] == pytest.approx([1.0, 0.7, 0.4, 0.1])
    assert OnlineConfig(rounds=1, last_epsilon=0.1).epsilon(0) == 1.0


def test_rounds_get_better_and_repeat_to_the_bit() -> None:
    config = OnlineConfig(rounds=3, users=250, last_epsilon=0.0)
    found = list(learn_online(InterestEvolution(), config, QUICK, RULES, seed=0))
    again = list(learn_online(InterestEvolution(), config, QUICK, RULES, seed=0))
    assert found[2].rate > found[0].rate + 4  # percent; the standard deviation over users is about 1
    assert [one.rate for one in found] == [one.rate for one in again]
    assert found[2].log.equals(again[2].log)
    assert found[2].dataset.manifest["counts"]["sessions"] == 750
    ids = pl.concat([one.log for one in found])["session_id"]
    assert ids.n_unique() == 750


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "bcd4rec.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def test_the_command_writes_a_policy_and_logs(tmp_path: Path) -> None:
    out, logs = tmp_path / "online", tmp_path / "logs"
    quick = ["--rounds", "2", "--users", "40", "--set", "updates=5", "--set", "batch_size=16"]
    done = run("online", "--out", out, "--logs", logs, *quick, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [one["epsilon"] for one in told["rounds"]] == pytest.approx([1.0, 0.1])
    assert sorted(path.name for path in logs.iterdir()) == ["round-1.parquet", "round-2.parquet"]
    assert pl.read_parquet(logs / "round-2.parquet")["propensity"].is_between(0, 1).all()
    scored = run("evaluate", "random", out, "oracle", "--users", 20, "--json")
    assert scored.returncode == 0, scored.stderr
    assert [one["policy"] for one in json.loads(scored.stdout)["policies"]][1] == "iqn"
