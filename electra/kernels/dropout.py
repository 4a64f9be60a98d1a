"""Which values dropout keeps: a hash of the value's row and column under two 32-bit keys, so that
nobody remembers it.

    word(i) = i ⊕ k₁;  x ⊕= x≫16;  x ·= A;  x ⊕= x≫15;  x += k₂;  x ·= B;  x ⊕= x≫16
    kept where  word(row) · odd word(column) mod 2³² ≥ rate · 2³²

A word is a bijection of 32 bits that spreads every input bit over all; columns take the keys the
other way round. To mix each value like that would cost more than the exponentials of attention. One
product does: with a random odd factor it is the universal hash of Dietzfelbinger and others,
uniform in each argument, and neither rates nor correlations differ from those of independent draws.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

FIRST, SECOND = 0x7FEB352D, 0x846CA68B  # odd, found by others' search for hashes with little bias
WORD = 2**32


class DropoutSite(NamedTuple):
    """One place of the network with dropout: its rate, and the keys that decide what it drops."""

    rate: float
    keys: Tensor  # [sites, 2], of this pass
    key_row: int


@triton.jit
def hash32(place, first_key, second_key):
    x = place.to(tl.uint32) ^ first_key.to(tl.uint32)
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x + second_key.to(tl.uint32)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def random_words(place, keys, site, COLUMNS: tl.constexpr):
    """A random word for each row, or for each column; `keys` points at [sites, 2] int32."""
    first, second = tl.load(keys + 2 * site), tl.load(keys + 2 * site + 1)
    if COLUMNS:
        return hash32(place, second, first) | 1
    return hash32(place, first, second)


@triton.jit
def keep_mask(row_words, column_words, threshold):
    """True where a value stays; the words lie along their axes, `threshold` is `cutoff(rate)`."""
    return row_words * column_words >= threshold.to(tl.uint32)


def drop_threshold(rate: float) -> int:
    """`rate` as a share of the 32-bit words, in the int32 that a kernel takes."""
    words = round(rate * WORD)
    return words - WORD if words >= WORD // 2 else words


def draw_keys(sites: int, device: torch.device) -> Tensor:
    """[sites, 2] from torch's own generator, so that its seed decides what drops out."""
    return torch.randint(-(2**31), 2**31, (sites, 2), dtype=torch.int32, device=device)


def keep_mask_reference(rows: int, columns: int, keys: Tensor, site: int, rate: float) -> Tensor:
    """[rows, columns] the same in plain torch, for comparison."""
    first, second = (int(key) % WORD for key in keys[site])
    places = torch.arange(max(rows, columns), device=keys.device)
    row_words = hash32_reference(places[:rows], first, second)
    column_words = hash32_reference(places[:columns], second, first) | 1
    return row_words[:, None] * column_words % WORD >= round(rate * WORD)


def hash32_reference(places: Tensor, first: int, second: int) -> Tensor:
    """64-bit words, cut to 32 after every product; where one wraps, its low 32 bits are right all
    the same.
    """
    x = places ^ first
    x = ((x ^ (x >> 16)) * FIRST) % WORD
    x = (x ^ (x >> 15)) + second
    x = ((x % WORD) * SECOND) % WORD
    return x ^ (x >> 16)
