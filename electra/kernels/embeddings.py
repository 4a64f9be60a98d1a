"""A token's word, position and type as one normalised vector, and what flows back into their
tables.

    y = m · (γ · x̂ + β) / (1 − p)    x̂ = (s − mean s) / √(var s + ε)    s = words[id] + positions[t] + types[type]
    m  which values are kept

Backward, with w = m · dy · γ / (1 − p):  ds = (w − mean w − x̂ · mean(w · x̂)) / √(var s + ε). A
row of a table gets the sum of ds over the tokens that read it. For types and positions a fixed set
of tokens is known beforehand. For words it is not, and floats added as they arrive give other bits
every time; whole numbers do not. So ds is counted in units of 2⁻ᵏ, as small as the largest |ds| and
the number of tokens allow without overflow, in 64 bits:

    d words[v] = 2⁻ᵏ · Σ whole part of 2ᵏ · ds    2ᵏ · |ds| · tokens < 2⁶²

A ds that is not finite has no place among whole numbers and makes the whole gradient of the words
NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.column_sums import reduce_partials
from electra.kernels.dropout import DropoutSite, drop_threshold, keep_mask, random_words
from electra.kernels.norm import EPSILON

PROGRAMS = 512  # that share the tokens in the backward pass
# values that a program holds at once: four programs share a multiprocessor in the backward pass
TILE = 1024


class Weights(NamedTuple):
    """Tables are [rows, E], scale and shift [E], all in float32."""

    words: Tensor
    positions: Tensor
    token_type_ids: Tensor  # two rows
    scale: Tensor
    shift: Tensor


def embed(
    input_ids: Tensor,
    token_type_ids: Tensor,
    weights: Weights,
    site: DropoutSite,
    dtype: torch.dtype,
) -> Tensor:
    """[B, T, E] in `dtype`, of `ids` and `types` [B, T]."""
    return cast(
        Tensor,
        Embed.apply(input_ids.contiguous(), token_type_ids.contiguous(), site, dtype, *weights),
    )


class Embed(torch.autograd.Function):
    """One kernel forward. Backward one through the norm, one into the tables, and one from whole
    numbers to floats.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input_ids: Tensor,
        token_type_ids: Tensor,
        site: DropoutSite,
        dtype: torch.dtype,
        *parameters: Tensor,
    ) -> Tensor:
        weights = Weights(*parameters)
        width, settings = weights.words.shape[1], tiles(weights.words.shape[1], site)
        out = torch.empty(*input_ids.shape, width, dtype=dtype, device=input_ids.device)
        embed_forward[(triton.cdiv(input_ids.numel(), settings["ROWS"]),)](
            input_ids,
            token_type_ids,
            *weights,
            out,
            site.keys,
            site.key_row,
            drop_threshold(site.rate),
            1 / (1 - site.rate),
            input_ids.numel(),
            input_ids.shape[1],
            len(weights.words),
            width,
            EPSILON,
            **settings,
        )
        ctx.site = site
        ctx.save_for_backward(input_ids, token_type_ids, *weights)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        input_ids, token_type_ids, *parameters = ctx.saved_tensors
        weights, site, tokens = Weights(*parameters), ctx.site, input_ids.numel()
        width, settings = weights.words.shape[1], tiles(weights.words.shape[1], site)
        programs = min(PROGRAMS, triton.cdiv(tokens, settings["ROWS"]))
        d_sum = weights.words.new_empty(tokens, width)
        partials, peaks = (
            weights.words.new_empty(programs, 4, width),
            weights.words.new_empty(programs),
        )
        embed_backward[(programs,)](
            gradients[0].contiguous(),
            input_ids,
            token_type_ids,
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
            len(weights.words),
            width,
            EPSILON,
            **settings,
        )
        d_words, d_positions = table_gradients(d_sum, input_ids, peaks, weights)
        (sums,) = reduce_partials(partials)
        return None, None, None, None, d_words, d_positions, sums[2:], sums[0], sums[1]


