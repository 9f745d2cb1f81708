"""Several workers make the same updates as one, up to rounding; here they are threads with a group of their own."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bcd4rec.agents import together
from bcd4rec.agents.agent import AGENTS
from bcd4rec.agents.presets import preset
from bcd4rec.agents.together import Together
from bcd4rec.data.dataset import Dataset
from bcd4rec.errors import InputError
from bcd4rec.models import large
from bcd4rec.training import Report, Trainer
from test_tuning import dataset  # noqa: F401 (a fixture)

PAPER = preset("paper") | {"updates": 7, "pretraining": "none", "behaviour_epochs": 1, "target_every": 3}
SETTINGS: dict[str, dict[str, Any]] = {
    "the paper's network": PAPER | {"batch_size": 17, "cosines": 8},
    "joint behaviour": PAPER | {"batch_size": 17, "cosines": 8, "behaviour": "joint"},
    "evidence": {"updates": 7, "batch_size": 17, "shrink": 5},
    "drawn rewards, polyak": {"updates": 7, "batch_size": 17, "shrink": 5, "rewards": "model", "target": "polyak"},
}
WORKERS = 3  # 17 rows: 5, 6 and 6


class Threads:
    """What `together` asks of torch's process group, for threads of this process."""

    def __init__(self, size: int):
        self._size, self._here = size, threading.local()
        self._barrier, self._given = threading.Barrier(size, timeout=600), dict[int, torch.Tensor]()

    def enter(self, rank: int) -> None:
        self._here.rank = rank

    def get_rank(self) -> int:
        return int(self._here.rank)

    def get_world_size(self) -> int:
        return self._size

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Trainers are made one after the other here, so there is nobody to agree with."""

    def all_reduce(self, tensor: torch.Tensor) -> None:
        self._given[self.get_rank()] = tensor.clone()
        self._barrier.wait()
        total = sum(self._given[rank] for rank in range(self._size))
        self._barrier.wait()
        tensor.copy_(total)  # type: ignore[arg-type]


def trained(data: Dataset, config: Any, workers: int, begun: Path | None = None) -> tuple[list[Trainer], list[Report]]:
    """The trainers of so many workers after the last update, and the reports of the first."""
    if workers == 1:
        alone = Trainer(config, data, 3, begun)
        return [alone], list(alone.run(2))
    threads = Threads(workers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(together, "group", threads)
        trainers = []
        for rank in range(workers):
            threads.enter(rank)
            trainers.append(Trainer(config, data, 3, begun, together=Together(config.batch_size)))
        reports: dict[int, list[Report]] = {}
        failures: list[BaseException] = []

        def work(rank: int) -> None:
            threads.enter(rank)
            try:
                reports[rank] = list(trainers[rank].run(2))
            except BaseException as error:
                failures.append(error)

        running = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
        for one in running:
            one.start()
        for one in running:
            one.join()
    assert not failures, failures
    return trainers, reports[0]


def values(trainer: Trainer) -> np.ndarray:
    policy = trainer.agent.policy()
    return np.asarray(policy.scores(trainer.material.states[np.arange(20)]))


@pytest.mark.parametrize("name", SETTINGS)
def test_workers_make_the_updates_of_one(name: str, dataset: Path) -> None:  # noqa: F811
    data, config = Dataset.load(dataset), AGENTS["bcd4rec"].parse(SETTINGS[name], "test")
    (alone,), expected = trained(data, config, 1)
    several, found = trained(data, config, WORKERS)
    for one, other in zip(expected, found, strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-4)
        assert other.target_value == pytest.approx(one.target_value, rel=1e-4, abs=1e-6)
        assert other.q_bar == pytest.approx(one.q_bar, rel=1e-4)
    for trainer in several:
        np.testing.assert_allclose(values(trainer), values(alone), rtol=1e-4, atol=1e-5)
    first, *others = (list(one.agent.network.parameters()) for one in several)  # type: ignore[attr-defined]
    for other in others:  # not merely near each other: else they would drift apart
        assert all(torch.equal(*pair) for pair in zip(first, other, strict=True))


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_a_checkpoint_goes_on_with_another_number_of_workers(
    before: int,
    after: int,
    dataset: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    data, config = Dataset.load(dataset), AGENTS["bcd4rec"].parse(SETTINGS["the paper's network"], "test")
    (alone,), _ = trained(data, config, 1)
    saved = saved_midway(data, config, before, tmp_path / "checkpoint")
    found, reports = trained(data, config, after, saved)
    assert reports[-1].step == config.updates
    np.testing.assert_allclose(values(found[0]), values(alone), rtol=1e-4, atol=1e-5)


def saved_midway(data: Dataset, config: Any, workers: int, folder: Path) -> Path:
    """A checkpoint after update 4, amid a period of the target; the first worker saves it."""
    whole = Trainer.run
    saves: Callable[[Trainer], None] = lambda trainer: trainer.save(folder)  # noqa: E731

    def until_four(self: Trainer, every: int) -> Any:
        for report in whole(self, every):
            yield report
            if report.step == 4:
                if self.together is None or self.together.rank == 0:
                    saves(self)
                return

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "run", until_four)
        trained(data, config, workers)
    return folder


def test_what_cannot_be_shared_says_so(dataset: Path) -> None:  # noqa: F811
    data = Dataset.load(dataset)
    with pytest.raises(InputError, match="is trained by one worker; leave --workers out"):
        trained(data, AGENTS["crr"].parse({"updates": 2, "batch_size": 8}, "test"), 2)
    with pytest.raises(InputError, match="A batch of 2 has no row for each of 3 workers"):
        trained(data, AGENTS["bcd4rec"].parse({"updates": 2, "batch_size": 2}, "test"), 3)


def test_updates_by_rows_are_of_one_worker(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(large, "LARGE", 3)
    config = AGENTS["bcd4rec"].parse(SETTINGS["the paper's network"], "test")
    with pytest.raises(InputError, match="updated by rows, which is done by one worker"):
        trained(Dataset.load(dataset), config, 2)
