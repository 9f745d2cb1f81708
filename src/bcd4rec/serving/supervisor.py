"""Several processes on one port: started together, replaced when they die, reloaded and stopped together.

All of them accept connections from one listening socket, so that a connection is answered by whoever is free and none
waits for a worker that has died. The supervisor itself answers nothing.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from prometheus_client.multiprocess import mark_process_dead

from bcd4rec.errors import InputError
from bcd4rec.serving.sockets import listen
from bcd4rec.serving.worker import COUNTS_VARIABLE, LINE, WORKER_VARIABLE, Message, Place, line_of

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0  # seconds before a worker is replaced: a short one, unless they die at once
LIVED_SECONDS = 30.0  # after which a worker did not die at once
STOP_SECONDS = 40.0  # for requests to end and records to be stored; each part of it has a limit of its own
SIGNALS = (signal.SIGINT, signal.SIGTERM)

log = logging.getLogger(__name__)
Tell = Callable[[Message], None]


class WorkerEnded(Exception):  # noqa: N818 (what it is, not that it is an error)
    """A worker ended before it did what it was asked for."""

    def __init__(self, code: int):
        super().__init__(f"it ended {_how(code)}")
        self.code = code


class Member:
    """A worker as its supervisor sees it."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, streams: Any):
        self.number, self.process, self.began = number, process, time.monotonic()
        self._reader, self._writer = streams
        loop = asyncio.get_running_loop()
        self.loaded: asyncio.Future[Message] = loop.create_future()
        self._done: asyncio.Future[Message] | None = None
        self.serves = self.served = self.ended = False  # does now; ever did; has ended

    def tell(self, message: Message) -> None:
        with contextlib.suppress(OSError):  # one that has died is noticed elsewhere
            self._writer.write(line_of(message))

    async def ask(self, message: Message) -> Message:
        """What a worker answers; an `error` where it died."""
        self._done = asyncio.get_running_loop().create_future()
        self.tell(message)
        try:
            return await self._done
        except WorkerEnded as error:
            return {"error": f"worker {self.number}: {error}; try again."}

    async def listen(self, reload: Callable[["Member", Message], None]) -> None:
        """Take what it says, until it has ended."""
        with contextlib.suppress(OSError, ValueError):
            while line := await self._reader.readline():
                self._take(json.loads(line), reload)
        ended = WorkerEnded(await self.process.wait())
        self.serves, self.ended = False, True
        self._writer.close()
        for future in (self.loaded, self._done):
            if future is not None and not future.done():
                future.set_exception(ended)
                future.exception()  # nobody may be waiting for it

    def _take(self, message: Message, reload: Callable[["Member", Message], None]) -> None:
        if "reload" in message:
            reload(self, message)
        elif "done" in message and self._done is not None and not self._done.done():
            self._done.set_result(message["done"])
        elif "failed" in message:
            self.loaded.set_exception(InputError(message["failed"]))
            self.loaded.exception()
        elif "loaded" in message:
            self.loaded.set_result(message["loaded"])

    def begin(self) -> None:
        """From now on it answers requests."""
        self.serves = self.served = True
        self.tell({"go": True})

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


