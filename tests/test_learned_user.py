"""A user learned from a log with a clock and three responses: its bundle, its sessions, its commands."""

import json
import os
import shutil
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from unittest import mock

import gymnasium
import numpy as np
import polars as pl
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import bcd4rec.sim.gym as registration
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.responses import DIGINETICA
from bcd4rec.data.schema import Log
from bcd4rec.data.splits import SplitConfig
from bcd4rec.data.states import PAD
from bcd4rec.errors import InputError
from bcd4rec.evaluation.metrics import per_session
from bcd4rec.evaluation.statistics import Interval
from bcd4rec.evaluation.summary import Evaluation, summarise
from bcd4rec.models.learned_user import LearnedUser, SessionShapes
from bcd4rec.policies import bundle
from bcd4rec.sim.environment import EnvironmentOptions
from bcd4rec.sim.learned import Learned, LearnedConfig, learned
from bcd4rec.sim.rollout import rollout, with_ids, with_openings
from bcd4rec.workflows.comparison import compare, contestant, refuse_outside
from bcd4rec.workflows.fitting import fit
from bcd4rec.workflows.results import read_results, session_table
from bcd4rec.workflows.users import HELD_OUT, FittedUser, _shapes, fit_user, refuse_without_skill, without_skill
from test_cli import fails, result

ITEMS, KINDS, SESSIONS = 30, 5, 420
SETTINGS = {"width": 8, "epochs": 4, "batch_size": 32, "learning_rate": 0.01, "vector_rate": 0.003}
SPLIT = SplitConfig(by="time", periods={"user": 60, "train": 30, "test": 30})


