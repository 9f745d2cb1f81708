"""P@K and MRR@K worked out by hand, and the session benchmark on small files."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import FloatArray, IntArray, States
from bcd4rec.errors import InputError
from bcd4rec.evaluation.next_item import NextItemResult, evaluate_next_item, ranks_of, top_lists
from bcd4rec.workflows.sessions import run_sessions_benchmark


class LastItem:
    """Scores items by closeness to the session's last item; an empty session likes all items alike."""

    n_items = 30

    def scores(self, states: States, candidates: IntArray | None = None) -> FloatArray:
        last = np.where(states.lengths > 0, states.positives[np.arange(len(states)), states.lengths - 1], 0)
        distance = np.abs(np.arange(self.n_items) - last[:, None])
        return np.where(states.lengths[:, None] > 0, -distance, 0).astype(np.float32)


def test_rank_of_the_target():
    lists = np.array([[4, 2, 9], [4, 2, 9], [1, 0, 3], [1, 0, 3]], np.int32)
    assert ranks_of(lists, np.array([9, 4, 7, -1], np.int32)).tolist() == [3, 1, 0, 0]


def test_summary_by_hand():
    result = NextItemResult(np.array([1, 4, 0, 0], np.int32), 5)
    assert result.hits.tolist() == [1, 1, 0, 0]
    assert result.reciprocal_ranks.tolist() == [1, 0.25, 0, 0]
    summary = result.summary(seed=0)
    assert summary["p@5"] == 50
    assert summary["mrr@5"] == 31.25


def test_intervals_cover_the_standard_error_and_are_reproducible():
    rng = np.random.default_rng(0)
    ranks = np.where(rng.random(5000) < 0.4, rng.integers(1, 21, 5000), 0).astype(np.int32)
    result = NextItemResult(ranks, 20)
    summary = result.summary(seed=3)
    for name, values in {"p@20": result.hits, "mrr@20": result.reciprocal_ranks}.items():
        half = 100 * 1.96 * values.std() / np.sqrt(len(values))
        assert summary[name] == pytest.approx(100 * values.mean(), rel=1e-5)
        assert summary[f"{name}_low"] == pytest.approx(summary[name] - half, abs=0.1 * half)
        assert summary[f"{name}_high"] == pytest.approx(summary[name] + half, abs=0.1 * half)
    assert summary == result.summary(seed=3)
    assert summary != result.summary(seed=4)


def test_ties_go_to_the_lower_index():
    items, scores = top_lists(LastItem(), Sequences.of([[7], [], [3, 29]]), 5, batch=2)
    assert items.tolist() == [[7, 6, 8, 5, 9], [0, 1, 2, 3, 4], [29, 28, 27, 26, 25]]
    assert scores.tolist() == [[0, -1, -1, -2, -2], [0] * 5, [0, -1, -2, -3, -4]]


def test_evaluation_of_a_policy():
    result = evaluate_next_item(LastItem(), Sequences.of([[1, 7], [], list(range(25))]), np.array([8, 3, 0]), k=4)
    assert result.ranks.tolist() == [3, 4, 0]


def test_no_cases():
    summary = evaluate_next_item(LastItem(), Sequences.of([]), np.empty(0, np.int32), k=4).summary(seed=0)
    assert summary["p@4"] == summary["mrr@4_high"] == 0


def write(folder: Path, train: list[list[int]], test: list[tuple[list[int], int]]) -> Path:
    pl.DataFrame({"items": train}, {"items": pl.List(pl.Int32)}).write_parquet(folder / "train.parquet")
    schema = {"prefix": pl.List(pl.Int32), "target": pl.Int32}
    columns = {"prefix": [prefix for prefix, _ in test], "target": [target for _, target in test]}
    pl.DataFrame(columns, schema).write_parquet(folder / "test.parquet")
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    train = [[10, 20], [20, 30], [10, 20, 30], [90]]
    test = [([10], 20), ([99, 20], 30), ([20], 77), ([], 10)]  # 99 and 77 were never trained on
    return write(tmp_path, train, test)


