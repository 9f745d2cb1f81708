"""Small policies with random weights, and servers around them."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import torch

import bcd4rec
from bcd4rec.data.responses import Responses
from bcd4rec.data.states import States
from bcd4rec.data.vocabulary import Vocabulary
from bcd4rec.models.behaviour import BehaviourModel
from bcd4rec.models.q_network import QNetwork, QNetworkConfig
from bcd4rec.policies import bundle
from bcd4rec.policies.policy import Memory, Policy
from bcd4rec.policies.quantile_policy import QuantilePolicy
from bcd4rec.policies.scorer import Scorer

ITEMS, WIDTH, LENGTH, SKIPS = 23, 6, 5, 8
VOCABULARY = Vocabulary(pl.Series("item_id", range(ITEMS)))
MEMORY = Memory(length=LENGTH, skips=SKIPS)
RESPONSES = Responses(rewards={"skip": 0, "click": 1, "buy": 5})


def shaken(module: torch.nn.Module) -> None:
    """Every weight away from what it was initialised to, so that none of them can be forgotten unnoticed."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))


def quantile_policy(
    encoder: str, head: str, beta: float = 0.0, form: str = "relative", seed: int = 5, **more: Any
) -> QuantilePolicy:
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    shape = QNetworkConfig.parse({"head": head, "encoder": encoder, "quantiles": 4, "cosines": 7} | more, "test")
    network = QNetwork(rng.normal(size=(ITEMS, WIDTH)).astype(np.float32), shape)
    behaviour = BehaviourModel(rng.normal(size=(ITEMS, 3)).astype(np.float32))
    shaken(network)
    shaken(behaviour)
    return QuantilePolicy(network, 0.7, behaviour, beta, form)  # type: ignore[arg-type]


def whole(scorer: Scorer, **changes: Any) -> Policy:
    """A policy of `ITEMS` items, with `changes` of its parts."""
    counts = np.arange(ITEMS, dtype=np.int32)
    policy = Policy(scorer, VOCABULARY, MEMORY, responses=RESPONSES, popularity=counts, about={"method": "iqn"})
    return replace(policy, **changes)


def states_of(policy: Policy, liked: list[int], skipped: list[int]) -> States:
    """One session by the numbers of its items: first what was skipped, then what was liked, as far as remembered."""
    item = policy.vocabulary.id
    passed = policy.responses.names[0]
    return policy.read([], [*((item(one), passed) for one in skipped), *map(item, liked)]).sessions.states


def saved(scorer: Scorer, folder: Path, **changes: Any) -> Path:
    """The bundle of such a policy, in place of what was there."""
    folder.mkdir(exist_ok=True)
    bundle.write(whole(scorer, **changes), folder)
    return folder


ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(bcd4rec.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


class Running:
    """A server in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]", first: dict[str, Any], said: Path):
        self.process, self.first, self._said = process, first, said
        self.address = str(first["address"])
        self.client = httpx.Client(base_url=self.address, timeout=120)

    @property
    def said(self) -> str:
        return self._said.read_text()

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return self.client.post(
            path, json=body, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )

    def recommend(self, **body: Any) -> dict[str, Any]:
        answer = self.post("/v1/recommend", body)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert isinstance(found, dict)
        return found

    def feedback(self, request_id: str, **responses: str) -> httpx.Response:
        """Responses by item, as `i4="click"`."""
        given = [{"item": int(item[1:]), "response": response} for item, response in responses.items()]
        return self.post("/v1/feedback", {"request_id": request_id, "responses": given})


PATIENT = {"BCD4REC_PATIENCE": "60"}  # a server that waits for its database, however busy the machine is


@contextlib.contextmanager
def serving(scratch: Path, *args: object, environment: dict[str, str] | None = None) -> Iterator[Running]:
    """`bcd4rec serve ARGS` on a free port; it must stop cleanly and without a traceback."""
    said = scratch / "said.txt"
    given = ["serve", *map(str, args), "--port", "0", "--json"]
    if "--database" not in given:
        given += ["--database", str(scratch / "store.sqlite")]
    with said.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "bcd4rec.cli", *given],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=ENVIRONMENT | (environment or {}),
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, said.read_text()
        running = Running(process, json.loads(line), said)
        yield running
        running.client.close()
        process.terminate()
        code = process.wait(timeout=120)
        assert code == 0, (code, said.read_text())
        assert "Traceback" not in said.read_text(), said.read_text()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
