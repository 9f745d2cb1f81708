"""What a command may replace, what two commands at once may do, and what a killed one leaves behind."""

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from bcd4rec import renaming
from bcd4rec.artifacts import MANIFEST, atomic_directory, atomic_file, refuse_existing, scratch, write_json
from bcd4rec.errors import InputError
from test_cli import ENVIRONMENT, fails, works

ROWS = "session_id,item_id,step,response\n" + "".join(
    f"{session},{item},0,{'click' if (session + item) % 4 == 0 else 'skip'}\n"
    for session in range(8)
    for item in range(6)
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text(ROWS)
    return path


@pytest.fixture
def umask() -> Iterator[Callable[[int], None]]:
    before = os.umask(0o022)
    yield lambda mask: (os.umask(mask), None)[1]
    os.umask(before)


def folder_of(path: Path, kind: str, text: str, force: bool = False) -> None:
    with atomic_directory(path, force) as folder:
        write_json(folder / MANIFEST, {"kind": kind, "text": text})
        (folder / "text").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*"))


# ---- what may be replaced


def test_a_folder_is_replaced_by_its_own_kind_alone(tmp_path: Path, log: Path) -> None:
    dataset, policy = tmp_path / "dataset", tmp_path / "policy"
    works("prepare", log, "--out", dataset)
    works("train", "popular", dataset, "--out", policy)
    before = {one: one.read_bytes() for folder in (dataset, policy) for one in folder.iterdir()}
    assert "is a policy and no dataset" in fails("prepare", log, "--out", policy, "--force")
    assert "is a policy and no user" in fails("train", "user", dataset, "--out", policy, "--force")
    assert "would replace" in fails("train", "popular", dataset, "--out", dataset, "--force")
    assert {one: one.read_bytes() for folder in (dataset, policy) for one in folder.iterdir()} == before
    works("train", "popular", dataset, "--out", policy, "--force")
    with pytest.raises(InputError, match="is a policy and no dataset"):  # also where nobody asked before
        folder_of(policy, "dataset", "another kind", force=True)


@pytest.mark.parametrize("foreign", ["notes.txt", "deep/notes.txt", "link"])
def test_force_removes_nothing_that_others_wrote(tmp_path: Path, log: Path, foreign: str) -> None:
    out = tmp_path / "out"
    works("prepare", log, "--out", out)
    (out / foreign).parent.mkdir(exist_ok=True)
    if foreign == "link":
        (out / foreign).symlink_to(tmp_path)
    else:
        (out / foreign).write_text("years of work")
    before = names(out)
    assert f"holds {foreign}, which bcd4rec did not write" in fails("prepare", log, "--out", out, "--force")
    assert names(out) == before
    (out / foreign).unlink()
    works("prepare", log, "--out", out, "--force")


def test_files_that_are_added_to_a_policy_are_ours(tmp_path: Path) -> None:
    folder_of(tmp_path / "policy", "policy", "old")
    (tmp_path / "policy" / "model.onnx").touch()
    folder_of(tmp_path / "policy", "policy", "new", force=True)
    assert names(tmp_path / "policy") == [MANIFEST, "text"]


@pytest.mark.parametrize("name", ["log.csv", "map.toml", "./sub/../log.csv", "link.csv"])
def test_an_output_is_never_an_input(tmp_path: Path, log: Path, name: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.csv").symlink_to(log)
    mapping = tmp_path / "map.toml"
    columns = {"session": "session_id", "item": "item_id", "response": "response", "step": "step"}
    mapping.write_text("[map]\n" + "".join(f'{ours} = "{own}"\n' for ours, own in columns.items()))
    before = {one: one.read_bytes() for one in (log, mapping)}
    words = fails("prepare", log, "--map", mapping, "--out", tmp_path / "out", "--logs", tmp_path / name, "--force")
    assert "which the same command uses" in words
    assert {one: one.read_bytes() for one in (log, mapping)} == before


def test_a_kept_log_never_joins_the_logs_it_is_made_of(tmp_path: Path, log: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log.rename(folder / "a.csv")
    mapped = "session=session_id,item=item_id,response=response,step=step"
    words = fails("prepare", folder, "--map", mapped, "--out", tmp_path / "out", "--logs", folder / "b.csv")
    assert "would be among the logs" in words


def test_results_that_are_compared_are_not_replaced(tmp_path: Path) -> None:
    for name in ("a", "b"):
        rows = {"policy": [name] * 3, "session": [0, 1, 2], "clicks": [0.0, 1.0, 1.0]}
        pl.DataFrame(rows).write_parquet(tmp_path / f"{name}.parquet")
    both = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    assert "would replace" in fails("compare", *both, "--out", both[1], "--force")


def test_two_outputs_need_two_names(tmp_path: Path) -> None:
    one = tmp_path / "one"
    args = ("evaluate", "random", "--users", 3, "--report", one, "--sessions", one)
    assert "which the same command uses" in fails(*args)
    assert not one.exists()


def test_devices_and_pipes_stay(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="device or a pipe"), atomic_file(tmp_path / "pipe", force=True):
        pass
    with pytest.raises(InputError, match="expected a folder"), atomic_directory(tmp_path / "pipe", force=True):
        pass
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


# ---- links


def test_links_stay_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    folder_of(tmp_path / "real" / "data", "dataset", "old")
    (tmp_path / "data").symlink_to("real/data")
    folder_of(tmp_path / "data", "dataset", "new", force=True)
    assert (tmp_path / "data").is_symlink()
    assert (tmp_path / "real" / "data" / "text").read_text() == "new"
    (tmp_path / "real" / "file").write_text("old")
    (tmp_path / "file").symlink_to("real/file")
    with atomic_file(tmp_path / "file", force=True) as partial:
        partial.write_text("new")
    assert (tmp_path / "file").is_symlink()
    assert (tmp_path / "real" / "file").read_text() == "new"
    inside = ["data", "data/manifest.json", "data/text", "file"]
    assert names(tmp_path) == ["data", "file", "real", *(f"real/{one}" for one in inside)]


def test_a_link_to_nothing_is_taken(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(InputError, match="exists already"):
        refuse_existing(tmp_path / "link", force=False)


# ---- two at once


@pytest.mark.parametrize("system", [True, False])  # whether the system knows renameat2
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_of_two_writers_the_second_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, system: bool
) -> None:
    if not system:
        monkeypatch.setattr(renaming, "_renameat2", lambda *_: False)
    path = tmp_path / "out"
    writer = atomic_file if kind == "file" else atomic_directory
    with contextlib.ExitStack() as second:
        partial = second.enter_context(writer(path))
        with pytest.raises(InputError, match=r"Another run is writing .*out"):
            refuse_existing(path, force=False)
        if kind == "file":
            partial.write_text("second")
            path.write_text("first")
        else:
            write_json(partial / MANIFEST, {"kind": "dataset"})
            path.mkdir()
            (path / "first").touch()
        with pytest.raises(InputError, match="written by somebody else meanwhile"):
            second.close()
    assert path.read_text() == "first" if kind == "file" else names(path) == ["first"]
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


@pytest.fixture
def swapping(tmp_path: Path) -> Path:
    """A folder in which two names can be swapped."""
    for name in ("one", "other"):
        (tmp_path / name).touch()
    if not renaming._renameat2(tmp_path / "one", tmp_path / "other", renaming.EXCHANGE):
        pytest.skip("the file system of the temporary folder cannot swap two names")
    return tmp_path


def test_there_is_always_a_valid_output(swapping: Path) -> None:
    """A reader that looks all the time never misses the folder while it is replaced."""
    path = swapping / "data"
    folder_of(path, "dataset", "0")
    missed, done = [], threading.Event()

    def look() -> None:
        while not done.is_set():
            try:
                os.stat(path / "text")
            except OSError as error:
                missed.append(error)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for number in range(200):
            folder_of(path, "dataset", str(number), force=True)
    finally:
        done.set()
        looker.join()
    assert not missed
    assert (path / "text").read_text() == "199"


def test_where_the_system_can_swap_the_name_is_never_free(swapping: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = swapping / "data"
    folder_of(path, "dataset", "old")

    def two_renames(*_: Path) -> None:
        raise AssertionError("for a moment there is no folder of this name")

    monkeypatch.setattr(os, "replace", two_renames)
    folder_of(path, "dataset", "new", force=True)
    assert (path / "text").read_text() == "new"


def test_a_failed_swap_without_the_system_call_keeps_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renaming, "_renameat2", lambda *_: False)
    path = tmp_path / "data"
    folder_of(path, "dataset", "old")
    folder_of(path, "dataset", "new", force=True)
    assert (path / "text").read_text() == "new"
    replace = os.replace

    def fail_second(source: Path, target: Path) -> None:
        if Path(target) == path and Path(source).name == "data":
            raise OSError("no")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_second)
    with pytest.raises(OSError, match="no"):
        folder_of(path, "dataset", "newer", force=True)
    assert (path / "text").read_text() == "new"
    assert [one.name for one in tmp_path.iterdir()] == ["data"]


# ---- killed runs

HOLD = """
import sys, time
from pathlib import Path
from bcd4rec.artifacts import atomic_directory, atomic_file, scratch
writer = {"file": atomic_file, "folder": atomic_directory, "scratch": scratch}[sys.argv[1]]
with writer(Path("out")) as partial:
    (partial if sys.argv[1] == "file" else partial / "half").write_text("half")
    Path("here").touch()
    time.sleep(600)
"""


@pytest.mark.parametrize("kind", ["file", "folder", "scratch"])
def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path, kind: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, kind], cwd=tmp_path, env=ENVIRONMENT)
    try:
        patience = time.monotonic() + 240
        while not (tmp_path / "here").exists() and process.poll() is None and time.monotonic() < patience:
            time.sleep(0.02)
        (tmp_path / "here").unlink()
        left = names(tmp_path)
        assert left
        with scratch(tmp_path / "out"):  # the other is alive
            assert set(left) < set(names(tmp_path))
        if kind != "scratch":
            with pytest.raises(InputError, match="Another run is writing"):
                refuse_existing(tmp_path / "out", force=False)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert names(tmp_path) == left
    folder_of(tmp_path / "out", "dataset", "whole")
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_names_with_brackets_are_no_patterns(tmp_path: Path) -> None:
    (tmp_path / ".a.partial-1").mkdir()
    with atomic_file(tmp_path / "[a]") as partial:
        partial.write_text("x")
    assert (tmp_path / ".a.partial-1").exists()


