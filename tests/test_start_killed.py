"""`bcd4rec start`, killed or interrupted anywhere: the same command again ends as if nothing had happened."""

import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from bcd4rec.artifacts import sole_run, workshops
from bcd4rec.commands.start import WORDS
from test_cli import ENVIRONMENT, run, sentence

EXAMPLES = Path(__file__).parents[1] / "examples"
STAGES = list(WORDS)
START = ("start", "log.csv", "--yes", "--out", "out", "--json")
INTERRUPTED = "Interrupted; no output was left half-written."
LONG_AGO = 1_700_000_000  # when all logs here were written: a log is known again by its time, too

# The command itself, but for one function: at its nth call that has some text among its arguments, the process gets a
# signal; what is to be written is written by half before. Every report of a training is due for a checkpoint.
DRIVER = """
import functools, importlib, os, sys
from bcd4rec.cli import main
from bcd4rec.commands import _stages, train

agent, number, module, function, text, times = sys.argv[1:7]
del sys.argv[1:7]
_stages.AGENT, train.CHECKPOINT_SECONDS = agent, -1.0
*owners, name = function.split(".")
owner = functools.reduce(getattr, owners, importlib.import_module(f"bcd4rec.{module}"))
wanted, calls = getattr(owner, name), 0

def trapped(*given, **named):
    global calls
    calls += text in repr(given)
    if calls == int(times) and text in repr(given):
        if name == "write_text":
            wanted(given[0], given[1][: len(given[1]) // 2])
        os.kill(os.getpid(), int(number))
    return wanted(*given, **named)

setattr(owner, name, trapped)
main()
"""


def in_visits(text: str) -> str:
    """A feed in which everybody comes twice."""
    header, *rows = text.splitlines()
    seen = Counter[str]()
    found = [f"visit,{header}"]
    for row in rows:
        viewer = row.split(",")[0]
        found.append(f"{viewer}{'ab'[seen[viewer] > 3]},{row}")
        seen[viewer] += 1
    return "\n".join([*found, ""])


FEED, ITEM = in_visits((EXAMPLES / "feed.csv").read_text()), "video"
VISITS = (EXAMPLES / "visits.csv").read_text()


class End(NamedTuple):
    """Of a run that was not stopped."""

    told: dict[str, Any]  # the object that it prints
    files: dict[str, bytes]  # all that is in its folder
    new: list[str]  # stages that were not done before


class Place(NamedTuple):
    """Where a run ends: when some function is called."""

    module: str
    function: str
    text: str = ""
    times: int = 1


def writing(name: str, times: int = 1) -> Place:
    """Half of a file."""
    return Place("artifacts", "Path.write_text", f"/{name}'", times)


def written(name: str, times: int = 1) -> Place:
    """The output is in its place, and what it was made in is still there."""
    return Place("artifacts", "remove", f"/.{name}.partial-", times)


def stopped(folder: Path, place: Place, number: signal.Signals, agent: str = "ctr", *more: object) -> str:
    """Run it until it is stopped; what it said."""
    given = [agent, int(number), *place, *START, *more]
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, *map(str, given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=ENVIRONMENT,
    )
    stdout, stderr = process.communicate(timeout=300)
    assert stdout == ""
    assert process.returncode == (2 if number == signal.SIGINT else -number), stderr
    return stderr


def finished(folder: Path, *more: object, agent: str = "ctr") -> End:
    """Run it to its end."""
    with mock.patch("bcd4rec.commands._stages.AGENT", agent):
        done = run(*START, *more, cwd=folder)
    assert done.returncode == 0, done.stderr
    new, old = stages(done.stderr)
    assert sorted(new + old) == sorted(STAGES if agent == "ctr" else [name for name in STAGES if name != "judge"])
    return End(json.loads(done.stdout), contents(folder / "out"), new)


def stages(said: str) -> tuple[list[str], list[str]]:
    """Which were done, and which had been done before, each told once."""
    told = [(name, line) for line in said.splitlines() for name, words in WORDS.items() if line.startswith(words)]
    assert len({name for name, _ in told}) == len(told), said
    new = [name for name, line in told if line == f"{WORDS[name]} …"]
    return new, [name for name, line in told if line == f"{WORDS[name]} (done before)"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): b"" if one.is_dir() else one.read_bytes() for one in folder.rglob("*")}


def raw(folder: Path, text: str = FEED) -> Path:
    """A folder with a raw log."""
    folder.mkdir(parents=True)
    (folder / "log.csv").write_text(text)
    os.utime(folder / "log.csv", (LONG_AGO, LONG_AGO))
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, End]:
    """A run that nobody stopped, and its folder."""
    folder = raw(tmp_path_factory.mktemp("start") / "whole")
    end = finished(folder)
    assert end.new == STAGES
    return folder, end


