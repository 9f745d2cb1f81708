"""A canary in a real server: sticky arms, sessions that count once, decisions that are kept and acted on."""

import contextlib
import json
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.serving.messages import Experiments
from databases import postgres_server
from serving_help import ENVIRONMENT, ITEMS, PATIENT, Running, quantile_policy, saved
from serving_help import serving as serving_with

serving = partial(serving_with, environment=PATIENT)
QUICK = ("--share", "0.5", "--session-minutes", "0.02")


def command(*args: object) -> "subprocess.CompletedProcess[str]":
    given = [sys.executable, "-m", "bcd4rec.cli", *map(str, args)]
    return subprocess.run(given, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300)


class Killed(Exception):  # noqa: N818
    """Leaves the server as it is: `serving` then ends it by SIGKILL."""


@contextlib.contextmanager
def killed(scratch: Path, *args: object) -> Iterator[Running]:
    with contextlib.suppress(Killed), serving(scratch, *args) as server:
        yield server
        raise Killed


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
    answer = server.client.get("/v1/experiments").json()
    Experiments.model_validate(answer)
    found = answer["canary"]
    assert isinstance(found, dict)
    return found


def until(server: Running, done: Callable[[dict[str, Any]], bool], seconds: float = 120) -> dict[str, Any]:
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
    options = (
        "--share",
        "0.5",
        "--session-minutes",
        "0.06",
        "--database",
        database,
        "--seed",
        "2",
        "--error",
        "0.0001",
    )
    given = (folders[0], "--canary", folders[1], *options)
    sessions = [f"killed{number}" for number in range(20)]
    arms: dict[str, str] = {}
    for part in range(2):
        with killed(tmp_path, *given) as server:
            for name in sessions[10 * part : 10 * part + 10]:
                arms[name] = session(server, name, lambda arm: name[-1] in "0246")  # noqa: B023
            if part:  # a session goes on in the same arm, and does not begin again
                assert session(server, sessions[0], lambda arm: True) == arms[sessions[0]]
                until(server, lambda one: sum(one["sessions"].values()) >= 10)
    with serving(tmp_path, *given) as server:
        found = until(server, lambda one: sum(one["sessions"].values()) >= 20)
        assert server.recommend(session_id=sessions[3])["arm"] == arms[sessions[3]]
    assert found["sessions"] == {name: list(arms.values()).count(name) for name in ("old", "new")}
    means = {
        arm: 5 * sum(name[-1] in "0246" for name in arms if arms[name] == arm) / found["sessions"][arm]
        for arm in ("old", "new")
    }
    assert found["means"] == pytest.approx(means)
    assert found["left_out"] == 0


