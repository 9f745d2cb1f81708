"""One root seed, any number of named independent streams.

`generator(7, "users")` and `generator(7, "choices")` never share numbers, and adding a stream changes no other.
"""

import hashlib

import numpy as np


def stream_seed(seed: int, *names: str | int) -> int:
    """A 128-bit seed for the stream called `names` under the root `seed`; stable across machines and versions."""
    text = "/".join([str(int(seed)), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """The generator of one named stream."""
    return np.random.Generator(np.random.PCG64(stream_seed(seed, *names)))
