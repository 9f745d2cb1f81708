"""From what people write after `--database` to a database."""

from pathlib import Path
from urllib.parse import parse_qsl

from bcd4rec.errors import InputError
from bcd4rec.serving.storage.database import Database
from bcd4rec.serving.storage.sqlite import Sqlite

EXPECTED = "expected sqlite:///path, a plain path or postgresql://user@host/name"


def database_of(url: str) -> Database:
    scheme, colon, rest = url.partition("://")
    if not colon:
        return _sqlite(url, {})
    if scheme in ("postgresql", "postgres"):
        from bcd4rec.serving.storage.postgres import Postgres

        return Postgres(url)
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
