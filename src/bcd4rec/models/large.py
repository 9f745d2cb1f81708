"""From which size on a catalogue is not scored whole in training.

Up to it everything is exact, and the same seed gives the same bits as without anything that `LARGE` switches on. Above
it, time and memory of an update do not grow with the catalogue: candidates are found and scored exactly, a sample of
the items stands for all of them in a softmax, and gradients and optimisers touch the rows of a table that were used.
"""

LARGE = 50_000  # items


def is_large(n_items: int) -> bool:
    return n_items > LARGE
