"""No silent nonsense, by real commands: judges without skill, clicks alone, progress without a terminal, tables."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import bcd4rec
from bcd4rec.data.dataset import Dataset
from bcd4rec.errors import InputError
from bcd4rec.sim.environment import EnvironmentOptions
from bcd4rec.sim.learned import learned
from test_cli import ENVIRONMENT, fails, result, run, works

ITEMS, OFTEN = 30, 10  # the first ten are shown often, all others rarely
SMALL = ("--set", "width=8", "--set", "epochs=2", "--set", "learning_rate=0.01", "--set", "batch_size=32")
PERIODS = ("--split", "time", "--periods", "user=14,train=7,test=7")
EXAMPLES = Path(__file__).parents[1] / "examples"


def write_log(path: Path, items: list[int], liked: Callable[[int], float], name: str = "{}") -> Path:
    """Four weeks of sessions that show five items of these, one after the other."""
    rng, rows = np.random.default_rng(1), []
    for session in range(400):
        for step in range(5):
            item = int(rng.choice(items))
            row = {"session_id": session, "timestamp": 1_700_000_000 + 6000 * session + 60 * step}
            answer = "click" if rng.random() < liked(item) else "skip"
            rows.append(row | {"item_id": name.format(item), "response": answer})
    pl.DataFrame(rows).write_parquet(path)
    return path


def odd(item: int) -> float:
    return 0.7 if item % 2 else 0.1


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users of a log of noise and of one that can be learned, and policies of this and of other logs."""
    folder = tmp_path_factory.mktemp("nonsense")
    noise = write_log(folder / "noise.parquet", list(range(ITEMS)), lambda item: 0.3)
    mostly = [*range(OFTEN)] * 100 + [*range(OFTEN, ITEMS)]
    for name, log in {"noise": noise, "real": write_log(folder / "real.parquet", mostly, odd)}.items():
        works("prepare", log, *PERIODS, "--out", folder / name)
    logs = {"rare": list(range(OFTEN, ITEMS)), "alike": list(range(ITEMS))}
    for name, items in logs.items():
        log = write_log(folder / f"{name}.parquet", items, odd, "0{}" if name == "alike" else "{}")
        works("prepare", log, "--out", folder / f"{name}-data")
        works("train", "popular", folder / f"{name}-data", "--out", folder / name)
    return folder


@pytest.fixture(scope="module")
def user(made: Path) -> Path:
    done = works("train", "user", made / "real", "--out", made / "user", *SMALL)
    assert "Warning" not in done.stderr
    assert "Try it:  bcd4rec evaluate" in done.stderr
    return made / "user"


def test_a_user_of_noise_judges_nobody(made: Path) -> None:
    out = made / "noisy"
    done = works("train", "user", made / "noise", "--out", out, *SMALL)
    assert "Warning: this user foretells held-out sessions no better than the base rates of the responses do (it" in (
        done.stderr
    )
    assert "bcd4rec evaluate" not in done.stderr  # nothing is proposed that would be refused
    given = ("evaluate", "popular", "--env", "learned", "--model", out, "--dataset", made / "noise", "--users", 30)
    told = fails(*given)
    assert told.startswith(f"The user in {out} foretells held-out sessions no better than the base rates")
    assert told.endswith("or ask it all the same with --doubtful.")
    assert result(*given, "--doubtful")["policies"][0]["policy"] == "popular"
    environment = learned(EnvironmentOptions(None, out))
    with pytest.raises(InputError, match="no better than the base rates"):
        bcd4rec.evaluate("random", env=environment, users=30)
    assert bcd4rec.evaluate("random", env=environment, users=30, doubtful=True).table().height == 1


def test_a_policy_of_what_the_user_never_saw_is_not_judged(made: Path, user: Path) -> None:
    given = ("--env", "learned", "--model", user, "--dataset", made / "real", "--users", 30)
    told = fails("evaluate", "random", made / "rare", *given)
    assert re.match(r"\d+ % of what popular recommends lies outside of what the learned user has seen, so its ", told)
    assert "leave this policy out, judge it on the log itself (--log), or ask the user all the same" in told
    assert int(told.partition(" %")[0]) > 50
    found = result("evaluate", "random", made / "rare", *given, "--doubtful")["policies"]
    assert found[1]["outside_support"] > 50
    assert result("evaluate", "random", "popular", *given)["policies"][1]["outside_support"] < 50
    environment = learned(EnvironmentOptions(None, user))
    with pytest.raises(InputError, match="lies outside of what the learned user has seen"):
        bcd4rec.evaluate(bcd4rec.load(made / "rare"), env=environment, users=30)


def test_ids_that_look_alike_are_strangers_to_a_learned_user(made: Path, user: Path) -> None:
    """07 is not 7, so a policy of such items knows none of the user's."""
    given = ("--env", "learned", "--model", user, "--users", 30)
    items = len(Dataset.load(made / "real").items)
    words = f"knows none of these users' {items} items; it has learned another catalogue."
    assert fails("evaluate", made / "alike", *given) == f"{made / 'alike'} {words}"
    assert fails("simulate", "--policy", made / "alike", *given) == f"{made / 'alike'} {words}"
    with pytest.raises(InputError, match="knows none of these users'"):
        bcd4rec.evaluate(bcd4rec.load(made / "alike"), env=learned(EnvironmentOptions(None, user)), users=30)


