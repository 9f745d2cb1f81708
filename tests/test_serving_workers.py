"""Several workers on one port: real processes, and a new connection for each request, so that workers alternate."""

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from bcd4rec.errors import InputError
from bcd4rec.policies import bundle
from bcd4rec.serving import service
from bcd4rec.serving.arms import Arms, load_arm
from bcd4rec.serving.loading import load
from bcd4rec.serving.messages import FeedbackRequest, RecommendRequest
from bcd4rec.serving.service import PATIENCE, Service
from bcd4rec.serving.storage import queries
from bcd4rec.serving.storage.canaries import CANARIES
from bcd4rec.serving.storage.store import open_store
from bcd4rec.serving.supervisor import Supervisor
from databases import PostgresServer, postgres_server
from serving_help import ENVIRONMENT, ITEMS, PATIENT, Running, quantile_policy, saved, serving, whole

ADMIN = "an-admin-key-for-tests"
KEYED = {"BCD4REC_ADMIN_KEYS": ADMIN}
USERS, ROUNDS, SLATE = 200, 3, 4
Visits = list[tuple[str, list[Any]]]  # for each user, the session and its slates


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(quantile_policy("meanpool", "expected"), tmp_path_factory.mktemp("policy") / "policy")


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


def until(true: Callable[[], Any], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def ask(server: Running, path: str, body: Any = None) -> tuple[int, Any]:
    """One request on a connection of its own: whoever is free takes it."""
    connection = http.client.HTTPConnection(*server.address.removeprefix("http://").split(":"), timeout=120)
    with contextlib.closing(connection):
        headers = {"content-type": "application/json", "x-api-key": ADMIN}
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
    return answer.status, json.loads(text) if path != "/metrics" else text.decode()


def post(server: Running, path: str, body: Any) -> Any:
    status, found = ask(server, path, body)
    assert status == 200, found
    return found


def workers_of(server: Running) -> list[int]:
    return [child.pid for child in psutil.Process(server.process.pid).children()]


def gone(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)


def counted(server: Running, name: str) -> list[float]:
    lines = ask(server, "/metrics")[1].splitlines()
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)]


# ---- simulated users


def answer_of(user: int, item: int) -> str | None:
    """Every user has an own taste, and leaves some items without an answer."""
    digit = hashlib.blake2b(f"{user}/{item}".encode(), digest_size=1).digest()[0] % 8
    return {0: "click", 1: "buy", 2: None}.get(digit, "skip")


class Players:
    """Users who visit a server. On a machine that is too busy the database is not waited for, and a session may be
    known in part; whoever had to wait that long begins again, so that what is compared does not depend on it."""

    def __init__(self, server: Running):
        self._server, self._count = server, threading.Lock()
        self.sessions = self.requests = 0

    def play(self) -> Visits:
        with ThreadPoolExecutor(6) as threads:
            return list(threads.map(self._visit, range(USERS)))

    def _visit(self, user: int) -> tuple[str, list[Any]]:
        for number in range(50):
            slates = self._session(user, name := f"user{user}-{number}")
            if slates is not None:
                return name, slates
        raise AssertionError("the machine is too busy for this test")

    def _session(self, user: int, name: str) -> list[Any] | None:
        """What one user is shown. Every third one tells a beginning at first, and every fifth with each request."""
        slates, told = [], [user % ITEMS, (user * 7 + 1) % ITEMS]
        for step in range(ROUNDS):
            body: dict[str, Any] = {"session_id": name, "k": SLATE}
            if (user % 3 == 0 and step == 0) or user % 5 == 0:
                body["session"] = told
            with self._count:
                self.sessions += step == 0
                self.requests += 1
            began = time.monotonic()
            shown = post(self._server, "/v1/recommend", body)
            if time.monotonic() - began >= PATIENCE:
                return None
            slates.append(shown["items"])
            items = [one["item"] for one in shown["items"]]
            given = [{"item": item, "response": answer_of(user, item)} for item in items if answer_of(user, item)]
            began = time.monotonic()
            found = ask(self._server, "/v1/feedback", {"request_id": shown["request_id"], "responses": given})
            if time.monotonic() - began >= PATIENCE:
                return None
            assert found == (200, {"accepted": len(given), "stored": True, "unmatched": []})
        return slates


