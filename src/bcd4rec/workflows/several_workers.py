"""One agent trained by several workers of Ray: see `agents.together` for what they do, and why it is the same.

Every worker does all of `fit`; the first one also tells, saves checkpoints and writes the policy.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcd4rec.data.dataset import Dataset
from bcd4rec.errors import InputError
from bcd4rec.runner.on_ray import cluster
from bcd4rec.runner.running import THREADS, attempt
from bcd4rec.runner.store import TaskStore
from bcd4rec.workflows.fitting import Watcher
from bcd4rec.workflows.seeds import How, SeededPolicy

if TYPE_CHECKING:
    from bcd4rec.training import Report, Trainer

CHECKPOINT_SECONDS = 30.0
Told = Callable[[dict[str, Any]], None]


class _Telling(Watcher):
    """Sends every report to whoever started the workers, and saves checkpoints now and then."""

    def __init__(self, queue: Any, checkpoint: Path, every: float):
        self._queue, self._checkpoint, self._every = queue, checkpoint, every
        self._saved = time.monotonic()

    def report(self, trainer: "Trainer", report: "Report") -> None:
        from bcd4rec.training import checkpoint_of

        waited = trainer.together.seconds if trainer.together is not None else 0.0
        self._queue.put(asdict(report) | {"communication_seconds": waited})
        if time.monotonic() - self._saved >= self._every:
            trainer.save(checkpoint_of(trainer.config, self._checkpoint))
            self._saved = time.monotonic()


def train_together(
    task: SeededPolicy,
    store: TaskStore,
    checkpoint: Path,
    resume: bool = False,
    ray: str = "local",
    tell: Told = lambda report: None,
    every: float = CHECKPOINT_SECONDS,
) -> None:
    """Make the task, whose data set comes into the store first. A checkpoint may be of any number of workers."""
    with store.alone(), cluster(ray, task.workers) as found:
        if not store.has(task.data) and (failure := attempt(task.data, store).failure):
            raise InputError(failure)
        if store.has(task):
            return
        gpu = task.device == "cuda"
        free = int(found.cluster_resources().get("GPU" if gpu else "CPU", 0))
        if free < task.workers:
            what = "GPUs" if gpu else "CPUs"
            raise InputError(f"--workers {task.workers}: Ray has {free} {what}; use fewer, or a larger cluster.")
        _fit(task, store, str(checkpoint.absolute()), resume, tell, every)


def _fit(task: SeededPolicy, store: TaskStore, checkpoint: str, resume: bool, tell: Told, every: float) -> None:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.util.queue import Queue

    queue = Queue(actor_options={"num_cpus": 0})
    config = {"task": task, "store": store, "checkpoint": checkpoint, "resume": resume, "queue": queue, "every": every}
    scaling = ScalingConfig(num_workers=task.workers, use_gpu=task.device == "cuda")
    over = threading.Event()
    telling = threading.Thread(target=_pass_on, args=(queue, tell, over), daemon=True)
    telling.start()
    with tempfile.TemporaryDirectory(prefix="bcd4rec-") as own:  # Ray keeps its books there, which we do not need
        try:
            TorchTrainer(
                _work, train_loop_config=config, scaling_config=scaling, run_config=RunConfig(storage_path=own)
            ).fit()
        except Exception as error:
            if (said := _sentence(error)) is not None:
                raise InputError(said) from None
            raise
        finally:
            over.set()
            telling.join()
            queue.shutdown()


def _sentence(error: BaseException) -> str | None:
    """What a worker said was wrong with its input, however deep it lies."""
    seen: list[BaseException] = []
    left: list[BaseException | None] = [error, *getattr(error, "worker_failures", {}).values()]
    while left:
        one = left.pop()
        if one is None or one in seen:
            continue
        if isinstance(one, InputError):
            return str(one.args[0]) if one.args else str(one)
        seen.append(one)
        left += [one.__cause__, one.__context__, getattr(one, "cause", None)]
        left += getattr(one, "worker_failures", {}).values()
    return None


def _pass_on(queue: Any, tell: Told, over: threading.Event) -> None:
    from ray.util.queue import Empty

    while True:
        ending = over.is_set()
        try:
            tell(queue.get(timeout=0.2))
        except Empty:
            if ending:
                return
        except Exception:  # Ray is gone; whoever waits for the workers says why
            return


def _work(config: dict[str, Any]) -> None:
    """On every worker."""
    import torch
    import torch.distributed as group

    os.environ.update(THREADS)
    torch.set_num_threads(1)
    task, store = config["task"], config["store"]
    checkpoint = Path(config["checkpoint"])
    first = group.get_rank() == 0
    watcher = _Telling(config["queue"], checkpoint, config["every"]) if first else Watcher()
    task = replace(task, how=How(watcher, checkpoint if config["resume"] else None))
    if first:
        store.make(task)
    else:
        task.fitted(Dataset.load(store.path(task.data) / task.data.name))
