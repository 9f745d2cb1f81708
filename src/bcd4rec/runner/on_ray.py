"""Tasks on the workers of Ray: of one that is started here for the run, or of a cluster that is there.

Ray is imported when it is asked for and not before. Nothing of a task goes through Ray but its fields: results go to
the store, which all machines must see.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from bcd4rec.errors import InputError
from bcd4rec.runner.code import version_of
from bcd4rec.runner.running import THREADS, Ending, attempt
from bcd4rec.runner.store import TaskStore
from bcd4rec.runner.tasks import Task

LOCAL = "local"
MEMORY = 128 * 2**20  # of Ray's own store of objects, which we hardly use
SECONDS = 10  # to reach a cluster
PRIVATE: dict[str, str] = {}  # settings of this process, which Ray reads once: a second run must come with the same


@contextlib.contextmanager
def cluster(address: str, cpus: int | None = None) -> Iterator[Any]:
    """Ray, connected to `address`, or started on this machine with so many workers and ended with the block."""
    if address == LOCAL and "ray" not in sys.modules:  # later it would no longer read them
        PRIVATE.update(_settings())
    with _environment(PRIVATE if address == LOCAL else {}):
        ray = _ray()
        if ray.is_initialized():  # by whoever calls us, and it is theirs to end
            yield ray
            return
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address == LOCAL:
            ray.init(address=LOCAL, num_cpus=cpus, include_dashboard=False, object_store_memory=MEMORY, **quiet)
        else:
            _join(ray, address, quiet)
        try:
            yield ray
        finally:
            ray.shutdown()


def _settings() -> dict[str, str]:
    """Nothing is sent to anybody, and nobody else gets in: Ray listens to all of the network, and runs what it gets."""
    import secrets

    private = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"} | private


@contextlib.contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError("--ray needs Ray: pip install 'bcd4rec[ray]', or use --jobs for this machine.") from None
    return ray


def _join(ray: Any, address: str, quiet: dict[str, Any]) -> None:
    import socket

    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto":
        if not host or not port.isdigit():
            raise InputError(f"--ray: found {address!r}, expected local, auto, or HOST:PORT of a cluster's head.")
        try:
            socket.create_connection((host, int(port)), timeout=SECONDS).close()  # Ray itself tries for a minute
        except (OSError, OverflowError) as error:
            raise InputError(
                f"--ray: no cluster answers at {address} ({error}); is `ray start --head` running?"
            ) from None
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError) as error:
        raise InputError(f"--ray: cannot join {address} ({' '.join(str(error).split())}).") from None


class RayWorkers:
    """One task for each CPU of a cluster, or for `jobs` of them."""

    def __init__(self, store: TaskStore, jobs: int, address: str):
        self._store, self._under_way = store, dict[Any, Task]()
        self._end = contextlib.ExitStack()
        self._ray = self._end.enter_context(cluster(address, jobs or None))
        there = int(self._ray.cluster_resources().get("CPU", 1))
        self.size = min(jobs, there) if jobs else there
        self._remote = self._ray.remote(num_cpus=1, max_retries=0)(_attempt)
        self._environment = {"env_vars": THREADS | (importable() if address == LOCAL else {})}

    def begin(self, task: Task) -> None:
        remote = self._remote.options(name=task.label, runtime_env=self._environment)
        self._under_way[remote.remote(task, self._store, self._store.code(task))] = task

    def wait(self) -> list[tuple[str, Ending]]:
        done, _ = self._ray.wait(list(self._under_way), num_returns=1)
        return [(self._under_way[one].key, self._outcome(one)) for one in done]

    def _outcome(self, reference: Any) -> Ending:
        task, errors = self._under_way.pop(reference), self._ray.exceptions
        try:
            found = Ending(*self._ray.get(reference))
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError) as error:
            return Ending(0.0, died=f"as Ray says: {str(error).partition('. ')[0]}")
        except errors.OutOfMemoryError:
            return Ending(0.0, died="out of memory")
        except errors.RayTaskError as error:
            if "ModuleNotFoundError" in str(error):
                return Ending(0.0, f"a worker lacks a module ({str(error).splitlines()[-1]}); install bcd4rec there.")
            raise
        if found.failure is None and not self._store.has(task):
            missing = f"its worker does not write to {self._store.name} of this machine; give a bucket or a folder that"
            return Ending(found.seconds, f"{missing} all machines share with --store.")
        return found

    def close(self, at_once: bool) -> None:
        with contextlib.suppress(Exception):  # of a cluster that is gone there is nothing to end
            for reference in self._under_way:
                self._ray.cancel(reference, force=True)
        self._end.close()


def importable() -> dict[str, str]:
    """Workers of this machine import what we can import, wherever we were started."""
    return {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}


def _attempt(task: Task, store: TaskStore, code: str) -> tuple[float, str | None]:
    """On a worker: with other code the result would not be what its manifest says."""
    modules = tuple(sorted({type(one).__module__ for one in task.everything.values()}))
    if _version(modules) != code:
        import socket

        return 0.0, f"the worker on {socket.gethostname()} has another version of the code; install the same there."
    found = attempt(task, store)
    return found.seconds, found.failure


@cache
def _version(modules: tuple[str, ...]) -> str:
    return version_of(modules)