def table_gradients(
    d_sum: Tensor, input_ids: Tensor, peaks: Tensor, weights: Weights
) -> tuple[Tensor, Tensor]:
    """[V, E] and [positions, E] of ds [N, E], none of which is larger than the largest of `peaks`."""
    (batch, length), width = input_ids.shape, d_sum.shape[1]
    totals = torch.zeros_like(weights.words, dtype=torch.int64)
    d_words, d_positions = torch.empty_like(weights.words), torch.empty_like(weights.positions)
    columns = min(64, triton.next_power_of_2(width))
    known = {
        "bits": input_ids.numel().bit_length(),
        "programs": len(peaks),
        "PROGRAMS": triton.next_power_of_2(len(peaks)),
        "num_warps": 4,
    }
    count_words[(len(d_positions), triton.cdiv(width, columns))](
        d_sum,
        input_ids,
        peaks,
        totals,
        d_positions,
        batch,
        length,
        width,
        ROWS=TILE // columns,
        COLUMNS=columns,
        **known,
    )
    words_from_counts[(triton.cdiv(totals.numel(), TILE),)](
        totals, peaks, d_words, totals.numel(), BLOCK=TILE, **known
    )
    return d_words, d_positions


def tiles(width: int, site: DropoutSite) -> dict[str, int | bool]:
    whole = triton.next_power_of_2(width)
    return {"ROWS": max(1, TILE // whole), "WIDTH": whole, "DROP": site.rate > 0, "num_warps": 4}


@triton.jit
def rows_of(table, input_ids, count, column, inside, width):
    """Of an id that the table has no row for, NaN: a loss that stops the run, and not whatever lies
    there.
    """
    known = inside & ((input_ids >= 0) & (input_ids < count))[:, None]
    return tl.load(
        table + input_ids.to(tl.int64)[:, None] * width + column[None, :],
        mask=known,
        other=float("nan"),
    )


@triton.jit
def centred(
    input_ids,
    type_of,
    row,
    column,
    inside,
    words,
    positions,
    token_type_ids,
    tokens,
    length,
    vocabulary,
    width,
    epsilon,
):
    """(x̂, 1/√(var + ε))."""
    word = tl.load(input_ids + row, mask=row < tokens, other=0)
    s = rows_of(words, word, vocabulary, column, inside, width) + rows_of(
        token_type_ids, type_of, 2, column, inside, width
    )
    s += tl.load(
        positions + (row % length)[:, None] * width + column[None, :], mask=inside, other=0.0
    )
    s = tl.where(inside, s, 0.0)
    distance = tl.where(inside, s - tl.sum(s, axis=1)[:, None] / width, 0.0)
    spread = tl.rsqrt(tl.sum(distance * distance, axis=1) / width + epsilon)[:, None]
    return distance * spread, spread


@triton.jit
def embed_forward(
    input_ids,
    types_of,
    words,
    positions,
    token_type_ids,
    scale,
    shift,
    out,
    keys,
    site,
    threshold,
    boost,
    tokens,
    length,
    vocabulary,
    width,
    epsilon,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    DROP: tl.constexpr,
):
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row < tokens)[:, None] & (column < width)[None, :]
    place = row[:, None] * width + column[None, :]
    type_of = tl.load(types_of + row, mask=row < tokens, other=0)
    normal, _ = centred(
        input_ids,
        type_of,
        row,
        column,
        inside,
        words,
        positions,
        token_type_ids,
        tokens,
        length,
        vocabulary,
        width,
        epsilon,
    )
    gamma = tl.load(scale + column, mask=column < width, other=0.0)
    y = normal * gamma[None, :] + tl.load(shift + column, mask=column < width, other=0.0)[None, :]
    if DROP:
        stays = keep_mask(
            random_words(row, keys, site, False)[:, None],
            random_words(column, keys, site, True)[None, :],
            threshold,
        )
        y = tl.where(stays, y * boost, 0.0)
    tl.store(out + place, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def embed_backward(
    gradient,
    input_ids,
    types_of,
    words,
    positions,
    token_type_ids,
    scale,
    shift,
    d_sum,
    partials,
    peaks,
    keys,
    site,
    threshold,
    boost,
    tokens,
    length,
    vocabulary,
    width,
    epsilon,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    DROP: tl.constexpr,
):
    """ds; and of each program the sums for γ, β and both types, and the largest |ds|, infinite if
    one is not finite.
    """
    program, column = tl.program_id(0), tl.arange(0, WIDTH)
    gamma = tl.load(scale + column, mask=column < width, other=0.0)
    column_words = random_words(column, keys, site, True)
    d_scale = tl.zeros((ROWS, WIDTH), tl.float32)
    d_shift = tl.zeros((ROWS, WIDTH), tl.float32)
    d_first = tl.zeros((ROWS, WIDTH), tl.float32)
    d_second = tl.zeros((ROWS, WIDTH), tl.float32)
    highest = tl.zeros((ROWS,), tl.float32)
    for first in range(program * ROWS, tokens, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < tokens)[:, None] & (column < width)[None, :]
        place = row[:, None] * width + column[None, :]
        type_of = tl.load(types_of + row, mask=row < tokens, other=0)
        normal, spread = centred(
            input_ids,
            type_of,
            row,
            column,
            inside,
            words,
            positions,
            token_type_ids,
            tokens,
            length,
            vocabulary,
            width,
            epsilon,
        )
        dy = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
        if DROP:
            stays = keep_mask(
                random_words(row, keys, site, False)[:, None], column_words[None, :], threshold
            )
            dy = tl.where(stays, dy * boost, 0.0)
        w = dy * gamma[None, :]
        ds = (
            w
            - tl.sum(w, axis=1)[:, None] / width
            - normal * (tl.sum(w * normal, axis=1)[:, None] / width)
        ) * spread
        ds = tl.where(inside, ds, 0.0)
        tl.store(d_sum + place, ds, mask=inside)
        d_scale += dy * normal
        d_shift += dy
        d_first += tl.where((type_of == 0)[:, None], ds, 0.0)
        d_second += tl.where((type_of == 1)[:, None], ds, 0.0)
        size = tl.abs(ds)
        highest = tl.maximum(
            highest, tl.max(tl.where(size < float("inf"), size, float("inf")), axis=1)
        )
    target = partials + program * 4 * width + column
    tl.store(target, tl.sum(d_scale, axis=0), mask=column < width)
    tl.store(target + width, tl.sum(d_shift, axis=0), mask=column < width)
    tl.store(target + 2 * width, tl.sum(d_first, axis=0), mask=column < width)
    tl.store(target + 3 * width, tl.sum(d_second, axis=0), mask=column < width)
    tl.store(peaks + program, tl.max(highest, axis=0))


@triton.jit
def unit_of(peaks, programs, bits, PROGRAMS: tl.constexpr):
    """(whether every ds is finite, k). A peak's exponent is read from its bits, so that zero has
    one too.
    """
    program = tl.arange(0, PROGRAMS)
    peak = tl.max(tl.load(peaks + program, mask=program < programs, other=0.0), axis=0)
    return peak < float("inf"), 61 - bits - ((peak.to(tl.int32, bitcast=True) >> 23) - 126)


@triton.jit
def power_of_two(k):
    """In float64, which has room for 2ᵏ of the smallest and the largest float32."""
    return ((k + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)


# Were it known that rows are aligned, a thread would take four neighbours, and a warp's atomics
# four times the memory.
@triton.jit(do_not_specialize=["width"])
def count_words(
    d_sum,
    input_ids,
    peaks,
    totals,
    d_positions,
    batch,
    length,
    width,
    bits,
    programs,
    PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A program has one position, in every row of the batch. Positions beyond the rows' length get
    zeros.
    """
    position, column = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    finite, k = unit_of(peaks, programs, bits, PROGRAMS)
    units = power_of_two(k)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, tl.where(position < length, batch, 0), ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < batch)[:, None] & (column < width)[None, :]
        token = row * length + position
        ds = tl.load(d_sum + token[:, None] * width + column[None, :], mask=inside, other=0.0)
        total += ds
        word = tl.load(input_ids + token, mask=row < batch, other=0).to(tl.int64)
        count = (tl.where(finite, ds, 0.0).to(tl.float64) * units).to(tl.int64)
        # Padding has no gradient, and all of it is the same word: to add its zeros would take
        # longest of all.
        tl.atomic_add(
            totals + word[:, None] * width + column[None, :],
            count,
            mask=inside & (count != 0),
            sem="relaxed",
        )
    tl.store(d_positions + position * width + column, tl.sum(total, axis=0), mask=column < width)


@triton.jit
def words_from_counts(
    totals, peaks, d_words, count, bits, programs, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    finite, k = unit_of(peaks, programs, bits, PROGRAMS)
    total = tl.load(totals + place, mask=place < count, other=0).to(tl.float64) * power_of_two(-k)
    tl.store(
        d_words + place, tl.where(finite, total, float("nan")).to(tl.float32), mask=place < count
    )
