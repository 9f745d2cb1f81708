"""A real server process, asked over HTTP."""

import json
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bcd4rec.policies import bundle
from bcd4rec.serving.loading import load
from bcd4rec.serving.storage.store import open_store
from serving_help import ITEMS, PATIENT, Running, quantile_policy, saved, serving, states_of, whole

ADMIN = "an-admin-key-for-tests"
KEYED = {"BCD4REC_ADMIN_KEYS": ADMIN}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(quantile_policy("bigru", "implicit"), tmp_path_factory.mktemp("policy") / "policy")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("server"), folder, environment=KEYED | PATIENT) as running:
        yield running


def until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def items(answer: dict[str, Any]) -> list[int]:
    return [one["item"] for one in answer["items"]]


# ---- starting


def test_the_printed_curl_line_works(server: Running) -> None:
    (line,) = [line for line in server.said.splitlines() if "curl" in line]
    assert server.address.startswith("http://127.0.0.1:")
    if shutil.which("curl") is None:
        pytest.skip("no curl is installed")
    done = subprocess.run(shlex.split(line), capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["items"]) == 3


def test_the_process_has_no_torch(server: Running) -> None:
    server.recommend(session=[1], explain=True)
    maps = Path(f"/proc/{server.process.pid}/maps")
    if not maps.exists():
        pytest.skip("this system does not tell what a process has loaded")
    assert "onnxruntime" in maps.read_text()
    assert "torch" not in maps.read_text()


def test_an_occupied_port_is_one_sentence(server: Running, folder: Path, tmp_path: Path) -> None:
    from test_cli import fails

    port = server.address.rpartition(":")[2]
    assert "cannot be used" in fails("serve", folder, "--port", port, "--database", tmp_path / "x.sqlite")
    assert "expected none, epsilon or softmax" in fails("serve", folder, "--explore", "own")
    assert "is not a folder" in fails("serve", tmp_path / "nowhere")
    (tmp_path / "keys").write_text("short\n")
    assert "expected at least 16" in fails("serve", folder, "--api-keys", tmp_path / "keys")


# ---- recommending


@pytest.mark.parametrize("session", [[], [3], [3, 3, 7, 1, 2, 9, 11]], ids=str)
def test_the_best_items_that_were_not_liked(server: Running, session: list[int]) -> None:
    policy = quantile_policy("bigru", "implicit")
    served = load(saved(policy, Path(server._said).parent / "copy"))
    scores = policy.scores(states_of(served.policy, session, []))[0]
    scores[session] = -np.inf
    expected = np.argsort(-scores, kind="stable")[:5]
    found = server.recommend(session=session, k=5)
    assert items(found) == expected.tolist()
    np.testing.assert_allclose([one["value"] for one in found["items"]], scores[expected], atol=1e-4)
    assert {one["propensity"] for one in found["items"]} == {1.0}
    assert found["unknown"] == []
    assert found["policy"] == served.version


def test_names_of_every_kind(server: Running) -> None:
    plain = server.recommend(session=[3, 7], k=4)
    same = server.recommend(session=["3", {"item": 7, "response": "click"}, "unheard", 10**15], k=4)
    assert items(same) == items(plain)
    assert same["unknown"] == ["unheard", 10**15]
    assert items(server.recommend(session=[3, {"item": 7, "response": "skip"}], k=4)) != items(plain)


def test_candidates_and_exclusions(server: Running) -> None:
    every = items(server.recommend(session=[3], k=ITEMS))
    assert sorted(every) == [item for item in range(ITEMS) if item != 3]
    assert items(server.recommend(session=[3], k=3, exclude=every[:2])) == every[2:5]
    chosen = [every[9], every[4], every[4], 3, "strange"]
    found = server.recommend(session=[3], k=3, candidates=chosen, exclude=[every[9]])
    assert items(found) == [every[4]]  # 3 was liked
    assert found["unknown"] == ["strange"]
    assert items(server.recommend(candidates=[])) == []


