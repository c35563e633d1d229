"""A small mutator for the short runs of the test suite: the same inputs from the same seed, on every machine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

WORDS = [value.to_bytes(4, "big") for value in (0, 1, 2, 3, 4, 16, 64, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF)]


def mutated(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """``data`` with one to four changes."""
    octets = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(octets) + 1)
        match rng.randrange(8):
            case 0 if at < len(octets):
                octets[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(octets):
                octets[at] = rng.randrange(256)
            case 2:
                octets[at & ~3 : (at & ~3) + 4] = rng.choice(WORDS)
            case 3:
                octets[at:at] = rng.randbytes(rng.choice((1, 2, 4, 16)))
            case 4:
                del octets[at : at + rng.choice((1, 2, 4, 24))]
            case 5:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                octets[at:at] = other[start : start + rng.randrange(1, 64)]
            case 6:
                del octets[at:]
            case _:
                octets[at:at] = octets[at : at + rng.choice((4, 16, 64))]
    return bytes(octets)


def inputs(corpus: Sequence[bytes], count: int, largest: int, seed: int = 1) -> Iterator[bytes]:
    """``count`` mutations of the corpus."""
    rng = random.Random(seed)
    for _ in range(count):
        yield mutated(rng, rng.choice(corpus), corpus)[:largest]
