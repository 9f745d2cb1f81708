"""Real databases for tests: SQLite files, and a PostgreSQL server of our own from the installed binaries."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MISSING = "PostgreSQL's initdb and pg_ctl are not installed (Debian: apt-get install postgresql); its tests are skipped"


def binaries() -> Path | None:
    """The newest folder that has both programs."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((one for one in folders if (one / "initdb").exists() and (one / "pg_ctl").exists()), None)


def _owner() -> str | None:
    """PostgreSQL refuses to run as root, so root runs it as somebody else."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)


class PostgresServer:
    """A server on a socket in a folder of its own; `url` names a database in it."""

    def __init__(self, folder: Path, programs: Path):
        self._folder, self._programs, self._owner = folder, programs, _owner()
        if self._owner is not None:
            shutil.chown(folder, self._owner)
        self._run("initdb", "-D", folder / "data", "-U", "bcd4rec", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://bcd4rec@/postgres?host={self._folder}"

    def start(self) -> None:
        options = f"-k {self._folder} -c listen_addresses= -c fsync=off -c max_connections=20 -c shared_buffers=16MB"
        log = self._folder / "log"
        self._run("pg_ctl", "-D", self._folder / "data", "-l", log, "-w", "-t", "240", "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self._folder / "data", "-m", "immediate", "-w", "-t", "240", "stop")

    def _run(self, program: str, *args: object) -> None:
        identity = {"user": self._owner, "extra_groups": []} if self._owner is not None else {}
        command = [str(self._programs / program), *map(str, args)]
        # Not pipes: the server would inherit them, and reading them would wait for its end.
        subprocess.run(command, check=True, cwd=self._folder, stdout=subprocess.DEVNULL, timeout=300, **identity)  # type: ignore[call-overload]


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    programs = binaries()
    if programs is None:
        pytest.skip(MISSING)
    pytest.importorskip("psycopg", reason="psycopg is not installed; tests of PostgreSQL are skipped")
    folder = Path(tempfile.mkdtemp(prefix="bcd4rec-pg-"))  # short: a socket's path has at most 107 characters
    try:
        server = PostgresServer(folder, programs)
        try:
            yield server
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):  # a test may have stopped it
                server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
