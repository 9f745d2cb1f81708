"""The encoder that shares one network over all axes, against a plain loop."""

import torch

from bcd4rec.models.tastes import DIRECTIONS, LATE_POSITIVES, LATE_SKIPS, SIZES, Monotone, Tastes

BATCH, HISTORY, SKIPS, ITEMS, WIDTH = 3, 5, 11, 13, 4


def plain(encoder: Tastes, liked: list[int], skipped: list[int], embeddings: torch.Tensor) -> torch.Tensor:
    entries, rest = [], []
    for axis in range(WIDTH):
        column = embeddings[:, axis].tolist()
        inputs = [
            sum(column[item] for item in liked),
            sum(column[item] for item in liked[-LATE_POSITIVES:]),
            sum(column[item] for item in skipped),
            sum(column[item] for item in skipped[-LATE_SKIPS:]),
            float(len(liked)),
            float(len(skipped)),
        ]
        scaled = [value / size for value, size in zip(inputs, SIZES, strict=True)]
        nothing = [0.0] * 4 + scaled[4:]
        entries.append(monotone(encoder.taste, scaled) - monotone(encoder.taste, nothing))
        rest.append(encoder.rest(torch.tensor(scaled)))
    return torch.cat([torch.tensor(entries), torch.stack(rest).mean(dim=0)])


def monotone(network: Monotone, inputs: list[float]) -> float:
    def bend(values: list[float]) -> list[float]:
        half = len(values) // 2
        return [max(value, 0.0) for value in values[:half]] + [min(value, 0.0) for value in values[half:]]

    def times(value: float, weight: float, direction: float) -> float:
        return value * (direction * abs(weight) if direction else weight)

    first, second, last = network.first, network.second, network.last
    hidden = bend(
        [
            bias + sum(times(*entry) for entry in zip(inputs, row, DIRECTIONS, strict=True))
            for row, bias in zip(first.weight.tolist(), first.bias.tolist(), strict=True)
        ]
    )
    hidden = bend(
        [
            bias + sum(abs(weight) * value for weight, value in zip(row, hidden, strict=True))
            for row, bias in zip(second.weight.tolist(), second.bias.tolist(), strict=True)
        ]
    )
    weighted = sum(abs(weight) * value for weight, value in zip(last.weight[0].tolist(), hidden, strict=True))
    return last.bias.tolist()[0] + weighted


def padded(lists: list[list[int]], width: int) -> torch.Tensor:
    return torch.tensor([one + [-1] * (width - len(one)) for one in lists])


def test_equals_a_plain_loop() -> None:
    torch.manual_seed(0)
    encoder, embeddings = Tastes(WIDTH, WIDTH + 2), torch.randn(ITEMS, WIDTH)
    liked = [[3, 1, 4, 1, 5], [], [9]]
    skipped = [[], [2, 6, 5, 3, 5, 8, 9, 7, 9], [12, 0]]
    found = encoder(padded(liked, HISTORY), embeddings, padded(skipped, SKIPS))
    expected = torch.stack([plain(encoder, *pair, embeddings) for pair in zip(liked, skipped, strict=True)])
    assert found.shape == (BATCH, WIDTH + 2)
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_taste_of_which_nothing_is_known_counts_as_nothing() -> None:
    torch.manual_seed(1)
    encoder, embeddings = Tastes(WIDTH, WIDTH + 1), torch.randn(ITEMS, WIDTH)
    embeddings[:, 2] = 0.0
    states = encoder(padded([[3, 1], []], HISTORY), embeddings, padded([[7], []], SKIPS))
    assert (states[:, :WIDTH] == 0).tolist() == [[False, False, True, False], [True] * 4]


def test_likes_speak_for_a_taste_and_skips_against_it() -> None:
    torch.manual_seed(2)
    network, inputs = Monotone(DIRECTIONS), 2 * torch.randn(500, len(DIRECTIONS))
    moves = {1.0: set(), -1.0: set(), 0.0: set()}  # type: dict[float, set[float]]
    for column, direction in enumerate(DIRECTIONS):
        more = inputs.clone()
        more[:, column] += 0.5
        difference = network(more) - network(inputs)
        moves[direction] |= set(torch.sign(difference[difference.abs() > 1e-6]).tolist())
    assert moves == {1.0: {1.0}, -1.0: {-1.0}, 0.0: {1.0, -1.0}}


def test_axes_may_change_places() -> None:
    """All axes share one network, so permuting the embeddings' axes permutes the state's entries."""
    torch.manual_seed(1)
    encoder, embeddings = Tastes(WIDTH, WIDTH + 1), torch.randn(ITEMS, WIDTH)
    items, order = padded([[3, 1], [7]], HISTORY), torch.tensor([2, 0, 3, 1])
    found, permuted = encoder(items, embeddings), encoder(items, embeddings[:, order])
    assert torch.allclose(found[:, order], permuted[:, :WIDTH], atol=1e-6)
    assert torch.allclose(found[:, WIDTH], permuted[:, WIDTH], atol=1e-6)
