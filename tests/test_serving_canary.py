"""A canary in a real server: sticky arms, sessions that count once, decisions that are kept and acted on."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from databases import postgres_server
from serving_help import Running, quantile_policy, saved, serving

QUICK = ("--share", "0.5", "--session-minutes", "0.01")
LIKED = tuple(range(12, 23))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    scratch = tmp_path_factory.mktemp("policies")
    return tuple(saved(quantile_policy("meanpool", "expected", seed=seed), scratch / f"p{seed}") for seed in (5, 6))  # type: ignore[return-value]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path_factory.mktemp("database") / "store.sqlite")
    else:
        with postgres_server() as server:
            yield server.url


def canary(server: Running) -> dict[str, Any]:
    found = server.client.get("/v1/experiments").json()["canary"]
    assert isinstance(found, dict)
    return found


def until(server: Running, done: Callable[[dict[str, Any]], bool], seconds: float = 30) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while not done(found := canary(server)):
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def session(server: Running, name: str, answers: Callable[[str], bool]) -> str:
    """One session of one slate, bought from or not; it is on disk afterwards."""
    slate = server.recommend(session_id=name, k=2)
    response = "buy" if answers(slate["arm"]) else "skip"
    assert server.feedback(slate["request_id"], **{f"i{slate['items'][0]['item']}": response}).status_code == 200
    return str(slate["arm"])


def test_a_better_policy_is_promoted_and_stays_so(folders: Any, tmp_path: Path, database: str) -> None:
    heard = tmp_path / "heard.json"
    hook = f"tee {heard}"
    given = (folders[0], "--canary", folders[1], *QUICK, "--database", database, "--on-decision", hook)
    with serving(tmp_path, *given) as server:
        arms = [session(server, f"better{number}", lambda arm: arm == "new") for number in range(60)]
        assert set(arms) == {"old", "new"}
        found = until(server, lambda one: one["decision"] is not None)
        assert found["decision"] == "promote"
        assert found["sentence"].startswith("Promoted: the new policy is better")
        assert [session(server, f"later{number}", lambda arm: False) for number in range(8)] == ["new"] * 8
        assert session(server, "better0", lambda arm: False) == "new"
        text = server.client.get("/metrics").text
        assert 'bcd4rec_canary_decision{decision="promote"} 1.0' in text
        assert 'bcd4rec_canary_sessions{arm="new"}' in text
        assert len(found["history"]) >= 5
        until(server, lambda _: heard.exists() and heard.read_text().endswith("}"))
        assert json.loads(heard.read_text())["decision"] == "promote"
    heard.unlink()
    with serving(tmp_path, *given) as server:
        again = canary(server)
        assert {**again, "share": 0} == {**found, "share": 0}
        assert session(server, "much later", lambda arm: False) == "new"
    assert not heard.exists()


def test_a_worse_policy_is_rolled_back_and_tell_only_says(folders: Any, tmp_path: Path, database: str) -> None:
    given = (folders[0], "--canary", folders[1], *QUICK, "--database", database, "--seed", "1", "--decide", "tell")
    with serving(tmp_path, *given) as server:
        for number in range(60):
            session(server, f"worse{number}", lambda arm: arm == "old")
        found = until(server, lambda one: one["decision"] is not None)
        assert (found["decision"], found["reason"], found["acts"]) == ("roll back", "sessions", False)
        assert {session(server, f"then{number}", lambda arm: False) for number in range(30)} == {"old", "new"}


def test_killed_and_started_again_each_session_counts_once(folders: Any, tmp_path: Path, database: str) -> None:
    given = (folders[0], "--canary", folders[1], *QUICK, "--database", database, "--seed", "2", "--error", "0.0001")
    sessions = [f"killed{number}" for number in range(24)]
    arms: dict[str, str] = {}
    for part in range(3):
        with pytest.raises(AssertionError), serving(tmp_path, *given) as server:
            for name in sessions[8 * part : 8 * part + 8]:
                arms[name] = session(server, name, lambda arm: name[-1] in "0246")  # noqa: B023
            if part:  # a session goes on in the same arm, and does not begin again
                assert session(server, sessions[0], lambda arm: True) == arms[sessions[0]]
            if part == 1:
                until(server, lambda one: sum(one["sessions"].values()) >= 10)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
    with serving(tmp_path, *given) as server:
        found = until(server, lambda one: sum(one["sessions"].values()) >= 24)
        time.sleep(1.0)
        found = canary(server)
    assert found["sessions"] == {name: list(arms.values()).count(name) for name in ("old", "new")}
    means = {
        arm: 5 * sum(name[-1] in "0246" for name in arms if arms[name] == arm) / found["sessions"][arm]
        for arm in ("old", "new")
    }
    assert found["means"] == pytest.approx(means)
    assert found["left_out"] == 0
