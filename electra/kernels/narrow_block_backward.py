"""The backward pass of a narrow transformer block (`narrow_block`) as two kernels and the weight
gradients.

The first goes through both branches up to the gradient of the context, which concerns one token at
a time. The second takes a block of a row's tokens through attention, once as keys and once as
queries, so that the gradients of their queries, keys and values meet in one program and become that
of the hidden state there. Each program writes its sums for biases and norms.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.activation import gelu_cdf_pdf, gelu_slope
from electra.kernels.attention import LOG2_E, pad_size
from electra.kernels.attention_scores import scaled_delta, score_gradients
from electra.kernels.block import (
    BlockSettings,
    BlockWeights,
    SavedBlock,
    in_order_of_weights,
    summed_weights,
)
from electra.kernels.deferred_grads import DeferredGradients, sum_gradients
from electra.kernels.dropout import random_words
from electra.kernels.narrow_block_forward import (
    branch_mask,
    dropout_arguments,
    load_matrix,
    load_projections,
    load_rows,
    normalize,
    store_rows,
    strip_of,
)
from electra.kernels.norm import norm_input_gradient
from electra.kernels.packing import PackedRows
from electra.kernels.tiles import tile_options
from electra.kernels.weight_grads import WeightGrads
from electra.model.electra_encoder import NORM_EPSILON


class BranchGradients(NamedTuple):
    """What the second kernel and the weight gradients read of the first; [N, …] of tokens."""

    feedforward: Tensor
    expanded: Tensor
    attention: Tensor
    context: Tensor
    hidden: Tensor  # through the residual connection alone
    deltas: Tensor  # (1 − p) Σ dO · O of every query
    # [programs, 6·D + F]: of the last norm's γ and β and the bias before it, of the bias before the
    # gelu, then of the first norm's as of the last one's
    sums: Tensor


def narrow_backward(
    d_output: Tensor,
    saved: SavedBlock,
    rows: PackedRows,
    settings: BlockSettings,
    weights: BlockWeights,
    deferred: DeferredGradients | None,
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return what `block.block_backward` returns."""
    branches = branch_gradients(d_output.contiguous(), saved, settings)
    d_qkv, qkv_sums = attention_gradients(branches, saved, rows, settings)
    weight_grads = WeightGrads(d_output.shape[1], deferred)
    weight_grads.add(weights.contract, branches.feedforward, saved.activated)
    weight_grads.add(weights.expand, branches.expanded, saved.middle)
    weight_grads.add(weights.output, branches.attention, saved.context)
    weight_grads.add(weights.qkv, d_qkv, saved.hidden)
    partials = (branches.sums, qkv_sums)
    d_vectors = sum_gradients(partials, summed_weights(weights), deferred)
    return branches.hidden, in_order_of_weights(weight_grads.all(), d_vectors)


def branch_gradients(
    d_output: Tensor, saved: SavedBlock, settings: BlockSettings
) -> BranchGradients:
    """Return the gradients of both branches, up to the context."""
    (tokens, width), feedforward = d_output.shape, saved.activated.shape[1]
    options = tile_options("narrow_branches_backward", size=width, count=tokens)
    programs = triton.cdiv(tokens, options["TOKENS"])
    gradients = BranchGradients(
        torch.empty_like(saved.feedforward),
        torch.empty_like(saved.activated),
        torch.empty_like(saved.attention),
        torch.empty_like(saved.context),
        torch.empty_like(saved.hidden),
        torch.empty_like(saved.log_sums),
        saved.log_sums.new_empty(programs, 6 * width + feedforward),
    )
    narrow_branches_backward[(programs,)](
        *(d_output, saved.feedforward, saved.middle, saved.expanded),
        *(saved.attention, saved.hidden, saved.context),
        *(saved.contract_weight, saved.expand_weight, saved.output_weight),
        *(saved.feedforward_norm, saved.attention_norm),
        *gradients,
        *dropout_arguments(settings),
        tokens,
        NORM_EPSILON,
        WIDTH=width,
        FEEDFORWARD=feedforward,
        STRIP=strip_of(feedforward),
        DROP=settings.dropout > 0,
        **options,
    )
    return gradients


