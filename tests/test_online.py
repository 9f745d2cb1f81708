"""An agent that may explore on simulated users."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.schema import Log
from bcd4rec.data.splits import SplitConfig
from bcd4rec.errors import InputError
from bcd4rec.sim.interest_evolution import InterestEvolution, preset
from bcd4rec.sim.rollout import rollout
from bcd4rec.workflows.comparison import contestant
from bcd4rec.workflows.online import OnlineConfig, learn_online, logged_rows
from test_cli import fails

QUICK = {"updates": 150, "batch_size": 256}
RULES = {"after_skip": "exclude", "diversity": 1.0}


def test_exploration_falls_from_one() -> None:
    config = OnlineConfig(rounds=4, last_epsilon=0.1)
    assert [config.epsilon(number) for number in range(4)] == pytest.approx([1.0, 0.7, 0.4, 0.1])
    assert OnlineConfig(rounds=1, last_epsilon=0.1).epsilon(0) == 1.0
    config = OnlineConfig(rounds=3, first_epsilon=0.3, last_epsilon=0.1)
    assert [config.epsilon(number) for number in range(3)] == pytest.approx([0.3, 0.2, 0.1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dataset", "nowhere"], "nowhere is not a folder"),
        (["--first-epsilon", "3"], "less than or equal to 1"),
        (["--rounds", "0"], "greater than or equal to 1"),
    ],
)
def test_bad_options_get_one_sentence_and_nothing_is_written(options, words, tmp_path) -> None:
    assert words in fails("online", "--env", "recsim", "--out", tmp_path / "policy", *options)
    assert not list(tmp_path.iterdir())


def test_unknown_candidates_are_refused() -> None:
    told = fails("evaluate", "random", "--env", "recsim", "--candidates", "shelf")
    assert told == "--candidates: found 'shelf', expected 'all' or 'category'."


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


@pytest.fixture
def known(tmp_path: Path) -> Dataset:
    """What 300 users said to random slates of every other item."""
    env = InterestEvolution()
    log = rollout(env, contestant("random", env).with_rule(after_skip="exclude"), 300, 1)
    log.write_parquet(tmp_path / "log.parquet")
    config = PrepareConfig(split=SplitConfig(validation=0.2))
    prepare(Log(tmp_path / "log.parquet"), env.responses, config, tmp_path / "dataset", 0)
    return Dataset.load(tmp_path / "dataset")


def test_the_log_of_a_data_set_is_its_train_split(known: Dataset) -> None:
    env = InterestEvolution()
    rows, found = known.transitions("train"), logged_rows(known, env)
    assert found["item_id"].to_list() == known.vocabulary.ids.gather(rows.action).to_list()
    assert found["response"].to_list() == [known.responses.names[code] for code in rows.response]
    assert found["session_id"].n_unique() == 240
    assert found["propensity"].to_numpy() == pytest.approx(rows.propensity)
    assert env.categories is not None
    assert found["category"].to_list() == [env.categories[item] for item in found["item_id"]]
    for part in found.partition_by("session_id", "step")[:50]:
        assert part["position"].to_list() == list(range(len(part)))


def test_the_log_of_a_data_set_gives_the_same_data_set_again(tmp_path: Path) -> None:
    """Also where sessions hold what nobody recommended: before, between and after slates, and the same item twice."""
    env = InterestEvolution()
    log = rollout(env, contestant("random", env).with_rule(after_skip="exclude"), 5, 1)
    read = {"item_id": 7, "response": "click", "category": log.filter(item_id=7)["category"][0], "organic": True}
    places = [(0, -2), (0, -1), (1, 4), (1, 5), (2, 99), (4, -1)]
    reads = pl.DataFrame([read | {"session_id": session, "step": step} for session, step in places])
    shown = log.with_columns(pl.col("step") + pl.when(session_id=1).then(2 * (pl.col("step") > 3)).otherwise(0))
    columns = [pl.col("session_id").cast(pl.Int64), pl.col("step").cast(pl.Int32), pl.col("item_id").cast(pl.Int64)]
    whole = pl.concat(
        [shown, reads.with_columns(*columns, pl.col("category").cast(shown["category"].dtype))], how="diagonal"
    )
    whole = whole.sort("session_id", "step", "position").drop("request_id")

    def data(rows: pl.DataFrame, name: str) -> Dataset:
        rows.write_parquet(tmp_path / f"{name}.parquet")
        config = PrepareConfig(split=SplitConfig(validation=0))
        prepare(Log(tmp_path / f"{name}.parquet"), env.responses, config, tmp_path / name, 0)
        return Dataset.load(tmp_path / name)

    first = data(whole, "first")
    again = data(logged_rows(first, env), "again")
    assert first.manifest["counts"]["organic"] == 6
    assert again.manifest["counts"] == first.manifest["counts"]
    assert again.frame.equals(first.frame)
    assert (again.states.positives == first.states.positives).all()
    assert (again.states.skips == first.states.skips).all()


def test_it_goes_on_from_a_log(known: Dataset) -> None:
    env, config = InterestEvolution(), OnlineConfig(rounds=2, users=120, first_epsilon=0.2, last_epsilon=0.0)
    quick = QUICK | {"updates": 50}
    found = list(learn_online(env, config, quick, RULES, seed=0, known=known))
    assert [one.epsilon for one in found] == [0.2, 0.0]
    assert found[0].rate > 68  # random slates have 64, with a standard deviation of about 1
    assert found[1].dataset.manifest["counts"]["sessions"] == 240 + 2 * 120
    again = next(learn_online(env, config, quick, RULES, seed=0, known=known))
    assert found[0].log.equals(again.log)


def test_states_are_like_those_of_the_log_it_began_with(known: Dataset, tmp_path: Path) -> None:
    env, config = InterestEvolution(), OnlineConfig(rounds=1, users=20, first_epsilon=0.2)
    history = {"transitions": {"history": "positives"}}
    prepare(Log(tmp_path / "log.parquet"), env.responses, PrepareConfig.parse(history, "test"), tmp_path / "plain", 0)
    for data, remembers in ((known, True), (Dataset.load(tmp_path / "plain"), False)):
        (found,) = learn_online(env, config, QUICK | {"updates": 2}, RULES, seed=0, known=data)
        assert (found.dataset.states.skips.shape[1] > 0) == remembers


def test_a_log_of_other_items_is_refused(known: Dataset) -> None:
    small = InterestEvolution(preset("paper").model_copy(update={"items": 40}))
    with pytest.raises(InputError, match="does not know 160 of the data set's 200 items"):
        logged_rows(known, small)


def test_a_user_is_no_method_and_not_listed_as_one(tmp_path: Path) -> None:
    done = run("online", "--method", "user", "--rounds", 1, "--users", 5, "--out", tmp_path / "online")
    assert done.returncode == 2
    assert "Unknown method 'user'; known are" in done.stderr
    assert "user," not in done.stderr
    assert ", user." not in done.stderr


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
    assert sorted(path.name for path in logs.iterdir()) == ["manifest.json", "round-1.parquet", "round-2.parquet"]
    assert pl.read_parquet(logs / "round-2.parquet")["propensity"].is_between(0, 1).all()
    scored = run("evaluate", "random", out, "oracle", "--users", 20, "--json")
    assert scored.returncode == 0, scored.stderr
    assert [one["policy"] for one in json.loads(scored.stdout)["policies"]][1] == "iqn"
