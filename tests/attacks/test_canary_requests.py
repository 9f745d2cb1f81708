"""Canaries, what another system shows, decision hooks and item names: what a client or a file of others could do."""

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bcd4rec.errors import InputError
from bcd4rec.evaluation.canary import CanaryConfig
from bcd4rec.evaluation.session_rewards import SessionReward
from bcd4rec.serving import decision_hook, hosts
from bcd4rec.serving.arms import Arms, load_arm
from bcd4rec.serving.bodies import Refused
from bcd4rec.serving.canary import LiveCanary
from bcd4rec.serving.canary_state import EXTERNAL, CanarySettings
from bcd4rec.serving.catalogue import Names
from bcd4rec.serving.decision_hook import HookFailed, hook_of
from bcd4rec.serving.guard import FEWEST
from bcd4rec.serving.hosts import Hosts
from bcd4rec.serving.messages import FeedbackRequest, ImpressionsRequest, RecommendRequest
from bcd4rec.serving.recommending import Recommender
from bcd4rec.serving.security import ADMIN_VARIABLE, API_VARIABLE
from bcd4rec.serving.service import Service
from bcd4rec.serving.storage import queries
from bcd4rec.serving.storage.recent import Recent
from bcd4rec.serving.storage.records import Feedback, Impression, weight
from bcd4rec.serving.storage.store import BufferFull, open_store
from serving_help import ITEMS, RESPONSES, quantile_policy, saved


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    scratch = tmp_path_factory.mktemp("policies")
    return [saved(quantile_policy("meanpool", "expected", seed=seed), scratch / f"p{seed}") for seed in (5, 6)]


def service_of(folders: list[Path], scratch: Path, external: bool = False, new_items: bool = False) -> Service:
    arms = [load_arm(name, path, 0.5) for name, path in zip(("old", "new"), folders, strict=True)][external:]
    reward = SessionReward.from_rewards("slate", list(RESPONSES.rewards.values()))
    rule = CanaryConfig(lowest=reward.lowest, highest=reward.highest)
    old = EXTERNAL if external else arms[0].version
    settings = CanarySettings(old=old, new=arms[-1].version, rule=rule, shares=(0.5,), reward=reward)
    store = open_store(str(scratch / "store.sqlite"))
    return Service(Arms(arms), store, new_items=new_items, canary=LiveCanary(settings, store, RESPONSES.rewards))


@pytest.fixture
def service(folders: list[Path], tmp_path: Path) -> Iterator[Service]:
    found = service_of(folders, tmp_path)
    yield found
    found.store.close()


def ask(service: Service, **asked: Any) -> dict[str, Any]:
    return asyncio.run(service.recommend(RecommendRequest.model_validate(asked)))


def in_arm(service: Service, arm: str) -> str:
    """A session of an arm, which anybody can find out."""
    return next(name for name in map(str, range(99)) if ask(service, session_id=name, record=False)["arm"] == arm)


# ---- the guard


@pytest.mark.parametrize(
    "wish",
    [
        {"candidates": []},
        {"candidates": ["made-up", "also"]},
        {"candidates": [3, 4], "exclude": [3, "4", 5]},
        {"exclude": list(range(ITEMS))},
        {"candidates": [3], "session": [3]},
    ],
)
def test_a_client_cannot_end_a_canary_by_asking_for_nothing(service: Service, wish: dict[str, Any]) -> None:
    assert service.canary is not None
    name = in_arm(service, "new")
    for _ in range(3 * FEWEST):
        assert ask(service, session_id=name, **wish)["items"] == []
    assert service.canary.winner is None
    assert service.canary.guard.alarm() is None


