"""Input that is odd but happens: one sentence or a result, and never a traceback."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bcd4rec.data.cooccurrence import item_vectors
from bcd4rec.data.sequences import Sequences
from bcd4rec.errors import printable
from test_cli import ENVIRONMENT, SOURCE, fails, run, sentence, works


def written(path: Path, sessions: int, clicks: int = 1) -> Path:
    rows = [
        f"{session},{(7 * session + item) % 11},{1_700_000_000 + 3000 * session},{'click' if item < clicks else 'skip'}"
        for session in range(sessions)
        for item in range(5)
    ]
    path.write_text("session_id,item_id,timestamp,response\n" + "\n".join(rows) + "\n")
    return path


# ---- logs


@pytest.mark.parametrize(("lists", "n_items"), [([[0, 1, 2]], 3), ([[1]], 5), ([[0, 1], [1, 0]], 20), ([[4]] * 3, 70)])
def test_sessions_that_are_all_alike_have_no_tastes(lists: list[list[int]], n_items: int) -> None:
    vectors = item_vectors(Sequences.of(lists), n_items)
    assert vectors.shape == (n_items, 1)
    assert not np.any(vectors)


@pytest.mark.parametrize("method", ["popular", "stan", "bcd4rec"])
def test_a_log_of_one_session(tmp_path: Path, method: str) -> None:
    log = written(tmp_path / "log.csv", 1, clicks=3)
    works("prepare", log, "--out", tmp_path / "data")
    settings = ["--set", "updates=4"] if method == "bcd4rec" else []
    works("train", method, tmp_path / "data", "--out", tmp_path / "policy", *settings)


def test_pretraining_where_nothing_follows_anything(tmp_path: Path) -> None:
    log = written(tmp_path / "log.csv", 40)  # one positive in each session
    works("prepare", log, "--out", tmp_path / "data")
    settings = ["evidence=false", "encoder=bigru", "pretraining=srgnn", "updates=4"]
    given = [word for setting in settings for word in ("--set", setting)]
    works("train", "bcd4rec", tmp_path / "data", "--out", tmp_path / "policy", *given)


@pytest.mark.parametrize("days", ["1e300", "1e13", "inf"])
def test_periods_beyond_all_time(tmp_path: Path, days: str) -> None:
    args = ("prepare", written(tmp_path / "log.csv", 3), "--out", tmp_path / "data", "--split", "time")
    assert "at most 1e+12" in fails(*args, "--periods", f"train={days}")
    works(*args, "--periods", "train=1e12")


@pytest.mark.parametrize("reward", ["1e308", "1e38", "-1e10", "inf", "nan"])
def test_rewards_whose_sum_is_infinite(tmp_path: Path, reward: str) -> None:
    args = ("prepare", written(tmp_path / "log.csv", 3), "--out", tmp_path / "data")
    words = fails(*args, "--rewards", f"skip=0,click={reward}", "--positive", "click")
    assert "rewards must be finite numbers between ±1e+09" in words


# ---- options and signals


def test_more_threads_than_any_machine_has(tmp_path: Path) -> None:
    words = fails("train", "popular", tmp_path / "data", "--out", tmp_path / "policy", "--threads", 100_000)
    assert "--threads" in words
    assert "less than or equal to" in words


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_while_the_program_starts(tmp_path: Path, number: signal.Signals) -> None:
    """A typer that takes long to import stands for a slow disk."""
    (tmp_path / "typer").mkdir()
    hold = "import time\nfrom pathlib import Path\nPath('here').touch()\ntime.sleep(600)\n"
    (tmp_path / "typer" / "__init__.py").write_text(hold)
    process = subprocess.Popen(
        [sys.executable, "-m", "bcd4rec.cli", "check", "log.csv"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([str(tmp_path), SOURCE])},
    )
    try:
        patience = time.monotonic() + 240
        while not (tmp_path / "here").exists() and process.poll() is None and time.monotonic() < patience:
            time.sleep(0.02)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=240)
    finally:
        process.kill()
    assert sentence(process.returncode, stdout, stderr) == "Interrupted; no output was left half-written."


# ---- terminals

ESCAPES = "\x1b[31mred\x1b]0;title\x07 \x9b31m \u202eback"


def test_columns_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"session_id,{ESCAPES},response,step\n1,2,click,0\n")
    words = fails("check", path)
    assert "column item_id is missing" in words
    assert "\\x1b[31mred\\x1b]0;title\\x07 \\x9b31m \\u202eback" in words
    path.write_text(f"session_id,{ESCAPES},response,step\n1,,click,0\n")
    mapped = f"session=session_id,item={ESCAPES},response=response,step=step"
    assert "\x1b" not in fails("check", path, "--map", mapped)


def test_responses_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"session_id,item_id,response,step\n1,2,{ESCAPES},0\n1,3,skip,0\n")
    done = run("check", path, "--rewards", f"skip=0,{ESCAPES}=1")
    assert done.returncode == 0, done.stderr
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(done.stdout + done.stderr)


def test_printable_keeps_words() -> None:
    assert printable("Größe, naïve — 10–90 % 日本 🙂") == "Größe, naïve — 10–90 % 日本 🙂"
    assert printable("a\nb\tc\ud800") == "a\\nb\\tc\\ud800"
    assert printable("a\nb", keep="\n") == "a\nb"


@pytest.mark.parametrize("given", ["soon", "", "-1", "nan", "1e3"])
def test_a_patience_that_is_no_number_of_seconds(given: str) -> None:
    environment = ENVIRONMENT | {"BCD4REC_PATIENCE": given}
    command = [sys.executable, "-m", "bcd4rec.cli", "serve", "nowhere", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
    words = sentence(done.returncode, done.stdout, done.stderr)
    assert words.startswith(f"BCD4REC_PATIENCE: found {given!r}, expected seconds")
