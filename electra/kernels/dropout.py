"""Dropout masks from a hash of a value's row and column under two 32-bit keys, so that no mask is
stored.

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

# A and B: odd, found by others' search for hashes with little bias. `hash32` repeats them.
FIRST_FACTOR, SECOND_FACTOR = 0x7FEB352D, 0x846CA68B
WORD_VALUES = 2**32


class DropoutSite(NamedTuple):
    """One place of the network with dropout: its rate, and the keys that decide what it drops."""

    rate: float
    keys: Tensor  # [sites, 2], of this pass
    key_row: int


@triton.jit
def hash32(index, first_key, second_key):
    """Return a 32-bit word for each index."""
    x = index.to(tl.uint32) ^ first_key.to(tl.uint32)
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x + second_key.to(tl.uint32)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def random_words(index, keys, key_row, COLUMNS: tl.constexpr):
    """Return a random word for each row, or for each column; `keys` points at [sites, 2] int32."""
    first, second = tl.load(keys + 2 * key_row), tl.load(keys + 2 * key_row + 1)
    if COLUMNS:
        return hash32(index, second, first) | 1
    return hash32(index, first, second)


@triton.jit
def keep_mask(row_words, column_words, threshold):
    """Return True where dropout keeps a value. The words lie along their axes, and `threshold` is
    `drop_threshold(rate)`.
    """
    return row_words * column_words >= threshold.to(tl.uint32)


def drop_threshold(rate: float) -> int:
    """Return `rate` as a fraction of the 32-bit words, in the int32 that a kernel takes."""
    words = round(rate * WORD_VALUES)
    if words >= WORD_VALUES // 2:
        return words - WORD_VALUES
    return words


def draw_keys(sites: int, device: torch.device) -> Tensor:
    """Draw keys [sites, 2] from torch's own generator, so that its seed decides what drops out."""
    return torch.randint(-(2**31), 2**31, (sites, 2), dtype=torch.int32, device=device)


def keep_mask_reference(rows: int, columns: int, site: DropoutSite) -> Tensor:
    """Compute the mask [rows, columns] in plain torch, for comparison."""
    first, second = (int(key) % WORD_VALUES for key in site.keys[site.key_row])
    index = torch.arange(max(rows, columns), device=site.keys.device)
    row_words = hash32_reference(index[:rows], first, second)
    column_words = hash32_reference(index[:columns], second, first) | 1
    return row_words[:, None] * column_words % WORD_VALUES >= round(site.rate * WORD_VALUES)


def hash32_reference(index: Tensor, first: int, second: int) -> Tensor:
    """Compute the words in 64 bits, cut to 32 after every product; where one wraps, its low 32 bits
    are right all the same.
    """
    x = index ^ first
    x = ((x ^ (x >> 16)) * FIRST_FACTOR) % WORD_VALUES
    x = (x ^ (x >> 15)) + second
    x = ((x % WORD_VALUES) * SECOND_FACTOR) % WORD_VALUES
    return x ^ (x >> 16)
