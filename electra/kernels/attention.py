"""Attention inside rows, with dropout, straight from the joint projections [N, 3, H, K] and back
into them.

    S = QKᵀ/√K    P = softmax(S) over the row's keys    A = m · P / (1 − p)    O = AV
    dV = AᵀdO    dA = dO Vᵀ    dS = P · (m · dA / (1 − p) − δ)/√K,  δ = Σ dO · O over K    dQ = dS K    dK = dSᵀQ

Scores stay on the chip: forward keeps only log Σ exp S for each query, and backward computes P
again from it. A program of the backward pass owns a block of a row's keys and goes through all
queries; where one block holds all keys, as in rows of 128, dQ falls out on the way, otherwise the
program then owns the queries of the same numbers and goes through the keys, and δ is computed
beforehand. What is done to every score decides the time: the factor 1/(1 − p) waits for the sums,
so that backward works with m · P and P · (m · dA − (1 − p) δ).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.dropout import DropoutSite, drop_threshold, keep_mask, random_words
from electra.kernels.packing import PackedRows

LOG2_E = math.log2(math.e)


@triton.jit
def tile(base, at, end, stride, column, width):
    """[len(at), len(column)] of one head's rows; zero beyond the row and beyond the head."""
    return tl.load(
        base + at[:, None] * stride + column[None, :],
        mask=(at < end)[:, None] & (column < width)[None, :],
        other=0.0,
    )


@triton.jit
def row_and_head(cu_seqlens, tokens, heads):
    """The program's head, where its row begins, how long it is, and the head's first place in [H,
    N].
    """
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    begin = tl.load(cu_seqlens + row)
    return head, begin.to(tl.int64), tl.load(cu_seqlens + row + 1) - begin, head * tokens + begin


