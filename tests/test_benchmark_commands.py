"""`benchmark sessions` and `compare` as people run them."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bcd4rec.errors import InputError
from bcd4rec.workflows.results import read_results, session_table

N_ITEMS = 40


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "bcd4rec.cli", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def refusal(*arguments: object) -> str:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Walks around a circle of items: neighbours know where they go, popularity does not."""
    folder = tmp_path_factory.mktemp("sessions")
    rng = np.random.default_rng(0)
    walks = (rng.integers(N_ITEMS, size=(300, 1)) + np.cumsum(rng.integers(1, 3, (300, 6)), axis=1)) % N_ITEMS
    pl.DataFrame({"items": walks[:200].tolist()}).write_parquet(folder / "train.parquet")
    test = {"prefix": walks[200:, :4].tolist(), "target": walks[200:, 4]}
    pl.DataFrame(test).write_parquet(folder / "test.parquet")
    return folder


@pytest.fixture(scope="module")
def lists(data: Path) -> dict[str, Path]:
    """The lists of two methods, written by the command."""
    found = {}
    for method in ("popular", "sknn"):
        found[method] = data / f"{method}.parquet"
        done = run("benchmark", "sessions", "--data", data, "--method", method, "--lists", found[method], "--json")
        assert done.returncode == 0, done.stderr
    return found


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """What `evaluate --sessions` writes, for two policies on five users."""
    columns = {"session_id": range(5), "steps": [4] * 5, "return": [0.0] * 5, "discounted_return": [0.0] * 5}
    tables = {
        "good": pl.DataFrame(columns | {"targets": [4, 3, 4, 2, 4]}),
        "poor": pl.DataFrame(columns | {"targets": [1, 2, 1, 2, 0]}),
    }
    session_table(tables).write_parquet(tmp_path / "sessions.parquet")
    return tmp_path / "sessions.parquet"


def test_benchmark_prints_one_object(data: Path) -> None:
    done = run("benchmark", "sessions", "--data", data, "--method", "sknn", "--set", "k=50", "--limit", "70", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["settings"]["k"] == 50
    assert found["cases"] == 70
    assert found["p@20_low"] <= found["p@20"] <= found["p@20_high"]
    assert found["mrr@20_low"] <= found["mrr@20"] <= found["mrr@20_high"]
    assert found["p@20"] > 90
    assert found["fit_seconds"] > 0
    assert found["queries_per_second"] > 0


def test_benchmark_tells_how_training_goes_and_shows_a_table(data: Path) -> None:
    small = ["--set", "width=4", "--set", "least_steps=1", "--set", "epochs=2"]
    done = run("benchmark", "sessions", "--data", data, "--method", "gru4rec", *small, "--limit", "5")
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["epoch 1", "epoch 2"]
    assert "predictions/s" in done.stderr
    assert "mrr@20" in done.stdout


def test_a_cheap_method_does_not_import_torch(data: Path) -> None:
    for method in ("popular", "stan"):
        code = (
            "import sys; sys.argv = sys.argv[1:]; import bcd4rec.cli\n"
            "try: bcd4rec.cli.main()\nfinally: assert 'torch' not in sys.modules"
        )
        arguments = ["bcd4rec", "benchmark", "sessions", "--data", str(data), "--method", method, "--json"]
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"--method": "best"}, "Unknown baseline 'best'; known are category_popular, ctr, gru4rec"),
        ({"--data": "nowhere"}, "train.parquet is missing"),
        ({"--set": "k=many"}, "k: found 'many'"),
    ],
    ids=str,
)
def test_benchmark_refuses_in_one_sentence(data: Path, change: dict[str, str], words: str) -> None:
    options = {"--data": str(data), "--method": "sknn"} | change
    assert words in refusal("benchmark", "sessions", *(part for pair in options.items() for part in pair))


def test_existing_lists_are_refused_and_replaced_by_force(lists: dict[str, Path], data: Path) -> None:
    again = ["benchmark", "sessions", "--data", data, "--method", "popular", "--lists", lists["popular"]]
    assert "exists already" in refusal(*again)
    assert run(*again, "--force").returncode == 0


