"""One contestant of `bench.agents` in a process of its own: `python -m bench._agent_worker KIND ITEMS SESSIONS`.

It says `ready`, and then answers each line, a number of updates, with the seconds that they took; at the end of its
input it says how many GiB it has used at most. KIND is `ours`, `large` (ours with short allowed sets and a sampled
softmax) or `plain`.
"""

import resource
import sys
import time
from collections.abc import Callable

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from bcd4rec.agents.agent import AGENTS, AgentConfig
from bcd4rec.data.dataset import Dataset
from bcd4rec.data.states import HISTORY, IntArray, States
from bcd4rec.data.transitions import window
from bcd4rec.models.bigru import BiGRU
from bcd4rec.models.srgnn import SRGNN
from bcd4rec.training import Trainer

BATCH, WIDTH, QUANTILES, COSINES = 64, 100, 10, 64
BETA, GAMMA, TARGET_EVERY = 0.5, 0.9, 100
STEPS, SLATE, CLICKED = 20, 7, 0.65  # requests of a session, items of a slate, share of slates with a click

Columns = dict[str, IntArray]


def make_log(items: int, sessions: int, rng: np.random.Generator) -> tuple[Columns, IntArray]:
    """Transitions of sessions shaped like the simulator's, and their states: a skip leaves the state as it is."""
    clicks = rng.random((sessions, STEPS)) < CLICKED
    shown = rng.integers(items, size=(sessions, STEPS, SLATE), dtype=np.int32)
    before = np.cumsum(clicks, axis=1) - clicks + (STEPS + 1) * np.arange(sessions)[:, None]  # one state per click
    place = rng.integers(SLATE, size=clicks.shape)[..., None]
    clicked = clicks[..., None] & (np.arange(SLATE) == place)  # (sessions, steps, slate)
    first = np.append(0, np.cumsum(clicks.sum(axis=1)))[:-1]
    liked = first[:, None] + np.minimum(np.arange(STEPS + 1), clicks.sum(axis=1)[:, None])
    table = window(shown[clicked], liked.ravel(), np.repeat(first, STEPS + 1), HISTORY)
    columns = {
        "session": np.broadcast_to(np.arange(sessions)[:, None, None], shown.shape),
        "step": np.broadcast_to(np.arange(STEPS)[:, None], shown.shape),
        "state": np.broadcast_to(before[..., None], shown.shape),
        "action": shown,
        "clicked": clicked,
        "next_state": before[..., None] + clicked,
    }
    return {name: column.ravel().astype(np.int32) for name, column in columns.items()}, table


