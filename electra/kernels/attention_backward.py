"""The backward pass of attention inside rows, into the joint projections [N, 3, H, K].

    dV = AᵀdO    dA = dO Vᵀ    dS = P · (m · dA / (1 − p) − δ)/√K,  δ = Σ dO · O over K
    dQ = dS K    dK = dSᵀQ     P from the log Σ exp S that forward wrote (`attention`)

A program owns a block of a row's keys and goes through all queries; where one block holds all keys,
as in rows of 128, dQ falls out on the way, otherwise the program then owns the queries of the same
numbers and goes through the keys, and δ is computed beforehand. Where rows and heads are many, each
has one program that computes every score once (`attention_one_pass`). What is done to every score
decides the time: the factor 1/(1 − p) waits for the sums, so that the kernels work with m · P and
P · (m · dA − (1 − p) δ).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.attention import (
    LOG2_E,
    launch_options,
    pad_size,
    position_arguments,
    position_options,
    row_and_head,
)
from electra.kernels.attention_one_pass import QUERY_VALUES, one_pass_attention_backward
from electra.kernels.attention_scores import (
    key_words,
    load_queries,
    multiply_both,
    query_words,
    scaled_delta,
    score_gradients,
    store_gradients,
    store_sums,
)
from electra.kernels.dropout import DropoutSite, drop_threshold
from electra.kernels.packing import PackedRows
from electra.kernels.rotary import (
    RotaryPositions,
    load_parts,
    load_tile,
    visible_keys,
    window_bounds,
)
from electra.kernels.tiles import ONE_PASS_ROWS_AND_HEADS, ONE_PASS_SHARED_MEMORY


class SavedAttention(NamedTuple):
    """What the backward pass reads of the forward pass."""

    qkv: Tensor  # [N, 3·H·K]
    out: Tensor  # [N, H·K]
    log_sums: Tensor  # [H, N]
    positions: RotaryPositions | None = None


def attend_gradients(
    saved: SavedAttention, d_out: Tensor, rows: PackedRows, site: DropoutSite, *, has_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """Return d qkv [N, 3·H·K]; and where the projections have a bias, for `reduce_partials`
    [programs, 3·H·K]: its gradient.
    """
    if computes_scores_once(saved, rows.max_seqlen):
        return one_pass_gradients(saved, d_out, rows, site, has_bias=has_bias)
    qkv, _, log_sums, positions = saved
    d_qkv = torch.empty_like(qkv)
    tokens, heads, count = len(qkv), len(log_sums), len(rows.cu_seqlens) - 1
    width = qkv.shape[1] // (3 * heads)
    options = launch_options("attention_backward", qkv, heads, rows.max_seqlen, positions)
    blocks, sums = triton.cdiv(rows.max_seqlen, options["KEYS"]), None
    if has_bias:
        sums = log_sums.new_empty(count * blocks, 3 * heads * width)
    deltas = log_sums  # not read where one block computes them on the way
    if blocks > 1:
        deltas = compute_deltas(saved, d_out, 1 - site.rate)
    attention_backward[(count * heads, blocks)](
        qkv,
        rows.cu_seqlens,
        saved.out,
        *(d_out, log_sums, deltas, d_qkv, sums),
        *(site.keys, site.key_row, drop_threshold(site.rate), 1 - site.rate),
        *(LOG2_E / math.sqrt(width), 1 / math.sqrt(width)),
        *(tokens, heads, width),
        *position_arguments(positions),
        DROP=site.rate > 0,
        ONE_BLOCK=blocks == 1,
        HAS_BIAS=has_bias,
        **position_options(positions, width, rows.max_seqlen),
        **options,
    )
    return d_qkv, sums


def computes_scores_once(saved: SavedAttention, length: int) -> bool:
    """Whether `one_pass_gradients` is the faster of the two for rows of `length`.

    It needs enough rows and heads, halves of rotary heads that are powers of two, and more shared
    memory than consumer GPUs have. One block that holds all keys computes each score once anyway,
    through a window few scores are seen, and values of 32 bits do not fit into its registers.
    """
    tokens, heads = len(saved.qkv), len(saved.log_sums)
    width = saved.qkv.shape[1] // (3 * heads)
    placement = position_options(saved.positions, width, length)
    if length <= 128 or width > 64 or saved.qkv.itemsize > 2 or placement["WINDOW"]:
        return False
    if placement["ROTARY"] and 2 * placement["PART"] != width:
        return False
    if shared_memory(saved.qkv.device) < ONE_PASS_SHARED_MEMORY:
        return False
    return tokens // length * heads >= ONE_PASS_ROWS_AND_HEADS


@lru_cache
def shared_memory(device: torch.device) -> float:
    """Return the bytes that a program may take, without limit in the interpreter."""
    if device.type != "cuda":
        return math.inf
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)


def one_pass_gradients(
    saved: SavedAttention, d_out: Tensor, rows: PackedRows, site: DropoutSite, *, has_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """Return what `attend_gradients` does, with one program for each row and head."""
    qkv, out, log_sums, positions = saved
    tokens, heads, count = len(qkv), len(log_sums), len(rows.cu_seqlens) - 1
    width = qkv.shape[1] // (3 * heads)
    options = launch_options("one_pass_attention_backward", qkv, heads, rows.max_seqlen, positions)
    placement = position_options(positions, width, rows.max_seqlen)
    assert not placement.pop("WINDOW")
    d_qkv, sums = torch.empty_like(qkv), None
    if has_bias:
        sums = log_sums.new_empty(count, 3 * heads * width)
    tiles = (tokens // options["QUERIES"] + count) * heads
    tile_size = options["QUERIES"] * (placement["WIDTH"] + QUERY_VALUES.value)
    scratch = log_sums.new_empty(tiles, tile_size)
    one_pass_attention_backward[(count * heads,)](
        qkv,
        rows.cu_seqlens,
        *(out, d_out, log_sums, scratch, d_qkv, sums),
        *(site.keys, site.key_row, drop_threshold(site.rate), 1 - site.rate),
        *(LOG2_E / math.sqrt(width), 1 / math.sqrt(width)),
        *(tokens, heads, width),
        *position_arguments(positions)[:2],
        DROP=site.rate > 0,
        HAS_BIAS=has_bias,
        **placement,
        **options,
    )
    return d_qkv, sums


def compute_deltas(saved: SavedAttention, d_out: Tensor, keep_prob: float) -> Tensor:
    """Return (1 − p) δ [H, N]."""
    heads, tokens = saved.log_sums.shape
    width = d_out.shape[1] // heads
    deltas = torch.empty_like(saved.log_sums)
    grid = (triton.cdiv(tokens, 64), heads)
    sizes = (tokens, heads, width)
    attention_deltas[grid](
        saved.out, d_out, deltas, keep_prob, *sizes, TOKENS=64, WIDTH=pad_size(width)
    )
    return deltas


@triton.jit
def attention_backward(
    qkv,
    cu_seqlens,
    out,
    d_out,
    log_sums,
    deltas,
    d_qkv,
    sums,
    keys,
    key_row,
    threshold,
    keep_prob,
    scale,
    inverse_root,
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
    ONE_BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROTARY: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Write dK, dV and dQ of one block of a row, for one head, and their sums over the block."""
    head, start, length, row_offset = row_and_head(cu_seqlens, tokens, heads)
    column, out_stride = tl.arange(0, WIDTH), heads * width
    if tl.program_id(1) * KEYS >= length:
        if HAS_BIAS:
            zeros = tl.zeros((PART,), tl.float32)
            store_sums(sums, zeros, zeros, zeros, heads, width, column)
        return
    base = qkv + start * 3 * out_stride + head * width
    d_base = d_qkv + start * 3 * out_stride + head * width
    out += start * out_stride + head * width
    d_out += start * out_stride + head * width
    inputs = (base, d_out, out, log_sums + row_offset, deltas + row_offset)
    layout = (length, 3 * out_stride, out_stride, column, width, (cosine, sine), window)
    dropout = (keys, key_row, threshold, row_offset, keep_prob)
    scales = (scale, inverse_root / keep_prob)
    query_sum, key_sum, value_sum = store_block_gradients(
        *(inputs, d_base, layout, dropout, scales),
        *(QUERIES, KEYS, PART, DROP, ONE_BLOCK, HAS_BIAS, ROTARY, WINDOW),
    )
    if HAS_BIAS:
        store_sums(sums, query_sum, key_sum, value_sum, heads, width, column)