def test_compare_lists_case_by_case(lists: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "cases.parquet"
    done = run("compare", lists["popular"], lists["sknn"], "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    ranks = {name: pl.read_parquet(path)["rank"].to_list() for name, path in lists.items()}
    hits = {name: 100 * sum(rank is not None for rank in found) / 100 for name, found in ranks.items()}
    places = {name: 100 * sum(1 / rank for rank in found if rank) / 100 for name, found in ranks.items()}
    assert (found["unit"], found["count"]) == ("case", 100)
    assert {one["policy"]: one["p@20"] for one in found["policies"]} == pytest.approx(hits)
    p20, mrr20 = found["pairs"]
    assert (p20["metric"], p20["first"], p20["second"]) == ("p@20", "popular", "sknn")
    assert p20["difference"] == pytest.approx(hits["popular"] - hits["sknn"])
    assert mrr20["difference"] == pytest.approx(places["popular"] - places["sknn"])
    assert p20["difference_low"] <= p20["difference"] <= p20["difference_high"] < 0
    assert p20["significant"] is mrr20["significant"] is True
    written = pl.read_parquet(out)
    assert written.columns == ["case", "policy", "target", "rank", "hit", "reciprocal_rank"]
    assert len(written) == 200
    assert json.loads(run("compare", out, "--json").stdout) == found


def test_compare_sessions_by_hand(sessions: Path) -> None:
    found = json.loads(run("compare", sessions, "--json").stdout)
    rate, total, _ = found["pairs"]
    assert rate["difference"] == pytest.approx(100 * 11 / 20)
    assert rate["p_value"] == 2 / 16, "four users differ, and only swapping none or all of them is as far apart"
    assert total["p_value"] == 1
    done = run("compare", sessions)
    assert done.returncode == 0
    assert "good" in done.stdout
    assert "poor" in done.stdout


def test_evaluate_writes_what_compare_reads(tmp_path: Path) -> None:
    path = tmp_path / "sessions.parquet"
    done = run("evaluate", "random", "oracle", "--users", "30", "--sessions", path, "--json")
    assert done.returncode == 0, done.stderr
    table = pl.read_parquet(path)
    assert table.columns == ["session_id", "policy", "steps", "targets", "return", "discounted_return"]
    shown = {one["policy"]: one["ctr"] for one in json.loads(done.stdout)["policies"]}
    found = json.loads(run("compare", path, "--against", "random", "--json").stdout)
    assert {one["policy"]: one["rate"] for one in found["policies"]} == pytest.approx(shown)
    assert found["pairs"][0]["difference"] == pytest.approx(shown["random"] - shown["oracle"])
    assert found["pairs"][0]["significant"] is True
    assert "exists already" in refusal("evaluate", "random", "--users", "3", "--sessions", path)


def test_compare_refuses_in_one_sentence(lists: dict[str, Path], sessions: Path, tmp_path: Path) -> None:
    assert "is not a file" in refusal("compare", tmp_path / "nothing.parquet")
    assert "nothing to compare it with" in refusal("compare", lists["sknn"])
    (tmp_path / "taken").write_text("mine")
    assert "exists already" in refusal("compare", sessions, "--out", tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def refused(*paths: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_results(paths)
    return str(caught.value)


def test_bad_result_files_are_named(lists: dict[str, Path], sessions: Path, tmp_path: Path) -> None:
    assert "different things" in refused(lists["sknn"], sessions)
    bad = tmp_path / "bad.parquet"
    bad.write_text("hello")
    assert "cannot be read" in refused(bad)
    pl.DataFrame({"a": [1]}).write_parquet(bad)
    assert "has the columns a; expected" in refused(bad)
    table = pl.read_parquet(lists["sknn"])
    table.head(0).write_parquet(bad)
    assert "no rows" in refused(bad)
    pl.concat([table, table.head(1)]).write_parquet(bad)
    assert "appears twice" in refused(bad)
    table.with_columns(rank=pl.lit("first")).write_parquet(bad)
    assert "column 'rank' holds String" in refused(bad)
    table.with_columns(pl.col("target").reverse()).write_parquet(bad)
    assert "different targets" in refused(lists["sknn"], bad)
    pl.read_parquet(sessions).with_columns(pl.lit(None, pl.Int64).alias("targets")).write_parquet(bad)
    assert "empty cells" in refused(bad)


def test_cases_by_hand(tmp_path: Path) -> None:
    for name, ranks in {"a": [1, None, 4], "b": [None, 2, None]}.items():
        table = pl.DataFrame({"case": [2, 0, 1], "target": [7, None, 7], "rank": ranks})
        table.write_parquet(tmp_path / f"{name}.parquet")
    found = read_results([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    assert found.tables["a"]["hit"].to_list() == [0, 1, 1]
    assert found.tables["a"]["reciprocal_rank"].to_list() == [0, 0.25, 1]
    assert found.ratios["mrr@20"].value(found.tables["a"]) == pytest.approx(125 / 3)
    assert math.isclose(found.ratios["p@20"].value(found.tables["b"]), 100 / 3)


def test_equal_names_of_different_files_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "sknn.parquet" for folder in ("old", "new")]
    for path in paths:
        path.parent.mkdir()
        pl.DataFrame({"case": [0], "target": ["x"], "rank": [1]}).write_parquet(path)
    assert list(read_results(paths).tables) == ["sknn", f"{tmp_path}/new/sknn:sknn"]
