"""Buckets and folders by one way: an URL such as `s3://bucket/prefix` is opened as a file system of fsspec.

Arrow's own clients for S3, Google Cloud Storage and Azure are used, so nothing has to be installed for them.
Credentials come from where these look for them: the environment (AWS_ACCESS_KEY_ID …, GOOGLE_APPLICATION_CREDENTIALS,
AZURE_STORAGE_ACCOUNT_NAME …), the files of their command lines, or the machine's role. AWS_ENDPOINT_URL names another
server that speaks S3, such as MinIO.
"""

import os
import re
from typing import TYPE_CHECKING, Any

from bcd4rec.errors import InputError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

BUCKETS = ("s3", "gs", "az")  # with Arrow's clients
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile in ~/.aws, and AWS_ENDPOINT_URL for a server of "
    "your own",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS or `gcloud auth application-default login`",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or `az login`",
}


def is_url(place: object) -> bool:
    """Whether a place is named by an URL; anything else is a path on this machine."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", str(place)) is not None


def filesystem(url: str) -> "tuple[AbstractFileSystem, str]":
    """The file system that an URL names, and the path within it; a path without a scheme is one on this machine."""
    import fsspec

    if not is_url(url):
        return fsspec.filesystem("file"), url
    scheme, _, path = url.partition("://")
    scheme, path = {"gcs": "gs", "s3a": "s3"}.get(scheme.lower(), scheme.lower()), path.rstrip("/")
    if scheme in BUCKETS:
        if not path.partition("/")[0]:
            raise InputError(f"{url} names no bucket; expected {scheme}://BUCKET/PREFIX.")
        return _bucket(scheme, path.partition("/")[0], url), path
    try:
        return fsspec.url_to_fs(url)  # type: ignore[no-any-return]
    except ImportError as error:
        raise InputError(f"{url} needs a package of its own: {error}.") from None
    except ValueError:
        known = ", ".join(f"{one}://" for one in (*BUCKETS, "file"))
        raise InputError(f"{url}: the scheme {scheme}:// is not known; expected a path or one of {known}.") from None


def _bucket(scheme: str, bucket: str, url: str) -> "AbstractFileSystem":
    """The client of a bucket that is there and may be listed."""
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import FileType

    try:
        client = _client(scheme)
        there = client.get_file_info(bucket).type != FileType.NotFound
    except OSError as error:
        said = " ".join(str(error).split())
        raise InputError(
            f"{url} cannot be opened ({said}); is the bucket yours, and are there credentials ({CREDENTIALS[scheme]})?"
        ) from None
    if not there:
        raise InputError(f"{url}: there is no bucket {bucket}; create it, or give the name of one that is there.")
    return ArrowFSWrapper(client)


def _client(scheme: str) -> Any:
    from pyarrow import fs

    if scheme == "gs":
        return fs.GcsFileSystem()
    if scheme == "az":
        account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        if not account:
            raise OSError("AZURE_STORAGE_ACCOUNT_NAME is not set")
        return fs.AzureFileSystem(account, os.environ.get("AZURE_STORAGE_ACCOUNT_KEY"))
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")  # else Arrow asks its files
    return fs.S3FileSystem(endpoint_override=endpoint, region=region)
