"""Who may ask: foreign pages, foreign names, invented addresses, keys of every spelling."""

import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from raw import connect, request, said_to, status_of
from test_requests import PATIENT, door, running

from bcd4rec.errors import InputError
from bcd4rec.serving.connections import BACKLOG, MOST, OWN_FILES, SPARE, places
from bcd4rec.serving.security import Keys, Limits, read_keys, read_proxies, refuse_open
from bcd4rec.serving.sockets import bind, is_local
from serving_help import ENVIRONMENT, Running, quantile_policy, saved, serving

KEY = "schlüssel-für-die-tür"
JSON = "application/json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    policy = quantile_policy("meanpool", "implicit")
    return saved(policy, tmp_path_factory.mktemp("policy") / "policy")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    options = ["--allowed-hosts", "shop.example,Other.Example", "--rate", "0"]
    with serving(tmp_path_factory.mktemp("server"), folder, *options) as running:
        yield running


def ask(server: Running, body: bytes = b"{}", **headers: str) -> int:
    given = {"content_type": JSON} | headers
    return status_of(said_to(int(server.address.rpartition(":")[2]), request("POST", "/v1/recommend", body, **given)))


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("text/plain; application/json", 415),
        ("", 415),
    ],
)
def test_only_json_comes_in(server: Running, kind: str, status: int) -> None:
    assert ask(server, content_type=kind) == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8000", 200),
        ("shop.example", 200),
        ("other.example.", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("10.0.0.1", 403),
        ("", 403),
    ],
)
def test_the_server_has_names(server: Running, host: str, status: int) -> None:
    assert ask(server, host=host) == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8000", 200),
        ("https://shop.example", 200),
        ("http://evil.example", 403),
        ("https://shop.example.evil.example", 403),
        ("null", 403),
    ],
)
def test_pages_of_other_sites_are_refused(server: Running, origin: str, status: int) -> None:
    assert ask(server, origin=origin) == status


def test_the_address_that_was_called_is_a_name_of_the_server() -> None:
    """Only Linux has more than one address of its own on every machine."""
    own = "127.0.0.2"
    try:
        bind(own, 0).close()
    except InputError:
        pytest.skip(f"this machine is not known as {own}")
    with running(PATIENT, app=door(Limits()), host=own) as port:
        for host, status in ((own, 204), (f"{own}:{port}", 204), ("127.0.0.3", 403), ("127.0.0.2.evil.example", 403)):
            assert status_of(said_to(port, request("GET", "/", host=host), host=own)) == status


def test_the_health_is_told_under_every_name(server: Running) -> None:
    port = int(server.address.rpartition(":")[2])
    for path in ("/v1/health", "/v1/ready"):
        assert status_of(said_to(port, request("GET", path, host="10.1.2.3:8000"))) == 200


def test_an_invented_address_does_not_escape_the_rate(folder: Path, tmp_path: Path) -> None:
    with serving(tmp_path, folder, "--rate", 1) as server:
        found = [ask(server, x_forwarded_for=f"10.0.{n}.1", forwarded=f"for=10.0.{n}.1") for n in range(60)]
    assert 429 in found


def test_only_named_proxies_are_believed(folder: Path, tmp_path: Path) -> None:
    with serving(tmp_path, folder, "--proxies", "127.0.0.0/8", "--rate", 1) as server:
        assert {ask(server, x_forwarded_for=f"10.0.{n}.1") for n in range(60)} == {200}
        assert 429 in [ask(server, x_forwarded_for=f"10.0.{n}.1, 10.9.9.9") for n in range(60)]
    assert read_proxies("10.0.0.1, 192.168.1.7/16") == ("10.0.0.1/32", "192.168.0.0/16")
    with pytest.raises(InputError, match="--proxies"):
        read_proxies("nginx")


