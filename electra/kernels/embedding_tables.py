"""The gradients of the word and position embeddings: sums of ds over the tokens that read a row.

For positions, the tokens that read a row are known beforehand. For words they are not, and floats
added as they arrive give other bits every time; whole numbers do not. So ds is counted in units of
2⁻ᵏ, as small as the largest |ds| and the number of tokens allow without overflow, in 64 bits:

    d words[v] = 2⁻ᵏ · Σ whole part of 2ᵏ · ds    2ᵏ · |ds| · tokens < 2⁶²

A ds that is not finite has no place among whole numbers and makes the whole gradient of the words
NaN. Padding in a packed batch has no gradient and is passed over.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from electra.model.encoder import Packing

TILE = 1024  # values that a program holds at once


def table_gradients(
    d_sum: Tensor,
    input_ids: Tensor,
    packing: Packing | None,
    peaks: Tensor,
    word_embeddings: Tensor,
    position_embeddings: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of both tables, or of the words alone, of ds [N, E], none of which is
    larger than the largest of `peaks`. Without a packing, N is all of `input_ids` [B, T].
    """
    (batch, length), width = input_ids.shape, d_sum.shape[1]
    totals = torch.zeros_like(word_embeddings, dtype=torch.int64)
    d_words, d_positions, positions = torch.empty_like(word_embeddings), None, length
    if position_embeddings is not None:
        d_positions, positions = torch.empty_like(position_embeddings), len(position_embeddings)
    columns = min(64, triton.next_power_of_2(width))
    options = {
        "bits": input_ids.numel().bit_length(),
        "programs": len(peaks),
        "PROGRAMS": triton.next_power_of_2(len(peaks)),
        "num_warps": 4,
    }
    count_word_gradients[(positions, triton.cdiv(width, columns))](
        *(d_sum, input_ids, None if packing is None else packing[1]),
        *(peaks, totals, d_positions, batch, length, width),
        ROWS=TILE // columns,
        COLUMNS=columns,
        POSITIONS=d_positions is not None,
        PACKED=packing is not None,
        **options,
    )
    word_gradients_from_counts[(triton.cdiv(totals.numel(), TILE),)](
        totals, peaks, d_words, totals.numel(), BLOCK=TILE, **options
    )
    return d_words, d_positions


def look_up(
    input_ids: Tensor, word_embeddings: Tensor, dtype: torch.dtype, packing: Packing | None = None
) -> Tensor:
    """Return the rows [B, T, E] of some ids in `dtype`, or [N, E] of the tokens of a packing."""
    rows = LookUpFunction.apply(input_ids.contiguous(), word_embeddings, dtype, packing)
    return cast(Tensor, rows)


class LookUpFunction(torch.autograd.Function):
    """Torch's look-up, and the gradient of `table_gradients`."""

    @staticmethod
    def forward(
        ctx: Any,
        input_ids: Tensor,
        word_embeddings: Tensor,
        dtype: torch.dtype,
        packing: Packing | None,
    ) -> Tensor:
        ctx.packing = packing
        ctx.save_for_backward(input_ids, word_embeddings)
        if packing is not None:
            input_ids = input_ids.flatten().index_select(0, packing[0])
        return F.embedding(input_ids, word_embeddings).to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        input_ids, word_embeddings = ctx.saved_tensors
        d_rows = gradients[0].flatten(0, -2).float().contiguous()
        peaks = d_rows.abs().amax().view(1)
        d_words, _ = table_gradients(d_rows, input_ids, ctx.packing, peaks, word_embeddings, None)
        return None, d_words, None, None


@triton.jit
def unit_exponent(peaks, programs, bits, PROGRAMS: tl.constexpr):
    """Return whether every ds is finite, and k. A peak's exponent is read from its bits, so that
    zero has one too.
    """
    program = tl.arange(0, PROGRAMS)
    peak = tl.max(tl.load(peaks + program, mask=program < programs, other=0.0), axis=0)
    return peak < float("inf"), 61 - bits - ((peak.to(tl.int32, bitcast=True) >> 23) - 126)


@triton.jit
def power_of_two(k):
    """Return 2ᵏ in float64, which has room for the smallest and the largest float32."""
    return ((k + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)


# Were it known that rows are aligned, a thread would take four neighbours, and a warp's atomics
# four times the memory.
@triton.jit(do_not_specialize=["width"])
def count_word_gradients(
    d_sum,
    input_ids,
    cu_seqlens,
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
    POSITIONS: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Add 2ᵏ · ds of one position, in every row of the batch, to the words' totals, and write the
    gradient of the position. Positions beyond the rows' length get zeros.
    """
    position, column = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_finite, k = unit_exponent(peaks, programs, bits, PROGRAMS)
    units = power_of_two(k)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, tl.where(position < length, batch, 0), ROWS):
        row = first + tl.arange(0, ROWS)
        index = row * length + position
        token, is_token = locate_tokens(cu_seqlens, row, batch, position, index, PACKED)
        inside = is_token[:, None] & (column < width)[None, :]
        source = d_sum + token.to(tl.int64)[:, None] * width + column[None, :]
        ds = tl.load(source, mask=inside, other=0.0)
        total += ds
        word = tl.load(input_ids + index, mask=is_token, other=0).to(tl.int64)
        count = (tl.where(is_finite, ds, 0.0).to(tl.float64) * units).to(tl.int64)
        # Padding has no gradient, and all of it is the same word: to add its zeros would take
        # longest of all.
        tl.atomic_add(
            totals + word[:, None] * width + column[None, :],
            count,
            mask=inside & (count != 0),
            sem="relaxed",
        )
    if POSITIONS:
        target = d_positions + position * width + column
        tl.store(target, tl.sum(total, axis=0), mask=column < width)


@triton.jit
def locate_tokens(cu_seqlens, row, batch, position, index, PACKED: tl.constexpr):
    """Return where the tokens at one position of some rows lie, and in which rows there is one."""
    if PACKED:
        start = tl.load(cu_seqlens + row, mask=row < batch, other=0)
        end = tl.load(cu_seqlens + row + 1, mask=row < batch, other=0)
        return start + position, position < end - start
    else:
        return index, row < batch


@triton.jit
def word_gradients_from_counts(
    totals, peaks, d_words, count, bits, programs, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr
):
    """Write the totals as floats, or NaN if one ds was not finite."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_finite, k = unit_exponent(peaks, programs, bits, PROGRAMS)
    total = tl.load(totals + index, mask=index < count, other=0).to(tl.float64) * power_of_two(-k)
    target = d_words + index
    tl.store(target, tl.where(is_finite, total, float("nan")).to(tl.float32), mask=index < count)
