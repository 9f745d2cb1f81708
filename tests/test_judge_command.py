"""`bcd4rec judge` on real files: verdicts, exit codes, refusals, the mixture it writes, and the page."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import bcd4rec
from bcd4rec.cli import build
from bcd4rec.data.dataset import Dataset
from bcd4rec.errors import InputError
from bcd4rec.policies import bundle
from bcd4rec.policies.mixture import Mixture
from bcd4rec.sim.interest_evolution import InterestEvolution, InterestEvolutionConfig
from bcd4rec.sim.rollout import rollout, write_log
from bcd4rec.workflows.comparison import random_policy
from bcd4rec.workflows.fitting import fit
from bcd4rec.workflows.judging_study import dataset_of, served, with_epsilon
from tests.markup import assert_loads_nothing, assert_references_resolve

SMALL = InterestEvolutionConfig(items=24, categories=6, slate_size=2, horizon=4)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A logger with much exploration, its log, and candidates."""
    folder = tmp_path_factory.mktemp("judge")
    environment = InterestEvolution(SMALL)
    first = dataset_of(environment, random_policy(environment), 400, 1)
    ranking = served(fit("markov", first).whole(first), environment)
    old = with_epsilon(ranking, 0.9)
    policies = {
        "old": old,
        "less": with_epsilon(ranking, 0.7),
        "greedy": ranking.with_rule(exploration={"kind": "none"}),
        "random": random_policy(environment),
    }
    for name, policy in policies.items():
        policy.save(folder / name)
    log = rollout(environment, old, 1500, 5)
    write_log(log, folder / "log.parquet", environment)
    log.drop("propensity").write_parquet(folder / "bare.parquet")
    log.with_columns(propensity=pl.lit(0.001)).write_parquet(folder / "wrong.parquet")
    liked = pl.col("response") == "click"  # who estimates propensities from what was liked is wrong where it matters
    worse = pl.when(liked).then(pl.col("propensity") * 0.7).otherwise("propensity")
    log.with_columns(propensity=worse).write_parquet(folder / "estimated.parquet")
    log.filter(pl.col("session_id") < 50).write_parquet(folder / "few.parquet")
    return folder


