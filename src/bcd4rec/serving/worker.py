"""One of several processes that answer on one port: what its supervisor tells it, and what it tells its supervisor.

They talk in lines of JSON over a pair of sockets. When the supervisor's end is closed, however it ended, the worker
ends, too.
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from bcd4rec.errors import InputError

if TYPE_CHECKING:
    from bcd4rec.serving.arms import Arm
    from bcd4rec.serving.service import Service

WORKER_VARIABLE = "BCD4REC_WORKER"
COUNTS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
NOTE_SECONDS = 1.0  # how fresh a worker's part of what is told of all of them is
LINE = 1 << 20  # bytes of a message at most

log = logging.getLogger(__name__)
Message = dict[str, Any]


def line_of(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


@dataclass(frozen=True)
class Place:
    """What a worker is told when it starts, in its environment."""

    number: int
    """From 1 on."""
    listening: int
    """Descriptor of the socket that all of them listen on."""
    channel: int
    """Descriptor of its end of the line to the supervisor."""
    versions: tuple[str, ...] = ()
    """Of the policies that the others serve; none where it is the first."""

    def text(self) -> str:
        return json.dumps(asdict(self))


class Worker:
    def __init__(self, place: Place):
        self.place = place
        self._channel = socket.socket(fileno=place.channel)
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[None]] = {}
        self._prepared: tuple[Arm, ...] | None = None
        logging.basicConfig(format=f"worker {place.number}: %(message)s", level=logging.WARNING)

    @classmethod
    def from_environment(cls) -> Self | None:
        """Whoever this process starts is no worker."""
        told = os.environ.pop(WORKER_VARIABLE, None)
        if told is None:
            return None
        values = json.loads(told)
        return cls(Place(**values | {"versions": tuple(values["versions"])}))

    @property
    def is_first(self) -> bool:
        """Then it looks after what is done once for all."""
        return self.place.number == 1

    def socket(self) -> socket.socket:
        return socket.socket(fileno=self.place.listening)

    # ---- starting

    @contextlib.contextmanager
    def telling_failures(self) -> Iterator[None]:
        """The supervisor says why it cannot start, once for all workers."""
        try:
            yield
        except InputError as error:
            self._channel.sendall(line_of({"failed": str(error)}))
            os._exit(2)

    def check(self, versions: list[str]) -> None:
        """Only a reload changes what is served, and it does so for all; a canary would end with another version."""
        expected = list(self.place.versions)
        if expected and versions != expected:
            raise InputError(
                f"The policies are now {', '.join(versions)}, but the other workers serve {', '.join(expected)}; "
                "reload, or put the old ones back."
            )

    def wait(self, loaded: Message) -> None:
        """Until all workers are there and it may begin; `loaded` is what people and programs are told at the start."""
        self._channel.sendall(line_of({"loaded": loaded}))
        line = b""
        while not line.endswith(b"\n"):
            byte = self._channel.recv(1)  # what comes after this line is for `attend`
            if not byte:
                os._exit(0)
            line += byte

    # ---- while it answers

    async def attend(self, service: "Service") -> None:
        """Do what the supervisor asks for, until it has gone."""
        self._channel.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=self._channel, limit=LINE)
        noting = asyncio.create_task(_note_storage(service))
        try:
            while line := await reader.readline():
                await self._answer(json.loads(line), service)
        except OSError:
            pass  # a line that breaks has come to its end, too
        finally:
            noting.cancel()
        log.warning("The supervisor has gone; this worker ends.")
        shutil.rmtree(os.environ[COUNTS_VARIABLE], ignore_errors=True)  # nobody else is left to do it
        os.kill(os.getpid(), signal.SIGTERM)

    async def _answer(self, message: Message, service: "Service") -> None:
        if "reloaded" in message:
            self._reloaded(message)
        elif "prepare" in message:
            self._tell({"done": await self._prepare(message["prepare"], service)})
        else:
            if message["take"] and self._prepared is not None:
                service.take(self._prepared)
            self._prepared = None
            self._tell({"done": {}})

    async def _prepare(self, arm: str | None, service: "Service") -> Message:
        try:
            self._prepared = await asyncio.to_thread(service.prepare, arm)
        except InputError as error:
            return {"error": str(error)}
        except Exception as error:
            log.error("A policy could not be loaded.", exc_info=error)
            return {"error": f"worker {self.place.number} failed; its log says why."}
        return {"versions": [one.version for one in self._prepared]}

    def _tell(self, message: Message) -> None:
        assert self._writer is not None  # noqa: S101 (`attend` has begun)
        self._writer.write(line_of(message))

    # ---- reloading

    async def reload_all(self, arm: str | None) -> None:
        """Every worker reads the policies anew, or, where one of them cannot, none does."""
        if self._writer is None:
            raise InputError("the server is still starting; try again in a second.")
        number = max(self._asked, default=0) + 1
        self._asked[number] = asyncio.get_running_loop().create_future()
        self._tell({"reload": arm, "id": number})
        await self._asked[number]

    def _reloaded(self, message: Message) -> None:
        future = self._asked.pop(message["reloaded"])
        if future.done():  # whoever asked has gone
            return
        if message["error"] is None:
            future.set_result(None)
        else:
            future.set_exception(InputError(message["error"]))


async def _note_storage(service: "Service") -> None:
    while True:
        service.metrics.note_storage()
        await asyncio.sleep(NOTE_SECONDS)