# ---- modes


@pytest.mark.parametrize(
    ("mask", "file", "folder"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700), (0o002, 0o664, 0o775)]
)
def test_files_get_the_modes_of_the_umask(
    tmp_path: Path, log: Path, umask: Callable[[int], None], mask: int, file: int, folder: int
) -> None:
    umask(mask)
    mapped = "session=session_id,item=item_id,response=response,step=step"
    works("prepare", log, "--map", mapped, "--out", tmp_path / "data", "--logs", tmp_path / "kept.parquet")
    works("train", "popular", tmp_path / "data", "--out", tmp_path / "policy")
    made = [tmp_path / "kept.parquet", *(tmp_path / "data").rglob("*"), *(tmp_path / "policy").rglob("*")]
    assert {stat.S_IMODE(one.stat().st_mode) for one in made} == {file}
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("data", "policy")} == {folder}


def test_a_manifest_names_the_files_of_its_folder(tmp_path: Path) -> None:
    folder_of(tmp_path / "data", "dataset", "x")
    assert json.loads((tmp_path / "data" / MANIFEST).read_text())["files"] == ["text"]
    shutil.rmtree(tmp_path / "data")
    with atomic_directory(tmp_path / "data") as folder:  # also where nobody wrote a manifest
        (folder / "deep").mkdir()
        (folder / "deep" / "text").touch()
    assert json.loads((tmp_path / "data" / MANIFEST).read_text()) == {"kind": "files", "files": ["deep/text"]}
