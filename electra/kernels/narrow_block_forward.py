"""The forward pass of a narrow transformer block (`narrow_block`) as one kernel.

A program takes a block of a row's queries from hidden state to hidden state, computes the keys and
values of the whole row itself, and writes what the backward pass reads.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.activation import gelu_cdf_pdf
from electra.kernels.attention import LOG2_E, pad_size
from electra.kernels.block import BlockSettings, BlockWeights, SavedBlock
from electra.kernels.dropout import drop_threshold, keep_mask, random_words
from electra.kernels.packing import PackedRows
from electra.kernels.tiles import tile_options
from electra.model.electra_encoder import NORM_EPSILON

STRIP = 64  # values of the feed-forward layer that a program holds of each token


def strip_of(feedforward: int) -> int:
    """Return how many values of the feed-forward layer are computed at once."""
    return min(STRIP, pad_size(feedforward))


def narrow_forward(
    hidden: Tensor,
    rows: PackedRows,
    settings: BlockSettings,
    weights: BlockWeights,
    low: BlockWeights,
) -> tuple[Tensor, SavedBlock]:
    """Return what `block.block_forward` returns."""
    (tokens, width), feedforward = hidden.shape, len(low.expand)
    sizes = (3 * width, width, width, width, feedforward, feedforward, width, width)
    qkv, context, *others, output = (hidden.new_empty(tokens, size) for size in sizes)
    log_sums = torch.empty(1, tokens, dtype=torch.float32, device=hidden.device)
    activations = (qkv, context, log_sums, *others)
    options = tile_options("narrow_block_forward", size=rows.max_seqlen, count=tokens)
    longest = pad_size(rows.max_seqlen)
    options = {**options, "QUERIES": min(options["QUERIES"], longest), "KEYS": longest}
    grid = (len(rows.cu_seqlens) - 1, triton.cdiv(rows.max_seqlen, options["QUERIES"]))
    narrow_block_forward[grid](
        *(hidden, rows.cu_seqlens, *activations, output),
        *mixed_precision(weights, low),
        *dropout_arguments(settings),
        LOG2_E / math.sqrt(width),
        NORM_EPSILON,
        WIDTH=width,
        FEEDFORWARD=feedforward,
        STRIP=strip_of(feedforward),
        DROP_PROBS=settings.attention_dropout > 0,
        DROP=settings.dropout > 0,
        **options,
    )
    matrices = (low.qkv, low.output, low.expand, low.contract)
    norms = (weights.attention_norm, weights.feedforward_norm)
    return output, SavedBlock._make((hidden, *activations, *matrices, *norms))


def mixed_precision(weights: BlockWeights, low: BlockWeights) -> BlockWeights:
    """Return the matrices and their biases in low precision, and the norms as they are."""
    return low._replace(
        attention_norm=weights.attention_norm,
        attention_norm_bias=weights.attention_norm_bias,
        feedforward_norm=weights.feedforward_norm,
        feedforward_norm_bias=weights.feedforward_norm_bias,
    )


def dropout_arguments(settings: BlockSettings) -> tuple[Tensor, int, int, float, int, float]:
    """Return the keys, and threshold and keep probability of both rates, as kernels take them."""
    at_probs, at_attention, _ = settings.dropout_sites
    thresholds = (drop_threshold(at_probs.rate), drop_threshold(at_attention.rate))
    return (
        *(at_probs.keys, at_probs.key_row),
        *(thresholds[0], 1 - at_probs.rate),
        *(thresholds[1], 1 - at_attention.rate),
    )


@triton.jit
def load_rows(base, index, end, STRIDE: tl.constexpr, COLUMNS: tl.constexpr):
    """Load the first columns of some rows; zero from row `end` on."""
    offset = index[:, None] * STRIDE + tl.arange(0, COLUMNS)[None, :]
    return tl.load(base + offset, mask=(index < end)[:, None], other=0.0)


@triton.jit
def store_rows(base, values, index, end, STRIDE: tl.constexpr):
    """Store the first columns of the rows before `end`, in the precision of `base`."""
    offset = index[:, None] * STRIDE + tl.arange(0, values.shape[1])[None, :]
    tl.store(base + offset, values.to(base.dtype.element_ty), mask=(index < end)[:, None])


@triton.jit
def load_matrix(weight, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr):
    """Load the corner of a matrix."""
    offset = tl.arange(0, ROWS)[:, None] * STRIDE + tl.arange(0, COLUMNS)[None, :]
    return tl.load(weight + offset)


@triton.jit
def load_projections(qkv_weight, WIDTH: tl.constexpr):
    """Load the matrices of queries, keys and values."""
    query = load_matrix(qkv_weight, WIDTH, WIDTH, WIDTH)
    key = load_matrix(qkv_weight + WIDTH * WIDTH, WIDTH, WIDTH, WIDTH)
    value = load_matrix(qkv_weight + 2 * WIDTH * WIDTH, WIDTH, WIDTH, WIDTH)
    return query, key, value


@triton.jit
def project(x, matrix, bias):
    """Return x · Wᵀ + b in float32."""
    product = tl.dot(x, tl.trans(matrix), input_precision="ieee")
    vector = tl.load(bias + tl.arange(0, matrix.shape[0])).to(tl.float32)
    return product + vector[None, :]


@triton.jit
def branch_mask(
    start, index, keys, key_row, threshold, keep_prob, WIDTH: tl.constexpr, DROP: tl.constexpr
):
    """Return the dropout mask of a branch times 1/(1 − p)."""
    mask = tl.full((index.shape[0], WIDTH), 1.0, tl.float32)
    if DROP:
        row_words = random_words(start + index, keys, key_row, False)[:, None]
        column_words = random_words(tl.arange(0, WIDTH), keys, key_row, True)[None, :]
        mask = tl.where(keep_mask(row_words, column_words, threshold), 1 / keep_prob, 0.0)
    return mask


@triton.jit
def normalize(s, epsilon, WIDTH: tl.constexpr):
    """Return x̂ and 1/√(var + ε)."""
    centered = s - tl.sum(s, axis=1)[:, None] / WIDTH
    inverse_std = tl.rsqrt(tl.sum(centered * centered, axis=1) / WIDTH + epsilon)[:, None]
    return centered * inverse_std, inverse_std


@triton.jit
def add_and_norm(branch, residual, mask, weight, bias, epsilon, WIDTH: tl.constexpr):
    """Return LayerNorm(residual + mask · branch) in the precision of both."""
    column = tl.arange(0, WIDTH)
    s = residual.to(tl.float32) + branch.to(tl.float32) * mask
    normalized, _ = normalize(s, epsilon, WIDTH)
    gamma, beta = tl.load(weight + column).to(tl.float32), tl.load(bias + column).to(tl.float32)
    return (normalized * gamma[None, :] + beta[None, :]).to(branch.dtype)


@triton.jit
def attend_row(
    x,
    row_x,
    targets,
    matrices,
    bias,
    index,
    row,
    dropout,
    scale,
    WIDTH: tl.constexpr,
    DROP: tl.constexpr,
):
    """Return the context of some queries `x` of a row; write their queries, keys, values and
    log₂ Σ 2^S.
    """
    qkv, log_sums = targets
    start, length = row
    keys, key_row, threshold, keep_prob = dropout
    key_index, stride = tl.arange(0, row_x.shape[0]), 3 * WIDTH
    # Every program of the row computes all keys and values, and writes those of its own tokens.
    own = tl.where(key_index >= tl.min(index, axis=0), key_index, length)
    own_end = tl.minimum(length, tl.max(index, axis=0) + 1)
    query = project(x, matrices[0], bias).to(x.dtype)
    store_rows(qkv, query, index, length, stride)
    key = project(row_x, matrices[1], bias + WIDTH).to(x.dtype)
    store_rows(qkv + WIDTH, key, own, own_end, stride)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    scores = tl.where((key_index < length)[None, :], scores, -float("inf"))
    peak = tl.max(scores, axis=1)
    probs = tl.exp2(scores - peak[:, None])
    total = tl.sum(probs, axis=1)
    tl.store(log_sums + index, peak + tl.log2(total), mask=index < length)
    if DROP:
        query_words = random_words(start + index, keys, key_row, False)[:, None]
        key_words = random_words(key_index, keys, key_row, True)[None, :]
        probs = tl.where(keep_mask(query_words, key_words, threshold), probs, 0.0)
    value = project(row_x, matrices[2], bias + 2 * WIDTH).to(x.dtype)
    store_rows(qkv + 2 * WIDTH, value, own, own_end, stride)
    context = tl.dot(probs.to(value.dtype), value, input_precision="ieee")
    return (context * (1 / (keep_prob * total))[:, None]).to(x.dtype)


@triton.jit
def feed_forward(
    x,
    targets,
    weights,
    index,
    length,
    WIDTH: tl.constexpr,
    FEEDFORWARD: tl.constexpr,
    STRIP: tl.constexpr,
):
    """Return the feed-forward branch of some tokens; write what lies before and after its gelu."""
    expanded, activated = targets
    expand, expand_bias, contract, contract_bias = weights
    total = tl.zeros((index.shape[0], WIDTH), tl.float32)
    for first in range(0, FEEDFORWARD, STRIP):
        matrix = load_matrix(expand + first * WIDTH, STRIP, WIDTH, WIDTH)
        strip = project(x, matrix, expand_bias + first)
        store_rows(expanded + first, strip, index, length, FEEDFORWARD)
        cdf, _ = gelu_cdf_pdf(strip)
        active = (strip * cdf).to(x.dtype)
        store_rows(activated + first, active, index, length, FEEDFORWARD)
        matrix = load_matrix(contract + first, WIDTH, STRIP, FEEDFORWARD)
        total = tl.dot(active, tl.trans(matrix), total, input_precision="ieee")
    bias = tl.load(contract_bias + tl.arange(0, WIDTH)).to(tl.float32)
    return (total + bias[None, :]).to(x.dtype)


@triton.jit
def narrow_block_forward(
    hidden,
    cu_seqlens,
    qkv,
    context,
    log_sums,
    attention,
    middle,
    expanded,
    activated,
    feedforward,
    out,
    qkv_weight,
    qkv_bias,
    output_weight,
    output_bias,
    attention_norm,
    attention_norm_bias,
    expand_weight,
    expand_bias,
    contract_weight,
    contract_bias,
    feedforward_norm,
    feedforward_norm_bias,
    keys,
    key_row,
    probs_threshold,
    probs_keep_prob,
    threshold,
    keep_prob,
    scale,
    epsilon,
    WIDTH: tl.constexpr,
    FEEDFORWARD: tl.constexpr,
    STRIP: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    DROP_PROBS: tl.constexpr,
    DROP: tl.constexpr,
):
    """Write the output of a block, and what its backward pass reads, of some queries of a row."""
    start = tl.load(cu_seqlens + tl.program_id(0))
    length = tl.load(cu_seqlens + tl.program_id(0) + 1) - start
    if tl.program_id(1) * QUERIES >= length:
        return
    index = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    offset = start.to(tl.int64) * WIDTH
    # Loads that come together are waited for once.
    x = load_rows(hidden + offset, index, length, WIDTH, WIDTH)
    row_x = load_rows(hidden + offset, tl.arange(0, KEYS), length, WIDTH, WIDTH)
    matrices = load_projections(qkv_weight, WIDTH)
    output_matrix = load_matrix(output_weight, WIDTH, WIDTH, WIDTH)
    targets = (qkv + 3 * offset, log_sums + start)
    row, dropout = (start, length), (keys, key_row, probs_threshold, probs_keep_prob)
    attended = attend_row(
        x, row_x, targets, matrices, qkv_bias, index, row, dropout, scale, WIDTH, DROP_PROBS
    )
    store_rows(context + offset, attended, index, length, WIDTH)
    branch = project(attended, output_matrix, output_bias).to(x.dtype)
    store_rows(attention + offset, branch, index, length, WIDTH)
    mask = branch_mask(start, index, keys, key_row + 1, threshold, keep_prob, WIDTH, DROP)
    x = add_and_norm(branch, x, mask, attention_norm, attention_norm_bias, epsilon, WIDTH)
    store_rows(middle + offset, x, index, length, WIDTH)
    wide_offset = start.to(tl.int64) * FEEDFORWARD
    targets = (expanded + wide_offset, activated + wide_offset)
    weights = (expand_weight, expand_bias, contract_weight, contract_bias)
    branch = feed_forward(x, targets, weights, index, length, WIDTH, FEEDFORWARD, STRIP)
    store_rows(feedforward + offset, branch, index, length, WIDTH)
    mask = branch_mask(start, index, keys, key_row + 2, threshold, keep_prob, WIDTH, DROP)
    x = add_and_norm(branch, x, mask, feedforward_norm, feedforward_norm_bias, epsilon, WIDTH)
    store_rows(out + offset, x, index, length, WIDTH)
