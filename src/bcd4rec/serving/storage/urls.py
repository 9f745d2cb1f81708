"""From what people write after `--database` to a database."""

import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from bcd4rec.errors import InputError
from bcd4rec.serving.storage.database import Database
from bcd4rec.serving.storage.sqlite import Sqlite

PASSWORD = re.compile(r"password\s*=\s*('[^']*'|[^&\s]+)", re.IGNORECASE)
SHORTEST = 3  # characters of a part of a password that is kept secret, too
EXPECTED = "expected sqlite:///path, a plain path or postgresql://user@host/name"


def without_secrets(text: str, url: str) -> str:
    """`text` without the passwords of the database's address, however it is written.

    Nor with parts of them: where a password has a slash that should have been %2F, parts of it count as other things.
    """
    rest = url.partition(":")[2].lstrip("/")
    before, at, _ = rest.rpartition("@")
    found = [before.partition(":")[2]] if at else []
    found += [match.strip("'") for match in PASSWORD.findall(url)]
    secrets = {*found, *map(unquote, found)}
    parts = {part for secret in secrets for part in re.split(r"[/:@?&=]", secret) if len(part) >= SHORTEST}
    for secret in sorted((secrets | parts) - {""}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def database_of(url: str) -> Database:
    try:
        return _database_of(url)
    except InputError as error:
        raise InputError(without_secrets(str(error), url)) from None


def _database_of(url: str) -> Database:
    scheme, colon, rest = url.partition("://")
    if not colon:
        return _sqlite(url, {})
    if scheme in ("postgresql", "postgres"):
        from bcd4rec.serving.storage.postgres import Postgres

        database = Postgres(url)
        database.name = without_secrets(database.name, url)
        return database
    if scheme != "sqlite" or not rest.startswith("/"):
        raise InputError(f"--database: found {scheme}://…, {EXPECTED}.")
    path, _, query = rest[1:].partition("?")
    return _sqlite(path, dict(parse_qsl(query, keep_blank_values=True)))


def _sqlite(name: str, options: dict[str, str]) -> Database:
    path = Path(name)
    if unknown := sorted(options.keys() - {"synchronous"}):
        raise InputError(f"--database: found the option {unknown[0]!r}, but for SQLite there is only synchronous.")
    if not name or path.is_dir():
        raise InputError(f"--database: found {'a folder' if name else 'nothing'} ({path}), {EXPECTED}.")
    if not path.parent.is_dir():
        raise InputError(f"--database: the folder {path.parent} does not exist; make it, or choose another.")
    return Sqlite(path, **options)
