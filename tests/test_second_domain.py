"""Methods that learned from one period of a log against users learned from an earlier one."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.responses import DIGINETICA
from bcd4rec.data.schema import Log
from bcd4rec.evaluation.metrics import category_accuracy
from bcd4rec.evaluation.statistics import Interval
from bcd4rec.runner.running import run
from bcd4rec.runner.store import TaskStore
from reproduction import second_domain as domain
from reproduction.benchmark_users import _table
from reproduction.results import EvaluationRuns
from reproduction.tasks.learners import User
from reproduction.tasks.logs import PreparedLog
from test_learned_user import SETTINGS, SPLIT, log

NONE = Interval(0.0, 0.0, 0.0)


def test_category_accuracy_by_hand() -> None:
    shown = pl.DataFrame({"session_id": [1, 1, 1, 2, 2, 3], "category": [7, 7, None, 7, 8, 8]})
    first = pl.DataFrame({"session_id": [1, 2, 3], "category": [7, 8, None]})
    assert category_accuracy(shown, first) == pytest.approx(100 * 3 / 5)  # session 3 does not count


def runs_of(rate: float, sessions: pl.DataFrame | None = None) -> SimpleNamespace:
    return SimpleNamespace(mean=lambda: rate, sessions=sessions)


def test_the_rank_correlation_leaves_the_oracles_out() -> None:
    one = {"a": runs_of(1), "b": runs_of(2), "c": runs_of(3), "oracle": runs_of(9)}
    other = {"a": runs_of(10), "b": runs_of(30), "c": runs_of(20), "oracle": runs_of(0), "behaviour": runs_of(5)}
    assert domain.rank_correlation(one, other) == pytest.approx(0.5)  # 1 − 6 · (0 + 1 + 1) / (3 · 8)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    log().write_parquet(tmp_path / "log.parquet")
    prepare(Log(tmp_path / "log.parquet"), DIGINETICA, PrepareConfig(split=SPLIT), tmp_path / "dataset")
    return Dataset.load(tmp_path / "dataset")


def test_the_logged_rate_is_that_of_the_period(dataset: Dataset) -> None:
    rows = dataset.transitions("test")
    buys = [dataset.responses.names[code] == "buy" for code in rows.response]
    value, low, high = domain.logged(dataset, "test", seed=0)
    assert value == pytest.approx(100 * sum(buys) / len(buys))
    assert low < value < high


def test_a_run_is_kept_and_goes_on(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domain, "BASELINES", ("popular", "sknn"))
    monkeypatch.setattr(domain, "AGENTS", ("bcd4rec",))
    store = TaskStore(tmp_path / "store")
    user = User(PreparedLog(str(tmp_path / "dataset"), dataset.content_hash), 0, tuple(SETTINGS.items()))
    second = domain.SecondDomain(user, (("batch_size", 64), ("updates", 100)), rounds=2, round_users=60, users=150)
    tasks, told = second.runs(), []
    assert list(tasks) == ["random", "popular", "sknn", "bcd4rec", "online", "oracle", "behaviour"]
    assert run(tasks.values(), store, tell=told.append) == {}
    assert len(told) == 1 + 7 + 6  # the beginning; each meets users; the data set, the user and four policies
    found = {name: EvaluationRuns(store, [task], 1) for name, task in tasks.items()}
    rates = {name: one.mean() for name, one in found.items()}
    assert rates["oracle"] > rates["random"] + 5
    assert found["bcd4rec"].mean("category_accuracy") > 2 * 100 / 5  # of five categories
    assert np.isfinite(domain.rank_correlation(found, found))
    narrow = replace(second, candidates="category").runs()
    told.clear()
    assert run([narrow["random"], narrow["behaviour"]], store, tell=told.append) == {}
    assert len(told) == 1 + 2  # nothing is learned once more
    random, lists = (EvaluationRuns(store, [narrow[name]], 1) for name in ("random", "behaviour"))
    assert random.mean("category_accuracy") == 100
    assert random.mean() > rates["random"] + 5
    assert lists.mean() == rates["behaviour"]  # the log's lists are what they are
    rows = domain.as_json(found, 0)
    assert rows["behaviour"]["difference"] is None
    for name in ("random", "oracle"):
        assert rows[name]["difference"] == pytest.approx(rates[name] - rates["behaviour"])
    assert rows["oracle"]["difference_low"] > 0
    about = {"rate": "br", "users": 150, "logged": {"value": 4.0}, "true": {}, "rank_correlation": None}
    assert _table(about | {"candidates": "all", "learned": rows}).row_count == len(tasks)


def test_differences_go_session_by_session() -> None:
    """By chance alone both rates vary by many points; what one session says of both policies does not."""
    steps = np.full(40, 10)
    targets = np.arange(40) % 9
    one, other = (
        pl.DataFrame({"session_id": np.arange(40), "steps": steps, "targets": targets + more}) for more in (1, 0)
    )
    rows = {"a": runs_of(1, one), "behaviour": runs_of(0, other)}
    assert domain.differences(rows, 0) == {"a": pytest.approx((10.0, 10.0, 10.0))}
    assert domain.differences({"a": rows["a"]}, 0) == {}