def attention_gradients(
    branches: BranchGradients, saved: SavedBlock, rows: PackedRows, settings: BlockSettings
) -> tuple[Tensor, Tensor]:
    """Return d qkv [N, 3·D] and for `reduce_partials` [programs, 3·D] that of its bias; add the
    gradient of the hidden state to `branches.hidden`.
    """
    tokens, width = saved.hidden.shape
    options = tile_options("narrow_attention_backward", size=rows.max_seqlen, count=tokens)
    longest = pad_size(rows.max_seqlen)
    options = {**options, **{name: min(options[name], longest) for name in ("OWN", "OTHERS")}}
    grid = (len(rows.cu_seqlens) - 1, triton.cdiv(rows.max_seqlen, options["OWN"]))
    d_qkv = torch.empty_like(saved.qkv)
    sums = saved.log_sums.new_empty(math.prod(grid), 3 * width)
    narrow_attention_backward[grid](
        *(saved.qkv, saved.log_sums, branches.deltas, rows.cu_seqlens, saved.qkv_weight),
        *(branches.context, branches.hidden, d_qkv, sums),
        *dropout_arguments(settings)[:4],
        *(LOG2_E / math.sqrt(width), 1 / math.sqrt(width)),
        WIDTH=width,
        DROP=settings.attention_dropout > 0,
        **options,
    )
    return d_qkv, sums


@triton.jit
def store_column_sums(target, values):
    """Store the sums over rows, by a product: to add across threads would take longer."""
    row, column = tl.arange(0, 16), tl.arange(0, values.shape[1])
    ones = tl.full((16, values.shape[0]), 1.0, values.dtype)
    total = tl.dot(ones, values, input_precision="ieee")
    tl.store(target + 0 * row[:, None] + column[None, :], total, mask=(row == 0)[:, None])


@triton.jit
def add_and_norm_gradients(dy, branch, residual, weight, mask, sums, epsilon, WIDTH: tl.constexpr):
    """Return ds and db of one norm, and store its sums for γ, β and the bias before it."""
    column = tl.arange(0, WIDTH)
    gamma = tl.load(weight + column).to(tl.float32)
    s = residual.to(tl.float32) + branch.to(tl.float32) * mask
    normalized, inverse_std = normalize(s, epsilon, WIDTH)
    ds = norm_input_gradient(dy, gamma, normalized, inverse_std, WIDTH)
    db = ds * mask
    tl.store(sums + column, tl.sum(dy * normalized, axis=0))
    store_column_sums(sums + WIDTH, dy.to(branch.dtype))
    store_column_sums(sums + 2 * WIDTH, db.to(branch.dtype))
    return ds, db.to(branch.dtype)


@triton.jit
def feed_forward_gradients(
    d_branch,
    wide,
    weights,
    sums,
    index,
    count,
    WIDTH: tl.constexpr,
    FEEDFORWARD: tl.constexpr,
    STRIP: tl.constexpr,
):
    """Return the gradient of what the feed-forward layers read; write that before their gelu."""
    expanded, d_expanded = wide
    contract, expand = weights
    d_input = tl.zeros((index.shape[0], WIDTH), tl.float32)
    for first in range(0, FEEDFORWARD, STRIP):
        matrix = load_matrix(contract + first, WIDTH, STRIP, FEEDFORWARD)
        dy = tl.dot(d_branch, matrix, input_precision="ieee")
        x = load_rows(expanded + first, index, count, FEEDFORWARD, STRIP).to(tl.float32)
        cdf, bell = gelu_cdf_pdf(x)
        dx = (dy * gelu_slope(x, cdf, bell)).to(d_branch.dtype)
        store_rows(d_expanded + first, dx, index, count, FEEDFORWARD)
        store_column_sums(sums + first, dx)
        matrix = load_matrix(expand + first * WIDTH, STRIP, WIDTH, WIDTH)
        d_input = tl.dot(dx, matrix, d_input, input_precision="ieee")
    return d_input


