"""Encoders, heads, the softmax over items and pre-training."""

import itertools
import math

import numpy as np
import pytest
import torch

from bcd4rec.data.sequences import Sequences
from bcd4rec.data.states import PAD, States
from bcd4rec.models.encoder import ENCODERS
from bcd4rec.models.heads import Head, make_head, midpoints
from bcd4rec.models.next_item import Examples, NextItem, fit
from bcd4rec.models.pretraining import neighbours, prefixes, pretrain, standardise
from bcd4rec.models.q_network import QNetwork, QNetworkConfig
from bcd4rec.models.srgnn import SRGNN, session_graph

SESSIONS = [[3, 1, 3, 5], [], [2], [4, 4, 4], [0, 1, 2, 3, 4, 5]]
ITEMS, WIDTH, OUTPUTS = 7, 6, 8


def embeddings() -> torch.Tensor:
    return torch.randn(ITEMS, WIDTH, generator=torch.Generator().manual_seed(0))


def padded(sessions, length=8):
    return torch.from_numpy(States.of(sessions, length).positives)


@pytest.mark.parametrize("name", ENCODERS.names())
class TestEncoder:
    def make(self, name):
        torch.manual_seed(1)
        return ENCODERS[name](WIDTH, OUTPUTS)

    def test_padding_does_not_enter(self, name):
        encoder = self.make(name)
        short, long = (encoder(padded(SESSIONS, length), embeddings()) for length in (6, 11))
        assert short.shape == (5, OUTPUTS)
        torch.testing.assert_close(short, long)

    def test_sessions_do_not_mix(self, name):
        encoder = self.make(name)
        together = encoder(padded(SESSIONS), embeddings())
        alone = torch.cat([encoder(padded([one]), embeddings()) for one in SESSIONS])
        torch.testing.assert_close(together, alone)

    def test_the_empty_session_has_a_learned_state(self, name):
        encoder = self.make(name)
        states = encoder(padded([[], [1], []]), embeddings())
        assert torch.equal(states[0], states[2])
        assert not torch.equal(states[0], states[1])
        states[0].square().sum().backward()
        assert any(one.grad is not None and one.grad.abs().sum() > 0 for one in encoder.parameters())
        torch.testing.assert_close(encoder(padded([[]]), embeddings())[0], states[0])

    def test_items_matter_and_gradients_reach_everything(self, name):
        encoder, table = self.make(name), embeddings().requires_grad_()
        states = encoder(padded(SESSIONS), table)
        assert len(torch.unique(states.detach(), dim=0)) == 5
        states.square().sum().backward()
        assert all(one.grad is not None for one in encoder.parameters())
        assert (table.grad[:6].abs().sum(dim=1) > 0).all()
        assert table.grad[6].abs().sum() == 0


def loop_srgnn(encoder: SRGNN, session: list[int], table: torch.Tensor) -> torch.Tensor:
    """SR-GNN of one session, node by node."""
    nodes = list(dict.fromkeys(session))
    hidden = {node: table[node] for node in nodes}
    edges = list(itertools.pairwise(session))
    updated = {}
    for node in nodes:
        before, after = torch.zeros(WIDTH), torch.zeros(WIDTH)
        for start, end in edges:
            if end == node:
                before = before + encoder.from_before(hidden[start]) / sum(e == node for _, e in edges)
            if start == node:
                after = after + encoder.from_after(hidden[end]) / sum(s == node for s, _ in edges)
        updated[node] = encoder.gate(torch.cat([before, after])[None], hidden[node][None])[0]
    last, summary = updated[session[-1]], torch.zeros(WIDTH)
    for item in session:
        score = encoder.attention(torch.sigmoid(encoder.attend_last(last) + encoder.attend_item(updated[item])))
        summary = summary + score * updated[item]
    return encoder.linear(torch.cat([last, summary]))


def test_srgnn_equals_a_plain_loop():
    torch.manual_seed(2)
    encoder, table = SRGNN(WIDTH, OUTPUTS), embeddings()
    sessions = [one for one in SESSIONS if one]
    expected = torch.stack([loop_srgnn(encoder, one, table) for one in sessions])
    torch.testing.assert_close(encoder(padded(sessions), table), expected)


def test_session_graph_by_hand():
    place, incoming, outgoing = session_graph(torch.tensor([[3, 1, 3, 5, PAD]]))
    assert place[0, :4].tolist() == [0, 1, 0, 3]
    assert outgoing[0, 0].tolist() == [0, 0.5, 0, 0.5, 0]  # 3 is followed by 1 and by 5
    assert incoming[0, 0].tolist() == [0, 1, 0, 0, 0]  # 3 is preceded by 1
    assert outgoing[0, 2].sum() == outgoing[0, 3].sum() == outgoing[0, 4].sum() == 0