@triton.jit
def attention_forward(
    qkv,
    cu_seqlens,
    out,
    log_sums,
    keys,
    site,
    threshold,
    boost,
    scale,
    tokens,
    heads,
    width,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    DROP: tl.constexpr,
):
    head, begin, length, place = row_and_head(cu_seqlens, tokens, heads)
    if tl.program_id(1) * QUERIES >= length:
        return
    stride, column = 3 * heads * width, tl.arange(0, WIDTH)
    base = qkv + begin * stride + head * width
    query_at = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    query = tile(base, query_at, length, stride, column, width)
    query_words = random_words(place + query_at, keys, site, False)
    highest = tl.full((QUERIES,), -float("inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    mixed = tl.zeros((QUERIES, WIDTH), tl.float32)
    for first in range(0, length, KEYS):
        key_at = first + tl.arange(0, KEYS)
        key = tile(base + heads * width, key_at, length, stride, column, width)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where((key_at < length)[None, :], scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        share, fade = tl.exp2(scores - higher[:, None]), tl.exp2(highest - higher)
        total = total * fade + tl.sum(share, axis=1)
        if DROP:
            stays = keep_mask(
                query_words[:, None], random_words(key_at, keys, site, True)[None, :], threshold
            )
            share = tl.where(stays, share, 0.0)
        value = tile(base + 2 * heads * width, key_at, length, stride, column, width)
        mixed = mixed * fade[:, None] + tl.dot(share.to(value.dtype), value, input_precision="ieee")
        highest = higher
    mixed = mixed * (boost / total)[:, None]
    target = out + (begin + query_at[:, None]) * heads * width + head * width + column[None, :]
    tl.store(
        target,
        mixed.to(out.dtype.element_ty),
        mask=(query_at < length)[:, None] & (column < width)[None, :],
    )
    tl.store(log_sums + place + query_at, highest + tl.log2(total), mask=query_at < length)


@triton.jit
def score_gradients(
    left,
    right,
    left_mixed,
    right_mixed,
    log_sum,
    delta,
    query_words,
    key_words,
    is_key,
    scale,
    threshold,
    DROP: tl.constexpr,
):
    """(1 − p) A and (1 − p) √K dS in float32, as [queries, keys] or the other way round: `left` is
    then K and `left_mixed` V, `right` Q and `right_mixed` dO, and what belongs to queries or keys
    lies along their axis.
    """
    share = tl.exp2(tl.dot(left, tl.trans(right), input_precision="ieee") * scale - log_sum)
    share = tl.where(is_key, share, 0.0)  # a query beyond the row has log_sum = ∞
    d_share = tl.dot(left_mixed, tl.trans(right_mixed), input_precision="ieee")
    dropped = share
    if DROP:
        stays = keep_mask(query_words, key_words, threshold)
        dropped = tl.where(stays, share, 0.0)
        d_share = tl.where(stays, d_share, 0.0)
    return dropped, share * (d_share - delta)


@triton.jit
def attention_deltas(
    out, d_out, deltas, stay, tokens, heads, width, TOKENS: tl.constexpr, WIDTH: tl.constexpr
):
    """(1 − p) δ of every query, into [H, N]."""
    at, head = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS).to(tl.int64), tl.program_id(1)
    narrow, column = heads * width, tl.arange(0, WIDTH)
    mixed = tile(out + head * width, at, tokens, narrow, column, width)
    d_mixed = tile(d_out + head * width, at, tokens, narrow, column, width)
    tl.store(deltas + head * tokens + at, delta_of(mixed, d_mixed, stay), mask=at < tokens)


@triton.jit
def delta_of(mixed, d_mixed, stay):
    return tl.sum(mixed.to(tl.float32) * d_mixed.to(tl.float32), axis=1) * stay


@triton.jit
def query_side(
    base,
    d_out,
    out,
    log_sums,
    deltas,
    at,
    length,
    stride,
    narrow,
    column,
    width,
    stay,
    ONE_BLOCK: tl.constexpr,
):
    """Q, dO, log₂ Σ 2^S and (1 − p) δ of some queries."""
    query = tile(base, at, length, stride, column, width)
    d_mixed = tile(d_out, at, length, narrow, column, width)
    log_sum = tl.load(log_sums + at, mask=at < length, other=float("inf"))
    if ONE_BLOCK:
        delta = delta_of(tile(out, at, length, narrow, column, width), d_mixed, stay)
    else:
        delta = tl.load(deltas + at, mask=at < length, other=0.0)
    return query, d_mixed, log_sum, delta


@triton.jit
def query_gradients(
    base,
    d_out,
    out,
    log_sums,
    deltas,
    own_at,
    place,
    length,
    stride,
    narrow,
    column,
    width,
    scale,
    keys,
    site,
    threshold,
    stay,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    DROP: tl.constexpr,
):
    """(1 − p) √K dQ of the program's own queries, going through the keys."""
    query, d_mixed, log_sum, delta = query_side(
        base,
        d_out,
        out,
        log_sums,
        deltas,
        own_at,
        length,
        stride,
        narrow,
        column,
        width,
        stay,
        False,
    )
    words = random_words(place + own_at, keys, site, False)[:, None]
    d_query = tl.zeros((KEYS, WIDTH), tl.float32)
    for first in range(0, length, QUERIES):
        at = first + tl.arange(0, QUERIES)
        key = tile(base + narrow, at, length, stride, column, width)
        value = tile(base + 2 * narrow, at, length, stride, column, width)
        _, d_scores = score_gradients(
            query,
            key,
            d_mixed,
            value,
            log_sum[:, None],
            delta[:, None],
            words,
            random_words(at, keys, site, True)[None, :],
            (at < length)[None, :],
            scale,
            threshold,
            DROP,
        )
        d_query += tl.dot(d_scores.to(key.dtype), key, input_precision="ieee")
    return d_query


@triton.jit
def store_sums(sums, query_sum, key_sum, value_sum, heads, width, column):
    """The program's part of the bias gradients, into [rows · blocks, 3, H, K]."""
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    sums += (
        (row * tl.num_programs(1) + tl.program_id(1)) * 3 * heads * width + head * width + column
    )
    tl.store(sums, query_sum, mask=column < width)
    tl.store(sums + heads * width, key_sum, mask=column < width)
    tl.store(sums + 2 * heads * width, value_sum, mask=column < width)


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
    site,
    threshold,
    stay,
    scale,
    root,
    tokens,
    heads,
    width,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    DROP: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
):
    head, begin, length, place = row_and_head(cu_seqlens, tokens, heads)
    block, column = tl.program_id(1), tl.arange(0, WIDTH)
    stride, narrow = 3 * heads * width, heads * width
    if block * KEYS >= length:
        nothing = tl.zeros((WIDTH,), tl.float32)
        store_sums(sums, nothing, nothing, nothing, heads, width, column)
        return
    base, d_base = qkv + begin * stride + head * width, d_qkv + begin * stride + head * width
    out += begin * narrow + head * width
    d_out += begin * narrow + head * width
    log_sums += place
    deltas += place
    inside = (column < width)[None, :]
    low = qkv.dtype.element_ty
    own_at = block * KEYS + tl.arange(0, KEYS)
    own = own_at[:, None] * stride + column[None, :]
    there = (own_at < length)[:, None] & inside
    key = tile(base + narrow, own_at, length, stride, column, width)
    value = tile(base + 2 * narrow, own_at, length, stride, column, width)
    d_key = tl.zeros((KEYS, WIDTH), tl.float32)
    d_value = tl.zeros((KEYS, WIDTH), tl.float32)
    query_sum = tl.zeros((WIDTH,), tl.float32)
    words = random_words(own_at, keys, site, True)[:, None]
    for first in range(0, length, QUERIES):
        at = first + tl.arange(0, QUERIES)
        query, d_mixed, log_sum, delta = query_side(
            base,
            d_out,
            out,
            log_sums,
            deltas,
            at,
            length,
            stride,
            narrow,
            column,
            width,
            stay,
            ONE_BLOCK,
        )
        query_words = random_words(place + at, keys, site, False)[None, :]
        dropped, d_scores = score_gradients(
            key,
            query,
            value,
            d_mixed,
            log_sum[None, :],
            delta[None, :],
            query_words,
            words,
            (own_at < length)[:, None],
            scale,
            threshold,
            DROP,
        )
        d_value += tl.dot(dropped.to(low), d_mixed, input_precision="ieee")
        d_key += tl.dot(d_scores.to(low), query, input_precision="ieee")
        if ONE_BLOCK:
            d_query = tl.dot(tl.trans(d_scores.to(low)), key, input_precision="ieee") * (
                root / stay
            )
            tl.store(
                d_base + at[:, None] * stride + column[None, :],
                d_query.to(low),
                mask=(at < length)[:, None] & inside,
            )
            query_sum += tl.sum(d_query, axis=0)
    d_key = d_key * (root / stay)
    d_value = d_value / stay
    tl.store(d_base + narrow + own, d_key.to(low), mask=there)
    tl.store(d_base + 2 * narrow + own, d_value.to(low), mask=there)
    if not ONE_BLOCK:
        d_query = query_gradients(
            base,
            d_out,
            out,
            log_sums,
            deltas,
            own_at,
            place,
            length,
            stride,
            narrow,
            column,
            width,
            scale,
            keys,
            site,
            threshold,
            stay,
            QUERIES,
            KEYS,
            WIDTH,
            DROP,
        ) * (root / stay)
        tl.store(d_base + own, d_query.to(low), mask=there)
        query_sum = tl.sum(d_query, axis=0)
    store_sums(
        sums, query_sum, tl.sum(d_key, axis=0), tl.sum(d_value, axis=0), heads, width, column
    )


def attend(qkv: Tensor, rows: PackedRows, heads: int, site: DropoutSite) -> tuple[Tensor, Tensor]:
    """Mixed values [N, H·K] of projections [N, 3·H·K], and log₂ Σ 2^S for each query [H, N]."""
    tokens, width = len(qkv), qkv.shape[1] // (3 * heads)
    out = torch.empty(tokens, heads * width, dtype=qkv.dtype, device=qkv.device)
    log_sums = torch.empty(heads, tokens, dtype=torch.float32, device=qkv.device)
    block, count = min(64, padded(rows.max_seqlen)), len(rows.cu_seqlens) - 1
    attention_forward[
        (count * heads, triton.cdiv(rows.max_seqlen, block))
    ](  # an axis but the first ends at 65,535
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
        QUERIES=block,
        KEYS=block,
        WIDTH=padded(width),
        DROP=site.rate > 0,
        num_warps=4,
        num_stages=3,
    )
    return out, log_sums


def attend_gradients(
    qkv: Tensor,
    rows: PackedRows,
    out: Tensor,
    d_out: Tensor,
    log_sums: Tensor,
    heads: int,
    site: DropoutSite,
) -> tuple[Tensor, Tensor]:
    """d qkv [N, 3·H·K], and for `reduce_partials` [programs, 3·H·K]: the gradient of the projections'
    bias.
    """
    d_qkv = torch.empty_like(qkv)
    tokens, width, count = len(qkv), qkv.shape[1] // (3 * heads), len(rows.cu_seqlens) - 1
    fit = blocking(rows.max_seqlen, tokens // rows.max_seqlen * heads)
    blocks = triton.cdiv(rows.max_seqlen, fit["KEYS"])
    sums = torch.empty(count * blocks, 3 * heads * width, dtype=torch.float32, device=qkv.device)
    deltas = log_sums  # not read where one block computes them on the way
    if blocks > 1:
        deltas = torch.empty_like(log_sums)
        attention_deltas[(triton.cdiv(tokens, 64), heads)](
            out, d_out, deltas, 1 - site.rate, tokens, heads, width, TOKENS=64, WIDTH=padded(width)
        )
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
        WIDTH=padded(width),
        DROP=site.rate > 0,
        ONE_BLOCK=blocks == 1,
        **fit,
    )
    return d_qkv, sums


def blocking(length: int, rows: int) -> dict[str, int]:
    """What was fastest on an H200 with heads of 64: in rows of 128 two programs share a
    multiprocessor, unless there are too few of them, and then each takes all of one; longer rows
    like smaller blocks.
    """
    if length > 128:
        return {"QUERIES": 64, "KEYS": 64, "num_warps": 4, "num_stages": 3}
    keys = padded(length)
    if keys < 128 or rows > 264:
        return {"QUERIES": min(32, keys), "KEYS": keys, "num_warps": 4, "num_stages": 2}
    return {"QUERIES": 64, "KEYS": keys, "num_warps": 8, "num_stages": 1}


def padded(size: int) -> int:
    """What the matrix units take: a power of two, sixteen at least."""
    return max(16, int(triton.next_power_of_2(size)))
