"""The backward pass of attention inside rows, into the joint projections [N, 3, H, K].

    dV = AᵀdO    dA = dO Vᵀ    dS = P · (m · dA / (1 − p) − δ)/√K,  δ = Σ dO · O over K
    dQ = dS K    dK = dSᵀQ     P from the log Σ exp S that forward wrote (`attention`)

A program owns a block of a row's keys and goes through all queries; where one block holds all keys,
as in rows of 128, dQ falls out on the way, otherwise the program then owns the queries of the same
numbers and goes through the keys, and δ is computed beforehand. What is done to every score decides
the time: the factor 1/(1 − p) waits for the sums, so that the kernels work with m · P and
P · (m · dA − (1 − p) δ).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.attention import LOG2_E, load_tile, pad_size, row_and_head
from electra.kernels.dropout import DropoutSite, drop_threshold, keep_mask, random_words
from electra.kernels.packing import PackedRows


class SavedAttention(NamedTuple):
    """What the backward pass reads of the forward pass."""

    qkv: Tensor  # [N, 3·H·K]
    out: Tensor  # [N, H·K]
    log_sums: Tensor  # [H, N]


def attend_gradients(
    saved: SavedAttention, d_out: Tensor, rows: PackedRows, heads: int, site: DropoutSite
) -> tuple[Tensor, Tensor]:
    """Return d qkv [N, 3·H·K], and for `reduce_partials` [programs, 3·H·K]: the gradient of the
    projections' bias.
    """
    qkv, out, log_sums = saved
    d_qkv = torch.empty_like(qkv)
    tokens, width, count = len(qkv), qkv.shape[1] // (3 * heads), len(rows.cu_seqlens) - 1
    options = launch_options(rows.max_seqlen, tokens // rows.max_seqlen * heads)
    blocks = triton.cdiv(rows.max_seqlen, options["KEYS"])
    sums = torch.empty(count * blocks, 3 * heads * width, dtype=torch.float32, device=qkv.device)
    deltas = log_sums  # not read where one block computes them on the way
    if blocks > 1:
        deltas = compute_deltas(saved, d_out, 1 - site.rate)
    attention_backward[(count * heads, blocks)](
        qkv,
        rows.cu_seqlens,
        out,
        d_out,
        log_sums,
        deltas,
        d_qkv,
        sums,
        site.keys,
        site.key_row,
        drop_threshold(site.rate),
        1 - site.rate,
        LOG2_E / math.sqrt(width),
        1 / math.sqrt(width),
        tokens,
        heads,
        width,
        WIDTH=pad_size(width),
        DROP=site.rate > 0,
        ONE_BLOCK=blocks == 1,
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


def launch_options(length: int, programs: int) -> dict[str, int]:
    """Return what was fastest on an H200 with heads of 64.

    In rows of 128 two programs share a multiprocessor, unless there are too few of them, and then
    each takes all of one; longer rows like smaller blocks.
    """
    if length > 128:
        return {"QUERIES": 64, "KEYS": 64, "num_warps": 4, "num_stages": 3}
    keys = pad_size(length)
    if keys < 128 or programs > 264:
        return {"QUERIES": min(32, keys), "KEYS": keys, "num_warps": 4, "num_stages": 2}
    return {"QUERIES": 64, "KEYS": keys, "num_warps": 8, "num_stages": 1}


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
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    DROP: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
):
    """Write dK, dV and dQ of one block of a row, for one head, and their sums over the block."""
    head, start, length, row_offset = row_and_head(cu_seqlens, tokens, heads)
    block, column = tl.program_id(1), tl.arange(0, WIDTH)
    qkv_stride, out_stride = 3 * heads * width, heads * width
    if block * KEYS >= length:
        zeros = tl.zeros((WIDTH,), tl.float32)
        store_sums(sums, zeros, zeros, zeros, heads, width, column)
        return
    base = qkv + start * qkv_stride + head * width
    d_base = d_qkv + start * qkv_stride + head * width
    out += start * out_stride + head * width
    d_out += start * out_stride + head * width
    inputs = (base, d_out, out, log_sums + row_offset, deltas + row_offset)
    layout = (length, qkv_stride, out_stride, column, width)
    dropout = (keys, key_row, threshold, row_offset, keep_prob)
    scales = (scale, inverse_root)
    in_head = (column < width)[None, :]
    own = block * KEYS + tl.arange(0, KEYS)
    own_offset = own[:, None] * qkv_stride + column[None, :]
    own_mask = (own < length)[:, None] & in_head
    d_key, d_value, query_sum = key_value_gradients(
        inputs, d_base, own, layout, dropout, scales, QUERIES, KEYS, WIDTH, DROP, ONE_BLOCK
    )
    d_key = d_key * (inverse_root / keep_prob)
    d_value = d_value / keep_prob
    low = qkv.dtype.element_ty
    tl.store(d_base + out_stride + own_offset, d_key.to(low), mask=own_mask)
    tl.store(d_base + 2 * out_stride + own_offset, d_value.to(low), mask=own_mask)
    if not ONE_BLOCK:
        d_query = query_gradients(
            inputs, own, layout, dropout, scale, QUERIES, KEYS, WIDTH, DROP
        ) * (inverse_root / keep_prob)
        tl.store(d_base + own_offset, d_query.to(low), mask=own_mask)
        query_sum = tl.sum(d_query, axis=0)
    key_sum, value_sum = tl.sum(d_key, axis=0), tl.sum(d_value, axis=0)
    store_sums(sums, query_sum, key_sum, value_sum, heads, width, column)


@triton.jit
def key_value_gradients(
    inputs,
    d_base,
    own,
    layout,
    dropout,
    scales,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    DROP: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
):
    """Return (1 − p) √K dK and (1 − p) dV of the program's own keys, going through the queries. If
    one block holds all keys, write dQ and return its sum as well.
    """
    length, qkv_stride, out_stride, column, width = layout
    keys, key_row, threshold, row_offset, keep_prob = dropout
    scale, inverse_root = scales
    base = inputs[0]
    low = base.dtype.element_ty
    in_head = (column < width)[None, :]
    key = load_tile(base + out_stride, own, length, qkv_stride, column, width)
    value = load_tile(base + 2 * out_stride, own, length, qkv_stride, column, width)
    d_key = tl.zeros((KEYS, WIDTH), tl.float32)
    d_value = tl.zeros((KEYS, WIDTH), tl.float32)
    query_sum = tl.zeros((WIDTH,), tl.float32)
    key_words = random_words(own, keys, key_row, True)[:, None]
    for first in range(0, length, QUERIES):
        index = first + tl.arange(0, QUERIES)
        query, d_context, log_sum, delta = load_queries(inputs, index, layout, keep_prob, ONE_BLOCK)
        query_words = random_words(row_offset + index, keys, key_row, False)[None, :]
        sums = (log_sum[None, :], delta[None, :])
        keep = (query_words, key_words, threshold)
        probs, d_scores = score_gradients(
            key, query, value, d_context, sums, keep, (own < length)[:, None], scale, DROP
        )
        d_value += tl.dot(probs.to(low), d_context, input_precision="ieee")
        d_key += tl.dot(d_scores.to(low), query, input_precision="ieee")
        if ONE_BLOCK:
            d_query = tl.dot(tl.trans(d_scores.to(low)), key, input_precision="ieee") * (
                inverse_root / keep_prob
            )
            target = d_base + index[:, None] * qkv_stride + column[None, :]
            tl.store(target, d_query.to(low), mask=(index < length)[:, None] & in_head)
            query_sum += tl.sum(d_query, axis=0)
    return d_key, d_value, query_sum


@triton.jit
def query_gradients(
    inputs,
    own,
    layout,
    dropout,
    scale,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    DROP: tl.constexpr,
):
    """Return (1 − p) √K dQ of the program's own queries, going through the keys."""
    length, qkv_stride, out_stride, column, width = layout
    keys, key_row, threshold, row_offset, keep_prob = dropout
    query, d_context, log_sum, delta = load_queries(inputs, own, layout, keep_prob, False)
    query_words = random_words(row_offset + own, keys, key_row, False)[:, None]
    d_query = tl.zeros((KEYS, WIDTH), tl.float32)
    for first in range(0, length, QUERIES):
        index = first + tl.arange(0, QUERIES)
        key = load_tile(inputs[0] + out_stride, index, length, qkv_stride, column, width)
        value = load_tile(inputs[0] + 2 * out_stride, index, length, qkv_stride, column, width)
        sums = (log_sum[:, None], delta[:, None])
        keep = (query_words, random_words(index, keys, key_row, True)[None, :], threshold)
        _, d_scores = score_gradients(
            query, key, d_context, value, sums, keep, (index < length)[None, :], scale, DROP
        )
        d_query += tl.dot(d_scores.to(key.dtype), key, input_precision="ieee")
    return d_query


