"""Methods that learned from one period of a log against users learned from an earlier one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bcd4rec.artifacts import keep_to
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.preparing import PrepareConfig, prepare
from bcd4rec.data.responses import DIGINETICA
from bcd4rec.data.schema import Log
from bcd4rec.errors import InputError
from bcd4rec.evaluation.metrics import category_accuracy
from bcd4rec.evaluation.statistics import Interval
from bcd4rec.evaluation.summary import Evaluation
from bcd4rec.experiments.online import OnlineConfig
from reproduction import second_domain as domain
from reproduction.benchmark_users import _table
from test_learned_user import SETTINGS, SPLIT, log

NONE = Interval(0.0, 0.0, 0.0)


def test_category_accuracy_by_hand() -> None:
    shown = pl.DataFrame({"session_id": [1, 1, 1, 2, 2, 3], "category": [7, 7, None, 7, 8, 8]})
    first = pl.DataFrame({"session_id": [1, 2, 3], "category": [7, 8, None]})
    assert category_accuracy(shown, first) == pytest.approx(100 * 3 / 5)  # session 3 does not count


def row(rate: float) -> domain.Row:
    return domain.Row(Evaluation("x", "br", Interval(rate, rate, rate), NONE, NONE, NONE, 1, 1), None)


def test_the_rank_correlation_leaves_the_oracles_out() -> None:
    one = {"a": row(1), "b": row(2), "c": row(3), "oracle": row(9)}
    other = {"a": row(10), "b": row(30), "c": row(20), "oracle": row(0), "behaviour": row(5)}
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


def test_runs_are_not_mixed(tmp_path: Path) -> None:
    keep_to(tmp_path / "run", {"seed": 0})
    keep_to(tmp_path / "run", {"seed": 0})
    with pytest.raises(InputError, match="another run"):
        keep_to(tmp_path / "run", {"seed": 1})


def test_a_run_is_kept_and_goes_on(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domain, "BASELINES", ("popular", "sknn"))
    monkeypatch.setattr(domain, "AGENTS", ("bcd4rec",))
    quick = {"updates": 100, "batch_size": 64}
    fit_user = domain.fit_user
    monkeypatch.setattr(domain, "fit_user", lambda data, settings, seed, tick: fit_user(data, SETTINGS, seed, tick))
    rounds = OnlineConfig(rounds=2, users=60, first_epsilon=0.3)
    user = domain.learned_user(dataset, tmp_path / "user", 0)
    folders = domain.policies(dataset, user, tmp_path / "policies", rounds, 0, settings=quick)
    assert list(folders) == ["popular", "sknn", "bcd4rec", "online"]

    def refuse(*_: object) -> None:
        raise AssertionError("learned once more")

    for name in ("fit", "fit_user", "learn_online"):
        monkeypatch.setattr(domain, name, refuse)
    again = domain.learned_user(dataset, tmp_path / "user", 0)
    assert domain.policies(dataset, again, tmp_path / "policies", rounds, 0, settings=quick) == folders
    met = domain.meet(user, folders, 150, 0)
    assert list(met) == ["random", *folders, "oracle", "behaviour"]
    rates = {name: one.evaluation.rate.value for name, one in met.items()}
    assert rates["oracle"] > rates["random"] + 5
    assert met["bcd4rec"].category_accuracy is not None
    assert met["bcd4rec"].category_accuracy > 2 * 100 / 5  # of five categories
    assert np.isfinite(domain.rank_correlation(met, met))
    narrow = domain.meet(user, {}, 150, 0, candidates="category")
    assert narrow["random"].category_accuracy == 100
    assert narrow["random"].evaluation.rate.value > rates["random"] + 5
    assert narrow["behaviour"].evaluation == met["behaviour"].evaluation  # the log's lists are what they are
    found = domain.told(met, 0)
    assert found["behaviour"]["difference"] is None
    for name in ("random", "oracle"):
        assert found[name]["difference"] == pytest.approx(rates[name] - rates["behaviour"])
    assert found["oracle"]["difference_low"] > 0
    told = {"rate": "br", "users": 150, "logged": {"value": 4.0}, "true": {}, "rank_correlation": None}
    table = _table(told | {"candidates": "all", "learned": found})
    assert table.row_count == len(met)


def test_differences_go_session_by_session() -> None:
    """By chance alone both rates vary by many points; what one session says of both policies does not."""
    steps = np.full(40, 10)
    targets = np.arange(40) % 9
    one, other = (
        pl.DataFrame({"session_id": np.arange(40), "steps": steps, "targets": targets + more}) for more in (1, 0)
    )
    rows = {"a": replace(row(1), sessions=one), "behaviour": replace(row(0), sessions=other), "b": row(2)}
    assert domain.differences(rows, 0) == {"a": pytest.approx((10.0, 10.0, 10.0))}
    assert domain.differences({"a": rows["a"]}, 0) == {}
