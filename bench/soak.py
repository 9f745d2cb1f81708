"""`python -m bench.soak [--seconds 600] [--rate 500]`: a server under load while everything around it fails.

A client asks for recommendations at a steady rate and answers each with feedback. Meanwhile the server is killed with
SIGKILL and started again, the database is locked for seconds, and policies are reloaded, also damaged ones. Feedback
that was answered with "stored" must be found in the database at the end, and the last server must not grow. Kills end
at half of the time, so that there is a process to measure. A server fills its memory on purpose, with the records of
the last minutes (`KEEP`), so that it may grow by so much for each slate until that is full, and hardly after.
Loopback only. The last line is one JSON object; the exit code is 1 where something was lost, failed or grew.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import psutil

from bcd4rec.artifacts import MANIFEST
from bcd4rec.serving.storage.recent import KEEP
from bench._load import Connection
from bench.serving import SMALL, network, save

ADMIN = "the-admin-key-of-a-soak"
WORKERS = 16
SESSION, SLATE = 10, 3
LOCKED = 2.0  # seconds that the database is away
WARM_SECONDS = 5.0  # after which a server has loaded all of its code
FULL = KEEP  # slates after which a server remembers as many records and slates as it ever will
FILLING_KB = 4.0  # for each slate and its answer, until then
GROWTH, NOISE_MB = 1.03, 16.0  # of the memory that is still called none: reloads, and what allocators keep


@dataclass
class Counts:
    requests: int = 0
    errors: int = 0  # answers of 500 and above, and connections that failed while the server was there
    while_down: int = 0  # requests that found no server, after it was killed
    unstored: int = 0  # feedback that was taken, but waited for the database
    acknowledged: int = 0
    found: int = 0
    kills: int = 0
    stops: int = 0
    reloads: int = 0
    seconds: float = 0.0
    rate: float = 0.0  # requests a second that were reached
    memory_start_mb: float = 0.0  # of the last server: warm, …
    memory_third_mb: float = 0.0  # … after a third of its life, …
    memory_two_thirds_mb: float = 0.0
    memory_end_mb: float = 0.0
    memory_full_mb: float | None = None  # when it remembered all that it may; None: it never did
    memory_allowed_mb: float = 0.0  # at the end


@dataclass(frozen=True)
class Sample:
    slates: int  # that this server has made
    mb: float


def allowed(samples: list[Sample]) -> tuple[float, float | None]:
    """How much the last sample may be, and the memory when all was remembered that may be."""
    first, last = samples[0], samples[-1]
    full = next((one for one in samples if one.slates >= FULL), None)
    if full is None:
        return first.mb + NOISE_MB + FILLING_KB * (last.slates - first.slates) / 1024, None
    filled = first.mb + NOISE_MB + FILLING_KB * FULL / 1024
    return min(filled, max(GROWTH * full.mb, full.mb + NOISE_MB)), full.mb


class Soak:
    def __init__(self, scratch: Path, seconds: float, rate: float):
        self._policy, self._database = save(network(SMALL), scratch / "policy"), scratch / "store.sqlite"
        self._manifest = (self._policy / MANIFEST).read_bytes()
        self._seconds, self._rate = seconds, rate
        self._down, self._due = False, 0.0
        self._told: set[tuple[str, str]] = set()
        self._slates = 0  # of the server that runs
        self._samples: list[Sample] = []
        self.counts = Counts()

    def _start(self) -> None:
        options = ["--port", "0", "--rate", "0", "--json", "--database", str(self._database)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "BCD4REC_ADMIN_KEYS": ADMIN}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bcd4rec.cli", "serve", str(self._policy), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        assert self._process.stdout is not None
        host, port = json.loads(self._process.stdout.readline())["address"].removeprefix("http://").split(":")
        self._where = host, int(port)
        self._slates, self._began = 0, time.monotonic()
        self._samples = []

    async def run(self) -> None:
        self._start()
        began = time.monotonic()
        self._due, self._end = began, began + self._seconds
        try:
            await asyncio.gather(self._trouble(), self._watch(), *(self._ask(number) for number in range(WORKERS)))
            self._remember(time.monotonic() - began)
        finally:
            self._process.terminate()
            self._process.wait(30)
        self._look()

    async def _ask(self, number: int) -> None:
        connection, rng, asked = None, random.Random(number), 0  # noqa: S311
        while (wait := self._turn()) is not None:
            await asyncio.sleep(wait)
            was_down = self._down
            try:
                connection = connection or Connection(*await asyncio.open_connection(*self._where))
                await self._visit(connection, rng, f"{number}-{asked // SESSION}")
            except (OSError, EOFError, asyncio.IncompleteReadError):
                connection = None
                await asyncio.sleep(0.05)
                if was_down or self._down:
                    self.counts.while_down += 1
                else:
                    self.counts.errors += 1
            asked += 1

    def _turn(self) -> float | None:
        """How long to wait for the next turn, so that all together keep to the rate; None at the end."""
        now = time.monotonic()
        self._due = max(self._due + 2 / self._rate, now - 1.0)  # a visit is two requests; a late one is not made up for
        return max(0.0, self._due - now) if self._due < self._end else None

    async def _visit(self, connection: Connection, rng: random.Random, session: str) -> None:
        body = json.dumps({"session_id": session, "k": SLATE}).encode()
        status, answer = await self._request(connection, "/v1/recommend", body)
        if status != 200:
            return
        self._slates += 1
        found = json.loads(answer)
        item = found["items"][rng.randrange(SLATE)]["item"]
        given = {"request_id": found["request_id"], "responses": [{"item": item, "response": "click"}]}
        status, answer = await self._request(connection, "/v1/feedback", json.dumps(given).encode())
        if status == 200 and json.loads(answer)["stored"]:
            self._told.add((found["request_id"], str(item)))
        elif status == 202:
            self.counts.unstored += 1

    async def _request(self, connection: Connection, path: str, body: bytes) -> tuple[int, bytes]:
        self.counts.requests += 1
        status, answer = await asyncio.wait_for(connection.ask("POST", path, body), 30)
        self.counts.errors += status >= 400
        return status, answer

    # ---- what goes wrong meanwhile

    async def _trouble(self) -> None:
        pause = max(1.0, self._seconds / 30)
        while time.monotonic() + pause + LOCKED < self._end:
            for act in (self._reload, self._stop, self._kill):
                await asyncio.sleep(pause)
                if time.monotonic() + LOCKED < self._end:
                    await act()

    async def _kill(self) -> None:
        if time.monotonic() > self._end - self._seconds / 2:
            return
        self._down = True
        self._process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)
        await asyncio.to_thread(self._start)
        await asyncio.sleep(0.5)  # those who found nobody come back
        self._down = False
        self.counts.kills += 1

    async def _stop(self) -> None:
        """Somebody else holds the only lock for writing."""
        with contextlib.closing(sqlite3.connect(self._database, isolation_level=None, timeout=10)) as other:
            other.execute("BEGIN IMMEDIATE")
            await asyncio.sleep(LOCKED)
            other.execute("ROLLBACK")
        self.counts.stops += 1

    async def _reload(self) -> None:
        """First a damaged policy, which must be refused, then the good one."""
        for content, expected in ((b"[" * 100_000, 409), (self._manifest, 200)):
            (self._policy / MANIFEST).write_bytes(content)
            status = await asyncio.to_thread(self._post_reload)
            self.counts.errors += status != expected
            self.counts.reloads += 1

    def _post_reload(self) -> int:
        where = f"http://{self._where[0]}:{self._where[1]}/v1/policy/reload"
        return httpx.post(where, json={}, headers={"x-api-key": ADMIN}, timeout=60).status_code

    async def _watch(self) -> None:
        """The memory of the server that runs, once it has warmed up."""
        while time.monotonic() < self._end:
            await asyncio.sleep(1.0)
            if not self._down and time.monotonic() - self._began > WARM_SECONDS:
                self._samples.append(Sample(self._slates, self._memory()))

    def _memory(self) -> float:
        return round(psutil.Process(self._process.pid).memory_info().rss / 2**20, 1)

    def _remember(self, seconds: float) -> None:
        samples, counts = self._samples, self.counts
        places = (0, len(samples) // 3, 2 * len(samples) // 3, -1)
        counts.memory_start_mb, counts.memory_third_mb, counts.memory_two_thirds_mb, counts.memory_end_mb = (
            samples[place].mb for place in places
        )
        most, counts.memory_full_mb = allowed(samples)
        counts.memory_allowed_mb = round(most, 1)
        counts.seconds, counts.rate = round(seconds, 1), round(counts.requests / seconds, 1)

    def _look(self) -> None:
        """What was acknowledged, and what of it is there."""
        with contextlib.closing(sqlite3.connect(self._database)) as database:
            rows = database.execute(
                "SELECT f.request_id, f.item FROM bcd4rec_feedback f JOIN bcd4rec_impressions i USING (request_id)"
            )
            stored = set(rows)
        self.counts.acknowledged, self.counts.found = len(self._told), len(self._told & stored)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=500.0, help="requests a second")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        soak = Soak(Path(scratch), max(20.0, given.seconds), given.rate)
        asyncio.run(soak.run())
    found = soak.counts
    print(json.dumps(asdict(found)))
    kept = found.acknowledged == found.found and found.errors == 0
    sys.exit(0 if kept and found.memory_end_mb <= found.memory_allowed_mb else 1)


if __name__ == "__main__":
    main()
