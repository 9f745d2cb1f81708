"""The compiled bidirectional GRU against torch's own over packed sequences."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from bcd4rec.models.bigru import BiGRU
from bcd4rec.models.recurrence import Packing, final_states


def packed_states(gru: nn.GRU, vectors: Tensor, lengths: Tensor) -> Tensor:
    _, hidden = gru(pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False))
    return torch.cat([hidden[-2], hidden[-1]], dim=1)


@pytest.mark.parametrize(("layers", "lengths"), [(1, [3]), (2, [2, 6, 1, 6, 4, 1, 5]), (3, [1, 1]), (2, [4, 4, 4])])
def test_states_and_gradients_are_those_of_torch(layers, lengths):
    torch.manual_seed(0)
    width, units, steps = 5, 3, 6
    gru = nn.GRU(width, units, layers, batch_first=True, bidirectional=True).double()
    vectors = torch.randn(len(lengths), steps, width, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(len(lengths), 2 * units, dtype=torch.float64)
    found, expected = (states(gru, vectors, torch.tensor(lengths)) for states in (final_states, packed_states))
    torch.testing.assert_close(found, expected)
    inputs = [vectors, *gru.parameters()]
    for one, other in zip(*(torch.autograd.grad((x * weights).sum(), inputs) for x in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_what_stands_behind_the_end_of_a_session_is_not_looked_at():
    torch.manual_seed(0)
    gru = nn.GRU(5, 3, 2, batch_first=True, bidirectional=True)
    vectors = torch.randn(2, 4, 5)
    clean = final_states(gru, vectors, torch.tensor([2, 4]))
    vectors[0, 2:] = torch.nan
    assert torch.equal(final_states(gru, vectors, torch.tensor([2, 4])), clean)


def test_large_gates_saturate_and_stay_finite():
    gru = nn.GRU(2, 3, batch_first=True, bidirectional=True)
    for sign in (1, -1):
        vectors = torch.full((2, 4, 2), sign * 1e4, requires_grad=True)
        states = final_states(gru, vectors, torch.tensor([4, 1]))
        states.sum().backward()
        torch.testing.assert_close(states, packed_states(gru, vectors, torch.tensor([4, 1])))
        assert vectors.grad is not None
        assert vectors.grad.isfinite().all()


def test_packing_follows_each_session_from_both_ends():
    lengths = [2, 5, 1, 3]
    packing = Packing.of(torch.tensor(lengths))
    for rank, length in enumerate(sorted(lengths, reverse=True)):
        rows = [row for row in range(sum(lengths)) if packing.session[row] == rank]
        assert packing.step[rows].tolist() == list(range(length))
        assert packing.places[1, rows].tolist() == rows[::-1]
        assert packing.last[rank] == rows[-1]
        assert [int(packing.before[row - len(lengths)]) for row in rows[1:]] == rows[:-1]


def test_training_and_serving_encode_alike():
    torch.manual_seed(0)
    encoder, table = BiGRU(6, 7), torch.randn(9, 6)
    items = torch.from_numpy(np.array([[3, 1, -1, -1], [-1, -1, -1, -1], [8, 8, 0, 2]], np.int32))
    trained = encoder(items, table)
    with torch.no_grad():
        torch.testing.assert_close(encoder(items, table), trained)


STEPS = """
import hashlib, torch
from bcd4rec.models.recurrence import final_states
torch.set_num_threads(1)
torch.manual_seed(0)
gru = torch.nn.GRU(5, 3, 2, batch_first=True, bidirectional=True)
optimiser = torch.optim.AdamW(gru.parameters(), 1e-2, fused=True)
vectors, lengths = torch.randn(7, 6, 5), torch.tensor([2, 6, 1, 6, 4, 1, 5])
for _ in range(5):
    optimiser.zero_grad()
    final_states(gru, vectors, lengths).square().sum().backward()
    optimiser.step()
print(hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in gru.parameters())).hexdigest())
"""


def test_the_same_bits_whether_the_code_was_compiled_now_or_read_from_the_cache(tmp_path: Path) -> None:
    found = []
    for _ in range(2):  # the first fills the cache, the second finds it
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
        found.append(subprocess.run([sys.executable, "-c", STEPS], env=environment, check=True, capture_output=True))
        assert list(tmp_path.rglob("*recurrence*"))
    assert found[0].stdout == found[1].stdout
    assert len(found[0].stdout) == 65
