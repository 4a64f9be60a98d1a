"""The pieces of attention's backward pass (`attention_backward`): of some queries or keys, and of
their scores.
"""

from __future__ import annotations

import triton
import triton.language as tl

from electra.kernels.dropout import keep_mask, random_words
from electra.kernels.rotary import load_parts, load_tile, multiply_parts, store_parts


@triton.jit
def score_gradients(
    left,
    right,
    left_context,
    right_context,
    sums,
    keep,
    is_key,
    scale,
    DROP: tl.constexpr,
    ROTARY: tl.constexpr,
):
    """Return (1 − p) A and (1 − p) √K dS in float32, as [queries, keys] or transposed.

    Transposed, `left` is K and `left_context` V, `right` Q and `right_context` dO, and what belongs
    to queries or keys lies along their axis.
    """
    log_sum, delta = sums
    query_words, key_words, threshold = keep
    probs = tl.exp2(multiply_parts(left, right, ROTARY) * scale - log_sum)
    probs = tl.where(is_key, probs, 0.0)  # a query beyond the row has log_sum = ∞
    d_probs = tl.dot(left_context, tl.trans(right_context), input_precision="ieee")
    dropped_probs = probs
    if DROP:
        mask = keep_mask(query_words, key_words, threshold)
        dropped_probs = tl.where(mask, probs, 0.0)
        d_probs = tl.where(mask, d_probs, 0.0)
    return dropped_probs, probs * (d_probs - delta)


@triton.jit
def load_queries(
    inputs,
    index,
    layout,
    dropout,
    PART: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    ROTARY: tl.constexpr,
):
    """Load Q, dO, log₂ Σ 2^S and (1 − p) δ of some queries."""
    base, d_out, out, log_sums, deltas = inputs
    length, stride, out_stride, column, width, angles, _ = layout
    query = load_parts(base, index, length, stride, width, angles, PART, ROTARY)
    d_context = load_tile(d_out, index, length, out_stride, column, width)
    log_sum = tl.load(log_sums + index, mask=index < length, other=float("inf"))
    if ONE_BLOCK:
        context = load_tile(out, index, length, out_stride, column, width)
        delta = scaled_delta(context, d_context, dropout[4])
    else:
        delta = tl.load(deltas + index, mask=index < length, other=0.0)
    return query, d_context, log_sum, delta


@triton.jit
def query_words(index, dropout):
    """Return the random words of some queries."""
    keys, key_row, _, row_offset, _ = dropout
    return random_words(row_offset + index, keys, key_row, False)


@triton.jit
def key_words(index, dropout):
    """Return the random words of some keys."""
    keys, key_row, _, _, _ = dropout
    return random_words(index, keys, key_row, True)


@triton.jit
def multiply_both(left, parts, factor, ROTARY: tl.constexpr):
    """Return the products with both parts of a head, or with the whole twice."""
    first = tl.dot(left, parts[0], input_precision="ieee") * factor
    second = first
    if ROTARY:
        second = tl.dot(left, parts[1], input_precision="ieee") * factor
    return first, second


@triton.jit
def store_gradients(base, parts, index, layout, PART: tl.constexpr, ROTARY: tl.constexpr):
    """Store the gradients of some queries or keys."""
    length, stride, _, _, width, angles, _ = layout
    store_parts(base, parts, index, length, stride, width, angles, PART, ROTARY)


@triton.jit
def scaled_delta(context, d_context, keep_prob):
    """Return (1 − p) Σ dO · O over K."""
    return tl.sum(context.to(tl.float32) * d_context.to(tl.float32), axis=1) * keep_prob


@triton.jit
def store_sums(sums, query_sum, key_sum, value_sum, heads, width, column):
    """Store the program's part of the bias gradients, into [rows · blocks, 3, H, K]."""
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    program = (row * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)
    sums += program * 3 * heads * width + head * width + column
    tl.store(sums, query_sum, mask=column < width)
    tl.store(sums + heads * width, key_sum, mask=column < width)
    tl.store(sums + 2 * heads * width, value_sum, mask=column < width)
