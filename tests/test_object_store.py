"""Buckets by URL, on a server of this machine that speaks S3."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from bcd4rec.errors import InputError
from bcd4rec.object_store import filesystem, is_url
from buckets import served_bucket


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with served_bucket() as url:
        yield url


def test_what_is_an_url():
    assert is_url("s3://bucket/prefix")
    assert is_url("gs://bucket")
    assert not any(map(is_url, ("out", "/a/b", "./s3:/x", "C:/x", "a://b/../c"[1:])))


def test_a_file_goes_to_a_bucket_and_comes_back(bucket):
    fs, path = filesystem(f"{bucket}/a/prefix/")
    assert path == "our-results/a/prefix"
    assert not fs.exists(path)
    with fs.open(f"{path}/one.txt", "wb") as file:
        file.write(b"one")
    assert fs.cat_file(f"{path}/one.txt") == b"one"
    assert fs.find(path) == [f"{path}/one.txt"]


def test_a_path_is_one_on_this_machine(tmp_path):
    for place in (str(tmp_path), f"file://{tmp_path}"):
        fs, path = filesystem(place)
        fs.pipe_file(f"{path}/one.txt", b"1")
    assert (tmp_path / "one.txt").read_bytes() == b"1"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://no-such-bucket/x", "there is no bucket no-such-bucket"),
        ("s3:///x", "names no bucket; expected s3://BUCKET/PREFIX"),
        ("ftpx://host/x", "the scheme ftpx:// is not known; expected a path or one of s3://, gs://, az://, file://"),
        ("abfs://container/x", "needs a package of its own"),
        ("az://container/x", "AZURE_STORAGE_ACCOUNT_NAME is not set"),
    ],
)
def test_what_cannot_be_opened_is_one_sentence(bucket, url, words):
    with pytest.raises(InputError) as refused:
        filesystem(url)
    assert words in str(refused.value)


class _Refusing(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(403)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_refused_credentials_are_one_sentence(monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), _Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in (("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "y"), ("AWS_REGION", "us-east-1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    with pytest.raises(InputError, match=r"cannot be opened.*AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        filesystem("s3://bucket/x")
    server.shutdown()
