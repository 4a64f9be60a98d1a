"""Which values dropout keeps: a hash of the value's place under two 32-bit keys, so that nobody has to remember it.

    x = place ⊕ k₁;  x ⊕= x≫16;  x ·= A;  x ⊕= x≫15;  x += k₂;  x ·= B;  x ⊕= x≫16;   kept where x ≥ rate · 2³²

Each line is a bijection of 32 bits that spreads every input bit over the word; one key alone would give all sites of a
network shifted copies of one mask.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

FIRST, SECOND = 0x7FEB352D, 0x846CA68B  # odd, found by others' search for hashes with little bias
WORD = 2**32


@triton.jit
def hashed(place, first_key, second_key):
    x = place.to(tl.uint32) ^ first_key.to(tl.uint32)
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x + second_key.to(tl.uint32)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def kept(place, keys, site, threshold):
    """True where the value at `place` stays; `keys` points at [sites, 2] int32, `threshold` is `cutoff(rate)`."""
    return hashed(place, tl.load(keys + 2 * site), tl.load(keys + 2 * site + 1)) >= threshold.to(tl.uint32)


def cutoff(rate: float) -> int:
    """`rate` as a share of the 32-bit words, in the int32 that a kernel takes."""
    words = round(rate * WORD)
    return words - WORD if words >= WORD // 2 else words


def draw_keys(sites: int, device: torch.device) -> Tensor:
    """[sites, 2] from torch's own generator, so that its seed decides what drops out."""
    return torch.randint(-(2**31), 2**31, (sites, 2), dtype=torch.int32, device=device)


def kept_plainly(places: Tensor, keys: Tensor, site: int, rate: float) -> Tensor:
    """The same in plain torch, for comparison: 64-bit words, cut to 32 after every product."""
    first, second = (int(key) % WORD for key in keys[site])
    x = places.long() ^ first
    x = ((x ^ (x >> 16)) * FIRST) % WORD
    x = (x ^ (x >> 15)) + second
    x = ((x % WORD) * SECOND) % WORD  # wraps in int64; the low 32 bits are right all the same
    return (x ^ (x >> 16)) >= round(rate * WORD)