def test_benchmark_of_popularity_by_hand(data: Path, tmp_path: Path):
    lists = tmp_path / "lists.parquet"
    result = run_sessions_benchmark(data, "popular", {}, lists=lists)
    # Counts: 20 thrice, 10 and 30 twice, 90 once; so the list is 20, 10, 30, 90 for everybody.
    assert result["p@20"] == 75
    assert result["mrr@20"] == pytest.approx(100 * (1 + 1 / 3 + 0 + 1 / 2) / 4)
    assert (result["sessions"], result["items"], result["cases"]) == (4, 4, 4)
    assert result["queries_per_second"] > 0
    assert result["fit_seconds"] >= 0
    table = pl.read_parquet(lists)
    assert table["rank"].to_list() == [1, 3, None, 2]
    assert table["target"].to_list() == [20, 30, None, 10]
    assert table["items"].to_list() == [[20, 10, 30, 90]] * 4
    assert table["scores"].to_list() == [[3, 2, 2, 1]] * 4


def test_benchmark_takes_settings_and_a_limit(data: Path):
    result = run_sessions_benchmark(data, "sknn", {"k": "1"}, limit=2)
    assert result["settings"]["k"] == 1
    assert result["cases"] == 2
    assert result["p@20"] == 100


def test_item_ids_may_be_strings(tmp_path: Path):
    pl.DataFrame({"items": [["b", "a"], ["b"]]}).write_parquet(tmp_path / "train.parquet")
    pl.DataFrame({"prefix": [["a"]], "target": ["b"]}).write_parquet(tmp_path / "test.parquet")
    lists = tmp_path / "lists.parquet"
    run_sessions_benchmark(tmp_path, "popular", {}, lists=lists)
    assert pl.read_parquet(lists)["items"].to_list() == [["b", "a"]]


def test_existing_lists_are_not_overwritten(data: Path, tmp_path: Path):
    lists = tmp_path / "lists.parquet"
    lists.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        run_sessions_benchmark(data, "popular", {}, lists=lists)
    assert lists.read_text() == "mine"
    run_sessions_benchmark(data, "popular", {}, lists=lists, force=True)
    assert len(pl.read_parquet(lists)) == 4


def test_bad_input_is_named(data: Path, tmp_path: Path):
    with pytest.raises(InputError, match=r"train\.parquet is missing"):
        run_sessions_benchmark(tmp_path / "nowhere", "popular", {})
    with pytest.raises(InputError, match="Unknown baseline 'best'"):
        run_sessions_benchmark(data, "best", {})
    with pytest.raises(InputError, match="unknown key 'q'"):
        run_sessions_benchmark(data, "sknn", {"q": 1})
    with pytest.raises(InputError, match="at least 1"):
        run_sessions_benchmark(data, "sknn", {}, limit=0)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pl.DataFrame({"prefix": [[1]]}), "no column 'target'"),
        (pl.DataFrame({"prefix": [1], "target": [2]}), "column 'prefix' holds Int64"),
        (pl.DataFrame({"prefix": [[1]], "target": [2.5]}), "column 'target' holds Float64"),
        (pl.DataFrame({"prefix": [["x"]], "target": ["y"]}), "expected Int32"),
        (pl.DataFrame({"prefix": [[1]], "target": [2]}).clear(), "no rows"),
    ],
)
def test_bad_test_files_are_named(data: Path, frame: pl.DataFrame, message: str):
    frame.write_parquet(data / "test.parquet")
    with pytest.raises(InputError, match=message):
        run_sessions_benchmark(data, "popular", {})


def test_a_damaged_file_is_named(data: Path):
    (data / "train.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(InputError, match="cannot be read"):
        run_sessions_benchmark(data, "popular", {})