def judge(*arguments: object) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(build("judge"), ["judge", *map(str, arguments), "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, json.loads(done.stdout)


def test_a_step_that_is_better_ships(files):
    code, found = judge(files / "less", "--log", files / "log.parquet", "--logger", files / "old", "--no-model")
    session = next(one for one in found["estimates"] if (one["target"], one["outcome"]) == ("session", "reward"))
    assert session["problem"] is None
    assert (code, found["verdict"]) == {
        True: (0, "ship"),
        False: (3, "cannot tell"),
    }[session["difference"]["low"] > 0]
    assert found["sessions"] == 1500
    assert 0 <= found["coverage"]["exploration_only"] <= 1
    assert found["coverage"]["outside"] == 0
    assert found["smaller_step"]["share"] == 1.0


def test_the_model_and_the_veto_take_part(files):
    code, found = judge(files / "greedy", "--log", files / "log.parquet", "--logger", files / "old")
    assert code in (3, 4)
    methods = {one["method"] for one in found["estimates"]}
    assert methods == {"SNIPS", "doubly robust", "DR + categories", "direct", "per decision"}
    assert all(one["indicative"] for one in found["estimates"] if one["method"] == "direct")
    assert any("does not explore" in note for note in found["notes"])
    assert [one["points"] for one in found["canary"]] == [1, 3, 10]


def test_the_logger_is_neither_better_nor_worse_than_itself(files):
    code, found = judge(files / "old", "--log", files / "log.parquet", "--logger", files / "old", "--no-model")
    assert (code, found["verdict"]) == (3, "cannot tell")
    assert "may be better or worse" in found["reason"]


def test_a_log_without_propensities(files):
    code, found = judge(files / "less", "--log", files / "bare.parquet", "--no-model")
    assert (code, found["verdict"]) == (3, "cannot tell")
    assert found["reason"].startswith("The log has no propensities, and estimates of them are not to be believed: ")
    assert found["propensities"] == "estimated"
    _, with_logger = judge(files / "less", "--log", files / "bare.parquet", "--logger", files / "old", "--no-model")
    _, logged = judge(files / "less", "--log", files / "log.parquet", "--logger", files / "old", "--no-model")
    for one, other in zip(with_logger["estimates"], logged["estimates"], strict=True):
        assert one["difference"]["value"] == pytest.approx(other["difference"]["value"], rel=1e-4, abs=1e-7)


@pytest.mark.parametrize(
    ("log", "logger", "says"),
    [
        ("wrong.parquet", None, "the propensities are too small"),
        ("wrong.parquet", "old", "The propensities cannot be believed"),
        ("estimated.parquet", "old", "(evaluated against itself, "),
        ("log.parquet", "greedy", "of the log's propensities are not those of --logger"),
        ("bare.parquet", "greedy", "is --logger the policy that wrote the log?"),
        ("few.parquet", "old", "The log has 50 sessions, and 100 are needed at least"),
    ],
)
def test_what_cannot_be_believed_decides_nothing(files, log, logger, says):
    given = ["--logger", files / logger] if logger else []
    code, found = judge(files / "less", "--log", files / log, *given, "--no-model", "--accept-one-step")
    assert (code, found["verdict"]) == (3, "cannot tell")
    assert says in found["reason"]


def test_bad_input(files, tmp_path):
    with pytest.raises(InputError, match="the log's slates have 2 items"):
        judge(files / "less", "--log", files / "log.parquet", "--slate-size", 3)
    with pytest.raises(InputError, match="there is no such folder"):
        judge(files / "less", "--log", files / "log.parquet", "--logger", "nobody")
    with pytest.raises(InputError, match="judge needs a policy and a log"):
        judge(files / "less")
    with pytest.raises(InputError, match="--out writes the mixture of --largest-step"):
        judge(files / "less", "--log", files / "log.parquet", "--out", tmp_path / "x")
    log = pl.read_parquet(files / "log.parquet").with_columns(item_id=pl.col("item_id") + 1000)
    log.write_parquet(tmp_path / "other.parquet")
    with pytest.raises(InputError, match="knows none of the log's"):
        judge(files / "less", "--log", tmp_path / "other.parquet")


def test_items_that_the_log_has_never_shown(files, tmp_path):
    log = pl.read_parquet(files / "log.parquet")
    strange = pl.when(pl.col("item_id") < 8).then(pl.col("item_id") + 1000).otherwise("item_id")
    log.with_columns(item_id=strange).write_parquet(tmp_path / "strange.parquet")
    code, found = judge(files / "random", "--log", tmp_path / "strange.parquet", "--no-model")
    assert code == 3
    assert "are items that the log has never shown" in found["reason"]


def test_the_largest_step_is_written(files, tmp_path):
    out = tmp_path / "step"
    given = [files / "greedy", "--log", files / "log.parquet", "--logger", files / "old", "--no-model"]
    code, found = judge(*given, "--largest-step", "--out", out)
    assert code == {"ship": 0, "cannot tell": 3, "reject": 4}[found["smaller_step"]["word"]]
    share = found["smaller_step"]["share"]
    assert 0 < share < 1
    step = bundle.load(out)
    assert isinstance(step, Mixture)
    assert step.share == share
    _, again = judge(out, "--log", files / "log.parquet", "--logger", files / "old", "--no-model")
    session = next(one for one in again["estimates"] if one["target"] == "session")
    assert session["problem"] is None
    assert found["smaller_step"]["word"] in (again["verdict"], "cannot tell")


def test_the_page_is_whole(files, tmp_path):
    page = tmp_path / "page.html"
    given = ["judge", str(files / "greedy"), "--log", str(files / "log.parquet"), "--report", str(page), "--no-model"]
    done = CliRunner().invoke(build("judge"), given)
    assert done.exit_code == 3
    assert done.stdout.startswith("Cannot tell. ")
    text = page.read_text(encoding="utf-8")
    assert "Cannot tell. " in text
    assert "Indicative" in text
    assert_loads_nothing(text)
    assert_references_resolve(text)


def test_from_python(files):
    data = Dataset.from_frame(pl.read_parquet(files / "log.parquet"), {"skip": 0, "click": 4})
    verdict = bcd4rec.judge(files / "less", data, logger=files / "old", with_model=False)
    assert verdict.word in ("ship", "cannot tell")
    assert verdict.sessions == int((data.sessions["split"] == "validation").sum())
    assert any("another data set" in note for note in verdict.notes)
    random = bcd4rec.judge(files / "less", data, logger="random", with_model=False)
    assert "are not those of --logger" in random.reason


def test_calibration_prints_shares_with_intervals():
    given = ["--calibrate", "--cases", "null single", "--logs", 2, "--sessions", 150, "--truth", 10]
    code, found = judge(*given)
    assert code == 0
    (one,) = found["cases"]
    assert one["logs"] == 2
    assert one["ship"]["low"] <= one["ship"]["value"] <= one["ship"]["high"]
    assert not np.isnan(one["targets"]["one step"]["covered"]["value"])
    with pytest.raises(InputError, match="users who tell the truth"):
        judge("--calibrate", "--env", "shop")