def test_explanations(server: Running) -> None:
    found = server.recommend(session=[3, 5], k=4, explain=True)
    for one in found["items"]:
        quantiles = list(one["quantiles"].values())
        assert list(one["quantiles"]) == [f"0.{tenth}" for tenth in range(1, 10)]
        assert quantiles == sorted(quantiles)
        assert quantiles[0] <= one["value"] <= quantiles[-1]
        assert 0 < one["likelihood"] < 1
    assert found["beside"]["popular"] == [22, 21, 20, 19]
    assert len(found["beside"]["behaviour"]) == 4
    assert not {3, 5} & set(found["beside"]["behaviour"])


def test_an_empty_slate_is_explained(server: Running) -> None:
    """onnxruntime's GRU ends the process where it is given no session, and this asks for the quantiles of none."""
    for nothing in ([], ["strange"]):
        found = server.recommend(session=[3], candidates=nothing, explain=True)
        assert items(found) == []
        assert len(found["beside"]["popular"]) > 0
    assert server.client.get("/v1/health").json()["status"] == "ok"
    assert server.process.poll() is None


# ---- sessions that the server keeps


def test_feedback_becomes_the_state(server: Running) -> None:
    first = server.recommend(session_id="anna", k=3)
    one, two, three = items(first)
    answer = server.feedback(first["request_id"], **{f"i{one}": "skip", f"i{two}": "click", f"i{three}": "skip"})
    assert (answer.status_code, answer.json()) == (200, {"accepted": 3, "stored": True, "unmatched": []})
    told = [{"item": one, "response": "skip"}, {"item": two, "response": "click"}, {"item": three, "response": "skip"}]
    second, inline = server.recommend(session_id="anna", k=4), server.recommend(session=told, k=4)
    assert second["items"] == inline["items"]
    assert two not in items(second)
    assert items(server.recommend(session_id="bert", k=3)) == [one, two, three]  # another session knows nothing of it


def test_feedback_twice_late_and_before_its_time(server: Running) -> None:
    first = server.recommend(session_id="carl", k=2)
    item = items(first)[0]
    for _ in range(3):
        assert server.feedback(first["request_id"], **{f"i{item}": "click"}).status_code == 200
    after = server.recommend(session_id="carl", k=3)
    told = [item, {"item": items(first)[1], "response": "skip"}]  # which nobody had answered by then
    assert items(after) == items(server.recommend(session=told, k=3))
    assert server.feedback("no-such-request", i4="buy").status_code == 200  # it may yet come
    batch = [
        {"request_id": after["request_id"], "item": items(after)[0], "response": "click"},
        {"request_id": first["request_id"], "item": items(first)[1], "response": "buy"},
    ]
    assert server.post("/v1/feedback", {"responses": batch}).json() == {"accepted": 2, "stored": True, "unmatched": []}
    liked = {item, items(after)[0], items(first)[1]}
    assert not liked & set(items(server.recommend(session_id="carl", k=ITEMS)))


def test_what_was_shown_is_stored(folder: Path, tmp_path: Path) -> None:
    with serving(
        tmp_path, folder, "--explore", "softmax", "--temperature", "0.5", "--seed", 3, environment=PATIENT
    ) as server:
        shown = [server.recommend(session_id="dora", k=3) for _ in range(2)]
        told = server.recommend(session=[4, {"item": 6, "response": "skip"}], k=2)
        greedy = server.recommend(session_id="dora", k=3, explore=False)
        server.feedback(shown[1]["request_id"], **{f"i{items(shown[1])[0]}": "buy"})
        assert {one["propensity"] for one in greedy["items"]} == {1.0}
        assert all(0 < one["propensity"] < 1 for one in shown[0]["items"])
        rates = server.client.get("/v1/experiments").json()["arms"]
        assert [(one["sessions"], one["requests"], one["impressions"]) for one in rates] == [(2, 4, 11)]
        text = server.client.get("/metrics").text
        assert 'bcd4rec_impressions_total{arm="a",policy="' in text
        assert 'bcd4rec_request_seconds_bucket{le="0.007",route="/v1/recommend"}' in text
    store = open_store(str(tmp_path / "store.sqlite"))
    try:
        answers = {(1, 0): "buy"}
        assert store.session("dora").slates == [
            [(str(item), answers.get((step, place))) for place, item in enumerate(items(slate))]
            for step, slate in enumerate([*shown, greedy])
        ]
        opened = store.session(told["session_id"])
        assert opened.opening == [("4", "click"), ("6", "skip")]
        assert opened.slates == [[(str(item), None) for item in items(told)]]
    finally:
        store.close()


