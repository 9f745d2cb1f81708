"""A function of many things, side by side: in this process, in others of this machine, or on workers of Ray.

What comes out is in the order of what went in, whoever computes it, and only a few results are held at a time.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from bcd4rec.errors import InputError
from bcd4rec.runner.running import THREADS

Thing = TypeVar("Thing")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Helpers:
    """How many at once, each with one thread; with an address on Ray, and 0 is then all of its CPUs."""

    jobs: int = 1
    ray: str | None = None

    @property
    def alone(self) -> bool:
        return self.jobs == 1 and self.ray is None

    def map(self, function: Callable[[Thing], Found], things: Sequence[Thing]) -> Iterator[Found]:
        """`function` must be one of a module, so that others can import it."""
        if self.alone:
            return map(function, things)
        return self._on_ray(function, things) if self.ray is not None else self._in_processes(function, things)

    def _in_processes(self, function: Callable[[Thing], Found], things: Sequence[Thing]) -> Iterator[Found]:
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import get_context

        before = {name: os.environ.get(name) for name in THREADS}
        os.environ.update(THREADS)  # the processes inherit it
        pool = ProcessPoolExecutor(self.jobs, mp_context=get_context("spawn"), initializer=_leave_interrupts)
        try:
            yield from _in_order(lambda one: pool.submit(function, one), lambda one: one.result(), things, self.jobs)
        except BrokenProcessPool:
            raise InputError(
                "A worker process died (out of memory?); run the command again with fewer --jobs."
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def _on_ray(self, function: Callable[[Thing], Found], things: Sequence[Thing]) -> Iterator[Found]:
        from bcd4rec.runner.on_ray import LOCAL, cluster, importable

        with ExitStack() as end:
            ray = end.enter_context(cluster(str(self.ray), self.jobs or None))
            there = int(ray.cluster_resources().get("CPU", 1))
            variables = THREADS | (importable() if self.ray == LOCAL else {})
            remote: Any = ray.remote(num_cpus=1)(function).options(runtime_env={"env_vars": variables})
            yield from _in_order(remote.remote, ray.get, things, min(self.jobs, there) if self.jobs else there)


ALONE = Helpers()


def _in_order(
    begin: Callable[[Any], Any], result: Callable[[Any], Any], things: Sequence[Any], size: int
) -> Iterator[Any]:
    """Results in order; a few more are begun than workers are there, so that none of them waits."""
    under_way: deque[Any] = deque()
    for one in things:
        under_way.append(begin(one))
        if len(under_way) > size + 1:
            yield result(under_way.popleft())
    while under_way:
        yield result(under_way.popleft())


def _leave_interrupts() -> None:
    """Ctrl-C is for the process that started the others."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