def test_two_servers_of_one_database_decide_once(folders: Any, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    hook = shlex.join(
        [sys.executable, "-c", f"import sys; open({str(heard)!r}, 'a').write(sys.stdin.read() + chr(10))"]
    )
    with postgres_server() as database:
        given = (folders[0], "--canary", folders[1], *QUICK, "--database", database.url, "--on-decision", hook)
        scratch = [tmp_path / name for name in ("one", "two")]
        for folder in scratch:
            folder.mkdir()
        with serving(scratch[0], *given) as one, serving(scratch[1], *given) as two:
            compared = 0
            for number in range(60):  # the same session, wherever it comes
                arms = {session(server, f"s{number}", lambda arm: arm == "old") for server in (one, two)}
                if all(canary(server)["decision"] is None for server in (one, two)):  # which moves sessions
                    assert len(arms) == 1
                    compared += 1
            assert compared > 0  # the decision needs some sessions
            found = [until(server, lambda one: one["decision"] is not None) for server in (one, two)]
            assert found[0] == found[1]
            assert found[0]["decision"] == "roll back"
            assert session(two, "s0", lambda arm: False) == session(one, "later", lambda arm: False) == "old"
            until(one, lambda _: heard.exists() and heard.read_text().endswith("\n"))
        assert len(heard.read_text().splitlines()) == 1


# ---- an arm of somebody else


def test_the_control_may_be_a_system_of_their_own(folders: Any, tmp_path: Path, database: str) -> None:
    given = (folders[1], "--control", "external", "--new-items", *QUICK, "--database", database, "--seed", "3")
    with serving(tmp_path, *given) as server:
        arms: dict[str, str] = {}
        for number in range(60):
            name = f"their{number}"
            answer = server.recommend(session_id=name, k=2)
            arms[name], request = answer["arm"], answer["request_id"]
            if answer["arm"] == "external":
                assert answer["items"] == []
                told = {"session_id": name, "request_id": request, "items": ["x1", 7], "positions": [1, 0]}
                for _ in range(2):  # saying it again changes nothing
                    kept = server.post("/v1/impressions", told | {"propensities": [0.25, None]})
                    assert kept.status_code == 200
                    assert kept.json() == {
                        "request_id": request,
                        "session_id": name,
                        "arm": "external",
                        "accepted": 2,
                        "stored": True,
                    }
                given_answers = [{"item": "x1", "response": "buy"}]
                answered = server.post("/v1/feedback", {"request_id": request, "responses": given_answers})
                assert answered.json() == {"accepted": 1, "stored": True, "unmatched": []}
            else:
                item = answer["items"][0]["item"]
                assert server.feedback(request, **{f"i{item}": "skip"}).status_code == 200
        found = until(server, lambda one: one["decision"] is not None)
        assert (found["decision"], found["old"]) == ("roll back", "external")
        assert set(found["sessions"]) == {"external", "new"}
        name = next(name for name in arms if arms[name] == "external")
        changed = {"session_id": name, "request_id": "again", "items": [1]}
        assert server.post("/v1/impressions", changed).status_code == 200
        assert "other items" in server.post("/v1/impressions", changed | {"items": [2]}).json()["error"]
        assert server.recommend(session_id="new one", k=2)["arm"] == "external"
        rates = {one["arm"]: one for one in server.client.get("/v1/experiments").json()["arms"]}
        assert rates["external"]["serving"]
    out = tmp_path / "log.parquet"
    done = command("logs", "export", "--database", database, "--out", out)
    assert done.returncode == 0, done.stderr
    log = pl.read_parquet(out).filter(pl.col("session_id").str.starts_with("their"))
    theirs = log.filter(pl.col("arm") == "external", pl.col("request_id") != "again")
    assert set(log["arm"]) == {"external", "new"}
    assert theirs.filter(pl.col("position") == 1)["item_id"].unique().to_list() == ["x1"]
    assert theirs.filter(pl.col("position") == 1)["propensity"].unique().to_list() == [0.25]
    assert theirs.filter(pl.col("item_id") == "x1")["response"].unique().to_list() == ["buy"]
    assert len(theirs) == 2 * list(arms.values()).count("external")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"session_id": "s", "items": []}, "items: List should have at least 1 item"),
        ({"session_id": "s", "items": [1, 1]}, "items: found one twice"),
        ({"session_id": "s", "items": [1, 2], "positions": [0, 2]}, "positions: found [0, 2]"),
        ({"session_id": "s", "items": [1, 2], "propensities": [0.5]}, "propensities: found 1"),
        ({"session_id": "s", "items": [1], "propensities": [0.0]}, "propensities.0"),
        ({"session_id": "s", "items": [1], "more": 1}, "more: Extra inputs"),
    ],
)
def test_bad_impressions(external: Running, body: dict[str, Any], says: str) -> None:
    name = next(n for n in map(str, range(99)) if external.recommend(session_id=n, record=False)["arm"] == "external")
    answer = external.post("/v1/impressions", body | ({"session_id": name}))
    assert answer.status_code == 422
    assert says in answer.json()["error"]


def test_impressions_of_the_wrong_arm(external: Running) -> None:
    name = next(n for n in map(str, range(99)) if external.recommend(session_id=n, record=False)["arm"] == "new")
    answer = external.post("/v1/impressions", {"session_id": name, "items": [1]})
    assert (answer.status_code, "arm new" in answer.json()["error"]) == (422, True)


