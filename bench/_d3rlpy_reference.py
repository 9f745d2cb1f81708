"""d3rlpy's DiscreteBCQ with an IQN Q-function, as a contestant of `bench.agents`; runs where d3rlpy is installed.

`python _d3rlpy_reference.py LOG ITEMS` speaks the language of `bench._agent_worker`. The encoder is the paper's,
written with torch's own packed GRU; batches are cut from arrays, which is quicker than d3rlpy's replay buffer.
"""

import sys
import time
from dataclasses import dataclass

import d3rlpy
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

BATCH, WIDTH, QUANTILES, COSINES = 64, 100, 10, 64
BETA, GAMMA, TARGET_EVERY = 0.5, 0.9, 100


class Encoder(d3rlpy.models.torch.encoders.Encoder):
    """Frozen item embeddings, a bidirectional GRU of two layers, and a state of its own for the empty session."""

    def __init__(self, items: int):
        super().__init__()
        self.embeddings = nn.Parameter(0.3 * torch.randn(items, WIDTH), requires_grad=False)
        self.empty = nn.Parameter(torch.randn(WIDTH) * 0.1)
        self.gru = nn.GRU(WIDTH, WIDTH // 2, 2, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        items = x.long()
        lengths = (items >= 0).sum(dim=1)
        begun = lengths > 0
        vectors = nn.functional.embedding(items[begun].clamp(min=0), self.embeddings)
        packed = pack_padded_sequence(vectors, lengths[begun], batch_first=True, enforce_sorted=False)
        _, hidden = self.gru(packed)
        states = self.linear(torch.cat([hidden[-2], hidden[-1]], dim=1))
        return self.empty.expand(len(items), -1).index_put((begun.nonzero()[:, 0],), states)


@dataclass()
class EncoderFactory(d3rlpy.models.EncoderFactory):
    items: int = 0

    def create(self, observation_shape: object) -> Encoder:
        return Encoder(self.items)

    @staticmethod
    def get_type() -> str:
        return "bigru"


def main(path: str, items: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    log = np.load(path)
    agent = d3rlpy.algos.DiscreteBCQConfig(
        learning_rate=1e-3,
        batch_size=BATCH,
        gamma=GAMMA,
        action_flexibility=BETA,
        target_update_interval=TARGET_EVERY,
        encoder_factory=EncoderFactory(items),
        q_func_factory=d3rlpy.models.IQNQFunctionFactory(
            n_quantiles=QUANTILES, n_greedy_quantiles=QUANTILES, embed_size=COSINES
        ),
    ).create(device="cpu:0")
    agent.create_impl((log["positives"].shape[1],), items)
    positives = log["positives"].astype(np.float32)
    columns = {name: log[name].astype(np.float32)[:, None] for name in ("action", "reward", "terminal")}
    once = np.ones((BATCH, 1), np.float32)
    rng = np.random.default_rng(0)

    def update() -> None:
        rows = rng.integers(len(log_state), size=BATCH)
        action = columns["action"][rows]
        agent.update(
            d3rlpy.dataset.TransitionMiniBatch(
                observations=positives[log_state[rows]],
                actions=action,
                rewards=columns["reward"][rows],
                next_observations=positives[log_next[rows]],
                next_actions=action,
                terminals=columns["terminal"][rows],
                intervals=once,
                transitions=[],
            )
        )

    log_state, log_next = log["state"], log["next_state"]
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.process_time()
        for _ in range(int(line)):
            update()
        print(time.process_time() - began, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
