"""A server and its database, over HTTP: PostgreSQL, a database that is away, the buffer, retention, the export."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bcd4rec.data.dataset import Dataset
from bcd4rec.serving.loading import load
from bcd4rec.serving.storage.records import Feedback, Impression
from bcd4rec.serving.storage.store import open_store
from bcd4rec.serving.storage.writer import DAY_US
from databases import PostgresServer, postgres_server
from serving_help import PATIENT, Running, quantile_policy, saved, serving
from test_cli import fails, result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    policy = quantile_policy("meanpool", "implicit")
    return saved(policy, tmp_path_factory.mktemp("policy") / "policy")


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


def items(answer: dict[str, Any]) -> list[int]:
    return [one["item"] for one in answer["items"]]


def until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def storage(server: Running) -> dict[str, Any]:
    found: dict[str, Any] = server.client.get("/v1/health").json()["storage"]
    return found


def test_postgresql(folder: Path, postgres: PostgresServer, tmp_path: Path) -> None:
    options = [folder, "--database", postgres.url, "--explore", "softmax"]
    with serving(tmp_path, *options, environment=PATIENT) as server:
        first = server.recommend(session_id="anna", k=3)
        liked, skipped, open_ = items(first)
        answer = server.feedback(first["request_id"], **{f"i{liked}": "click", f"i{skipped}": "skip"})
        assert (answer.status_code, answer.json()["stored"]) == (200, True)
        told = server.recommend(session=[4, {"item": 6, "response": "skip"}], k=2)
    with serving(
        tmp_path, *options, environment=PATIENT
    ) as server:  # what was before the restart is in the database alone
        second = server.recommend(session_id="anna", k=22, explore=False)
        passed = [{"item": item, "response": "skip"} for item in (skipped, open_)]  # nobody answered the last
        events = [{"item": liked, "response": "click"}, *passed]
        assert second["items"] == server.recommend(session=events, k=22, explore=False, record=False)["items"]
        assert liked not in items(second)
        (arm,) = server.client.get("/v1/experiments").json()["arms"]
        assert (arm["sessions"], arm["requests"], arm["impressions"]) == (2, 3, 27)
        assert arm["rates"]["click"]["low"] < 1 / 27 < arm["rates"]["click"]["high"]
    with serving(tmp_path, *options) as server:  # which does not wait long
        postgres.stop()
        try:
            until(lambda: not storage(server)["connected"])
            away = server.recommend(session_id="bert", k=2)
            assert server.feedback(away["request_id"], **{f"i{items(away)[0]}": "buy"}).status_code == 202
            assert items(away)[0] not in items(server.recommend(session_id="bert", k=22))
        finally:
            postgres.start()
        until(lambda: storage(server)["connected"] and storage(server)["pending"] == 0)
    out = tmp_path / "logs.parquet"
    found = result("logs", "export", "--database", postgres.url, "--out", out, "--integer-items")
    assert (found["sessions"], found["requests"], found["organic"]) == (3, 5, 2)
    assert found["impressions"] == 3 + 2 + 22 + 2 + 21 + 1
    log = pl.read_parquet(out)
    shown = log.filter(pl.col("request_id") == first["request_id"])
    assert shown["item_id"].to_list() == [liked, skipped, open_]
    assert shown["response"].to_list() == ["click", "skip", "skip"]
    assert shown["propensity"].to_list() == [one["propensity"] for one in first["items"]]
    assert log.filter(pl.col("session_id") == told["session_id"])["item_id"].to_list() == [4, 6, *items(told)]
    assert log.filter(pl.col("response") == "buy")["item_id"].to_list() == [items(away)[0]]
    assert result("check", out)["ok"] is True


def test_the_buffer_of_a_server(folder: Path, tmp_path: Path) -> None:
    with serving(tmp_path, folder, "--buffer", 4) as server:
        other = sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        shown = server.recommend(session_id="anna", k=4)
        told = {f"i{item}": "click" for item in items(shown)[:3]}
        last = {f"i{items(shown)[3]}": "buy"}
        assert server.feedback(shown["request_id"], **told).status_code == 202
        refused = server.feedback(shown["request_id"], **last)
        assert (refused.status_code, refused.json().keys()) == (503, {"error"})
        assert not set(items(shown)[:3]) & set(items(server.recommend(session_id="anna", k=20)))  # and is not stored
        until(lambda: not storage(server)["connected"])
        assert (storage(server)["pending"], storage(server)["dropped"]) == (4, 2)
        assert server.client.get("/v1/health").json()["status"] == "degraded"
        assert "bcd4rec_unlogged_impressions_total 1.0" in server.client.get("/metrics").text
        other.execute("ROLLBACK")
        other.close()
        until(lambda: storage(server)["pending"] == 0)
        until(lambda: server.feedback(shown["request_id"], **last).status_code == 200)  # soon enough, sooner or later
    store = open_store(str(tmp_path / "store.sqlite"))
    try:
        clicks = [(str(item), "click") for item in items(shown)[:3]]
        assert store.session("anna").slates == [[*clicks, (str(items(shown)[3]), "buy")]]
        assert store.arms()[0].requests == 1
    finally:
        store.close()


def test_the_retention_of_a_server(folder: Path, tmp_path: Path) -> None:
    now, path = time.time_ns() // 1000, tmp_path / "store.sqlite"
    store = open_store(str(path))
    for name, age in (("old", 3.0), ("young", 0.5)):
        when = now - int(age * DAY_US)
        store.submit(
            [Impression(name, name, 0, "v", "a", when, ("7",), (1.0,), (0.0,)), Feedback(name, "7", "buy", now)]
        )
    store.close()
    with serving(tmp_path, folder, "--retention-days", 1.5) as server:
        reader = sqlite3.connect(path)
        until(lambda: reader.execute("SELECT request_id FROM bcd4rec_impressions").fetchall() == [("young",)])
        assert reader.execute("SELECT request_id FROM bcd4rec_feedback").fetchall() == [("young",)]
        reader.close()
        assert 7 in items(server.recommend(session_id="old", k=22))
        assert 7 not in items(server.recommend(session_id="young", k=22))


def test_options_that_cannot_be(folder: Path, tmp_path: Path) -> None:
    database = tmp_path / "store.sqlite"
    for options, words in (
        (["--retention-days", 0], "--retention-days: found 0.0, expected a number of days above 0"),
        (["--retention-days", "nan"], "--retention-days: found nan"),
        (["--buffer", 0], "--buffer"),
        (["--database", tmp_path], "expected sqlite:///path"),
    ):
        assert words in fails("serve", folder, "--port", 0, "--database", database, *options)
    assert not database.exists()


def test_sessions_that_are_told_in_the_request_are_exported_with_their_policy(folder: Path, tmp_path: Path) -> None:
    version = load(folder).version
    with serving(tmp_path, folder, "--explore", "epsilon", "--epsilon", 0.3) as server:
        answers = []
        for _ in range(12):  # neither gives a session_id: each is a session of its own
            answers.append(server.recommend(session=[4, {"item": 6, "response": "skip"}, 9], k=3))
            server.feedback(answers[-1]["request_id"], **{f"i{items(answers[-1])[1]}": "click"})
    out, database = tmp_path / "logs.parquet", tmp_path / "store.sqlite"
    found = result("logs", "export", "--database", database, "--out", out, "--policy", version)
    assert (found["sessions"], found["requests"], found["propensities"]) == (12, 12, 36)
    assert (found["impressions"], found["organic"]) == (36, 36)
    assert found["responses"] == {"skip": 24, "click": 12, "buy": 0}
    assert found["dropped"]["sessions_of_several_policies"] == 0
    one = pl.read_parquet(out).filter(pl.col("session_id") == answers[0]["session_id"])
    assert one["item_id"].to_list() == ["4", "6", "9", *map(str, items(answers[0]))]
    assert one["response"].to_list() == ["click", "skip", "click", "skip", "click", "skip"]
    assert one["policy"].to_list() == ["organic"] * 3 + [version] * 3
    assert one["propensity"].is_null().to_list() == one["organic"].to_list() == [True] * 3 + [False] * 3
    made = result("prepare", out, "--out", tmp_path / "dataset")
    assert (made["sessions"], made["transitions"], made["organic"]) == (12, 36, 36)
    data = Dataset.load(tmp_path / "dataset")
    states = data.states.positives[data.transitions("train").state]
    assert {tuple(data.vocabulary.id(int(item)) for item in row if item >= 0) for row in states} == {("4", "9")}
    assert "no impressions" in fails("logs", "export", "--database", database, "--out", out, "--policy", "x", "--force")
