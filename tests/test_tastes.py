"""The encoder that shares one network over all axes, against a plain loop."""

import torch

from bcd4rec.models.tastes import LATE_POSITIVES, LATE_SKIPS, SIZES, Tastes

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
        found = encoder.network(torch.tensor([value / size for value, size in zip(inputs, SIZES, strict=True)]))
        entries.append(found[0])
        rest.append(found[1:])
    return torch.cat([torch.stack(entries), torch.stack(rest).mean(dim=0)])


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


def test_axes_may_change_places() -> None:
    """All axes share one network, so permuting the embeddings' axes permutes the state's entries."""
    torch.manual_seed(1)
    encoder, embeddings = Tastes(WIDTH, WIDTH + 1), torch.randn(ITEMS, WIDTH)
    items, order = padded([[3, 1], [7]], HISTORY), torch.tensor([2, 0, 3, 1])
    found, permuted = encoder(items, embeddings), encoder(items, embeddings[:, order])
    assert torch.allclose(found[:, order], permuted[:, :WIDTH], atol=1e-6)
    assert torch.allclose(found[:, WIDTH], permuted[:, WIDTH], atol=1e-6)