@triton.jit
def narrow_branches_backward(
    d_out,
    feedforward,
    middle,
    expanded,
    attention,
    hidden,
    context,
    contract_weight,
    expand_weight,
    output_weight,
    feedforward_norm,
    attention_norm,
    d_feedforward,
    d_expanded,
    d_attention,
    d_context,
    d_hidden,
    deltas,
    sums,
    keys,
    key_row,
    probs_threshold,
    probs_keep_prob,
    threshold,
    keep_prob,
    tokens,
    epsilon,
    WIDTH: tl.constexpr,
    FEEDFORWARD: tl.constexpr,
    STRIP: tl.constexpr,
    DROP: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Write the gradients of a block of tokens, from a block's output to the context."""
    first, index = tl.program_id(0) * TOKENS, tl.arange(0, TOKENS)
    count, offset = tokens - first, first.to(tl.int64) * WIDTH
    wide_offset = first.to(tl.int64) * FEEDFORWARD
    sums += tl.program_id(0).to(tl.int64) * (6 * WIDTH + FEEDFORWARD)
    dy = load_rows(d_out + offset, index, count, WIDTH, WIDTH).to(tl.float32)
    branch = load_rows(feedforward + offset, index, count, WIDTH, WIDTH)
    residual = load_rows(middle + offset, index, count, WIDTH, WIDTH)
    mask = branch_mask(first, index, keys, key_row + 2, threshold, keep_prob, WIDTH, DROP)
    ds, db = add_and_norm_gradients(
        dy, branch, residual, feedforward_norm, mask, sums, epsilon, WIDTH
    )
    store_rows(d_feedforward + offset, db, index, count, WIDTH)
    wide = (expanded + wide_offset, d_expanded + wide_offset)
    weights = (contract_weight, expand_weight)
    dy = ds + feed_forward_gradients(
        db, wide, weights, sums + 3 * WIDTH, index, count, WIDTH, FEEDFORWARD, STRIP
    )
    # Loads that come together are waited for once.
    branch = load_rows(attention + offset, index, count, WIDTH, WIDTH)
    residual = load_rows(hidden + offset, index, count, WIDTH, WIDTH)
    attended = load_rows(context + offset, index, count, WIDTH, WIDTH)
    matrix = load_matrix(output_weight, WIDTH, WIDTH, WIDTH)
    mask = branch_mask(first, index, keys, key_row + 1, threshold, keep_prob, WIDTH, DROP)
    sums += 3 * WIDTH + FEEDFORWARD
    ds, db = add_and_norm_gradients(
        dy, branch, residual, attention_norm, mask, sums, epsilon, WIDTH
    )
    store_rows(d_hidden + offset, ds, index, count, WIDTH)
    store_rows(d_attention + offset, db, index, count, WIDTH)
    product = tl.dot(db, matrix, input_precision="ieee")
    store_rows(d_context + offset, product, index, count, WIDTH)
    delta = scaled_delta(attended, product, probs_keep_prob)
    tl.store(deltas + first + index, delta, mask=index < count)


@triton.jit
def load_queries(inputs, index, length, WIDTH: tl.constexpr):
    """Load Q, dO, log₂ Σ 2^S and (1 − p) δ of some tokens."""
    qkv, d_context, log_sums, deltas = inputs
    query = load_rows(qkv, index, length, 3 * WIDTH, WIDTH)
    d_out = load_rows(d_context, index, length, WIDTH, WIDTH)
    log_sum = tl.load(log_sums + index, mask=index < length, other=float("inf"))
    return query, d_out, log_sum, tl.load(deltas + index, mask=index < length, other=0.0)


@triton.jit
def load_keys(inputs, index, length, WIDTH: tl.constexpr):
    """Load K and V of some tokens."""
    qkv = inputs[0]
    key = load_rows(qkv + WIDTH, index, length, 3 * WIDTH, WIDTH)
    return key, load_rows(qkv + 2 * WIDTH, index, length, 3 * WIDTH, WIDTH)


@triton.jit
def key_gradients(
    inputs, own, row, dropout, scale, OTHERS: tl.constexpr, WIDTH: tl.constexpr, DROP: tl.constexpr
):
    """Return (1 − p) √K dK and (1 − p) dV of a program's own tokens, going through the queries."""
    start, length = row
    keys, key_row, threshold = dropout
    key, value = load_keys(inputs, own, length, WIDTH)
    key_words = random_words(own, keys, key_row, True)[:, None]
    d_key = tl.zeros((own.shape[0], WIDTH), tl.float32)
    d_value = tl.zeros((own.shape[0], WIDTH), tl.float32)
    for first in range(0, length, OTHERS):
        index = first + tl.arange(0, OTHERS)
        query, d_out, log_sum, delta = load_queries(inputs, index, length, WIDTH)
        query_words = random_words(start + index, keys, key_row, False)[None, :]
        keep, sums = (query_words, key_words, threshold), (log_sum[None, :], delta[None, :])
        is_key = (own < length)[:, None]
        probs, d_scores = score_gradients(
            (key, key), (query, query), value, d_out, sums, keep, is_key, scale, DROP, False
        )
        d_value = tl.dot(probs.to(key.dtype), d_out, d_value, input_precision="ieee")
        d_key = tl.dot(d_scores.to(key.dtype), query, d_key, input_precision="ieee")
    return d_key, d_value


@triton.jit
def query_gradients(
    inputs, own, row, dropout, scale, OTHERS: tl.constexpr, WIDTH: tl.constexpr, DROP: tl.constexpr
):
    """Return (1 − p) √K dQ of a program's own tokens, going through the keys."""
    start, length = row
    keys, key_row, threshold = dropout
    query, d_out, log_sum, delta = load_queries(inputs, own, length, WIDTH)
    query_words = random_words(start + own, keys, key_row, False)[:, None]
    d_query = tl.zeros((own.shape[0], WIDTH), tl.float32)
    for first in range(0, length, OTHERS):
        index = first + tl.arange(0, OTHERS)
        key, value = load_keys(inputs, index, length, WIDTH)
        key_words = random_words(index, keys, key_row, True)[None, :]
        keep, sums = (query_words, key_words, threshold), (log_sum[:, None], delta[:, None])
        is_key = (index < length)[None, :]
        _, d_scores = score_gradients(
            (query, query), (key, key), d_out, value, sums, keep, is_key, scale, DROP, False
        )
        d_query = tl.dot(d_scores.to(key.dtype), key, d_query, input_precision="ieee")
    return d_query


@triton.jit
def store_and_project(
    gradient, matrix, d_qkv, sums, own, length, PART: tl.constexpr, WIDTH: tl.constexpr
):
    """Store the gradient of queries, keys or values and its sum; return that of what was
    projected.
    """
    low = gradient.to(matrix.dtype)
    store_rows(d_qkv + PART * WIDTH, low, own, length, 3 * WIDTH)
    store_column_sums(sums + PART * WIDTH, low)
    return tl.dot(low, matrix, input_precision="ieee")


@triton.jit
def narrow_attention_backward(
    qkv,
    log_sums,
    deltas,
    cu_seqlens,
    qkv_weight,
    d_context,
    d_hidden,
    d_qkv,
    sums,
    keys,
    key_row,
    threshold,
    keep_prob,
    scale,
    inverse_root,
    WIDTH: tl.constexpr,
    DROP: tl.constexpr,
    OWN: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """Write the gradients of some tokens of a row, from the context to the block's input."""
    start = tl.load(cu_seqlens + tl.program_id(0))
    length = tl.load(cu_seqlens + tl.program_id(0) + 1) - start
    own = tl.program_id(1) * OWN + tl.arange(0, OWN)
    program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    sums += program.to(tl.int64) * 3 * WIDTH
    if tl.program_id(1) * OWN >= length:
        column = tl.arange(0, WIDTH)
        for part in range(3):
            tl.store(sums + part * WIDTH + column, tl.zeros((WIDTH,), tl.float32))
        return
    offset = start.to(tl.int64) * WIDTH
    inputs = (qkv + 3 * offset, d_context + offset, log_sums + start, deltas + start)
    row, dropout = (start, length), (keys, key_row, threshold)
    # Loads that come together are waited for once.
    query_matrix, key_matrix, value_matrix = load_projections(qkv_weight, WIDTH)
    d_key, d_value = key_gradients(inputs, own, row, dropout, scale, OTHERS, WIDTH, DROP)
    d_key, d_value = d_key * (inverse_root / keep_prob), d_value / keep_prob
    d_qkv += 3 * offset
    d_x = load_rows(d_hidden + offset, own, length, WIDTH, WIDTH).to(tl.float32)
    d_x += store_and_project(d_key, key_matrix, d_qkv, sums, own, length, 1, WIDTH)
    d_x += store_and_project(d_value, value_matrix, d_qkv, sums, own, length, 2, WIDTH)
    d_query = query_gradients(inputs, own, row, dropout, scale, OTHERS, WIDTH, DROP)
    d_query *= inverse_root / keep_prob
    d_x += store_and_project(d_query, query_matrix, d_qkv, sums, own, length, 0, WIDTH)
    store_rows(d_hidden + offset, d_x, own, length, WIDTH)