def test_bigru_reads_the_session_in_both_directions():
    torch.manual_seed(1)
    encoder, table = ENCODERS["bigru"](WIDTH, OUTPUTS), embeddings()
    gru, session = encoder.gru, [3, 1, 5]
    _, hidden = gru(table[session][None])
    expected = encoder.linear(torch.cat([hidden[-2], hidden[-1]], dim=1))
    torch.testing.assert_close(encoder(padded([session]), table), expected)
    assert gru.num_layers == 2
    assert gru.hidden_size == WIDTH // 2


def test_layers_are_for_the_encoders_that_have_them():
    def weights(encoder, layers):
        config = QNetworkConfig(head="expected", encoder=encoder, layers=layers)
        return set(QNetwork(embeddings().numpy(), config).encoder.state_dict())

    assert weights("bigru", 3) - weights("bigru", 2) >= {"gru.weight_ih_l2", "gru.weight_hh_l2_reverse"}
    assert weights("meanpool", 3) == weights("meanpool", 2)


@pytest.mark.parametrize(("name", "count"), [("expected", 1), ("fixed", 4), ("implicit", 3)])
def test_the_mean_vector_gives_the_mean_over_quantiles(name, count):
    torch.manual_seed(4)
    head = stirred(make_head(name, WIDTH, 4 if name == "fixed" else 3, 8))
    states, actions = torch.randn(5, WIDTH), torch.randn(5, WIDTH)
    fractions = 32 if head.samples_taus else head.count  # the mean vector of implicit quantiles is over 32 fractions
    quantiles = head.quantiles(states, actions, midpoints(fractions).expand(5, -1))
    assert quantiles.shape == (5, fractions)
    assert head.count == count
    torch.testing.assert_close((head.mean_vector(states) * actions).sum(dim=1), quantiles.mean(dim=1))


def stirred(head: Head) -> Head:
    """With weights that are not those of the start."""
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += torch.randn_like(parameter)
    return head


def test_fixed_quantiles_equal_a_plain_loop():
    torch.manual_seed(6)
    head = stirred(make_head("fixed", WIDTH, 3, 4))
    states, actions = torch.randn(2, WIDTH), torch.randn(2, WIDTH)
    found = head.quantiles(states, actions, midpoints(3).expand(2, -1))
    assert found.shape == (2, 3)
    for b in range(2):
        for n in range(3):
            total = 0.0
            for j in range(WIDTH):
                moved = states[b, j].item() * head.scale[n, j].item() + head.bias[n, j].item()
                total += moved * actions[b, j].item()
            assert found[b, n].item() == pytest.approx(total, rel=1e-4, abs=1e-6)