def states(url: str, visits: Visits) -> list[Any]:
    """What every session is to the next request, as the database tells it."""
    store = open_store(url)
    try:
        return [store.session(name) for name, _ in visits]
    finally:
        store.close()


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Visits, list[Any]]:
    """Slates and states with one process, as a server is without options."""
    scratch = tmp_path_factory.mktemp("alone")
    with serving(scratch, folder, "--rate", 0) as server:
        visits = Players(server).play()
    return visits, states(str(scratch / "store.sqlite"), visits)


def flat(visits: Visits, part: str) -> list[Any]:
    return [item[part] for _, slates in visits for slate in slates for item in slate]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_four_workers_are_like_one(
    kind: str, folder: Path, alone: tuple[Visits, list[Any]], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = str(tmp_path / "store.sqlite") if kind == "sqlite" else request.getfixturevalue("postgres").url
    given = ("--workers", 4, "--rate", 0, "--database", database)
    with serving(tmp_path, folder, *given, environment=PATIENT) as server:
        assert server.first["workers"] == 4
        assert len(workers_of(server)) == 4
        players = Players(server)
        visits = players.play()
        shown = players.requests * SLATE
        until(lambda: counted(server, "bcd4rec_storage_pending") == [0.0])
        for _ in range(8):  # whoever is asked knows of all
            (arm,) = ask(server, "/v1/experiments")[1]["arms"]
            assert (arm["sessions"], arm["requests"], arm["impressions"]) == (players.sessions, players.requests, shown)
            assert players.requests in counted(server, 'bcd4rec_requests_total{route="/v1/recommend"')
            assert counted(server, "bcd4rec_impressions_total") == [shown]
        each = counted(server, "bcd4rec_worker_requests_total")
        assert len(each) == 4
        assert sum(one > 30 for one in each) > 1  # they did alternate
    assert flat(visits, "item") == flat(alone[0], "item")
    assert flat(visits, "value") == pytest.approx(flat(alone[0], "value"), abs=1e-4)
    assert states(database, visits) == alone[1]


# ---- workers that die


def opens(url: str) -> bool:
    try:
        open_store(url).close()
    except InputError:
        return False
    return True


def test_a_killed_worker_is_replaced_and_nothing_acknowledged_is_lost(folder: Path, tmp_path: Path) -> None:
    with serving(tmp_path, folder, "--workers", 2, "--rate", 0) as server:
        stop, told, failed = threading.Event(), set[tuple[str, str]](), list[str]()

        def load_on(number: int) -> None:
            asked = 0
            while not stop.is_set():
                asked += 1
                try:
                    shown = post(server, "/v1/recommend", {"session_id": f"s{number}-{asked // 5}", "k": 2})
                    item = shown["items"][0]["item"]
                    given = {"request_id": shown["request_id"], "responses": [{"item": item, "response": "click"}]}
                    status, found = ask(server, "/v1/feedback", given)
                except (OSError, http.client.HTTPException):
                    failed.append("cut off")  # its worker was killed
                    continue
                if (status, found["stored"]) == (200, True):
                    told.add((shown["request_id"], str(item)))

        threads = [threading.Thread(target=load_on, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(2):
                before, enough = workers_of(server), len(told) + 40
                until(lambda: len(told) > enough)  # noqa: B023
                os.kill(before[0], signal.SIGKILL)
                until(lambda: len(set(workers_of(server)) - set(before)) == 1)  # noqa: B023
                backs = server.said.count("is back") + 1
                until(lambda: server.said.count("is back") >= backs)  # noqa: B023
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert len(failed) <= 8  # the requests that the dead were answering
        assert server.said.count("ended by signal SIGKILL") == 2
        assert sum(counted(server, 'bcd4rec_requests_total{route="/v1/feedback"')) >= len(told)  # the dead are counted
        assert counted(server, "bcd4rec_storage_connected") == [1.0]
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as database:
        rows = database.execute(
            "SELECT request_id, item FROM bcd4rec_feedback JOIN bcd4rec_impressions USING (request_id)"
        )
        assert told <= set(rows)


def test_the_end_of_the_supervisor_is_the_end_of_all(folder: Path, tmp_path: Path) -> None:
    given = [sys.executable, "-m", "bcd4rec.cli", "serve", str(folder), "--workers", "2", "--port", "0", "--json"]
    given += ["--database", str(tmp_path / "store.sqlite")]
    process = subprocess.Popen(given, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True)
    until(lambda: psutil.Process(process.pid).children())
    process.send_signal(signal.SIGTERM)  # before it serves: one sentence, as of every command
    assert process.communicate(timeout=120)[1] == "Error: Interrupted; no output was left half-written.\n"
    assert process.returncode == 2
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 0)):
        with (tmp_path / "said").open("w") as said:
            process = subprocess.Popen(given, stdout=subprocess.PIPE, stderr=said, env=ENVIRONMENT, text=True)
        assert process.stdout is not None
        with process, contextlib.suppress(ProcessLookupError):
            try:
                address = json.loads(process.stdout.readline())["address"].removeprefix("http://").split(":")
                workers = [child.pid for child in psutil.Process(process.pid).children()]
                assert len(workers) == 2
                with pytest.raises(InputError, match="another server uses"):
                    open_store(str(tmp_path / "store.sqlite"))  # a stranger may not
                process.send_signal(number)
                assert process.wait(120) == code
                until(lambda: gone(workers))  # noqa: B023
            finally:
                process.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address[0], int(address[1])), timeout=60).close()
        until(lambda: opens(str(tmp_path / "store.sqlite")))  # threads of a dead process may end a moment later
        assert "Traceback" not in (tmp_path / "said").read_text()


