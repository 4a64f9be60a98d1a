"""Queries and keys of a head, turned by the angles of their positions as they are loaded.

    first half ← first · cos − second · sin    second half ← second · cos + first · sin

Values i and i + K/2 form a pair, so the halves of a head are tiles of their own: each product of
queries with keys is two of half the width, and no value moves between threads. Gradients are turned
back in the same way. Without rotary positions a head is one tile, and the second is not used.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class RotaryPositions(NamedTuple):
    """Where the tokens of a row stand to each other: angles, and which tokens see each other."""

    cosine: Tensor  # [T, K/2] in float32
    sine: Tensor
    window: int | None = None  # tokens that are seen on either side; None: all


@triton.jit
def load_tile(base, index, end, stride, column, width):
    """Load [len(index), len(column)] of one head; zero beyond the row and beyond the head."""
    return tl.load(
        base + index[:, None] * stride + column[None, :],
        mask=(index < end)[:, None] & (column < width)[None, :],
        other=0.0,
    )


@triton.jit
def load_angles(angles, index, end, half, PART: tl.constexpr):
    """Load the cosines and sines of some positions."""
    cosine, sine = angles
    column = tl.arange(0, PART)
    first = load_tile(cosine, index, end, half, column, half)
    return first, load_tile(sine, index, end, half, column, half)


@triton.jit
def load_parts(base, index, end, stride, width, angles, PART: tl.constexpr, ROTARY: tl.constexpr):
    """Load queries or keys of one head: both halves turned, or the whole twice."""
    column = tl.arange(0, PART)
    if ROTARY:
        half = width // 2
        first = load_tile(base, index, end, stride, column, half)
        second = load_tile(base + half, index, end, stride, column, half)
        cosine, sine = load_angles(angles, index, end, half, PART)
        x, y = first.to(tl.float32), second.to(tl.float32)
        return (x * cosine - y * sine).to(first.dtype), (y * cosine + x * sine).to(first.dtype)
    else:
        tile = load_tile(base, index, end, stride, column, width)
        return tile, tile


@triton.jit
def store_parts(
    base, parts, index, end, stride, width, angles, PART: tl.constexpr, ROTARY: tl.constexpr
):
    """Store gradients of queries or keys of one head: both halves turned back, or the first part,
    which is the whole.
    """
    column = tl.arange(0, PART)
    low = base.dtype.element_ty
    first, second = parts
    target = base + index[:, None] * stride + column[None, :]
    if ROTARY:
        half = width // 2
        cosine, sine = load_angles(angles, index, end, half, PART)
        inside = (index < end)[:, None] & (column < half)[None, :]
        tl.store(target, (first * cosine + second * sine).to(low), mask=inside)
        tl.store(target + half, (second * cosine - first * sine).to(low), mask=inside)
    else:
        inside = (index < end)[:, None] & (column < width)[None, :]
        tl.store(target, first.to(low), mask=inside)


@triton.jit
def multiply_parts(left, right, ROTARY: tl.constexpr):
    """Return the products of queries and keys, either way round."""
    scores = tl.dot(left[0], tl.trans(right[0]), input_precision="ieee")
    if ROTARY:
        scores = tl.dot(left[1], tl.trans(right[1]), scores, input_precision="ieee")
    return scores


@triton.jit
def window_bounds(own, length, window, BLOCK: tl.constexpr, WINDOW: tl.constexpr):
    """Return from where to where, in whole blocks, tokens are seen from some neighbours."""
    if WINDOW:
        lower = tl.maximum(tl.min(own, axis=0) - window, 0) // BLOCK * BLOCK
        return lower, tl.minimum(tl.max(own, axis=0) + window + 1, length)
    else:
        return 0, length


@triton.jit
def visible_keys(queries, keys, length, window, WINDOW: tl.constexpr):
    """Return whether each query sees each key; both lie along their axes."""
    if WINDOW:
        return (keys < length) & (tl.abs(queries - keys) <= window)
    else:
        return keys < length