def test_others_need_a_key_or_an_open_door(folder: Path, tmp_path: Path) -> None:
    from test_cli import fails

    for host in ("0.0.0.0", "::"):  # noqa: S104 (it refuses to)
        assert "--open" in fails("serve", folder, "--host", host, "--database", tmp_path / "x.sqlite", "--port", "0")
        assert not is_local(host)
    assert all(map(is_local, ("localhost", "127.0.0.1", "127.0.0.2", "::1")))
    refuse_open(Keys([KEY]), local=False, open_to_all=False)
    refuse_open(Keys([]), local=False, open_to_all=True)
    refuse_open(Keys([]), local=True, open_to_all=False)


# ---- keys


def test_keys_of_every_spelling(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbf" + KEY.encode() + b"\r\na-second-key-without-accents\r\n")
    with serving(tmp_path, folder, "--api-keys", file) as server:
        assert ask(server) == 401
        assert ask(server, x_api_key=KEY) == 200  # the bytes of UTF-8
        assert ask(server, authorization=f"Bearer {KEY}") == 200
        assert ask(server, x_api_key="", authorization="bearer a-second-key-without-accents") == 200
        assert ask(server, x_api_key="a-third-key-without-accents", authorization=f"Bearer {KEY}") == 403
        assert ask(server, x_api_key="\ufeff" + KEY) == 403


def test_bytes_that_are_no_text_are_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEYS", KEY)
    keys = read_keys(None, "SOME_KEYS", "--api-keys")
    assert keys.match(KEY.encode())
    assert not any(keys.match(one) for one in (b"", b"\xff" * 20, KEY.encode("latin-1"), KEY.encode("utf-16")))
    assert not Keys([]).match(b"")


def test_guessing_keys_has_a_rate() -> None:
    """By address, whatever is guessed; who has a key has a rate of its own. The rate is so low that no time helps."""
    given: list[str] = [f"a-guess-of-a-key-{number}" for number in range(3)]
    with running(PATIENT, app=door(Limits(rate=0.001), keys=Keys([KEY]))) as port:

        def ask(key: str) -> int:
            return status_of(said_to(port, request("GET", "/other", x_api_key=key)))

        assert [ask(key) for key in given] == [403, 429, 429]
        assert [ask(KEY), ask(KEY)] == [204, 429]


def test_a_machine_with_many_files_has_many_places(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (0, 0)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.update(now=wanted))
    others, all_of = SPARE + BACKLOG + OWN_FILES, MOST + SPARE + BACKLOG + OWN_FILES
    for (soft, hard), expected, left in (
        ((1024, 4096), 4096 - others, (4096, 4096)),
        ((1024, 10**6), MOST, (all_of, 10**6)),
        ((1024, resource.RLIM_INFINITY), MOST, (all_of, resource.RLIM_INFINITY)),
        ((10**6, 10**6), MOST, (10**6, 10**6)),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), MOST, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)),
        ((64, 64), 1, (64, 64)),
    ):
        limits["now"] = (soft, hard)
        assert (places(), limits["now"]) == (expected, left)


# ---- full

FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
from bcd4rec.cli import main
sys.exit(main())
"""


def test_probes_are_answered_however_full_it_is(folder: Path, tmp_path: Path) -> None:
    """Slow connections take all places, and there are few descriptors; the server stays, and says that it does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1500:
        pytest.skip("this test needs 1,500 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1500), hard))
    given = ["serve", str(folder), "--port", "0", "--json", "--database", str(tmp_path / "x.sqlite")]
    command = [sys.executable, "-c", FULL, *given, "--connections", "10000"]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=ENVIRONMENT)
    assert process.stdout is not None
    try:
        port = int(json.loads(process.stdout.readline())["address"].rpartition(":")[2])
        slow = request("POST", "/v1/recommend", content_type=JSON, content_length="100")
        with contextlib.ExitStack() as held:
            for _ in range(600):
                connection = held.enter_context(connect(port))
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(slow)
            for path in ("/v1/health", "/v1/ready"):
                assert status_of(said_to(port, request("GET", path))) == 200
            assert status_of(said_to(port, request("POST", "/v1/recommend", b"{}", content_type=JSON))) == 503
        assert process.poll() is None
        assert "Traceback" not in (tmp_path / "said").read_text()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