# ---- starting


def test_what_is_wrong_is_said_once(folder: Path, tmp_path: Path) -> None:
    def refused(*args: object) -> str:
        given = [sys.executable, "-m", "bcd4rec.cli", "serve", *map(str, args), "--workers", "3"]
        done = subprocess.run(given, capture_output=True, text=True, env=ENVIRONMENT, timeout=300, check=False)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert done.stderr.startswith("Error: ")
        return done.stderr

    free = ["--port", 0, "--database", tmp_path / "a.sqlite"]
    assert "is not a folder" in refused(tmp_path / "nowhere", *free)
    assert "no API key" in refused(folder, *free, "--host", "0.0.0.0")  # noqa: S104
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "cannot be used" in refused(folder, *free, "--port", taken.getsockname()[1])
    store = open_store(str(tmp_path / "a.sqlite"))
    assert "another server uses" in refused(folder, *free)
    store.close()
    assert "expected postgresql" in refused(folder, *free, "--shared")
    assert not list(tmp_path.glob("*.sqlite-wal"))


# ---- reloading


def test_a_reload_reaches_all_workers_or_none(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    bundle.save(whole(quantile_policy("meanpool", "expected", seed=5)), folder)
    old = load(folder).version
    with serving(tmp_path, folder, "--workers", 3, environment=KEYED) as server:

        def serve_all(version: str) -> bool:
            return {post(server, "/v1/recommend", {"k": 1})["policy"] for _ in range(24)} == {version}

        assert serve_all(old)
        bundle.save(whole(quantile_policy("meanpool", "expected", seed=6)), folder, force=True)
        new = load(folder).version
        first, *_ = workers_of(server)
        os.kill(first, signal.SIGKILL)  # its place is not given to one that would serve another version
        until(lambda: "could not be replaced" in server.said)
        assert serve_all(old)
        assert ask(server, "/v1/policy/reload", {})[0] == 200
        assert serve_all(new)
        until(lambda: "is back" in server.said)
        assert serve_all(new)
        good = (folder / "manifest.json").read_text()
        (folder / "manifest.json").write_text("{")
        status, found = ask(server, "/v1/policy/reload", {})
        assert (status, found["error"][:22]) == (409, "The old policy goes on")
        assert serve_all(new)
        (folder / "manifest.json").write_text(good)
        assert ask(server, "/v1/policy/reload", {"arm": "a"})[0] == 200


class Scripted:
    """A worker that answers what it is told to answer."""

    serves = True

    def __init__(self, prepared: dict[str, Any]):
        self._prepared, self.asked = prepared, list[dict[str, Any]]()

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(message)
        return self._prepared if "prepare" in message else {}


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([{"versions": ["v2"]}, {"versions": ["v2"]}], None),
        ([{"versions": ["v2"]}, {"error": "the disk is gone."}], "the disk is gone."),
        ([{"versions": ["v2"]}, {"versions": ["v3"]}], "the folder changed while it was read; try again."),
    ],
)
def test_one_that_cannot_load_leaves_all_on_the_old_version(answers: list[dict[str, Any]], error: str | None) -> None:
    async def reload() -> tuple[str | None, list[str], list[Scripted]]:
        with socket.socket() as bound:
            one = Supervisor(2, bound, None, "")
            one._versions = ["v1"]
            members = [Scripted(answer) for answer in answers]
            one._members = dict(enumerate(members, 1))  # type: ignore[arg-type]
            return await one._reload_all("a"), one._versions, members

    found, versions, members = asyncio.run(reload())
    assert (found, versions) == (error, ["v2"] if error is None else ["v1"])
    for member in members:
        assert member.asked == [{"prepare": "a"}, {"take": error is None}]


