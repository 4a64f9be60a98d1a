"""Random keys, and the shuffle of an epoch as a function of the position."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

FEISTEL_ROUNDS = 6


def random_key(*parts: int | str) -> int:
    """Return 63 bits that depend on every part and on nothing else: not on the process, not on
    Python's own hashing.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def shuffle_indices(
    positions: npt.NDArray[np.int64], *, size: int, key: int
) -> npt.NDArray[np.int64]:
    """Return the row index at each position of an epoch, by a random permutation of range(size)
    that is never stored.

    A Feistel network permutes the next even power of two; an index outside of range(size) is sent
    through again until it is inside. A table would cost 8 GB for a billion rows, on every process.
    """
    half = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    low = (np.uint64(1) << half) - np.uint64(1)
    keys = [np.uint64(random_key(key, number)) for number in range(FEISTEL_ROUNDS)]
    indices = positions.astype(np.uint64)
    outside = np.ones(len(indices), dtype=bool)
    while outside.any():
        left, right = indices[outside] >> half, indices[outside] & low
        for round_key in keys:
            left, right = right, left ^ (splitmix64(right ^ round_key) & low)
        indices[outside] = (left << half) | right
        outside = indices >= size
    return indices.astype(np.int64)


def permutation(size: int, *key: int | str) -> npt.NDArray[np.int64]:
    """Return range(size) in a random order, which the key alone decides."""
    return shuffle_indices(np.arange(size), size=size, key=random_key(*key))


def splitmix64(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix 64-bit numbers so that every output bit depends on every input bit (the finaliser of
    SplitMix64); unsigned products wrap on purpose.
    """
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