def log(seed: int = 0) -> pl.DataFrame:
    """Sessions that want one category: the first item is searched for and clicked, then random items are shown."""
    rng, rows = np.random.default_rng(seed), []
    for session in range(SESSIONS):
        begin = datetime(2020, 1, 1) + timedelta(days=120 * session / SESSIONS)
        wanted = int(rng.integers(KINDS))
        for step in range(int(rng.integers(2, 9))):
            item = int(rng.integers(ITEMS - 1)) if step else wanted + KINDS * int(rng.integers(ITEMS // KINDS - 1))
            chances = [0.3, 0.3, 0.4] if item % KINDS == wanted else [0.9, 0.08, 0.02]
            response = ["skip", "click", "buy"][rng.choice(3, p=chances)] if step else "click"
            rows.append((session, begin + timedelta(minutes=step), f"i{item:02}", response, f"kind {item % KINDS}"))
    rows.append((SESSIONS, datetime(2020, 1, 1, 5), f"i{ITEMS - 1:02}", "skip", None))  # once, and without category
    names = ["session_id", "timestamp", "item_id", "response", "category"]
    return pl.DataFrame(rows, names, orient="row").sort("timestamp", "session_id", maintain_order=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learned")
    log().write_parquet(folder / "log.parquet")
    prepare(Log(folder / "log.parquet"), DIGINETICA, PrepareConfig(split=SPLIT), folder / "dataset")
    return folder


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Dataset:
    return Dataset.load(folder / "dataset")


@pytest.fixture(scope="module")
def fitted(dataset: Dataset) -> FittedUser:
    return fit_user(dataset, SETTINGS)


@pytest.fixture(scope="module")
def saved(fitted: FittedUser, folder: Path) -> Path:
    (folder / "user").mkdir()
    fitted.save(folder / "user")
    return folder / "user"


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "bcd4rec.cli", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)


def test_it_is_better_than_the_base_rates_also_later(fitted: FittedUser) -> None:
    assert list(fitted.calibrations) == [HELD_OUT, "train", "test"]
    for name in ("train", "test"):
        found = fitted.calibrations[name]
        assert found.overall.skill.low > 0
        buy = found.responses["buy"].auc
        assert buy is not None
        assert buy.low > 60
    assert set(fitted.outside) == set(fitted.calibrations)


def test_only_its_period_is_learned_from(dataset: Dataset, fitted: FittedUser) -> None:
    """Other responses in the later periods change what is measured there, and no bit of the model."""
    later = dataset.sessions["split"].gather(dataset.frame["session"]) != "user"
    turned = dataset.frame.with_columns(
        response=pl.when(later).then(2 - pl.col("response").cast(pl.Int8)).otherwise(pl.col("response")).cast(pl.UInt8)
    )
    other = fit_user(Dataset(dataset.manifest, dataset.items, dataset.sessions, turned, dataset.states), SETTINGS)
    same = other.user.model.state_dict()
    assert all(torch.equal(value, same[name]) for name, value in fitted.user.model.state_dict().items())
    assert other.calibrations[HELD_OUT] == fitted.calibrations[HELD_OUT]
    assert other.calibrations["test"] != fitted.calibrations["test"]


def test_the_bundle_comes_back_the_same(fitted: FittedUser, saved: Path, dataset: Dataset) -> None:
    loaded = LearnedUser.load(saved)
    assert loaded.vocabulary.ids.equals(dataset.vocabulary.ids)
    assert loaded.responses == dataset.responses
    logs = [rollout(Learned(user), contestant("random", Learned(user)), 40, 3) for user in (fitted.user, loaded)]
    assert logs[0].equals(logs[1])
    manifest = json.loads((saved / "manifest.json").read_text())
    assert manifest["data"]["content_hash"] == dataset.content_hash
    metrics = json.loads((saved / "metrics.json").read_text())
    assert metrics["calibration"][HELD_OUT]["responses"]["buy"]["reliability"]


@pytest.mark.parametrize("again", [False, True])
def test_the_sessions_played_are_those_of_the_test_period(fitted: FittedUser, dataset: Dataset, again: bool) -> None:
    rows = dataset.transitions("test")
    expected = []
    for session in sorted(set(rows.session.tolist())):
        shown = [place for place in range(len(rows)) if rows.session[place] == session]
        liked = [place for place in shown if rows.response[place] > 0]
        if liked:
            first = int(rows.action[liked[0]])
            later = [int(rows.action[place]) for place in shown if rows.step[place] > rows.step[liked[0]]]
            later = list(dict.fromkeys(item for item in later if again or item != first))
            expected += [(first, later)] if later else []
    shapes = fitted.user.shapes
    found = shapes.sequels(liked=True, again=again)
    parts = np.split(found.items, found.offsets[1:-1])
    assert list(zip(shapes.first[found.sessions].tolist(), (one.tolist() for one in parts), strict=True)) == expected
    assert sorted(shapes.shown.tolist()) == sorted(np.unique(rows.session, return_counts=True)[1].tolist())


def test_sessions_that_open_with_an_organic_event(tmp_path: Path) -> None:
    """Session 0 opens with a read, session 1 likes what it is shown, session 2 likes nothing, session 3 one read."""
    columns = ("session_id", "step", "item_id", "response", "organic")
    table = [
        (0, 0, 5, "click", True),
        (0, 1, 3, "skip", False),
        (0, 2, 4, "buy", False),
        (1, 0, 3, "skip", False),
        (1, 0, 4, "click", False),
        (1, 1, 5, "skip", False),
        (2, 0, 4, "skip", False),
        (3, 0, 6, "click", True),
    ]
    pl.DataFrame(table, schema=columns, orient="row").write_parquet(tmp_path / "log.parquet")
    config = PrepareConfig(split=SplitConfig(validation=0))
    prepare(Log(tmp_path / "log.parquet"), DIGINETICA, config, tmp_path / "dataset")
    shapes = _shapes(Dataset.load(tmp_path / "dataset"), "train")
    assert (shapes.items + 3).tolist() == [3, 4, 3, 4, 5, 4]
    assert shapes.shown.tolist() == [2, 3, 1]
    assert shapes.first.tolist() == [2, 1, PAD]
    assert shapes.later.tolist() == [2, 1, 0]


def test_what_follows_a_slate_is_what_later_slates_showed() -> None:
    """Two sessions of which only one goes on: 5 and 3 come back, and 5 stands behind the liked 2 in its own slate."""
    shapes = SessionShapes(
        items=np.array([2, 5, 3, 5, 2, 3, 4, 1], np.int32),
        shown=np.array([6, 2], np.int32),
        first=np.array([2, PAD], np.int32),
        later=np.array([4, 0], np.int32),
    )
    found = shapes.sequels(liked=True, again=True)
    assert (found.sessions.tolist(), found.items.tolist(), found.offsets.tolist()) == ([0], [3, 5, 2], [0, 3])
    assert shapes.sequels(liked=True, again=False).items.tolist() == [3, 5]
    assert shapes.sequels(liked=False, again=False).items.tolist() == [2, 5, 3, 4, 1]


@pytest.mark.parametrize("slate_size", [1, 2])
def test_behaviour_shows_the_lists_of_the_log(fitted: FittedUser, slate_size: int) -> None:
    env = Learned(fitted.user, LearnedConfig(unavailable="recommended", most=3, slate_size=slate_size))
    player = contestant("behaviour", env, None, 0)
    shown = rollout(env, player, 60, 4)
    sequels = fitted.user.shapes.sequels(liked=True, again=True)
    lists = np.split(sequels.items, sequels.offsets[1:-1])
    lengths = set()
    for (user,), part in shown.partition_by("session_id", as_dict=True, maintain_order=True).items():
        expected = lists[env._which[int(str(user))]].tolist()
        steps = -(-min(len(expected), 3) // slate_size)  # whole slates, and no more items than the list has
        assert part["item_id"].to_list() == expected[: steps * slate_size]
        lengths.add(len(part))
    assert len(lengths) > 1
    others = contestant("random", env, None, 0)
    log = rollout(env, others, 60, 4)
    assert log["session_id"].unique().equals(shown["session_id"].unique())


def test_what_a_session_opened_with_may_come_back_once(fitted: FittedUser) -> None:
    env = Learned(fitted.user, LearnedConfig(unavailable="recommended"))
    env.reset(300, 0)
    opened = env.openings()
    assert env.step(opened).responses.any()
    assert not env.step(opened).responses.any()
    log = with_openings(rollout(env, contestant("oracle", env), 200, 0), env)
    first = log.filter(pl.col("step") == 0).select("session_id", first="item_id")
    shown = log.filter(pl.col("step") > 0).join(first, on="session_id")
    assert (shown["item_id"] == shown["first"]).any()
    assert shown.select("session_id", "item_id").is_duplicated().sum() == 0


@pytest.mark.parametrize("slate_size", [1, 3])
def test_answers_are_drawn_from_the_model_given_what_was_liked(fitted: FittedUser, slate_size: int) -> None:
    """A plain loop over users: probabilities by the model itself, luck from the environment's table."""
    env = Learned(fitted.user, LearnedConfig(slate_size=slate_size, unavailable="nothing"))
    users, model = 13, fitted.user.model
    env.reset(users, 5)
    liked = [[int(item)] for item in env.openings()[:, 0]]
    draws, left, looked = env._draws.copy(), env._left.copy(), np.zeros(users, int)
    rng = np.random.default_rng(0)
    for _ in range(env.horizon):
        slates = np.array([rng.permutation(ITEMS)[:slate_size] for _ in range(users)], np.int32)
        outcome = env.step(slates)
        for user in range(users):
            history = torch.tensor([liked[user][-10:]], dtype=torch.int32)
            answered = looked[user] < left[user]
            for place, item in enumerate(slates[user].tolist()):
                with torch.no_grad():
                    chances = model(history, torch.tensor([[item]]))[0, 0].exp().double().numpy()
                draw = draws[user, min(looked[user], draws.shape[1] - 1)]
                expected = int((draw >= chances.cumsum()[:-1]).sum()) if answered else 0
                assert outcome.responses[user, place] == expected
                looked[user] += 1
                if expected:
                    liked[user].append(item)
            assert outcome.ended[user] == (looked[user] >= left[user])
    assert max(map(len, liked)) > 2


def test_the_oracle_is_the_expected_reward(fitted: FittedUser) -> None:
    env = Learned(fitted.user)
    env.reset(7, 1)
    env.oracle_scores()  # what it remembers must follow the users
    for item in range(5):
        env.step(np.full((7, 1), item, np.int32))
        found = env.oracle_scores()
        for other in (0, 11, ITEMS - 1):
            chances = env.probabilities(np.full((7, 1), other, np.int32))[:, 0]
            assert found[:, other] == pytest.approx(chances @ [0.0, 1.0, 5.0], abs=1e-4)


def test_the_same_seed_the_same_users_and_policies_share_them(fitted: FittedUser) -> None:
    env = Learned(fitted.user)
    policies = [contestant(name, env, None, 0) for name in ("random", "oracle")]
    first, again = (rollout(env, policies[0], 30, 2) for _ in range(2))
    assert first.equals(again)
    other = rollout(env, policies[1], 30, 2)
    steps = [log.group_by("session_id").len().sort("session_id")["len"] for log in (first, other)]
    assert steps[0].equals(steps[1])
    assert summarise("oracle", other, env.responses, ITEMS).mean_return.value > (
        summarise("random", first, env.responses, ITEMS).mean_return.value
    )


def test_items_are_not_answered_twice(fitted: FittedUser) -> None:
    env = Learned(fitted.user)
    env.reset(200, 0)
    opened = env.openings()
    assert not env.step(opened).responses.any()  # what the session opened with is gone
    env.reset(400, 0)
    first = env.step(np.full((400, 1), 3, np.int32)).responses
    second = env.step(np.full((400, 1), 3, np.int32)).responses
    assert first.any()
    assert not second.any()


def test_settings_change_the_sessions(fitted: FittedUser) -> None:
    env = Learned(fitted.user, LearnedConfig(start="empty", shown=4, slate_size=3))
    env.reset(5, 0)
    assert env.openings().shape == (5, 0)
    assert env.horizon == 2
    slates = np.arange(15, dtype=np.int32).reshape(5, 3)
    assert not env.step(slates).ended.any()
    assert env.step(slates + 15 - 15 * (slates > 14)).ended.all()
    lengths = {len(part) for part in rollout(env, contestant("oracle", env), 20, 0).partition_by("session_id")}
    assert lengths == {6}  # whole slates


def test_logs_have_the_ids_of_the_data_and_can_be_prepared(fitted: FittedUser, tmp_path: Path) -> None:
    env = Learned(fitted.user, LearnedConfig(slate_size=2))
    player = contestant("random", env, None, 0)
    played = rollout(env, player, 50, 0)
    named = with_ids(with_openings(played, env), env)
    assert set(named["item_id"]) <= set(fitted.user.vocabulary.ids)
    assert named.filter(pl.col("item_id") == f"i{ITEMS - 1:02}")["category"].is_null().all()
    named.write_parquet(tmp_path / "log.parquet")
    manifest = prepare(Log(tmp_path / "log.parquet"), DIGINETICA, PrepareConfig(), tmp_path / "dataset")
    assert (manifest["counts"]["sessions"], manifest["counts"]["organic"]) == (50, 50)
    assert manifest["counts"]["impressions"] == len(played)


def test_the_share_outside_support_is_counted(fitted: FittedUser, tmp_path: Path) -> None:
    env = Learned(fitted.user)
    contestants = [contestant(name, env, None, 0) for name in ("random", "oracle")]
    found = compare(env, contestants, 60, 0)
    random = found.evaluations[0]
    assert random.outside is not None
    table = found.sessions["random"]
    assert random.outside.value == pytest.approx(100 * table["outside"].sum() / table["shown"].sum())
    assert random.outside.value > 0  # one item was shown once, so it is always outside
    assert random.to_json()["outside_support"] == random.outside.value
    session_table(found.sessions).write_parquet(tmp_path / "sessions.parquet")
    read = read_results([tmp_path / "sessions.parquet"])
    assert "outside_support" in read.ratios
    assert read.long().columns[-2:] == ["shown", "outside"]


def test_what_lies_outside_is_asked_before_the_answer(fitted: FittedUser) -> None:
    env = Learned(fitted.user)
    env.reset(20, 0)
    rare = np.full((20, 1), ITEMS - 1, np.int32)
    assert env.outside(rare).all()
    assert not env.outside(np.full((20, 1), PAD, np.int32)).any()
    log = rollout(env, contestant("oracle", env), 20, 0)
    plain = {
        session: part["outside"].sum() for (session,), part in log.partition_by("session_id", as_dict=True).items()
    }
    table = per_session(log, env.responses)
    assert dict(table.select("session_id", "outside").iter_rows()) == plain


def test_gymnasium_likes_it(saved: Path) -> None:
    env = gymnasium.make(registration.LEARNED_ID, model=saved, preset="slate_size=2")
    check_env(env.unwrapped, skip_render_check=True)
    observation, _ = env.reset(seed=3)
    assert (observation != PAD).sum() == 1


def test_policies_of_the_data_set_play(fitted: FittedUser, dataset: Dataset, tmp_path: Path) -> None:
    fit("popular", dataset).save(dataset, tmp_path)
    env = Learned(fitted.user)
    found = compare(env, [contestant("popular", env, dataset, 0), contestant(str(tmp_path), env, None, 0)], 30, 0)
    assert found.evaluations[0].rate == found.evaluations[1].rate


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (EnvironmentOptions(), "needs --model"),
        (EnvironmentOptions(model=Path("nowhere")), "is not a folder"),
        (EnvironmentOptions(preset="slate_size=0", model=Path("USER")), "slate_size: found '0'"),
        (EnvironmentOptions(preset="length=3", model=Path("USER")), "unknown key 'length'"),
        (EnvironmentOptions(preset="paper", model=Path("USER")), "expected name=value pairs"),
        (EnvironmentOptions(model=Path("DATA")), "is not a learned user"),
    ],
)
def test_bad_environments_are_refused(options: EnvironmentOptions, words: str, saved: Path, folder: Path) -> None:
    places = {"USER": saved, "DATA": folder / "dataset"}
    given = options._replace(model=places.get(str(options.model), options.model))
    with pytest.raises(InputError, match=words):
        learned(given)


def test_a_user_is_no_policy_and_a_policy_no_user(saved: Path, dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a learned user and not a policy"):
        bundle.load(saved)
    fit("popular", dataset).save(dataset, tmp_path)
    with pytest.raises(InputError, match=r"is not a learned user .*'policy'"):
        LearnedUser.load(tmp_path)


@pytest.mark.parametrize("name", ["arrays.safetensors", "vocabulary.parquet", "manifest.json"])
def test_a_damaged_user_is_one_sentence(name: str, saved: Path, tmp_path: Path) -> None:
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[: -40 if file.name == name else None])
    with pytest.raises(InputError, match=r"is damaged|is not JSON"):
        LearnedUser.load(tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"period": "march"}, "no split 'march' for the user's period"),
        ({"sessions": "march"}, "no split 'march' for the user's sessions"),
        ({"held_out": 0.0001}, "too few to hold some out"),
        ({"epoch": 3}, "unknown key 'epoch'"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], words: str, dataset: Dataset) -> None:
    with pytest.raises(InputError, match=words):
        fit_user(dataset, settings)