def test_a_worker_that_comes_amid_a_reload_does_not_keep_the_old_version() -> None:
    class Newcomer(Scripted):
        loaded: asyncio.Future[dict[str, Any]]
        number, signals, began = 2, 0, False

        def send_signal(self, _: int) -> None:
            self.signals += 1

        def begin(self) -> None:
            self.began = True

    async def reload() -> Newcomer:
        with socket.socket() as bound:
            one, newcomer = Supervisor(2, bound, None, ""), Newcomer({})
            one._versions = ["v1"]
            newcomer.loaded = asyncio.get_running_loop().create_future()
            newcomer.loaded.set_result({"versions": ["v1"]})
            async with one._reloading:
                admitting = asyncio.create_task(one._admit(newcomer))  # type: ignore[arg-type]
                await asyncio.sleep(0.01)
                one._versions = ["v2"]
            await admitting
            return newcomer

    newcomer = asyncio.run(reload())
    assert (newcomer.began, newcomer.signals) == (False, 1)


# ---- canaries


def ended(database: Path) -> bool:
    """Whether any worker can know of a decision."""
    with contextlib.closing(sqlite3.connect(database, timeout=60)) as connection:
        ((state,),) = connection.execute(f"SELECT state FROM {CANARIES}").fetchall()  # noqa: S608
    return json.loads(state)["ended"] is not None


