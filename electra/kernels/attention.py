"""Attention inside rows, with dropout, straight from the joint projections [N, 3, H, K].

    S = QKᵀ/√K    P = softmax(S) over the row's keys    A = m · P / (1 − p)    O = AV

Q and K may be turned by rotary positions (`rotary`), and a window may limit the keys of a query.

Scores stay on the chip: forward writes only log Σ exp S for each query, from which the backward
pass (`attention_backward`) computes P again.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.dropout import DropoutSite, drop_threshold, keep_mask, random_words
from electra.kernels.packing import PackedRows
from electra.kernels.rotary import (
    RotaryPositions,
    load_parts,
    load_tile,
    multiply_parts,
    visible_keys,
    window_bounds,
)
from electra.kernels.tiles import tile_options

LOG2_E = math.log2(math.e)


@triton.jit
def row_and_head(cu_seqlens, tokens, heads):
    """Return the program's head, the start and the length of its row, and the row's offset in
    [H, N].
    """
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    start = tl.load(cu_seqlens + row)
    return head, start.to(tl.int64), tl.load(cu_seqlens + row + 1) - start, head * tokens + start


@triton.jit
def attention_forward(
    qkv,
    cu_seqlens,
    out,
    log_sums,
    keys,
    key_row,
    threshold,
    keep_scale,
    scale,
    tokens,
    heads,
    width,
    cosine,
    sine,
    window,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
    DROP: tl.constexpr,
    ROTARY: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Write O and log₂ Σ 2^S of one block of a row's queries, for one head."""
    head, start, length, row_offset = row_and_head(cu_seqlens, tokens, heads)
    if tl.program_id(1) * QUERIES >= length:
        return
    base = qkv + start * 3 * heads * width + head * width
    query_index = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    layout = (length, 3 * heads * width, heads * width, width, (cosine, sine), window)
    dropout = (keys, key_row, threshold, row_offset)
    context, running_max, running_sum = attend_keys(
        base, query_index, layout, dropout, scale, KEYS, WIDTH, PART, DROP, ROTARY, WINDOW
    )
    context = context * (keep_scale / running_sum)[:, None]
    column = tl.arange(0, WIDTH)
    target = out + (start + query_index[:, None]) * heads * width + head * width + column[None, :]
    inside = (query_index < length)[:, None] & (column < width)[None, :]
    tl.store(target, context.to(out.dtype.element_ty), mask=inside)
    target = log_sums + row_offset + query_index
    tl.store(target, running_max + tl.log2(running_sum), mask=query_index < length)


@triton.jit
def attend_keys(
    base,
    query_index,
    layout,
    dropout,
    scale,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
    DROP: tl.constexpr,
    ROTARY: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Return Σ m · 2^(S − M) V, M = max S and Σ 2^(S − M) over the keys that some queries see."""
    length, stride, out_stride, width, angles, window = layout
    keys, key_row, threshold, row_offset = dropout
    QUERIES: tl.constexpr = query_index.shape[0]
    query = load_parts(base, query_index, length, stride, width, angles, PART, ROTARY)
    query_words = random_words(row_offset + query_index, keys, key_row, False)
    running_max = tl.full((QUERIES,), -float("inf"), tl.float32)
    running_sum = tl.zeros((QUERIES,), tl.float32)
    context, column = tl.zeros((QUERIES, WIDTH), tl.float32), tl.arange(0, WIDTH)
    begin, end = window_bounds(query_index, length, window, KEYS, WINDOW)
    for first in range(begin, end, KEYS):
        key_index = first + tl.arange(0, KEYS)
        key_base = base + out_stride
        key = load_parts(key_base, key_index, length, stride, width, angles, PART, ROTARY)
        scores = multiply_parts(query, key, ROTARY) * scale
        is_key = visible_keys(query_index[:, None], key_index[None, :], length, window, WINDOW)
        scores = tl.where(is_key, scores, -float("inf"))
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        if WINDOW:  # a query may see none of the first keys; −∞ − −∞ is not a number
            new_max = tl.maximum(new_max, -1e30)
        probs, rescale = tl.exp2(scores - new_max[:, None]), tl.exp2(running_max - new_max)
        running_sum, running_max = running_sum * rescale + tl.sum(probs, axis=1), new_max
        if DROP:
            key_words = random_words(key_index, keys, key_row, True)
            keep = keep_mask(query_words[:, None], key_words[None, :], threshold)
            probs = tl.where(keep, probs, 0.0)
        value = load_tile(base + 2 * out_stride, key_index, length, stride, column, width)
        rescaled = context * rescale[:, None]
        context = rescaled + tl.dot(probs.to(value.dtype), value, input_precision="ieee")
    return context, running_max, running_sum


def attend(
    qkv: Tensor,
    rows: PackedRows,
    heads: int,
    site: DropoutSite,
    positions: RotaryPositions | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the context [N, H·K] of projections [N, 3·H·K], and log₂ Σ 2^S of queries [H, N]."""
    tokens, width = len(qkv), qkv.shape[1] // (3 * heads)
    out = torch.empty(tokens, heads * width, dtype=qkv.dtype, device=qkv.device)
    log_sums = torch.empty(heads, tokens, dtype=torch.float32, device=qkv.device)
    options = launch_options("attention_forward", qkv, heads, rows.max_seqlen, positions)
    count = len(rows.cu_seqlens) - 1
    # Heads share the first axis with rows: every other axis of a grid ends at 65,535.
    attention_forward[(count * heads, triton.cdiv(rows.max_seqlen, options["QUERIES"]))](
        qkv,
        rows.cu_seqlens,
        out,
        log_sums,
        site.keys,
        site.key_row,
        drop_threshold(site.rate),
        1 / (1 - site.rate),
        LOG2_E / math.sqrt(width),
        tokens,
        heads,
        width,
        *position_arguments(positions),
        DROP=site.rate > 0,
        **position_options(positions, width, rows.max_seqlen),
        **options,
    )
    return out, log_sums


def launch_options(
    kernel: str, qkv: Tensor, heads: int, length: int, positions: RotaryPositions | None
) -> dict[str, int]:
    """Return tile sizes and compiler options for rows of `length`; no block is longer than that."""
    tokens, width = len(qkv), qkv.shape[1] // (3 * heads)
    if width > 64:
        kernel = f"wide_{kernel}"
    elif positions is not None:
        kernel = f"rotary_{kernel}"
    options = tile_options(kernel, size=length, count=tokens // length * heads)
    longest = pad_size(length)
    blocks = {name: min(options[name], longest) for name in ("QUERIES", "KEYS")}
    return {**options, **blocks}


def position_arguments(
    positions: RotaryPositions | None,
) -> tuple[Tensor | None, Tensor | None, int]:
    """Return cosines, sines and the window as kernels take them."""
    if positions is None:
        return None, None, 0
    return positions.cosine, positions.sine, positions.window or 0


def position_options(
    positions: RotaryPositions | None, width: int, length: int
) -> dict[str, int | bool]:
    """Return the tiles of heads of `width`, and what decides between kinds of positions.

    A window that every token of a row sees all of is none.
    """
    padded = pad_size(width)
    if positions is None:
        return {"WIDTH": padded, "PART": padded, "ROTARY": False, "WINDOW": False}
    window = positions.window is not None and positions.window < length - 1
    return {"WIDTH": padded, "PART": pad_size(width // 2), "ROTARY": True, "WINDOW": window}


def pad_size(size: int) -> int:
    """Return the next size that the matrix units take: a power of two, sixteen at least."""
    return max(16, int(triton.next_power_of_2(size)))