# ---- arms and reloading


def test_a_session_stays_in_its_arm_and_reloading_drops_no_request(tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in ("first", "second"))
    versions = {}
    for name, path, seed in (("a", first, 5), ("b", second, 6)):
        bundle.save(whole(quantile_policy("meanpool", "implicit", seed=seed)), path)
        versions[name] = load(path).version
    answers: list[httpx.Response] = []
    with serving(tmp_path, first, "--ab", second, "--share", 0.3, environment=KEYED) as server:
        arms = {f"s{n}": server.recommend(session_id=f"s{n}")["arm"] for n in range(60)}
        assert 6 <= list(arms.values()).count("b") <= 32  # 18 expected
        stop = threading.Event()

        def ask(number: int) -> None:
            with httpx.Client(base_url=server.address, timeout=120) as client:
                while not stop.is_set():
                    answers.append(client.post("/v1/recommend", json={"session_id": f"s{number}", "k": 2}))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for seed in (7, 8):
            enough = len(answers) + 8  # some before each reload, and some after the last
            until(lambda: len(answers) >= enough)  # noqa: B023
            bundle.save(whole(quantile_policy("meanpool", "implicit", seed=seed)), first, force=True)
            done = server.post("/v1/policy/reload", {"arm": "a"}, x_api_key=ADMIN)
            assert done.status_code == 200, done.text
            versions["a"] = load(first).version
            assert [one["version"] for one in done.json()["policies"]] == [versions["a"], versions["b"]]
        enough = len(answers) + 8
        until(lambda: len(answers) >= enough)
        stop.set()
        for thread in threads:
            thread.join()
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.json()["policy"] for answer in answers if answer.json()["arm"] == "a"}) >= 2
        for number in range(60):
            found = server.recommend(session_id=f"s{number}")
            assert (found["arm"], found["policy"]) == (arms[f"s{number}"], versions[arms[f"s{number}"]])
        (first / "manifest.json").write_text("{")
        broken = server.post("/v1/policy/reload", {}, x_api_key=ADMIN)
        assert (broken.status_code, broken.json()["error"][:22]) == (409, "The old policy goes on")
        assert server.recommend(session_id="s0")["policy"] == versions[arms["s0"]]
        assert server.post("/v1/policy/reload", {"arm": "z"}, x_api_key=ADMIN).status_code == 422


# ---- keys and limits


