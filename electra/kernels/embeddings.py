"""The word, position and token-type embedding of each token, summed and normalised in one pass.

    y = m · (γ · x̂ + β) / (1 − p)    x̂ = (s − mean s) / √(var s + ε)
    s = words[id] + positions[t] + types[type]    m  which values are kept

Backward, with w = m · dy · γ / (1 − p):  ds = (w − mean w − x̂ · mean(w · x̂)) / √(var s + ε). A
row of a table gets the sum of ds over the tokens that read it (`embedding_tables`).

ModernBERT's embeddings are words alone, and their norm has no β.

Of a packed batch, only the packed tokens are looked up. A token's index in the batch decides what
drops out, packed or not.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.column_sums import reduce_partials
from electra.kernels.dropout import DropoutSite, drop_threshold, keep_mask, random_words
from electra.kernels.embedding_tables import table_gradients
from electra.kernels.norm import norm_input_gradient
from electra.model.electra_encoder import NORM_EPSILON
from electra.model.encoder import Packing

PROGRAMS = 512  # that share the tokens in the backward pass
# values that a program holds at once: four programs share a multiprocessor in the backward pass
TILE = 1024


class EmbeddingWeights(NamedTuple):
    """Tables are [rows, E], the norm's weight and bias [E], all in float32. The paper's embeddings
    have all of them; ModernBERT's only words and norm.
    """

    word_embeddings: Tensor
    position_embeddings: Tensor | None
    token_type_embeddings: Tensor | None  # two rows
    norm: Tensor
    norm_bias: Tensor | None

    @property
    def has_positions(self) -> bool:
        return self.position_embeddings is not None


class EmbeddingSettings(NamedTuple):
    """What is the same for every token."""

    site: DropoutSite
    dtype: torch.dtype  # of the result
    epsilon: float = NORM_EPSILON


def embed(
    input_ids: Tensor,
    token_type_ids: Tensor | None,
    weights: EmbeddingWeights,
    settings: EmbeddingSettings,
    packing: Packing | None = None,
) -> Tensor:
    """Return the embeddings [B, T, E] of `input_ids` and `token_type_ids` [B, T], or [N, E] of the
    tokens of a packing.
    """
    if token_type_ids is not None:
        token_type_ids = token_type_ids.contiguous()
    embeddings = EmbeddingFunction.apply(
        input_ids.contiguous(), token_type_ids, packing, settings, *weights
    )
    return cast(Tensor, embeddings)


class EmbeddingFunction(torch.autograd.Function):
    """One kernel forward. Backward one through the norm, and those of `table_gradients`."""

    @staticmethod
    def forward(
        ctx: Any,
        input_ids: Tensor,
        token_type_ids: Tensor | None,
        packing: Packing | None,
        settings: EmbeddingSettings,
        *parameters: Any,
    ) -> Tensor:
        weights, site = EmbeddingWeights(*parameters), settings.site
        vocab_size, width = weights.word_embeddings.shape
        token_indices, shape = None, input_ids.shape
        if packing is not None:
            token_indices, shape = packing[0], packing[0].shape
        options = launch_options(weights, site, token_indices)
        out = torch.empty(*shape, width, dtype=settings.dtype, device=input_ids.device)
        embed_forward[(triton.cdiv(shape.numel(), options["ROWS"]),)](
            input_ids,
            token_type_ids,
            token_indices,
            *weights,
            out,
            site.keys,
            site.key_row,
            drop_threshold(site.rate),
            1 / (1 - site.rate),
            shape.numel(),
            input_ids.shape[1],
            vocab_size,
            width,
            settings.epsilon,
            **options,
        )
        ctx.packing, ctx.settings = packing, settings
        ctx.save_for_backward(input_ids, token_type_ids, *weights)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        input_ids, token_type_ids, *parameters = ctx.saved_tensors
        weights = EmbeddingWeights(*parameters)
        gradient, packing = gradients[0].flatten(0, -2).contiguous(), ctx.packing
        token_indices = None if packing is None else packing[0]
        d_sum, partials, peaks = sum_gradients(
            gradient, input_ids, token_type_ids, token_indices, weights, ctx.settings
        )
        tables = (weights.word_embeddings, weights.position_embeddings)
        d_words, d_positions = table_gradients(d_sum, input_ids, packing, peaks, *tables)
        (sums,) = reduce_partials(partials)
        no_gradients = (None, None, None, None)
        if not weights.has_positions:
            return *no_gradients, d_words, None, None, sums[0], None
        return *no_gradients, d_words, d_positions, sums[2:], sums[0], sums[1]


def sum_gradients(
    gradient: Tensor,
    input_ids: Tensor,
    token_type_ids: Tensor | None,
    token_indices: Tensor | None,
    weights: EmbeddingWeights,
    settings: EmbeddingSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ds [N, E] of `gradient` [N, E]; and of each program the sums for γ, and if there are
    such for β and both types, [programs, 1 or 4, E], and the largest |ds| [programs].
    """
    (vocab_size, width), tokens = weights.word_embeddings.shape, len(gradient)
    site, options = settings.site, launch_options(weights, settings.site, token_indices)
    programs = min(PROGRAMS, triton.cdiv(tokens, options["ROWS"]))
    d_sum = weights.word_embeddings.new_empty(tokens, width)
    partials = weights.word_embeddings.new_empty(programs, 1 + 3 * weights.has_positions, width)
    peaks = weights.word_embeddings.new_empty(programs)
    embed_backward[(programs,)](
        gradient,
        input_ids,
        token_type_ids,
        token_indices,
        *weights,
        d_sum,
        partials,
        peaks,
        site.keys,
        site.key_row,
        drop_threshold(site.rate),
        1 / (1 - site.rate),
        tokens,
        input_ids.shape[1],
        vocab_size,
        width,
        settings.epsilon,
        **options,
    )
    return d_sum, partials, peaks


