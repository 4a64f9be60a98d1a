"""The hidden states of chosen positions, gathered from rows of tokens.

    out[b, p] = tokens[start of row b + positions[b, p]]

Backward, a token gets the sum over those p that chose it, as a product with the matrix of which
position chose which token: a position that was drawn thrice gets its gradients in a fixed order. A
position beyond the end of a packed row is padding that was left out: zeros, and no gradient.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.model.encoder import Packing

TILE = 2048  # values that a program of the forward pass holds at once
TOKENS, CHOSEN, COLUMNS = 64, 32, 64  # the tiles of the product in the backward pass


def gather(
    tokens: Tensor, positions: Tensor, *, length: int, packing: Packing | None = None
) -> Tensor:
    """Return [B, P, D] at `positions` [B, P] of rows: of `tokens` [B · length, D], or of [N, D] of
    a packing.
    """
    chosen = GatherFunction.apply(tokens.contiguous(), positions.contiguous(), length, packing)
    return cast(Tensor, chosen)


class GatherFunction(torch.autograd.Function):
    """One kernel forward, one backward."""

    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, positions: Tensor, length: int, packing: Packing | None
    ) -> Tensor:
        width = tokens.shape[1]
        out, padded = tokens.new_empty(*positions.shape, width), triton.next_power_of_2(width)
        rows = max(1, TILE // padded)
        gather_forward[(triton.cdiv(positions.numel(), rows),)](
            tokens,
            positions,
            None if packing is None else packing[1],
            out,
            positions.numel(),
            positions.shape[1],
            length,
            width,
            ROWS=rows,
            WIDTH=padded,
            PACKED=packing is not None,
            num_warps=4,
        )
        ctx.length, ctx.packing, ctx.tokens = length, packing, len(tokens)
        ctx.save_for_backward(positions)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (positions,), cu_seqlens = ctx.saved_tensors, None
        (batch, count), width = positions.shape, gradients[0].shape[-1]
        rows = batch
        if ctx.packing is not None:
            cu_seqlens = ctx.packing[1]
            rows = len(cu_seqlens) - 1  # with those of padding, which get zeros
        d_tokens = gradients[0].new_empty(ctx.tokens, width)
        grid = (rows, triton.cdiv(ctx.length, TOKENS), triton.cdiv(width, COLUMNS))
        gather_backward[grid](
            gradients[0].contiguous(),
            positions,
            cu_seqlens,
            d_tokens,
            batch,
            count,
            ctx.length,
            width,
            TOKENS=TOKENS,
            CHOSEN=CHOSEN,
            COLUMNS=COLUMNS,
            PACKED=cu_seqlens is not None,
            num_warps=4,
        )
        return d_tokens, None, None, None


@triton.jit
def row_bounds(cu_seqlens, row, length, inside, PACKED: tl.constexpr):
    """Return where some rows begin and end."""
    if PACKED:
        start = tl.load(cu_seqlens + row, mask=inside, other=0)
        return start, tl.load(cu_seqlens + row + 1, mask=inside, other=0)
    else:
        return row * length, (row + 1) * length


@triton.jit
def gather_forward(
    tokens,
    positions,
    cu_seqlens,
    out,
    chosen,
    chosen_in_row,
    length,
    width,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Write one block of the chosen positions."""
    index, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (index < chosen)[:, None] & (column < width)[None, :]
    start, end = row_bounds(cu_seqlens, index // chosen_in_row, length, index < chosen, PACKED)
    token = start + tl.load(positions + index, mask=index < chosen, other=0)
    source = tokens + token.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(source, mask=inside & (token < end)[:, None], other=0.0)
    target = out + index.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(target, value, mask=inside)


@triton.jit
def gather_backward(
    gradient,
    positions,
    cu_seqlens,
    d_tokens,
    batch,
    chosen_in_row,
    length,
    width,
    TOKENS: tl.constexpr,
    CHOSEN: tl.constexpr,
    COLUMNS: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Write the gradient of one block of a row's tokens and columns."""
    row, token = tl.program_id(0), tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    start, end = row_bounds(cu_seqlens, row, length, True, PACKED)
    total = tl.zeros((TOKENS, COLUMNS), tl.float32)
    for first in range(0, tl.where(row < batch, chosen_in_row, 0), CHOSEN):
        choice = first + tl.arange(0, CHOSEN)
        index = row * chosen_in_row + choice
        position = tl.load(positions + index, mask=choice < chosen_in_row, other=-1)
        source = gradient + index.to(tl.int64)[:, None] * width + column[None, :]
        inside = (choice < chosen_in_row)[:, None] & (column < width)[None, :]
        d_out = tl.load(source, mask=inside, other=0.0)
        is_chosen = (token[:, None] == position[None, :]).to(d_out.dtype)
        total = tl.dot(is_chosen, d_out, total, input_precision="ieee")
    target = d_tokens + (start + token).to(tl.int64)[:, None] * width + column[None, :]
    inside = (token < end - start)[:, None] & (column < width)[None, :]
    tl.store(target, total.to(d_tokens.dtype.element_ty), mask=inside)
