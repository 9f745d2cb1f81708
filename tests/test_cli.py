"""The command line as people and scripts meet it: one sentence for every failure, nothing half-written."""

import contextlib
import io
import json
import os
import pkgutil
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pytest
import typer

import bcd4rec
from bcd4rec import cli, commands, console

COMMANDS = [module.name for module in pkgutil.iter_modules(commands.__path__) if not module.name.startswith("_")]
SOURCE = str(Path(bcd4rec.__file__).parents[1])
ENVIRONMENT = os.environ | {
    "PYTHONPATH": SOURCE,
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "200",
}
Run = subprocess.CompletedProcess[str]


def run(
    *args: object, process: bool = False, preexec: Callable[[], None] | None = None, cwd: Path | None = None
) -> Run:
    """`bcd4rec ARGS` in this process, which is quick, or in one of its own."""
    if not process and preexec is None:
        return run_here(*args, cwd=cwd)
    return subprocess.run(
        [sys.executable, "-m", "bcd4rec.cli", *map(str, args)],
        capture_output=True,
        text=True,
        cwd=cwd,
        preexec_fn=preexec,
        timeout=300,
        env=ENVIRONMENT,
    )


def run_here(*args: object, cwd: Path | None = None) -> Run:
    stdout, stderr = io.StringIO(), io.StringIO()
    given = ["bcd4rec", *map(str, args)]
    with (
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        mock.patch.object(sys, "argv", given),
        mock.patch.object(signal, "signal"),  # pytest keeps its own handlers
        mock.patch.dict(os.environ, {"COLUMNS": "200"}),
        mock.patch.object(console, "QUIET_SECONDS", 600.0),  # a busy machine changes nothing
        pytest.raises(SystemExit) as stopped,
    ):
        cli.main()
    return subprocess.CompletedProcess(given, stopped.value.code, stdout.getvalue(), stderr.getvalue())  # type: ignore[arg-type]


def works(*args: object, **options: Any) -> Run:
    done = run(*args, **options)
    assert done.returncode == 0, done.stderr
    return done


def result(*args: object, **options: Any) -> dict[str, Any]:
    """What `--json` prints: one object on one line of stdout, and nothing else there."""
    done = works(*args, "--json", **options)
    assert done.stdout.count("\n") == 1
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def fails(*args: object, **options: Any) -> str:
    """The one sentence of a failure, without the word Error."""
    done = run(*args, **options)
    return sentence(done.returncode, done.stdout, done.stderr)


def sentence(code: int | None, stdout: str, stderr: str) -> str:
    assert code == 2, stderr
    assert stdout == ""
    assert stderr.startswith("Error: ")
    assert stderr.endswith(".\n")
    assert stderr.count("\n") == 1, stderr
    return stderr.removeprefix("Error: ").strip()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "out.parquet"
    works("simulate", "--users", 30, "--seed", 0, "--logs", path, process=True)
    return path


@pytest.fixture(scope="module")
def dataset(log: Path) -> Path:
    out = log.parent / "dataset"
    works("prepare", log, "--out", out, "--rewards", "skip=0,click=4")
    return out


# ---- help