def launch_options(
    weights: EmbeddingWeights, site: DropoutSite, token_indices: Tensor | None
) -> dict[str, int | bool]:
    """Return tile sizes and compiler options."""
    padded = triton.next_power_of_2(weights.word_embeddings.shape[1])
    return {
        "ROWS": max(1, TILE // padded),
        "WIDTH": padded,
        "DROP": site.rate > 0,
        "POSITIONS": weights.has_positions,
        "PACKED": token_indices is not None,
        "num_warps": 4,
    }


@triton.jit
def load_rows(table, ids, count, column, inside, width):
    """Load the rows of some ids. An id without a row gives NaN: a loss that stops the run, and not
    whatever lies in memory there.
    """
    is_known = inside & ((ids >= 0) & (ids < count))[:, None]
    return tl.load(
        table + ids.to(tl.int64)[:, None] * width + column[None, :],
        mask=is_known,
        other=float("nan"),
    )


@triton.jit
def normalize_embeddings(
    input_ids, token_type, index, column, inside, tables, sizes, epsilon, POSITIONS: tl.constexpr
):
    """Return x̂ and 1/√(var + ε) of the tokens with these indices."""
    words, positions, token_types = tables
    length, vocab_size, width = sizes
    word = tl.load(input_ids + index)
    s = load_rows(words, word, vocab_size, column, inside, width)
    if POSITIONS:
        s += load_rows(token_types, token_type, 2, column, inside, width)
        s += tl.load(
            positions + (index % length)[:, None] * width + column[None, :], mask=inside, other=0.0
        )
    s = tl.where(inside, s, 0.0)
    centered = tl.where(inside, s - tl.sum(s, axis=1)[:, None] / width, 0.0)
    inverse_std = tl.rsqrt(tl.sum(centered * centered, axis=1) / width + epsilon)[:, None]
    return centered * inverse_std, inverse_std


@triton.jit
def embed_forward(
    input_ids,
    token_type_ids,
    token_indices,
    words,
    positions,
    token_types,
    norm,
    norm_bias,
    out,
    keys,
    key_row,
    threshold,
    keep_scale,
    tokens,
    length,
    vocab_size,
    width,
    epsilon,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    DROP: tl.constexpr,
    POSITIONS: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Write y of one block of tokens."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row < tokens)[:, None] & (column < width)[None, :]
    offset = row.to(tl.int64)[:, None] * width + column[None, :]
    index = load_indices(token_indices, row, tokens, PACKED)
    token_type = load_token_types(token_type_ids, index, POSITIONS)
    tables = (words, positions, token_types)
    sizes = (length, vocab_size, width)
    normalized, _ = normalize_embeddings(
        input_ids, token_type, index, column, inside, tables, sizes, epsilon, POSITIONS
    )
    gamma = tl.load(norm + column, mask=column < width, other=0.0)
    y = normalized * gamma[None, :]
    if POSITIONS:
        beta = tl.load(norm_bias + column, mask=column < width, other=0.0)
        y += beta[None, :]
    if DROP:
        row_words = random_words(index, keys, key_row, False)[:, None]
        column_words = random_words(column, keys, key_row, True)[None, :]
        y = tl.where(keep_mask(row_words, column_words, threshold), y * keep_scale, 0.0)
    tl.store(out + offset, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def embed_backward(
    gradient,
    input_ids,
    token_type_ids,
    token_indices,
    words,
    positions,
    token_types,
    norm,
    norm_bias,
    d_sum,
    partials,
    peaks,
    keys,
    key_row,
    threshold,
    keep_scale,
    tokens,
    length,
    vocab_size,
    width,
    epsilon,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    DROP: tl.constexpr,
    POSITIONS: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Write ds; and of each program the sums for γ, β and both types, and the largest |ds|,
    infinite if one is not finite.
    """
    program, column = tl.program_id(0), tl.arange(0, WIDTH)
    gamma = tl.load(norm + column, mask=column < width, other=0.0)
    column_words = random_words(column, keys, key_row, True)
    d_norm = tl.zeros((ROWS, WIDTH), tl.float32)
    d_norm_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    d_first_type = tl.zeros((ROWS, WIDTH), tl.float32)
    d_second_type = tl.zeros((ROWS, WIDTH), tl.float32)
    peak = tl.zeros((ROWS,), tl.float32)
    tables = (words, positions, token_types)
    sizes = (length, vocab_size, width)
    for first in range(program * ROWS, tokens, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < tokens)[:, None] & (column < width)[None, :]
        offset = row.to(tl.int64)[:, None] * width + column[None, :]
        index = load_indices(token_indices, row, tokens, PACKED)
        token_type = load_token_types(token_type_ids, index, POSITIONS)
        normalized, inverse_std = normalize_embeddings(
            input_ids, token_type, index, column, inside, tables, sizes, epsilon, POSITIONS
        )
        dy = tl.load(gradient + offset, mask=inside, other=0.0).to(tl.float32)
        if DROP:
            row_words = random_words(index, keys, key_row, False)[:, None]
            keep = keep_mask(row_words, column_words[None, :], threshold)
            dy = tl.where(keep, dy * keep_scale, 0.0)
        ds = tl.where(inside, norm_input_gradient(dy, gamma, normalized, inverse_std, width), 0.0)
        tl.store(d_sum + offset, ds, mask=inside)
        d_norm += dy * normalized
        if POSITIONS:
            d_norm_bias += dy
            d_first_type += tl.where((token_type == 0)[:, None], ds, 0.0)
            d_second_type += tl.where((token_type == 1)[:, None], ds, 0.0)
        peak = tl.maximum(peak, largest_size(ds))
    target = partials + program * (1 + 3 * POSITIONS) * width + column
    tl.store(target, tl.sum(d_norm, axis=0), mask=column < width)
    if POSITIONS:
        store_sums(target + width, d_norm_bias, d_first_type, d_second_type, column, width)
    tl.store(peaks + program, tl.max(peak, axis=0))


@triton.jit
def largest_size(ds):
    """Return the largest |ds| of each token, infinite if one is not finite."""
    size = tl.abs(ds)
    return tl.max(tl.where(size < float("inf"), size, float("inf")), axis=1)


@triton.jit
def store_sums(target, d_norm_bias, d_first_type, d_second_type, column, width):
    """Store the program's part of the sums for β and both types, into [3, E]."""
    tl.store(target, tl.sum(d_norm_bias, axis=0), mask=column < width)
    tl.store(target + width, tl.sum(d_first_type, axis=0), mask=column < width)
    tl.store(target + 2 * width, tl.sum(d_second_type, axis=0), mask=column < width)


@triton.jit
def load_indices(token_indices, row, tokens, PACKED: tl.constexpr):
    """Return the indices of some tokens in the batch; beyond the last token, that of the first."""
    row = tl.where(row < tokens, row, 0)
    if PACKED:
        return tl.load(token_indices + row).to(tl.int32)
    else:
        return row


@triton.jit
def load_token_types(token_type_ids, index, POSITIONS: tl.constexpr):
    """Load the token types, where there are any."""
    if POSITIONS:
        return tl.load(token_type_ids + index)
    else:
        return index