def test_implicit_quantiles_equal_a_plain_loop():
    torch.manual_seed(5)
    head = make_head("implicit", WIDTH, 3, 4)
    states, actions, taus = torch.randn(2, WIDTH), torch.randn(2, WIDTH), torch.rand(2, 3)
    weight, bias = head.linear.weight, head.linear.bias
    for b in range(2):
        for n in range(3):
            total = 0.0
            for j in range(WIDTH):
                phi = sum(math.cos(math.pi * i * taus[b, n].item()) * weight[j, i].item() for i in range(4))
                total += max(phi + bias[j].item(), 0.0) * states[b, j].item() * actions[b, j].item()
            assert head.quantiles(states, actions, taus)[b, n].item() == pytest.approx(total, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("state_value", [False, True])
@pytest.mark.parametrize("head", ["expected", "fixed", "implicit"])
def test_network_values_agree_with_each_other(head, state_value):
    torch.manual_seed(6)
    config = QNetworkConfig(head=head, quantiles=4, cosines=5, encoder="meanpool", state_value=state_value)
    network = QNetwork(embeddings().numpy(), config)
    states = network.encode_states(States.of(SESSIONS))
    values = network.mean_values(states)
    assert values.shape == (5, ITEMS)
    items = torch.tensor([[6, 0], [1, 1], [2, 3], [5, 4], [0, 6]])
    torch.testing.assert_close(network.item_values(states, items), values.gather(1, items))
    ranked = (network.preferences(states) @ network.embeddings.T).argsort(dim=1)
    assert torch.equal(ranked, values.argsort(dim=1))


def test_pooling_adds_the_sums_of_positives_and_skips_to_the_state():
    torch.manual_seed(7)
    skips = np.array([[2, PAD, PAD], [PAD, PAD, PAD], [1, 1, 6], [0, 3, PAD], [5, PAD, PAD]], np.int32)
    states = States(States.of(SESSIONS).positives, skips)
    network = QNetwork(embeddings().numpy(), QNetworkConfig(head="expected", encoder="meanpool", pooling=True))
    network.gains.data = torch.tensor([0.5, 2.0, -3.0])
    encoded, table = network.encode_states(states), embeddings()
    for row, session in enumerate(SESSIONS):
        plain = 0.5 * network.encoder(padded([session], 10), table)[0]
        for item in session:
            plain[:WIDTH] += 2.0 * table[item] / 10
        for item in skips[row]:
            plain[:WIDTH] += -3.0 * table[item] / 3 if item != PAD else 0
        torch.testing.assert_close(encoded[row], plain)
    without = QNetwork(embeddings().numpy(), QNetworkConfig(head="expected", encoder="meanpool", pooling=False))
    assert torch.equal(without.encode_states(states), without.encoder(torch.from_numpy(states.positives), table))


def test_softmax_loss_equals_a_plain_loop_and_encodes_each_session_once(monkeypatch):
    torch.manual_seed(8)
    model = NextItem(embeddings().numpy())
    rows = np.array([2, 0, 2, 4, 0, 2], np.int32)
    items = np.array([1, 6, 5, 0, 6, 1], np.int32)
    examples = Examples.group(States.of(SESSIONS).positives, rows, items)
    assert len(examples) == 3
    logs = model.log_probabilities(padded(SESSIONS, 10))
    expected = -sum(logs[row, item].item() for row, item in zip(rows, items, strict=True))
    assert model.loss(*examples.take(np.arange(3))).item() == pytest.approx(expected, rel=1e-5)
    assert model.loss(*examples.take(np.array([2, 0]))).item() == pytest.approx(
        -(logs[4, 0] + 2 * logs[0, 6]).item(), rel=1e-5
    )


def test_sampled_softmax_approaches_the_full_one():
    torch.manual_seed(8)
    model = NextItem(embeddings().numpy())
    examples = Examples.group(States.of(SESSIONS).positives, np.arange(5, dtype=np.int32), np.arange(5, dtype=np.int32))
    batch = examples.take(np.arange(5))
    every = torch.arange(ITEMS).repeat(1000)
    full, sampled = model.loss(*batch).item(), model.loss(*batch, every).item()
    # The positive item is counted once more beside the sample, so the estimate lies above, by log(1 + p) each.
    extra = torch.log1p(model.log_probabilities(batch[0]).exp()[batch[2], batch[1]]).sum().item()
    assert sampled == pytest.approx(full + extra, rel=1e-4)


def test_the_behaviour_model_learns_the_logging_policy():
    torch.manual_seed(9)
    rng = np.random.default_rng(0)
    wanted = np.array([[0.7, 0.1, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 0.5, 0.5]])
    rows = rng.integers(3, size=3000).astype(np.int32)
    items = np.array([rng.choice(4, p=wanted[row]) for row in rows], np.int32)
    model = NextItem(rng.standard_normal((4, 8)).astype(np.float32) * 0.3)
    sessions = States.of([[], [0], [1, 2]]).positives
    losses = []
    fit(model, Examples.group(sessions, rows, items), rng, epochs=300, learning_rate=1e-2, notify=losses.append)
    learned = model.log_probabilities(torch.from_numpy(sessions)).exp().detach().numpy()
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(learned, wanted, atol=0.05)


def two_groups(sessions: int, seed: int) -> Sequences:
    """Sessions that stay among the items 0-4 or among 5-9."""
    rng = np.random.default_rng(seed)
    return Sequences.of([(rng.integers(5, size=6) + 5 * rng.integers(2)).tolist() for _ in range(sessions)])


@pytest.mark.parametrize("kind", ["srgnn", "item2vec", "svd"])
def test_pretraining_puts_items_of_the_same_sessions_together(kind):
    def learn():
        torch.manual_seed(10)
        return pretrain(kind, two_groups(150, 0), 10, 8, np.random.default_rng(1), epochs=60)

    result = standardise(learn(), 0.5)
    assert result.shape == (10, 8)
    assert np.sqrt(np.mean(result**2)) == pytest.approx(0.5, rel=1e-5)
    unit = result / np.linalg.norm(result, axis=1, keepdims=True)
    closeness = unit @ unit.T
    same = np.kron(np.eye(2), np.ones((5, 5))).astype(bool) & ~np.eye(10, dtype=bool)
    other = np.kron(1 - np.eye(2), np.ones((5, 5))).astype(bool)
    assert closeness[same].mean() > closeness[other].mean() + 0.5
    assert np.array_equal(learn(), learn())


def test_prefixes_and_neighbours_by_hand():
    sequences = Sequences.of([[4, 2, 9], [7], [1, 3]])
    examples = prefixes(sequences, 2)
    assert examples.sessions.tolist() == [[4, PAD], [4, 2], [1, PAD]]
    assert examples.items.tolist() == [2, 9, 3]
    pairs = sorted(zip(*(part.tolist() for part in neighbours(sequences, 1)), strict=True))
    assert pairs == sorted([(4, 2), (2, 4), (2, 9), (9, 2), (1, 3), (3, 1)])
