"""The backward pass of attention in rows of several blocks of keys, each score computed once.

    for each block of keys, for each block of queries: S, P, dA, dS as in `attention_backward`
    dK, dV    stay in registers while a program goes through the queries
    dQ        is added up in memory that no other program touches, one block of keys after another

A program owns a row and a head, so the order of additions is fixed. What is done to every score
decides the time. So what belongs to queries (log Σ exp S, δ, random words) is prepared once, and so
are turned Q and K. It lies in tiles that begin at a multiple of their size, where nothing has to be
masked.
"""

from __future__ import annotations

import triton
import triton.language as tl

from electra.kernels.attention import row_and_head
from electra.kernels.attention_scores import (
    key_words,
    query_words,
    scaled_delta,
    store_gradients,
    store_sums,
)
from electra.kernels.dropout import keep_mask
from electra.kernels.rotary import load_parts, load_tile

# A tile has for each query log₂ Σ 2^S, (1 − p) δ, its random word, and a value that is not used and
# keeps the next tile aligned; and then dQᵀ.
QUERY_VALUES = tl.constexpr(4)


@triton.jit
def one_pass_attention_backward(
    qkv,
    cu_seqlens,
    out,
    d_out,
    log_sums,
    scratch,
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
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
    DROP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROTARY: tl.constexpr,
):
    """Write dQ, dK and dV of one row, for one head, and their sums over the row."""
    head, start, length, row_offset = row_and_head(cu_seqlens, tokens, heads)
    column, out_stride = tl.arange(0, WIDTH), heads * width
    base = qkv + start * 3 * out_stride + head * width
    d_base = d_qkv + start * 3 * out_stride + head * width
    out += start * out_stride + head * width
    d_out += start * out_stride + head * width
    layout = (length, 3 * out_stride, out_stride, column, width, (cosine, sine), 0)
    dropout = (keys, key_row, threshold, row_offset, keep_prob)
    factor = inverse_root / keep_prob
    # Tiles of a row follow those of the row before, each of which may end with part of one.
    tile = (start // QUERIES + tl.program_id(0) // heads) * heads + head * tl.cdiv(length, QUERIES)
    tiles = scratch + tile * QUERIES * (WIDTH + QUERY_VALUES)
    inputs = (base, d_out, out, log_sums + row_offset)
    prepare_queries(inputs, d_base, tiles, layout, dropout, QUERIES, PART, DROP, ROTARY)
    tl.debug_barrier()  # other threads read what one has written
    turned = base
    if ROTARY:
        turned = d_base
    queries = (turned, d_out, tiles)
    key_sum, value_sum = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
    for first in range(0, length, KEYS):
        own = first + tl.arange(0, KEYS)
        key = load_tile(turned + out_stride, own, length, 3 * out_stride, column, width)
        value = load_tile(base + 2 * out_stride, own, length, 3 * out_stride, column, width)
        d_key, d_value = key_value_gradients(
            queries, key, value, first, layout, dropout, scale, QUERIES, KEYS, WIDTH, STAGES, DROP
        )
        d_key, d_value = d_key * factor, d_value / keep_prob
        store_keys(d_base, d_key, d_value, own, layout, PART, ROTARY)
        if HAS_BIAS:  # keys beyond the row have gradients, which nobody reads
            is_key = (own < length)[:, None]
            key_sum += tl.sum(tl.where(is_key, d_key, 0.0), axis=0)
            value_sum += tl.sum(tl.where(is_key, d_value, 0.0), axis=0)
        tl.debug_barrier()
    query_sum = store_queries(d_base, tiles, layout, factor, QUERIES, PART, ROTARY)
    if HAS_BIAS:
        store_sums(sums, query_sum, key_sum, value_sum, heads, width, column)


@triton.jit
def prepare_queries(
    inputs,
    d_base,
    tiles,
    layout,
    dropout,
    QUERIES: tl.constexpr,
    PART: tl.constexpr,
    DROP: tl.constexpr,
    ROTARY: tl.constexpr,
):
    """Write what belongs to each query into its tile; and turned Q and K to where their gradients
    will be.
    """
    base, d_out, out, log_sums = inputs
    length, stride, out_stride, column, width, angles, _ = layout
    lane = tl.arange(0, QUERIES)
    for first in range(0, length, QUERIES):
        index = first + lane
        context = load_tile(out, index, length, out_stride, column, width)
        d_context = load_tile(d_out, index, length, out_stride, column, width)
        values = tiles + first * (column.shape[0] + QUERY_VALUES) + lane
        # A query beyond the row has P = 0.
        log_sum = tl.load(log_sums + index, mask=index < length, other=float("inf"))
        tl.store(values, log_sum)
        tl.store(values + QUERIES, scaled_delta(context, d_context, dropout[4]))
        if DROP:
            words = query_words(index, dropout).to(tl.float32, bitcast=True)
            tl.store(values + 2 * QUERIES, words)
        if ROTARY:
            for projection in tl.static_range(2):
                offset = projection * out_stride
                parts = load_parts(base + offset, index, length, stride, width, angles, PART, True)
                store_turned(d_base + offset, parts, index, layout, PART)


@triton.jit
def store_turned(base, parts, index, layout, PART: tl.constexpr):
    """Store both halves of turned queries or keys."""
    length, stride, _, _, _, _, _ = layout
    target = base + index[:, None] * stride + tl.arange(0, PART)[None, :]
    tl.store(target, parts[0], mask=(index < length)[:, None])
    tl.store(target + PART, parts[1], mask=(index < length)[:, None])


@triton.jit
def key_value_gradients(
    queries,
    key,
    value,
    first_key,
    layout,
    dropout,
    scale,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
    DROP: tl.constexpr,
):
    """Return (1 − p) √K dK and (1 − p) dV of a block of keys, going through the queries, and add
    (1 − p) √K dQ to their tiles.
    """
    turned, d_out, tiles = queries
    length, stride, out_stride, column, width, _, _ = layout
    low = value.dtype
    d_key = tl.zeros((KEYS, WIDTH), tl.float32)
    d_value = tl.zeros((KEYS, WIDTH), tl.float32)
    own_words = key_words(first_key + tl.arange(0, KEYS), dropout)[:, None]
    lane = tl.arange(0, QUERIES)
    # With stages of its own a loop also loads ahead what no product takes: the tile of dQ.
    for first in tl.range(0, length, QUERIES, num_stages=STAGES):
        query = load_tile(turned, first + lane, length, stride, column, width)
        d_context = load_tile(d_out, first + lane, length, out_stride, column, width)
        tile = tiles + first * (WIDTH + QUERY_VALUES)
        values, keep = tile + lane, (own_words, dropout[2])
        probs, d_scores = score_gradients(
            key, query, value, d_context, values, keep, scale, QUERIES, DROP
        )
        d_value += tl.dot(probs.to(low), d_context, input_precision="ieee")
        d_key += tl.dot(d_scores.to(low), query, input_precision="ieee")
        d_query = tl.dot(tl.trans(key), d_scores.to(low), input_precision="ieee")
        target = tile + QUERIES * QUERY_VALUES + column[:, None] * QUERIES + lane[None, :]
        d_query += tl.load(target, mask=first_key > 0, other=0.0)
        tl.store(target, d_query)
    return d_key, d_value


@triton.jit
def score_gradients(
    key,
    query,
    value,
    d_context,
    values,
    keep,
    scale,
    QUERIES: tl.constexpr,
    DROP: tl.constexpr,
):
    """Return (1 − p) A and (1 − p) √K dS in float32, as [keys, queries].

    A key beyond the row is a zero, so that it adds nothing to dQ as long as its P is finite: no P
    is above one.
    """
    log_sum, delta = tl.load(values)[None, :], tl.load(values + QUERIES)[None, :]
    scores = tl.dot(key, tl.trans(query), input_precision="ieee") * scale
    probs = tl.exp2(tl.minimum(scores - log_sum, 0.0))
    d_probs = tl.dot(value, tl.trans(d_context), input_precision="ieee")
    if DROP:
        words = tl.load(values + 2 * QUERIES).to(tl.uint32, bitcast=True)[None, :]
        dropped_probs = tl.where(keep_mask(words, keep[0], keep[1]), probs, 0.0)
        return dropped_probs, dropped_probs * d_probs - probs * delta
    else:
        return probs, probs * (d_probs - delta)


@triton.jit
def store_keys(d_base, d_key, d_value, own, layout, PART: tl.constexpr, ROTARY: tl.constexpr):
    """Write dK and dV of a block of keys."""
    length, stride, out_stride, column, width, _, _ = layout
    if ROTARY:
        halves = tl.reshape(d_key, (own.shape[0], 2, PART))
        parts = tl.split(tl.permute(halves, (0, 2, 1)))
    else:
        parts = (d_key, d_key)
    store_gradients(d_base + out_stride, parts, own, layout, PART, ROTARY)
    target = d_base + 2 * out_stride + own[:, None] * stride + column[None, :]
    inside = (own < length)[:, None] & (column < width)[None, :]
    tl.store(target, d_value.to(d_base.dtype.element_ty), mask=inside)


@triton.jit
def store_queries(
    d_base,
    tiles,
    layout,
    factor,
    QUERIES: tl.constexpr,
    PART: tl.constexpr,
    ROTARY: tl.constexpr,
):
    """Write dQ of a row, and return its sum."""
    length, column = layout[0], layout[3]
    lane = tl.arange(0, QUERIES)
    query_sum = tl.zeros((PART,), tl.float32)
    for first in range(0, length, QUERIES):
        source = tiles + first * (column.shape[0] + QUERY_VALUES) + QUERIES * QUERY_VALUES
        source += tl.arange(0, PART)[None, :] * QUERIES + lane[:, None]
        d_first = tl.load(source) * factor
        d_second = d_first
        if ROTARY:
            d_second = tl.load(source + PART * QUERIES) * factor
        store_gradients(d_base, (d_first, d_second), first + lane, layout, PART, ROTARY)
        query_sum += tl.sum(d_first, axis=0)
    return query_sum