def make_dataset(items: int, sessions: int) -> Dataset:
    log, table = make_log(items, sessions, np.random.default_rng(0))
    frame = pl.DataFrame(
        {
            "session": log["session"].astype(np.uint32),
            "step": log["step"].astype(np.uint32),
            "state": log["state"],
            "action": log["action"],
            "response": log["clicked"].astype(np.uint8),
            "reward": log["clicked"].astype(np.float32) * 4,
            "next_state": log["next_state"],
            "discount": np.where(log["step"] < STEPS - 1, GAMMA, 0).astype(np.float32),
            "propensity": np.full(len(log["step"]), 1 / items, np.float32),
            "position": np.tile(np.arange(SLATE, dtype=np.int32), len(log["step"]) // SLATE),
            "organic": np.zeros(len(log["step"]), np.bool_),
        }
    )
    manifest = {
        "responses": {"rewards": {"skip": 0.0, "click": 4.0}},
        "config": {"gamma": GAMMA},
        "content_hash": "bench",
    }
    names = pl.DataFrame({"item_id": np.arange(items), "category": pl.Series([None] * items, dtype=pl.Int32)})
    split = pl.DataFrame({"session_id": np.arange(sessions), "split": ["train"] * sessions})
    return Dataset(manifest, names, split, frame, States(table, table[:, :0]))


def settings(large: bool) -> AgentConfig:
    """A hard target, as d3rlpy has; where the catalogue is large, short allowed sets and a sampled softmax."""
    shape = {
        "evidence": False,
        "encoder": "bigru",
        "dimension": WIDTH,
        "quantiles": QUANTILES,
        "cosines": COSINES,
        "beta": BETA,
    }
    training = {"batch_size": BATCH, "target": "hard", "target_every": TARGET_EVERY, "updates": 10**9}
    before = {"pretraining": "none", "behaviour": "frozen", "behaviour_epochs": 1}
    limits = {"allowed_limit": 100, "negatives": 1000} if large else {}
    return AGENTS["bcd4rec"].parse(shape | training | before | limits, "bench")


def ours(dataset: Dataset, large: bool) -> Callable[[int], float]:
    """The product's own loop: drawing batches, caching the target's states, updates."""
    trainer = Trainer(settings(large), dataset)
    _ = trainer.agent.allowed  # computed once, before the first update
    trainer.validation = trainer.validation[:1]  # a report is no part of an update
    reports = trainer.run(report_every=TARGET_EVERY)

    def updates(count: int) -> float:
        assert count == TARGET_EVERY, "each period has its share of preparation"
        began = time.process_time()
        next(reports)
        return time.process_time() - began

    return updates


class PlainNetwork(nn.Module):
    """Q^τ(s, a) for all items, as the formula stands."""

    def __init__(self, embeddings: Tensor):
        super().__init__()
        self.embeddings = nn.Parameter(embeddings, requires_grad=False)
        self.encoder = BiGRU(WIDTH, WIDTH)
        self.linear = nn.Linear(COSINES, WIDTH)

    def forward(self, sessions: Tensor) -> tuple[Tensor, Tensor]:
        """(B, K, A) quantiles of every item and their fractions (B, K)."""
        taus = torch.rand(len(sessions), QUANTILES)
        cosines = torch.cos(taus.unsqueeze(2) * (torch.pi * torch.arange(COSINES)))
        states = self.encoder(sessions, self.embeddings).unsqueeze(1) * torch.relu(self.linear(cosines))
        return states @ self.embeddings.T, taus


def plain(dataset: Dataset) -> Callable[[int], float]:
    """Algorithm 1 as it is written down: M is evaluated at every step, and every state is encoded.

    The encoder is ours, so that the ratio shows what the other shortcuts give.
    """
    transitions, positives = dataset.transitions("train"), dataset.states.positives
    embeddings = 0.3 * torch.randn(dataset.n_items, WIDTH)
    network, target, behaviour = PlainNetwork(embeddings), PlainNetwork(embeddings), SRGNN(WIDTH, WIDTH)
    optimiser = torch.optim.Adam([one for one in network.parameters() if one.requires_grad])
    rng, steps = np.random.default_rng(0), 0

    def update() -> None:
        rows = rng.integers(len(transitions), size=BATCH)
        sessions, following = (
            torch.from_numpy(positives[ids[rows]]) for ids in (transitions.state, transitions.next_state)
        )
        each = torch.arange(BATCH)
        with torch.no_grad():
            likely = torch.log_softmax(behaviour(following, embeddings) @ embeddings.T, dim=1)
            allowed = likely - likely.max(dim=1, keepdim=True).values >= np.log(BETA)
            best = network(following)[0].mean(dim=1).masked_fill(~allowed, -torch.inf).argmax(dim=1)
            reward, discount = (
                torch.from_numpy(one[rows])[:, None] for one in (transitions.reward, transitions.discount)
            )
            goal = reward + discount * target(following)[0][each, :, best]
        quantiles, taus = network(sessions)
        errors = (
            goal[:, None] - quantiles[each, :, torch.from_numpy(transitions.action[rows].astype(np.int64))][:, :, None]
        )
        weights = (taus[:, :, None] - (errors.detach() < 0).float()).abs()
        huber = nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")
        optimiser.zero_grad()
        (weights * huber).sum(dim=1).mean().backward()
        nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimiser.step()

    def updates(count: int) -> float:
        nonlocal steps
        began = time.process_time()
        for _ in range(count):
            if steps % TARGET_EVERY == 0:
                target.load_state_dict(network.state_dict())
            update()
            steps += 1
        return time.process_time() - began

    return updates


def main(kind: str, items: int, sessions: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dataset = make_dataset(items, sessions)
    updates = plain(dataset) if kind == "plain" else ours(dataset, kind == "large")
    print("ready", flush=True)
    for line in sys.stdin:
        print(updates(int(line)), flush=True)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