# ---- clicks alone


CLICKS_ONLY = "teaches which item comes next, and neither how likely an item is liked nor which policy people would"


@pytest.mark.parametrize("held_out", [0.2, 0.0])
def test_training_on_clicks_says_what_they_teach(tmp_path: Path, held_out: float) -> None:
    """However it is asked, and whether or not there are sessions that judge."""
    mapped = ("--map", EXAMPLES / "clicks.toml", "--validation", held_out)
    works("prepare", EXAMPLES / "clicks.csv", *mapped, "--out", tmp_path / "data")
    done = works("train", "stan", tmp_path / "data", "--out", tmp_path / "a")
    assert done.stdout.replace("\n", " ").count(CLICKS_ONLY) == 1
    done = works("train", "stan", tmp_path / "data", "--out", tmp_path / "b", "--json")
    assert json.loads(done.stdout)["method"] == "stan"
    assert CLICKS_ONLY in done.stderr
    done = works("train", "ctr", tmp_path / "data", "--out", tmp_path / "c", "--seeds", 2)
    assert CLICKS_ONLY in done.stderr
    with pytest.warns(UserWarning, match="teaches which item comes next"):
        bcd4rec.train("popular", Dataset.load(tmp_path / "data"))


@pytest.mark.filterwarnings("error")
def test_other_logs_hear_nothing_of_it(made: Path, tmp_path: Path) -> None:
    done = works("train", "ctr", made / "real", "--out", tmp_path / "a")
    assert CLICKS_ONLY not in done.stdout + done.stderr
    bcd4rec.train("popular", Dataset.load(made / "real"))


# ---- without a terminal


def test_redirected_output_has_progress_as_lines(made: Path, tmp_path: Path) -> None:
    """Files, as a job of the night has them: no bars, no colours, and each stage on a line of its own."""
    patience = "from bcd4rec import cli, console; console.QUIET_SECONDS = console.LINE_SECONDS = -1.0; cli.main()"
    given = ["prepare", made / "real.parquet", "--out", tmp_path / "data"]
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        command = [sys.executable, "-c", patience, *map(str, given)]
        done = subprocess.run(command, stdout=out, stderr=err, env=ENVIRONMENT | {"COLUMNS": "80"}, timeout=300)
    assert done.returncode == 0
    told = (tmp_path / "err").read_text()
    assert {"checking rows", "reading sessions and items", "sessions to transitions"} <= set(told.splitlines())
    assert "\x1b" not in told + (tmp_path / "out").read_text()
    assert "\r" not in told
    assert told.splitlines()[-1] == f"The data set is in {tmp_path / 'data'}."


# ---- tables


def test_tables_of_80_columns_keep_names_and_numbers_whole(made: Path, tmp_path: Path) -> None:
    """A folder whose name alone fills most of a line, and pairs of policies, each row of which has all its names."""
    long = Path("a-policy-of-the-second-week-of-march-with-features-and-titles")
    works("train", "ctr", made / "real", "--out", tmp_path / long)
    page = ENVIRONMENT | {"COLUMNS": "80"}

    def shown(*args: object) -> str:
        command = [sys.executable, "-m", "bcd4rec.cli", *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True, env=page, cwd=tmp_path, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    told = shown("evaluate", long, "popular", "--log", made / "real")
    assert "…" not in told
    tables = [line for line in told.splitlines() if line.startswith("│")]
    named = [line for line in tables if f"│ ctr ({long})" in line]
    assert len(named) > 3  # one for each part of the table
    assert any(re.search(r"│ +0\.\d{3} \[0\.\d{3}, 0\.\d{3}\] │", line) for line in named)
    users = ("--env", "shop", "--users", 40, "--sessions", tmp_path / "sessions.parquet")
    works("evaluate", "random", "popular", "oracle", *users)
    told = shown("compare", tmp_path / "sessions.parquet")
    assert "…" not in told
    assert max(map(len, told.partition("p is corrected")[0].splitlines())) <= 80
    rows = [line for line in told.splitlines() if line.startswith("│ rate")]
    assert len(rows) == 2 * 3  # three pairs, in two parts
    assert all(re.search(r"(random|popular) \d.*(popular|oracle) \d", line) for line in rows)


def test_seeds_are_told_as_what_they_are(made: Path, tmp_path: Path) -> None:
    """An AUC of 0.6 is no 0.6 percent."""
    done = run("train", "ctr", made / "real", "--seeds", 2, "--out", tmp_path / "seeds")
    assert re.search(r"┃ policy +┃ +AUC ┃", done.stdout)
    assert re.search(r"│ seed-0 │ 0\.\d{3} \[0\.\d{3}, 0\.\d{3}\] │", done.stdout)