def test_a_canary_is_decided_once_for_all_workers(folder: Path, tmp_path: Path) -> None:
    other = saved(quantile_policy("meanpool", "expected", seed=6), tmp_path / "other")
    heard = tmp_path / "heard.txt"
    hook = f"{sys.executable} -c \"import sys; open('{heard}', 'a').write(sys.stdin.read() + chr(10))\""
    given = (folder, "--canary", other, "--share", 0.5, "--session-minutes", 0.02, "--on-decision", hook)
    with serving(tmp_path, *given, "--workers", 2, environment=KEYED) as server:
        arms, compared = {}, 0
        for number in range(60):
            shown = post(server, "/v1/recommend", {"session_id": f"s{number}", "k": 2})
            arms[shown["arm"]] = arms.get(shown["arm"], 0) + 1
            again = post(server, "/v1/recommend", {"session_id": f"s{number}", "k": 2})
            if not ended(tmp_path / "store.sqlite"):  # the decision moves sessions
                assert again["arm"] == shown["arm"]  # whichever worker it meets
                compared += 1
            response = "buy" if shown["arm"] == "new" else "skip"
            given_ = [{"item": shown["items"][0]["item"], "response": response}]
            told = {"request_id": shown["request_id"], "responses": given_}
            until(lambda: ask(server, "/v1/feedback", told)[0] == 200)  # noqa: B023
        assert arms.keys() == {"old", "new"}
        assert compared > 0  # the decision needs some sessions
        status, found = ask(server, "/v1/policy/reload", {})
        assert status == 200 or "a canary compares" in found["error"]

        def decided() -> bool:
            told = [ask(server, "/v1/experiments")[1]["canary"] for _ in range(12)]
            return {one["decision"] for one in told} == {"promote"}

        until(decided)
        assert {post(server, "/v1/recommend", {"k": 1})["arm"] for _ in range(24)} == {"new"}
        until(lambda: heard.exists() and heard.read_text().endswith("\n"))
    assert [json.loads(line)["decision"] for line in heard.read_text().splitlines()] == ["promote"]


# ---- the database away


def test_workers_go_on_while_the_database_is_away(folder: Path, postgres: PostgresServer, tmp_path: Path) -> None:
    with serving(tmp_path, folder, "--workers", 2, "--database", postgres.url) as server:
        post(server, "/v1/recommend", {"session_id": "anna", "k": 3})

        def words() -> set[str]:
            return {ask(server, "/v1/health")[1]["status"] for _ in range(12)}

        postgres.stop()
        try:
            until(lambda: words() == {"degraded"})
            shown = [post(server, "/v1/recommend", {"session_id": "anna", "k": 3}) for _ in range(10)]
            item = shown[0]["items"][0]["item"]
            given = {"request_id": shown[0]["request_id"], "responses": [{"item": item, "response": "click"}]}
            assert ask(server, "/v1/feedback", given)[0] == 202
            until(lambda: counted(server, "bcd4rec_storage_pending") == [11.0])  # of both together
            assert counted(server, "bcd4rec_storage_connected") == [0.0]
        finally:
            postgres.start()
        until(lambda: words() == {"ok"})
        until(lambda: counted(server, "bcd4rec_storage_pending") == [0.0])
        until(lambda: counted(server, "bcd4rec_storage_connected") == [1.0])

        def all_items() -> list[int]:
            return [one["item"] for one in post(server, "/v1/recommend", {"session_id": "anna", "k": ITEMS})["items"]]

        until(lambda: item not in all_items())


def test_servers_that_share_sessions(folder: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers of one PostgreSQL, as in two pods: what one has answered is known to the other."""
    monkeypatch.setattr(service, "PATIENCE", 30.0)
    stores = [open_store(postgres.url) for _ in range(2)]
    try:
        one, other = (Service(Arms([load_arm("a", folder, 1.0)]), store, local=False, shared=True) for store in stores)

        async def visit() -> None:
            for number in range(12):
                here, there = (one, other) if number % 2 else (other, one)
                told = None if number == 0 else [3]
                shown = await here.recommend(RecommendRequest(session_id="shared", k=1, session=told))
                item = shown["items"][0]["item"]
                given = {"request_id": shown["request_id"], "responses": [{"item": item, "response": "click"}]}
                stored, accepted, unmatched = await there.feedback(FeedbackRequest.model_validate(given))
                assert (stored, accepted, unmatched) == (True, 1, [])
            known = await one._known("shared")
            assert known.steps == 12

        asyncio.run(visit())
        steps = [queries.slates_of(store._reader, "shared") for store in stores if store._reader is not None]
        assert sorted(row[1] for row in steps[0]) == list(range(12))
    finally:
        for store in stores:
            store.close()