def test_a_policy_that_has_nothing_to_say_still_ends_it(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    assert service.canary is not None
    name, slate = in_arm(service, "new"), Recommender.slate
    monkeypatch.setattr(Recommender, "slate", lambda self, sessions, k, *more: slate(self, sessions, 0, *more))
    for number in range(FEWEST):
        assert service.canary.winner is None
        assert ask(service, session_id=name, candidates=[3, 4] if number % 2 else None)["items"] == []
    assert service.canary.winner is False


def test_who_looks_closely_does_not_count_as_slow(service: Service) -> None:
    assert service.canary is not None
    name = in_arm(service, "new")
    ask(service, session_id=name, explain=True)
    assert [len(seen) for seen in service.canary.guard.seen] == [0, 0]
    ask(service, session_id=name)
    assert [len(seen) for seen in service.canary.guard.seen] == [0, 1]


# ---- what another system showed


@pytest.mark.parametrize("new_items", [False, True])
def test_items_of_no_catalogue_do_not_come_in_as_shown(folders: list[Path], tmp_path: Path, new_items: bool) -> None:
    service = service_of(folders, tmp_path, external=True, new_items=new_items)
    name = in_arm(service, EXTERNAL)
    told = ImpressionsRequest(session_id=name, items=[3, "made-up"], request_id="r")
    if new_items:
        assert asyncio.run(service.impressions(told))[1]["accepted"] == 2
    else:
        with pytest.raises(InputError, match=r"found 'made-up', which no policy here knows.*--new-items"):
            asyncio.run(service.impressions(told))
        assert b"bcd4rec_unknown_items_total 1.0" in service.metrics.text()
        assert service.store.slates(["r"]) == ({}, True)
        answers = FeedbackRequest.model_validate(
            {"request_id": "r", "responses": [{"item": "made-up", "response": "buy"}]}
        )
        assert asyncio.run(service.feedback(answers))[2][0]["reason"] == "no slate"
        assert asyncio.run(service.impressions(ImpressionsRequest(session_id=name, items=[3], request_id="r")))[0]
    service.store.close()


# ---- memory


def slate(number: int, items: tuple[str, ...], session: str = "s") -> Impression:
    ones = (1.0,) * len(items)
    return Impression(f"r{number}", session, number, "v", "a", 1_000_000 + number, items, ones, ones)


def test_long_slates_take_the_places_of_many() -> None:
    small, wide = slate(0, ("a", "b", "c")), slate(0, tuple(f"{n:0200}" for n in range(200)))
    assert (weight(small), weight(Feedback("r", "a", "click", 1)), weight(wide)) == (1, 1, 101)
    recent = Recent(keep=1_000)
    for number in range(100):
        record = slate(number, wide.items, f"s{number}")
        recent.add([record])
        recent.committed([record])
    assert len(recent) == 1_000 // 101
    assert recent.slates("s99")
    assert not recent.slates("s0")


def test_the_buffer_is_bounded_by_what_it_holds(tmp_path: Path) -> None:
    store, items = open_store(str(tmp_path / "a.db"), buffer=250), tuple(map(str, range(200)))
    with store.connect(1.0).transaction():  # nobody else may write
        store.submit([slate(0, items)])
        for number in range(1, 10):
            store.submit([slate(number, items)])
        with pytest.raises(BufferFull):
            store.submit([slate(number, items) for number in range(10, 13)])
        assert store.status().pending == 10
    store.submit([slate(20, items)]).result(60)
    assert store.status().pending == 0
    store.submit([slate(number, items) for number in range(30, 38)]).result(60)  # all of the room is there again
    store.close()


def test_a_session_without_end_is_read_from_its_newest_slates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from memory: otherwise every request of such a session costs more than the one before."""
    monkeypatch.setattr(queries, "SESSION_SLATES", 5)
    store = open_store(str(tmp_path / "a.db"))
    store.submit([slate(number, (f"i{number}",)) for number in range(12)]).result(60)
    found = store.session("s", in_memory=True)
    assert [shown[0][0] for shown in found.slates] == [f"i{number}" for number in range(7, 12)]
    assert found.steps == 12
    store.close()


def test_names_are_not_remembered_at_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    read = hosts.host_name
    monkeypatch.setattr(hosts, "host_name", lambda name: (asked.append(name), read(name))[1])
    for number in range(3):
        with pytest.raises(Refused):
            Hosts().check({b"host": b"x" * 60_000 + b"%d" % number}, "")
        with pytest.raises(Refused):
            Hosts().check({b"host": b"localhost", b"origin": b"http://" + b"x" * 60_000}, "")
    assert max(map(len, asked)) <= hosts.LONGEST


# ---- --on-decision


class Nonsense:
    """A server that answers every connection with the same bytes."""

    def __init__(self, answer: bytes):
        self._answer, self._socket = answer, socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}/hook"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(100_000)
                connection.sendall(self._answer)

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"x" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/secret\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
    ],
)
def test_a_webhook_that_answers_nonsense_has_failed(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    listener = Nonsense(answer)
    try:
        with pytest.raises(HookFailed) as failed:
            hook_of(listener.address)({"decision": "promote"})
        assert "127.0.0.1" not in str(failed.value)
    finally:
        listener.close()


@pytest.mark.parametrize(
    "address",
    [
        "https://[::1/hook",
        "https://example.org:99999/",
        "https://example.org:port/",
        "https://example.org/a b",
        "https://example.org/\r\nx: y",
        "https://exämple.org/",
        "https:///hook",
        "file:///etc/passwd",
        "ftp://example.org/",
        "http://localhost.example.org/",
        "http://localhost@example.org/",
    ],
)
def test_addresses_that_can_never_work_are_refused_before(address: str) -> None:
    with pytest.raises(InputError, match="--on-decision") as caught:
        hook_of(address)
    assert "example.org" not in str(caught.value)


def test_a_command_hears_the_decision_and_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (API_VARIABLE, ADMIN_VARIABLE):
        monkeypatch.setenv(name, "a-key-that-nobody-may-know")
    script = tmp_path / "script.py"
    script.write_text("import json, os, sys\njson.dump([json.load(sys.stdin), dict(os.environ)], open('heard', 'w'))\n")
    monkeypatch.chdir(tmp_path)
    evil = {"sentence": "$(touch owned); `touch owned` \x1b[31m"}
    hook_of(f"'{sys.executable}' script.py ; touch owned")(evil)
    heard, environment = json.loads((tmp_path / "heard").read_text())
    assert heard == evil
    assert "a-key-that-nobody-may-know" not in environment.values()
    assert sorted(os.listdir(tmp_path)) == ["heard", "script.py"]


def test_a_command_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_hook, "SECONDS", 0.2)
    with pytest.raises(HookFailed, match="TimeoutExpired"):
        hook_of("sleep 60")({})


# ---- --items


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "item_id,name\n1,a,b,c\n", "cannot be read"),
        ("a.csv", "", "cannot be read"),
        ("a.csv", ",".join(f"c{n}" for n in range(5_000)) + "\n", "has no column 'item_id'"),
        ("a.parquet", "PAR1 nonsense PAR1", "cannot be read"),
    ],
)
def test_files_of_names_that_are_none(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=words) as caught:
        Names.read(tmp_path / name)
    assert len(str(caught.value)) < 500


def test_names_of_odd_types(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for names in ([b"\xff\xfe", b"a"], [[True], []]):
        pl.DataFrame({"item_id": [1, 2], "name": names}).write_parquet(path)
        with pytest.raises(InputError, match="cannot be read"):
            Names.read(path)
    odd = {"item_id": [1, None, 7], "name": [1.5, 2.5, None], "picture": [True, None, False]}
    pl.DataFrame(odd).write_parquet(path)
    assert Names.read(path).of(1)["name"] == "1.5"
    assert Names.read(path).of(7)["name"] == "7"