def test_keys(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# those who may ask\nfirst-key-of-the-tests\nsecond-key-of-the-tests\n")
    options = ["--api-keys", tmp_path / "keys", "--rate", 12, "--largest-body", 2000]
    with serving(tmp_path, folder, *options, environment=KEYED) as server:
        for key, status in (("", 401), ("wrong-key-of-the-tests", 403), ("first-key-of-the-tests", 200)):
            assert server.post("/v1/recommend", {}, x_api_key=key).status_code == status
        assert server.post("/v1/recommend", {}, authorization="Bearer second-key-of-the-tests").status_code == 200
        assert server.post("/v1/policy/reload", {}, x_api_key="first-key-of-the-tests").status_code == 403
        assert server.post("/v1/policy/reload", {}, x_api_key=ADMIN).status_code == 200
        for path, status in (
            ("/v1/health", 200),
            ("/v1/ready", 200),
            ("/", 200),
            ("/v1/policy", 401),
            ("/metrics", 401),
        ):
            answer = server.client.get(path)
            assert answer.status_code == status, path
            assert answer.headers["x-content-type-options"] == "nosniff"
        long = {"session": list(range(1000))}
        assert server.post("/v1/recommend", long, x_api_key="first-key-of-the-tests").status_code == 413

        def pieces() -> Iterator[bytes]:
            for _ in range(30):
                yield b" " * 100

        headers = {"x-api-key": "first-key-of-the-tests", "content-type": "application/json"}
        chunked = server.client.post("/v1/recommend", content=pieces(), headers=headers)
        assert chunked.status_code == 413
        let_in, end = 0, time.monotonic() + 120
        own = {"x-api-key": "second-key-of-the-tests"}
        while (answer := server.client.get("/v1/policy", headers=own)).status_code == 200 and time.monotonic() < end:
            let_in += 1
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert let_in >= 11  # a second's worth of 12, of which one was taken above
        assert server.client.get("/v1/health").status_code == 200


def test_without_an_admin_key_nothing_is_reloaded(folder: Path, server: Running) -> None:
    assert server.post("/v1/policy/reload", {}).status_code == 401
    assert server.post("/v1/policy/reload", {}, x_api_key="guess").status_code == 403


# ---- nonsense

NONSENSE = st.one_of(
    # No JSON object: `{}` is a request like others.
    (st.binary(max_size=200) | st.text(max_size=100).map(str.encode)).filter(lambda body: body.strip()[:1] != b"{"),
    st.sampled_from(
        [
            b"",
            b"[" * 100_000,
            b'{"session":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
            b'{"k":' + b"9" * 5_000 + b"}",
            b'{"k":1e400}',
            b'{"k":NaN}',
            b'{"k":true}',
            b'{"k":3.5}',
            b'{"session":[1e30]}',
            b'{"session":[' + b"9" * 30 + b"]}",
            b'{"session":["\\ud800"]}',
            b'{"session":["a\\u0000b"]}',
            b'{"session":[null]}',
            b'{"session":[true]}',
            b'{"session":[[1]]}',
            b'{"session":{"0":1}}',
            b'{"session_id":""}',
            b'{"session_id":"\xff"}',
            '{"session_id":"\u00e9"}'.encode("utf-16"),
            b'{"k":1,"surprise":2}',
            b'{"session":[{"item":1,"response":"like"}]}',
        ]
    ),
)


@given(body=NONSENSE, path=st.sampled_from(["/v1/recommend", "/v1/feedback"]))
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_nonsense_gets_one_sentence(server: Running, body: bytes, path: str) -> None:
    answer = server.client.post(path, content=body, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500, (body[:100], answer.text)
    assert answer.json().keys() == {"error"}
    for inside in ("Traceback", "pydantic", "site-packages", "bcd4rec/"):
        assert inside not in answer.text
    assert len(answer.text) < 1000


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"NONSENSE\r\n\r\n",
        b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        b"\x00\xff" * 500,
    ],
)
def test_the_server_outlives_broken_requests(server: Running, raw: bytes) -> None:
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(raw)
        assert b" 5" not in connection.recv(100)[:12]
    assert server.client.get("/v1/health").json()["status"] == "ok"


def test_the_schema_holds(server: Running) -> None:
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json")
    headers = {"x-api-key": ADMIN}
    seen = set()
    for result in schema.get_all_operations():
        operation = result.ok()
        seen.add(operation.path)

        @given(case=operation.as_strategy())
        @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def holds(case: Any) -> None:
            checks = [not_a_server_error, response_schema_conformance, status_code_conformance]
            case.call_and_validate(headers=headers, checks=checks)

        holds()
    assert seen == {
        *("/v1/recommend", "/v1/feedback", "/v1/health", "/v1/ready", "/v1/policy", "/v1/policy/reload"),
        *("/v1/experiments", "/v1/items", "/v1/impressions", "/metrics"),
    }