class Supervisor:
    def __init__(self, workers: int, bound: socket.socket, claim: int | None, counts: str):
        """`claim` keeps others away from the database, also while a worker lives longer than its supervisor.

        `counts` is the folder of what the workers count.
        """
        self._workers, self._bound, self._claim, self._counts = workers, bound, claim, counts
        self._members: dict[int, Member] = {}
        self._versions: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._reloading = asyncio.Lock()
        self._signalled, self._stopping = asyncio.Event(), False

    async def run(self, tell: Tell) -> None:
        """Until a signal comes; `tell` is called once all workers answer."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled.set)
        signalled = asyncio.create_task(self._signalled.wait())
        try:
            beginning = asyncio.create_task(self._begin())
            await asyncio.wait([beginning, signalled], return_when=asyncio.FIRST_COMPLETED)
            if not beginning.done():
                beginning.cancel()
                raise KeyboardInterrupt
            tell(beginning.result())
            for member in self._members.values():
                self._background(self._keep(member))
            await signalled
            await self._stop()
        finally:
            for member in self._members.values():
                if not member.ended:
                    member.send_signal(signal.SIGKILL)
                    await member.process.wait()

    async def _begin(self) -> Message:
        """All workers, the first before the others: what is wrong is then found and said once."""
        told = await (await self._start(1)).loaded
        self._versions = told["versions"]
        others = [await self._start(number) for number in range(2, self._workers + 1)]
        for other in others:
            await other.loaded
        listen(self._bound)
        for member in self._members.values():
            member.begin()
        return told

    async def _start(self, number: int) -> Member:
        ours, theirs = socket.socketpair()
        place = Place(number, self._bound.fileno(), theirs.fileno(), tuple(self._versions))
        passed = [self._bound.fileno(), theirs.fileno(), *([] if self._claim is None else [self._claim])]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "bcd4rec.cli", *sys.argv[1:]),
            pass_fds=passed,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            env=os.environ | {WORKER_VARIABLE: place.text(), COUNTS_VARIABLE: self._counts},
            process_group=0,  # Ctrl-C is for the supervisor, which ends all of them in good order
        )
        theirs.close()
        ours.setblocking(False)
        member = Member(number, process, await asyncio.open_unix_connection(sock=ours, limit=LINE))
        self._members[number] = member
        self._background(member.listen(self._reload_asked))
        return member

    def _background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- replacing

    async def _keep(self, member: Member) -> None:
        """Replace a worker whenever it has ended, for as long as nobody stops them all."""
        pause = FIRST_PAUSE
        while True:
            code = await member.process.wait()
            mark_process_dead(member.process.pid, self._counts)  # type: ignore[no-untyped-call]
            if self._stopping:
                return
            if member.served:
                log.warning("Worker %d (process %d) ended %s.", member.number, member.process.pid, _how(code))
            pause = FIRST_PAUSE if time.monotonic() - member.began > LIVED_SECONDS else min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)
            if self._stopping:
                return
            member = await self._start(member.number)
            await self._admit(member)

    async def _admit(self, member: Member) -> None:
        """Let a new worker answer, if it serves what the others serve."""
        try:
            loaded = await member.loaded
        except (InputError, WorkerEnded) as error:
            log.warning("Worker %d could not be replaced: %s", member.number, error)
            return
        async with self._reloading:
            if loaded["versions"] != self._versions:  # they were reloaded while it started
                member.send_signal(signal.SIGKILL)
                return
            member.begin()
        log.warning("Worker %d is back (process %d).", member.number, member.process.pid)

    # ---- reloading

    def _reload_asked(self, member: Member, message: Message) -> None:
        self._background(self._reload(member, message))

    async def _reload(self, asking: Member, message: Message) -> None:
        async with self._reloading:
            error = await self._reload_all(message["reload"])
        asking.tell({"reloaded": message["id"], "error": error})

    async def _reload_all(self, arm: str | None) -> str | None:
        """First all of them read, and then all of them take what they read; why not, if not."""
        members = [one for one in self._members.values() if one.serves]
        answers = await asyncio.gather(*(one.ask({"prepare": arm}) for one in members))
        error: str | None = next((one["error"] for one in answers if "error" in one), None)
        versions = [one["versions"] for one in answers if "versions" in one]
        if error is None and any(one != versions[0] for one in versions):
            error = "the folder changed while it was read; try again."
        if error is None:
            self._versions = versions[0]
        await asyncio.gather(*(one.ask({"take": error is None}) for one in members if one.serves))
        return error

    # ---- the end

    async def _stop(self) -> None:
        """Requests end and records are stored; those who do not come to an end, or at a second signal, are killed."""
        self._signalled.clear()  # and is set again by whoever cannot wait
        self._stopping = True
        alive = [one for one in self._members.values() if not one.ended]
        for member in alive:
            member.send_signal(signal.SIGTERM if member.serves else signal.SIGKILL)
        ends = asyncio.gather(*(member.process.wait() for member in alive))
        hurry = asyncio.create_task(self._signalled.wait())
        hurry.add_done_callback(lambda _: ends.cancel())
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(ends, STOP_SECONDS)


def _how(code: int) -> str:
    return f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def supervise(workers: int, bound: socket.socket, claim: int | None, tell: Tell) -> int:
    """Run so many workers of this very command; the exit code, which is not 0 where one could not start."""

    async def run(counts: str) -> None:
        await Supervisor(workers, bound, claim, counts).run(tell)

    with tempfile.TemporaryDirectory(prefix="bcd4rec-workers-") as counts:
        try:
            asyncio.run(run(counts))
        except WorkerEnded as error:
            if error.code != 2:  # else it has said why
                raise InputError(f"A worker could not be started: {error}.") from None
            return error.code
    return 0