@pytest.fixture
def copy(whole: tuple[Path, End], tmp_path: Path) -> Path:
    shutil.copytree(whole[0], tmp_path / "copy")
    return tmp_path / "copy"


# Each with the number of stages that are finished; the next one was begun, but for those before the first.
KILLED = [
    (Place("artifacts", "_locked", "/.bcd4rec-"), -1),  # the very first folder has no name yet
    (writing("mapping.toml"), -1),
    (Place("commands._reading", "_kept"), 0),
    (Place("data.checking", "check"), 0),
    (Place("data.preparing", "write_manifest"), 1),  # the last file of a folder
    (written("dataset", 2), 1),  # the first is what the run before has left
    (Place("policies.bundle", "write_json"), 2),
    (writing("stages.json", 4), 3),  # when each stage is begun, and when it is done
    (Place("library", "judge"), 4),
    (Place("commands._stages", "Start._sessions"), 5),
    (written("stages.json", 2), 6),
    (writing("start.html"), 6),
    (written("start.html", 2), 6),
]
INTERRUPTIONS = [
    (Place("commands._reading", "_kept"), 0),
    (Place("data.preparing", "write_manifest"), 1),
    (Place("commands.train", "learn"), 2),
    (Place("workflows.judging", "judge"), 3),
    (Place("library", "judge"), 4),
    (Place("commands._stages", "Start._sessions"), 5),
    (writing("start.html"), 6),
]


@pytest.mark.parametrize(("number", "places"), [(signal.SIGKILL, KILLED), (signal.SIGINT, INTERRUPTIONS)])
def test_it_goes_on_wherever_it_was_stopped(
    whole: tuple[Path, End], tmp_path: Path, number: signal.Signals, places: list[tuple[Place, int]]
) -> None:
    folder, before = raw(tmp_path / "stopped"), 0
    for place, now in places:
        said = stopped(folder, place, number)
        assert stages(said) == (STAGES[before : now + 1], STAGES[:before]), place
        before = max(0, now)
        if number == signal.SIGINT:
            assert said.splitlines()[-1] == f"Error: {INTERRUPTED}"
            assert "Traceback" not in said
            assert workshops(folder / "out") == []
        elif place.module == "artifacts":
            assert workshops(folder / "out")  # there is something to clear away
    end = finished(folder)
    assert end == whole[1]._replace(new=[])


def test_what_another_seed_left_is_not_taken_for_ones_own(copy: Path) -> None:
    expected = contents(copy / "out")
    (copy / "out" / "policy.checkpoint").mkdir()
    stopped(copy, written("dataset"), signal.SIGKILL, "ctr", "--seed", 1)
    assert not (copy / "out" / "policy.checkpoint").exists()
    end = finished(copy)
    assert end.new == ["prepare"]
    assert end.files == expected


# ---- what an earlier run may have left