@triton.jit
def store_block_gradients(
    inputs,
    d_base,
    layout,
    dropout,
    scales,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PART: tl.constexpr,
    DROP: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROTARY: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Write dK, dV and dQ of the program's own block, and return their sums if there is a bias."""
    length, stride, out_stride, column, width, _, _ = layout
    own = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    d_key, d_value, query_sum = key_value_gradients(
        inputs, d_base, own, layout, dropout, scales, QUERIES, PART, DROP, ONE_BLOCK, ROTARY, WINDOW
    )
    d_key = (d_key[0] * scales[1], d_key[1] * scales[1])
    d_value = d_value / dropout[4]
    store_gradients(d_base + out_stride, d_key, own, layout, PART, ROTARY)
    target = d_base + 2 * out_stride + own[:, None] * stride + column[None, :]
    own_mask = (own < length)[:, None] & (column < width)[None, :]
    tl.store(target, d_value.to(d_base.dtype.element_ty), mask=own_mask)
    if not ONE_BLOCK:
        d_query = query_gradients(
            inputs, own, layout, dropout, scales[0], QUERIES, PART, DROP, ROTARY, WINDOW
        )
        d_query = (d_query[0] * scales[1], d_query[1] * scales[1])
        store_gradients(d_base, d_query, own, layout, PART, ROTARY)
        query_sum = tl.sum(d_query[0], axis=0)
    if HAS_BIAS:
        return query_sum, tl.sum(d_key[0], axis=0), tl.sum(d_value, axis=0)
    else:
        return query_sum, query_sum, query_sum


@triton.jit
def key_value_gradients(
    inputs,
    d_base,
    own,
    layout,
    dropout,
    scales,
    QUERIES: tl.constexpr,
    PART: tl.constexpr,
    DROP: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    ROTARY: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Return (1 − p) √K dK and (1 − p) dV of the program's own keys, going through the queries. If
    one block holds all keys, write dQ and return its sum as well.
    """
    length, stride, out_stride, column, width, angles, window = layout
    scale, factor = scales
    base = inputs[0]
    low = base.dtype.element_ty
    key = load_parts(base + out_stride, own, length, stride, width, angles, PART, ROTARY)
    value = load_tile(base + 2 * out_stride, own, length, stride, column, width)
    d_key_first = tl.zeros((own.shape[0], PART), tl.float32)
    d_key_second = tl.zeros((own.shape[0], PART), tl.float32)
    d_value = tl.zeros((own.shape[0], column.shape[0]), tl.float32)
    query_sum = tl.zeros((PART,), tl.float32)
    own_words = key_words(own, dropout)[:, None]
    begin, end = window_bounds(own, length, window, QUERIES, WINDOW)
    for first in range(begin, end, QUERIES):
        index = first + tl.arange(0, QUERIES)
        query, d_context, log_sum, delta = load_queries(
            inputs, index, layout, dropout, PART, ONE_BLOCK, ROTARY
        )
        sums = (log_sum[None, :], delta[None, :])
        is_key = visible_keys(index[None, :], own[:, None], length, window, WINDOW)
        keep = (query_words(index, dropout)[None, :], own_words, dropout[2])
        probs, d_scores = score_gradients(
            key, query, value, d_context, sums, keep, is_key, scale, DROP, ROTARY
        )
        d_value += tl.dot(probs.to(low), d_context, input_precision="ieee")
        d_key_first += tl.dot(d_scores.to(low), query[0], input_precision="ieee")
        if ROTARY:
            d_key_second += tl.dot(d_scores.to(low), query[1], input_precision="ieee")
        if ONE_BLOCK:
            d_query = multiply_both(tl.trans(d_scores.to(low)), key, factor, ROTARY)
            store_gradients(d_base, d_query, index, layout, PART, ROTARY)
            query_sum += tl.sum(d_query[0], axis=0)
    return (d_key_first, d_key_second), d_value, query_sum


@triton.jit
def query_gradients(
    inputs,
    own,
    layout,
    dropout,
    scale,
    QUERIES: tl.constexpr,
    PART: tl.constexpr,
    DROP: tl.constexpr,
    ROTARY: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Return (1 − p) √K dQ of the program's own queries, going through the keys."""
    length, stride, out_stride, column, width, angles, window = layout
    base = inputs[0]
    query, d_context, log_sum, delta = load_queries(
        inputs, own, layout, dropout, PART, False, ROTARY
    )
    d_first = tl.zeros((own.shape[0], PART), tl.float32)
    d_second = tl.zeros((own.shape[0], PART), tl.float32)
    own_words = query_words(own, dropout)[:, None]
    begin, end = window_bounds(own, length, window, QUERIES, WINDOW)
    for first in range(begin, end, QUERIES):
        index = first + tl.arange(0, QUERIES)
        key = load_parts(base + out_stride, index, length, stride, width, angles, PART, ROTARY)
        value = load_tile(base + 2 * out_stride, index, length, stride, column, width)
        sums = (log_sum[:, None], delta[:, None])
        is_key = visible_keys(own[:, None], index[None, :], length, window, WINDOW)
        keep = (own_words, key_words(index, dropout)[None, :], dropout[2])
        _, d_scores = score_gradients(
            query, key, d_context, value, sums, keep, is_key, scale, DROP, ROTARY
        )
        d_first += tl.dot(d_scores.to(value.dtype), key[0], input_precision="ieee")
        if ROTARY:
            d_second += tl.dot(d_scores.to(value.dtype), key[1], input_precision="ieee")
    return d_first, d_second


@triton.jit
def attention_deltas(
    out, d_out, deltas, keep_prob, tokens, heads, width, TOKENS: tl.constexpr, WIDTH: tl.constexpr
):
    """Write (1 − p) δ of every query, into [H, N]."""
    index, head = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS).to(tl.int64), tl.program_id(1)
    stride, column = heads * width, tl.arange(0, WIDTH)
    context = load_tile(out + head * width, index, tokens, stride, column, width)
    d_context = load_tile(d_out + head * width, index, tokens, stride, column, width)
    target = deltas + head * tokens + index
    tl.store(target, scaled_delta(context, d_context, keep_prob), mask=index < tokens)
