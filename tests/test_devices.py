"""Nothing in an update assumes the CPU: on a GPU if there is one, and here by a default device that holds nothing."""

import numpy as np
import pytest
import torch

from bcd4rec.agents.agent import AGENTS
from bcd4rec.data.dataset import Dataset
from bcd4rec.models import large
from bcd4rec.models.bigru import BiGRU
from bcd4rec.training import Trainer, take
from bcd4rec.workflows.fitting import fit, with_preset
from test_evidence_agent import dataset_of, frame_of

EMBEDDED = {"dimension": 6, "pretraining_epochs": 0, "behaviour_epochs": 0, "batch_size": 8, "updates": 4}
EVIDENCE = {"batch_size": 8, "updates": 4}
CASES = {
    "evidence": ("bcd4rec", EVIDENCE),
    "evidence, fixed": ("qrbcq", EVIDENCE),
    "conservative": ("cql", EVIDENCE),
    "actor": ("crr", EVIDENCE),
    "paper": ("bcd4rec", with_preset("bcd4rec", "paper", EMBEDDED)),
    "paper, conservative": ("cql", with_preset("cql", "paper", EMBEDDED)),
    "paper, actor": ("crr", with_preset("crr", "paper", EMBEDDED)),
    "joint": ("bcq", EMBEDDED | {"evidence": False, "behaviour": "joint", "encoder": "srgnn"}),
    "gru": ("iqn", EMBEDDED | {"evidence": False, "encoder": "gru", "pooling": True}),
    "mean": ("qrbcq", EMBEDDED | {"evidence": False, "encoder": "meanpool", "freeze_embeddings": False}),
}
every_case = pytest.mark.parametrize("case", CASES)
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU on this machine")


def log() -> Dataset:
    rng = np.random.default_rng(1)
    rows = [
        (session, step, place, int(item), "click" if rng.random() < 0.4 else "skip")
        for session in range(30)
        for step in range(3)
        for place, item in enumerate(rng.choice(12, 3, replace=False))
    ]
    return dataset_of(frame_of(rows), {"skip": 0.0, "click": 1.0})


LOG = log()


@pytest.mark.parametrize("catalogue", ["small", "large"])
@every_case
def test_tensors_are_made_where_the_network_is(case: str, catalogue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that is made without a device goes to the device `meta`, and nothing can be computed with it."""
    monkeypatch.setattr(large, "LARGE", 5 if catalogue == "large" else large.LARGE)
    monkeypatch.setattr(BiGRU, "compiled", False)  # as on a GPU
    name, settings = CASES[case]
    trainer = Trainer(AGENTS[name].parse(settings, "test"), LOG, 0)
    with torch.device("meta"):
        trainer.agent.begin_period(trainer.transitions.next_state, copy_target=True)
        update = trainer.agent.update(take(trainer.transitions, trainer.usable[:8]), 0)
    assert np.isfinite(update.loss)


@gpu
@every_case
def test_a_gpu_learns_what_the_cpu_learns(case: str) -> None:
    name, settings = CASES[case]
    found = [fit(name, LOG, settings, search="none", device=device).scorer for device in ("cpu", "cuda")]
    scores = [one.scores(LOG.states) for one in found]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-2, atol=1e-3)