def leaves(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """The words that lead to each command, also inside groups of commands."""
    inner = getattr(command, "commands", {})
    yield from (leaf for name, one in inner.items() for leaf in leaves(one, *path, name)) if inner else [path]


@pytest.mark.parametrize("path", list(leaves(typer.main.get_command(cli.build()))), ids=" ".join)
def test_help_shows_an_example(path: tuple[str, ...]) -> None:
    text = works(*path, "--help").stdout
    assert f"Usage: bcd4rec {' '.join(path)}" in text
    assert f"Example:  bcd4rec {' '.join(path)}" in text
    assert "--json" in text


def test_help_version_and_nothing() -> None:
    text = works("--help").stdout
    assert all(command in text for command in COMMANDS)
    assert works().stdout == text
    assert works("--version").stdout.startswith("bcd4rec ")


# ---- the three commands of the specification


def test_simulate_check_and_prepare(tmp_path: Path) -> None:
    options = ["--env", "recsim", "--preset", "paper", "--policy", "random", "--users", 40, "--seed", 0]
    found = result("simulate", *options, "--logs", "out.parquet", cwd=tmp_path, process=True)
    assert {"ctr", "ctr_low", "ctr_high", "coverage@3", "steps", "steps_per_second"} <= found.keys()
    assert found["ctr_low"] < found["ctr"] < found["ctr_high"]
    assert found["steps"] == 40 * 20
    assert found["steps_per_second"] > 0
    checked = result("check", "out.parquet", cwd=tmp_path, process=True)
    assert checked["ok"] is True
    assert checked["problems"] == []
    assert (checked["sessions"], checked["requests"], checked["impressions"]) == (40, 800, 5600)
    assert checked["target_rate"] == pytest.approx(found["ctr"])
    assert checked["propensities"] == 100
    made = result(
        "prepare", "out.parquet", "--out", "dataset/", "--rewards", "skip=0,click=4", cwd=tmp_path, process=True
    )
    assert (made["sessions"], made["transitions"]) == (40, 5600)
    assert made["sessions_by_split"] == {"train": 32, "validation": 8}
    assert made["responses"] == checked["responses"]
    manifest = json.loads((tmp_path / "dataset" / "manifest.json").read_text())
    assert made["content_hash"] == manifest["content_hash"]
    assert manifest["responses"]["rewards"] == {"skip": 0.0, "click": 4.0}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["dataset", "out.parquet"]


def test_the_same_seed_gives_the_same_log(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        works("simulate", "--users", 5, "--seed", seed, "--logs", tmp_path / f"{name}.parquet", process=name == "b")
    first, second, other = ((tmp_path / f"{name}.parquet").read_bytes() for name in "abc")
    assert first == second
    assert first != other


def test_a_log_as_csv_is_the_same_log(tmp_path: Path, log: Path) -> None:
    works("simulate", "--users", 30, "--seed", 0, "--logs", tmp_path / "deep" / "out.csv")
    found = result("check", tmp_path / "deep" / "out.csv")
    expected = result("check", log)
    assert found | {"log": ""} == expected | {"log": ""}


def test_evaluate(dataset: Path) -> None:
    found = result("evaluate", "random", "popular", "oracle", "--users", 40, "--dataset", dataset)
    assert [one["policy"] for one in found["policies"]] == ["random", "popular", "oracle"]
    by_name = {one["policy"]: one for one in found["policies"]}
    assert by_name["oracle"]["ctr"] > by_name["random"]["ctr"]
    assert by_name["random"]["gap_closed"] == pytest.approx(0)
    assert by_name["oracle"]["gap_closed"] == pytest.approx(100)


def test_demo(tmp_path: Path) -> None:
    found = result("demo", "--out", tmp_path / "demo", "--users", 20)  # the way, not the quality of what is learned
    assert {one["policy"] for one in found["policies"]} >= {"random", "popular", "oracle"}
    page = Path(found["report"]).read_text()
    assert "<html" in page
    assert "https://" not in page.replace("https://www.w3.org", "")
    assert [file.name for file in tmp_path.iterdir()] == ["demo"]


def test_tables_for_people(tmp_path: Path, log: Path) -> None:
    """Brackets and colons in names are not markup."""
    odd = tmp_path / "a[" / "b] :key: [red].parquet"  # together "[/b]", which would close a tag
    odd.parent.mkdir()
    shutil.copy(log, odd)
    done = works("check", odd)
    assert "a[/b]:key:[red].parquet:noproblemsfound" in "".join(done.stdout.split())
    assert "click rate" in done.stdout
    assert done.stderr == ""
    out = odd.parent / "x] :key:"
    done = works("prepare", odd, "--out", out)
    assert "transitions" in done.stdout
    assert done.stderr == f"The data set is in {out}.\n"
    assert "a[/no] :key:.csv" in fails("check", odd.parent / "no] :key:.csv")
    done = works("simulate", "--users", 3, "--logs", tmp_path / "a.csv")
    assert "CTR" in done.stdout
    assert done.stderr == f"The log is in {tmp_path / 'a.csv'} (420 impressions).\n"


# ---- bad input


def bad_csv(path: Path, rows: str) -> Path:
    path.write_text("session_id,step,item_id,response\n" + rows)
    return path


@pytest.mark.parametrize("command", ["check", "prepare"])
def test_logs_that_cannot_be_read(tmp_path: Path, command: str) -> None:
    out = ["--out", tmp_path / "out"] if command == "prepare" else []
    assert "no.parquet does not exist" in fails(command, tmp_path / "no.parquet", *out, process=True)
    (tmp_path / "empty.parquet").touch()
    assert "is empty (0 bytes)" in fails(command, tmp_path / "empty.parquet", *out)
    (tmp_path / "text.parquet").write_text("hello")
    assert "is not a Parquet file" in fails(command, tmp_path / "text.parquet", *out)
    wrong = bad_csv(tmp_path / "wrong.csv", "1,0,5,skip\n1,first,6,click\n")
    expected = f"{wrong}, row 2, column step: found 'first', expected an integer."
    assert fails(command, wrong, *out) == expected
    floats = tmp_path / "floats.parquet"
    pl.DataFrame({"session_id": [0.5], "step": [0], "item_id": [1], "response": ["skip"]}).write_parquet(floats)
    assert "column session_id has type Float64, expected integers or strings" in fails(command, floats, *out)
    assert not (tmp_path / "out").exists()


def test_check_reports_every_kind_of_problem(tmp_path: Path) -> None:
    path = bad_csv(tmp_path / "log.csv", "1,0,5,like\n1,x,6,click\n")
    done = run("check", path, "--json")
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert found["ok"] is False
    assert [problem["kind"] for problem in found["problems"]] == ["type", "unknown response"]
    assert done.stderr == "".join(f"Error: {problem['message']}\n" for problem in found["problems"])
    assert "(1 more kinds of problem: see `bcd4rec check`.)" in run("prepare", path, "--out", tmp_path / "out").stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["check", "LOG", "--rewards", "skip=0,like=x"], "--rewards: like is 'x', expected a number"),
        (["check", "LOG", "--rewards", "skip=0,like=1"], "row"),
        (["check", "LOG", "--time-unit", "h"], "--time-unit: found 'h', expected 's', 'ms' or 'us'"),
        (["check", "LOG", "--target", "like"], "'like' has no reward"),
        (["check", "LOG", "--colour"], "No such option"),
        (["check"], "Missing argument 'LOGS'; see `bcd4rec check --help`"),
        (["prepare", "LOG"], "prepare needs a place for the data set: --out DIR"),
        (
            ["prepare", "LOG", "--out", "O", "--history", "some"],
            "--history: found 'some', expected 'positives' or 'all'",
        ),
        (
            ["prepare", "LOG", "--out", "O", "--convention", "x"],
            "--convention: found 'x', expected 'shown' or 'chosen'",
        ),
        (["prepare", "LOG", "--out", "O", "--split", "x"], "Invalid value for '--split': 'x' is not one of"),
        (["prepare", "LOG", "--out", "O", "--split", "time"], "needs a period called train"),
        (["prepare", "LOG", "--out", "O", "--split", "time", "--periods", "train=3"], "needs a column timestamp"),
        (["prepare", "LOG", "--out", "O", "--periods", "train"], "--periods: found 'train', expected name=value"),
        (["prepare", "LOG", "--out", "O", "--gamma", "2"], "--gamma: found 2.0, expected less than or equal to 1"),
        (["prepare", "LOG", "--out", "O", "--length", "0"], "--length: found 0, expected greater than or equal to 1"),
        (["prepare", "LOG", "--out", "O", "--validation", "nan"], "--validation: found nan"),
        (["prepare", "LOG", "--out", "O", "--test", "0.999"], "No session is left to train on"),
        (["prepare", "LOG", "--out", "LOG/x"], "is a file, so x cannot be written into it"),
        (["simulate", "--env", "mars"], "Unknown environment 'mars'"),
        (["simulate", "--preset", "mars"], "Unknown preset 'mars'"),
        (["simulate", "--policy", "mars"], "Unknown policy 'mars'"),
        (["simulate", "--users", "0"], "Invalid value for '--users'"),
        (["simulate", "--users", "many"], "Invalid value for '--users'"),
        (["simulate", "--seed", "-1"], "Invalid value for '--seed'"),
        (["simulate", "--epsilon", "1.5"], "Invalid value for '--epsilon'"),
        (["simulate", "--temperature", "0"], "--temperature: found 0.0, expected greater than"),
        (["simulate", "--epsilon", "0.1", "--temperature", "1"], "give one of them"),
        (["simulate", "--after-skip", "cry"], "--after-skip: found 'cry', expected 'repeat' or 'exclude'"),
        (["simulate", "--logs", "out.txt"], "expected a name that ends in .parquet or .csv"),
        (["simulate", "--dataset", "nowhere"], "nowhere is not a folder"),
        (["evaluate", "mars"], "Unknown policy 'mars'"),
        (["evaluate", "--users", "0"], "Invalid value for '--users'"),
        (["evaluate", "--after-skip", "cry"], "--after-skip: found 'cry'"),
        (["evaluate", "--dataset", "LOG"], "is not a folder; expected a data set"),
        (["demo", "--users", "x"], "Invalid value for '--users'"),
        (["fly"], "No such command 'fly'"),
    ],
)
def test_option_values_that_make_no_sense(tmp_path: Path, log: Path, args: list[str], words: str) -> None:
    given = [arg.replace("LOG", str(log)) if arg != "O" else str(tmp_path / "out") for arg in args]
    assert words in fails(*given, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


# ---- outputs that exist


def test_prepare_replaces_only_what_it_may(tmp_path: Path, log: Path) -> None:
    out = tmp_path / "out"
    works("prepare", log, "--out", out)
    before = (out / "manifest.json").read_bytes()
    assert "exists already; choose another name or pass --force" in fails("prepare", log, "--out", out, "--gamma", 0.5)
    assert (out / "manifest.json").read_bytes() == before
    works("prepare", log, "--out", out, "--gamma", 0.5, "--force")
    assert json.loads((out / "manifest.json").read_text())["config"]["gamma"] == 0.5
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("manifest", [None, "{}", '{"manifest_version": 3, "name": "browser extension"}', "not JSON"])
def test_force_never_replaces_folders_of_others(tmp_path: Path, log: Path, manifest: str | None) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter1.tex").write_text("years of work")
    if manifest is not None:
        (folder / "manifest.json").write_text(manifest)
    before = sorted(file.name for file in folder.iterdir())
    assert "holds files that bcd4rec did not write" in fails("prepare", log, "--out", folder, "--force")
    assert sorted(file.name for file in folder.iterdir()) == before
    if manifest is None:
        assert "holds files that bcd4rec did not write" in fails("demo", "--out", folder, "--users", 5, "--force")
        assert "is a file, expected a folder" in fails("prepare", log, "--out", folder / "chapter1.tex", "--force")
    assert (folder / "chapter1.tex").read_text() == "years of work"


def test_an_empty_folder_may_be_used(tmp_path: Path, log: Path) -> None:
    (tmp_path / "out").mkdir()
    assert "exists already" in fails("prepare", log, "--out", tmp_path / "out")
    works("prepare", log, "--out", tmp_path / "out", "--force")
    assert (tmp_path / "out" / "manifest.json").exists()


def test_simulate_and_evaluate_refuse_existing_files(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("mine")
    assert "exists already" in fails("simulate", "--users", 3, "--logs", path)
    assert "exists already" in fails("evaluate", "random", "--users", 3, "--report", path)
    assert path.read_text() == "mine"
    works("simulate", "--users", 3, "--logs", path, "--force")
    assert path.read_text().startswith("session_id,")
    (tmp_path / "folder.csv").mkdir()
    assert "is a folder, expected a file name" in fails(
        "simulate", "--users", 3, "--logs", tmp_path / "folder.csv", "--force"
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder.csv", "out.csv"]


# ---- the machine says no


def file_size(limit: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


@pytest.mark.parametrize(
    ("limit", "options"),
    [
        (1_000, []),  # the temporary file of rows
        (12_000, []),  # what is written after it, or the same again
        (300_000, ["--length", 1000]),  # the table of states: NumPy loses the number of the error
    ],
)
def test_a_full_disk_while_preparing(tmp_path: Path, log: Path, limit: int, options: list[object]) -> None:
    out = tmp_path / "out"
    words = fails("prepare", log, "--out", out, *options, preexec=file_size(limit))
    assert words.startswith("The disk is full or a file size limit was reached")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_output(tmp_path: Path, log: Path, dataset: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(dataset, out)
    assert "The disk is full" in fails("prepare", log, "--out", out, "--force", preexec=file_size(2_000))
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert {file.name: file.read_bytes() for file in out.iterdir()} == {
        file.name: file.read_bytes() for file in dataset.iterdir()
    }


@pytest.mark.parametrize("name", ["out.parquet", "out.csv"])
def test_a_full_disk_while_simulating(tmp_path: Path, name: str) -> None:
    words = fails("simulate", "--users", 30, "--logs", tmp_path / name, preexec=file_size(2_000))
    assert words.startswith("The disk is full or a file size limit was reached")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_written(tmp_path: Path, log: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    try:
        (locked / "probe").touch()
        pytest.skip("this user may write everywhere")
    except PermissionError:
        pass
    assert "No permission to use" in fails("prepare", log, "--out", locked / "out")
    assert "No permission to use" in fails("simulate", "--users", 3, "--logs", locked / "out.csv")


# ---- interruptions: the command is stopped in the middle of its work by holding it there

HOLD_PREPARE = """
import time
from pathlib import Path
from bcd4rec.data import preparing
def hold(*args):
    Path("here").touch()
    time.sleep(600)
preparing.chunk_transitions = hold
"""

HOLD_SIMULATE = """
import time
from pathlib import Path
import polars as pl
def hold(frame, path, **options):
    Path(path).write_bytes(b"half of the log")
    Path("here").touch()
    time.sleep(600)
pl.DataFrame.write_parquet = hold
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["prepare", "simulate"])
@pytest.mark.parametrize("replaced", [False, True])
def test_interruptions(
    tmp_path: Path, log: Path, dataset: Path, command: str, number: signal.Signals, replaced: bool
) -> None:
    """Nothing half-written is left, and what was there before is still there."""
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    out.mkdir()
    if command == "prepare":
        code, target, args = HOLD_PREPARE, out / "ds", ["prepare", log, "--out", out / "ds"]
    else:
        code, target, args = HOLD_SIMULATE, out / "a.parquet", ["simulate", "--users", 3, "--logs", out / "a.parquet"]
    if replaced:
        shutil.copytree(dataset, target) if command == "prepare" else shutil.copy(log, target)
        args.append("--force")
    before = _snapshot(out)
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}\nfrom bcd4rec.cli import main\nmain()", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=work,
        env=ENVIRONMENT,
    )
    try:
        patience = time.monotonic() + 240
        while not (work / "here").exists() and process.poll() is None and time.monotonic() < patience:
            time.sleep(0.02)
        assert len(list(out.iterdir())) == 1 + replaced  # the unfinished output beside its place
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=240)
    finally:
        process.kill()
    assert sentence(process.returncode, stdout, stderr) == "Interrupted; no output was left half-written."
    assert _snapshot(out) == before


def _snapshot(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()} | {
        f"{file.relative_to(folder)}/": b"" for file in folder.rglob("*") if file.is_dir()
    }


def test_a_defect_of_ours_is_not_worded_as_bad_input(log: Path) -> None:
    with mock.patch("bcd4rec.data.checking.check", side_effect=ZeroDivisionError), pytest.raises(ZeroDivisionError):
        run_here("check", log)


@pytest.mark.parametrize(("options", "unbuffered"), [(["--json"], ""), (["--json"], "1"), ([], "")])
def test_a_reader_that_goes_away(log: Path, options: list[str], unbuffered: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "bcd4rec.cli", "check", str(log), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | {"PYTHONUNBUFFERED": unbuffered},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=240) == 0
    process.stderr.close()


@pytest.mark.parametrize("command", [["reproduce", "table1", "--quick"], ["benchmark", "users", "data", "--out", "x"]])
def test_without_the_checkout_the_reproduction_says_where_it_is(command, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "bcd4rec").symlink_to(Path(bcd4rec.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-m", "bcd4rec.cli", *command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "lib")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install -e" in done.stderr


def test_an_interruption_that_compiled_code_swallows_comes_again() -> None:
    script = """
import ctypes, os, signal, sys, time
from bcd4rec import cli
cli._on_signals(cli._interrupt)
sys.unraisablehook = cli._come_again
called = ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(1))
try:
    called()  # whatever is raised in it is lost
    time.sleep(600)
except KeyboardInterrupt:
    print("interrupted", len(cli.INTERRUPTIONS))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("interrupted 2\n", "")