@pytest.fixture(scope="module")
def external(folders: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("external"), folders[0], "--control", "external", *QUICK) as server:
        yield server


# ---- the guard, webhooks and bad options


def test_empty_slates_end_it_at_once_and_a_webhook_hears_of_it(folders: Any, tmp_path: Path) -> None:
    """The new policy knows other items, so that it has nothing to say about these candidates."""
    other = Vocabulary(pl.Series("item_id", range(100, 100 + ITEMS)))
    strange = saved(quantile_policy("meanpool", "expected", seed=7), tmp_path / "strange", vocabulary=other)
    heard: list[dict[str, Any]] = []

    class Listener(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    listener = HTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    hook = f"http://127.0.0.1:{listener.server_port}/heard"
    try:
        with serving(tmp_path, folders[0], "--canary", strange, "--share", "0.5", "--on-decision", hook) as server:
            arms = [server.recommend(candidates=[1, 2, 3, 100], exclude=[100], k=2)["arm"] for _ in range(80)]
            assert (
                arms.count("new") == 5
            )  # fewer by a chance of 1e-18; where among them they came is the draw of the sessions' ids
            found = until(server, lambda one: one["decision"] is not None)
            assert (found["decision"], found["reason"]) == ("roll back", "guard")
            assert "5 of the last 5 slates were empty in the new arm" in found["sentence"]
            until(server, lambda _: bool(heard))
            refused = server.post("/v1/policy/reload", {})
            assert refused.status_code == 403  # there is no admin key; a decided canary allows it otherwise
        assert [one["reason"] for one in heard] == ["guard"]
    finally:
        listener.shutdown()
        listener.server_close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--share", "0"], "--share: found 0"),
        (["--ramp", "0.5,0.2"], "expected shares that rise"),
        (["--ramp", "0.5,1"], "--share: found 1"),
        (["--ramp", "0.5,x"], "--ramp: found '0.5,x'"),
        (["--ramp", "0.1,0.5", "--share", "0.1"], "--share and --ramp are both given"),
        (["--error", "1.5"], "--error: found 1.5"),
        (["--margin", "9"], "--margin: found 9"),
        (["--most", "0"], "--most: found 0"),
        (["--session-minutes", "0"], "--session-minutes: found 0"),
        (["--session-reward", "sum"], "--session-reward: found 'sum'"),
        (["--session-reward", "total"], "needs --highest"),
        (["--highest", "5"], "has no --highest"),
        (["--decide", "maybe"], "--decide: found 'maybe'"),
        (["--control", "theirs"], "--control: found 'theirs'"),
        (["--control", "external"], "leave --canary out"),
        (["--on-decision", "no-such-program-here"], "'no-such-program-here', which is not there"),
        (["--on-decision", "echo 'open"], "close its quotes"),
        (["--on-decision", "http://example.org/x"], "expected https://"),
        (["--ab", "OLD"], "two tests at once"),
    ],
)
def test_bad_options(folders: Any, tmp_path: Path, options: list[str], says: str) -> None:
    from typer.testing import CliRunner

    from bcd4rec.cli import build
    from bcd4rec.errors import InputError

    given = [str(folders[0]) if one == "OLD" else one for one in options]
    where = ["--database", str(tmp_path / "none.sqlite"), "--port", "0"]
    done = CliRunner().invoke(build("serve"), ["serve", str(folders[0]), "--canary", str(folders[1]), *where, *given])
    assert isinstance(done.exception, InputError)
    assert says in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_the_same_policy_twice_and_options_without_a_canary(folders: Any, tmp_path: Path) -> None:
    database = ("--database", tmp_path / "none.sqlite", "--port", "0")
    for given, says in (
        ((folders[0], "--canary", folders[0]), "nothing to test"),
        ((folders[0], "--ramp", "0.1,0.5"), "--ramp is for a canary"),
    ):
        done = command("serve", *given, *database)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("Error: ")
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