def cut_short(out: Path) -> None:
    text = (out / "stages.json").read_bytes()
    (out / "stages.json").write_bytes(text[: len(text) // 2])


def of_something_else(out: Path) -> None:
    (out / "stages.json").write_text('{"read": 3}')


def mapping_alone(out: Path) -> None:
    for one in out.iterdir():
        if one.is_dir():
            shutil.rmtree(one)
        elif one.name != "mapping.toml":
            one.unlink()


def stray(out: Path) -> None:
    for name in (".bcd4rec-0123456789ab", ".policy.partial-0123456789ab", ".log.parquet.scratch-0123456789ab"):
        (out / name).mkdir()
        (out / name / "half").write_text("half")


def without(name: str) -> Callable[[Path], None]:
    def remove(out: Path) -> None:
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()

    return remove


@pytest.mark.parametrize(
    ("mess", "again"),
    [
        (cut_short, STAGES),
        (of_something_else, STAGES),
        (mapping_alone, STAGES),
        (stray, []),
        (without("log.parquet"), ["read"]),
        (without("dataset"), ["prepare"]),
        (without("policy"), ["train"]),
        (without("mapping.toml"), None),
    ],
)
def test_what_is_missing_or_damaged_is_made_again(
    copy: Path, mess: Callable[[Path], None], again: list[str] | None
) -> None:
    expected = contents(copy / "out")
    mess(copy / "out")
    if again is None:  # whose folder it is can no longer be told
        assert "something else" in run(*START, cwd=copy).stderr
        return
    end = finished(copy)
    assert end.new == again
    assert end.files == expected


def test_two_at_once_are_refused(copy: Path) -> None:
    with sole_run(copy / "out"):
        done = run(*START, cwd=copy)
    assert "Another run is writing out" in sentence(done.returncode, done.stdout, done.stderr)
    assert finished(copy).new == []


# ---- what is given changes


def rows_are_gone(folder: Path) -> None:
    lines = (folder / "log.csv").read_text().splitlines(keepends=True)
    (folder / "log.csv").write_text("".join(lines[:-20]))
    os.utime(folder / "log.csv", (LONG_AGO + 1, LONG_AGO + 1))


def with_items(price: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "items.csv").write_text(f"{ITEM},price\n" + "".join(f"{one},{one % price}\n" for one in range(20)))
        os.utime(folder / "items.csv", (LONG_AGO + price, LONG_AGO + price))

    return write


@pytest.mark.parametrize(
    ("change", "more", "again"),
    [
        (rows_are_gone, (), STAGES),
        (with_items(3), ("--items", "items.csv"), STAGES[1:]),
        (lambda _: None, ("--seed", 1), STAGES[1:]),
        (lambda _: None, ("--earlier", 2), STAGES[1:]),
    ],
)
def test_what_depends_on_a_change_is_done_again(
    copy: Path, tmp_path: Path, change: Callable[[Path], None], more: tuple[object, ...], again: list[str]
) -> None:
    """And nothing else; it ends like a run that has never known anything else."""
    fresh = raw(tmp_path / "fresh")
    for folder in (copy, fresh):
        change(folder)
    end, expected = (finished(folder, *more) for folder in (copy, fresh))
    assert end.new == again
    assert end == expected._replace(new=again)
    assert finished(copy, *more).new == []
    if "--items" in more:
        with_items(4)(copy)
        assert finished(copy, *more).new == again


def test_a_file_of_items_that_is_not_there_is_told_at_once(copy: Path) -> None:
    done = run(*START, "--items", "none.csv", "--items-id", ITEM, cwd=copy)
    assert "none.csv is not a file" in sentence(done.returncode, done.stdout, done.stderr)


# ---- on a terminal


def test_ctrl_c_instead_of_an_answer(whole: tuple[Path, End], tmp_path: Path) -> None:
    folder = raw(tmp_path / "asked")
    here, there = pty.openpty()

    def own_terminal() -> None:
        fcntl.ioctl(there, termios.TIOCSCTTY, 0)

    given = [sys.executable, "-m", "bcd4rec.cli", "start", "log.csv", "--out", "out"]
    process = subprocess.Popen(
        given,
        stdin=there,
        stdout=there,
        stderr=there,
        cwd=folder,
        env=ENVIRONMENT,
        start_new_session=True,
        preexec_fn=own_terminal,
    )
    os.close(there)
    said = b""
    try:
        while b"Is this right?" not in said:
            said += os.read(here, 1024)
        for _ in range(100):  # again, if it came in the moment between the question and the wait for an answer
            os.write(here, termios.tcgetattr(here)[6][termios.VINTR])
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2)
                break
        while INTERRUPTED.encode() not in said:
            said += os.read(here, 1024)
    finally:
        process.kill()
        os.close(here)
    assert process.returncode == 2
    assert b"Traceback" not in said
    assert finished(folder) == whole[1]._replace(new=STAGES[1:])


# ---- amid training


def checkpoints(out: Path) -> list[int]:
    """How many updates each of them has seen."""
    return sorted(json.loads(file.read_text())["step"] for file in out.glob("policy.checkpoint/*/manifest.json"))


def test_training_goes_on_from_the_checkpoints_of_all_strengths(tmp_path: Path) -> None:
    """Three are tried, each with a report after 250 updates and one at the end, and so with two checkpoints."""
    expected = finished(raw(tmp_path / "whole", VISITS), agent="bcd4rec")
    folder = raw(tmp_path / "stopped", VISITS)
    out = folder / "out"
    amid = Place("artifacts", "_share", "/policy.checkpoint/", 7)  # a folder and two files each: the third checkpoint
    stopped(folder, amid, signal.SIGKILL, "bcd4rec")
    assert checkpoints(out) == [500]
    next(out.glob("policy.checkpoint/*/state.safetensors")).unlink()  # as by a kill while it was removed
    said = stopped(folder, Place("training", "Trainer._report", times=3), signal.SIGINT, "bcd4rec")
    assert "Interrupted at update 250 of 500; the checkpoint is in out/policy.checkpoint: run the same" in said
    assert checkpoints(out) == [250, 500]
    said = stopped(folder, Place("workflows.searching", "Validator.tried", times=3), signal.SIGINT, "bcd4rec")
    assert "Interrupted at update 500 of 500" in said  # though nothing was left to report
    assert checkpoints(out) == [500, 500, 500]
    with mock.patch("bcd4rec.training.Trainer._plan", side_effect=AssertionError("learned again")):
        end = finished(folder, agent="bcd4rec")
    assert end == expected._replace(new=["train", "evaluate", "sessions"])