def test_chosen_transitions_are_refused(folder: Path, tmp_path: Path) -> None:
    config = PrepareConfig.parse({"split": SPLIT.model_dump(), "transitions": {"convention": "chosen"}}, "test")
    prepare(Log(folder / "log.parquet"), DIGINETICA, config, tmp_path / "dataset")
    with pytest.raises(InputError, match="--convention shown"):
        fit_user(Dataset.load(tmp_path / "dataset"))


def test_the_commands(folder: Path, tmp_path: Path) -> None:
    sets = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    done = run("train", "user", folder / "dataset", "--out", tmp_path / "user", *sets, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["calibration"]["test"]["overall"]["skill"] > 0
    assert (tmp_path / "user" / "calibration.html").read_text().count("<svg") == 4
    told = run(
        "evaluate", "random", "oracle", "--env", "learned", "--model", tmp_path / "user", "--users", 40, "--json"
    )
    assert {"br", "outside_support", "outside_support_low"} <= set(json.loads(told.stdout)["policies"][0])
    told = run(
        "simulate", "--env", "learned", "--model", tmp_path / "user", "--users", 20, "--logs", tmp_path / "log.csv"
    )
    assert told.returncode == 0, told.stderr
    assert "outside" in told.stdout
    refused = run("train", "user", folder / "dataset", "--out", tmp_path / "other", "--resume")
    assert refused.returncode == 2
    assert not (tmp_path / "other").exists()


# Who may judge.


def test_a_user_without_skill_is_no_judge(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "user")
    metrics = json.loads((saved / "metrics.json").read_text())
    assert without_skill(metrics["calibration"]) is None
    refuse_without_skill(saved)
    for one in metrics["calibration"].values():
        one["overall"] |= {"skill": 0.4, "skill_low": -0.3, "skill_high": 1.1}
    (tmp_path / "user" / "metrics.json").write_text(json.dumps(metrics))
    given = ["evaluate", "random", "oracle", "--env", "learned", "--model", tmp_path / "user", "--users", 20]
    told = fails(*given)
    assert "no better than the base rates" in told
    assert "0.4 [-0.3, 1.1] %" in told
    assert "--doubtful" in told
    assert result(*given, "--doubtful")["policies"]
    (tmp_path / "user" / "metrics.json").write_text("{}")
    assert "does not say how well" in fails(*given)


def test_a_policy_outside_the_support_is_not_judged() -> None:
    def played(policy: str, outside: float | None) -> Evaluation:
        found = mock.Mock(spec=Evaluation)
        found.policy, found.outside = policy, None if outside is None else Interval(outside, outside - 1, outside + 1)
        return found

    refuse_outside([played("random", 90.0), played("oracle", 80.0), played("stan", 49.0), played("ctr", None)])
    with pytest.raises(InputError, match="72 % of what stan recommends"):
        refuse_outside([played("random", 90.0), played("stan", 72.0)])