@triton.jit
def score_gradients(
    left, right, left_context, right_context, sums, keep, is_key, scale, DROP: tl.constexpr
):
    """Return (1 − p) A and (1 − p) √K dS in float32, as [queries, keys] or transposed.

    Transposed, `left` is K and `left_context` V, `right` Q and `right_context` dO, and what belongs
    to queries or keys lies along their axis.
    """
    log_sum, delta = sums
    query_words, key_words, threshold = keep
    probs = tl.exp2(tl.dot(left, tl.trans(right), input_precision="ieee") * scale - log_sum)
    probs = tl.where(is_key, probs, 0.0)  # a query beyond the row has log_sum = ∞
    d_probs = tl.dot(left_context, tl.trans(right_context), input_precision="ieee")
    dropped_probs = probs
    if DROP:
        mask = keep_mask(query_words, key_words, threshold)
        dropped_probs = tl.where(mask, probs, 0.0)
        d_probs = tl.where(mask, d_probs, 0.0)
    return dropped_probs, probs * (d_probs - delta)


@triton.jit
def load_queries(inputs, index, layout, keep_prob, ONE_BLOCK: tl.constexpr):
    """Load Q, dO, log₂ Σ 2^S and (1 − p) δ of some queries."""
    base, d_out, out, log_sums, deltas = inputs
    length, qkv_stride, out_stride, column, width = layout
    query = load_tile(base, index, length, qkv_stride, column, width)
    d_context = load_tile(d_out, index, length, out_stride, column, width)
    log_sum = tl.load(log_sums + index, mask=index < length, other=float("inf"))
    if ONE_BLOCK:
        context = load_tile(out, index, length, out_stride, column, width)
        delta = scaled_delta(context, d_context, keep_prob)
    else:
        delta = tl.load(deltas + index, mask=index < length, other=0.0)
    return query, d_context, log_sum, delta


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


@triton.jit
def scaled_delta(context, d_context, keep_prob):
    """Return (1 − p) Σ dO · O over K."""
    return tl.sum(context.to(tl.float32) * d_context.to(tl.float32), axis=1) * keep_prob


@triton.jit
def store_sums(sums, query_sum, key_sum, value_sum, heads, width, column):
    """Store the program's part of the bias gradients, into [rows · blocks, 3, H, K]."""
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    program = row * tl.num_programs(1) + tl.program_id(1)
    sums += program * 3 * heads * width + head * width + column
    tl.store(sums, query_sum, mask=column < width)
    tl.store(sums + heads * width, key_sum, mask=column < width)
    tl.store(sums + 2 * heads * width, value_sum, mask=column < width)
