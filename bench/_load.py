"""Asks a server as fast as it answers, over a few connections: `python -m bench._load HOST PORT KIND SECONDS [4]`.

A process of its own, so that what it needs is not the server's. Prints one JSON object.
"""

import asyncio
import json
import random
import resource
import sys
import time
from collections import deque

SESSION = 10  # recommendations of a session
SLATE = 3
BATCH = 50  # responses that are sent together at most

Pending = deque[tuple[str, int]]


class Connection:
    """HTTP/1.1 by hand: a client library would take more time than the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        at = lines.index(b"content-length:") + 15
        length = int(lines[at : lines.index(b"\r\n", at)])
        return int(lines[9:12]), await self._reader.readexactly(length)


class Load:
    def __init__(self, host: str, port: int, kind: str, seconds: float, connections: int):
        self._where, self._kind, self._connections = (host, port), kind, connections
        self._warm = time.perf_counter() + 1.0  # answers before do not count
        self._end = self._warm + seconds
        self._pending: Pending = deque(maxlen=100_000)
        self.latencies: list[float] = []
        self.asked = self.errors = self.stored = 0

    async def run(self) -> None:
        jobs = [self._ask(number) for number in range(self._connections)]
        await asyncio.gather(*jobs, *([self._tell()] if self._kind == "recommend" else []))

    async def _ask(self, number: int) -> None:
        connection = Connection(*await asyncio.open_connection(*self._where))
        rng, asked = random.Random(number), 0  # noqa: S311
        liked: list[int] = []
        while time.perf_counter() < self._end:
            if asked % SESSION == 0:
                liked = []
            path, body = "/v1/noop", b""
            if self._kind == "recommend":
                path = "/v1/recommend"
                session = {"session_id": f"{number}-{asked // SESSION}", "k": SLATE}
                if asked // SESSION % 2:  # half of the sessions are kept by the server, half are told in whole
                    session["session"] = liked
                body = json.dumps(session).encode()
            began = time.perf_counter()
            status, answer = await connection.ask("POST" if body else "GET", path, body)
            self.errors += status != 200
            if began >= self._warm:
                self.latencies.append(time.perf_counter() - began)
            asked += 1
            self.asked += 1
            if self._kind == "recommend" and status == 200:
                found = json.loads(answer)
                chosen = found["items"][rng.randrange(SLATE)]["item"]
                liked.append(chosen)
                self._pending.append((found["request_id"], chosen))

    async def _tell(self) -> None:
        """Feedback to everything that was recommended, stored while recommendations go on."""
        connection = Connection(*await asyncio.open_connection(*self._where))
        while time.perf_counter() < self._end:
            batch = [self._pending.popleft() for _ in range(min(len(self._pending), BATCH))]
            if not batch:
                await asyncio.sleep(0.005)
                continue
            given = [{"request_id": request, "item": item, "response": "click"} for request, item in batch]
            status, _ = await connection.ask("POST", "/v1/feedback", json.dumps({"responses": given}).encode())
            self.errors += status not in (200, 202)
            if status == 200 and time.perf_counter() >= self._warm:
                self.stored += len(batch)


def main(host: str, port: str, kind: str, seconds: str, connections: str = "4") -> None:
    load = Load(host, int(port), kind, float(seconds), int(connections))
    try:
        import uvloop

        uvloop.run(load.run())
    except ModuleNotFoundError:
        asyncio.run(load.run())
    times = sorted(load.latencies)

    def quantile(share: float) -> float:
        return round(1e3 * times[min(int(share * len(times)), len(times) - 1)], 3)

    found = {"requests_per_second": round(len(times) / float(seconds), 1), "p50_ms": quantile(0.5)}
    found |= {"p90_ms": quantile(0.9), "p99_ms": quantile(0.99), "errors": load.errors, "stored": load.stored}
    used = resource.getrusage(resource.RUSAGE_SELF)
    found |= {"asked": load.asked, "client_seconds": used.ru_utime + used.ru_stime}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
