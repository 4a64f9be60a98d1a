"""The discriminator's head: the logit that a token was replaced.

    logit = gelu(x) · w + b    x = hidden · denseᵀ + bias

The product is cuBLAS's; one kernel reads x and writes nothing but logits. Backward, another reads x
again:

    dx = dlogit · w · gelu′(x)    dw = Σ dlogit · gelu(x)    db = Σ dlogit    dbias = Σ dx

with sums over tokens, taken by a fixed number of programs over a fixed set of tokens each, then
over the programs.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.activation import gelu_cdf_pdf
from electra.kernels.column_sums import reduce_partials
from electra.kernels.low_precision import LowPrecisionCopies, weight_grad

PROGRAMS = 512
TILE = 2048  # values that a program holds at once


def rtd_head(
    hidden: Tensor,
    dense: Tensor,
    dense_bias: Tensor,
    output: Tensor,
    output_bias: Tensor,
    low_precision: LowPrecisionCopies,
) -> Tensor:
    """Return logits [B, T] in float32, of `hidden` [B, T, D] in low precision; `dense` is [D, D],
    `output` [1, D].
    """
    logits = RTDHeadFunction.apply(low_precision, hidden, dense, dense_bias, output, output_bias)
    return cast(Tensor, logits)


class RTDHeadFunction(torch.autograd.Function):
    """hidden → dense → gelu → output → logits."""

    @staticmethod
    def forward(
        ctx: Any,
        low_precision: LowPrecisionCopies,
        hidden: Tensor,
        dense: Tensor,
        dense_bias: Tensor,
        output: Tensor,
        output_bias: Tensor,
    ) -> Tensor:
        flat, low = hidden.reshape(-1, hidden.shape[-1]), low_precision(dense, hidden.dtype)
        x = torch.addmm(low_precision(dense_bias, hidden.dtype), flat, low.t())
        logits = torch.empty(len(x), dtype=torch.float32, device=x.device)
        options = launch_options(x.shape[1])
        rtd_head_forward[(triton.cdiv(len(x), options["ROWS"]),)](
            x, output, output_bias, logits, *x.shape, **options
        )
        ctx.save_for_backward(flat, low, x, output)
        return logits.view(hidden.shape[:-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        flat, low, x, output = cast("tuple[Tensor, ...]", ctx.saved_tensors)
        (count, width), options = x.shape, launch_options(x.shape[1])
        programs = min(PROGRAMS, triton.cdiv(count, options["ROWS"]))
        d_x = torch.empty_like(x)
        sums = output.new_empty(programs, 2, width)
        logit_sums = output.new_empty(programs, 1)
        rtd_head_backward[(programs,)](
            gradients[0].contiguous(), x, output, d_x, sums, logit_sums, count, width, **options
        )
        (d_output, d_bias), d_output_bias = reduce_partials(sums, logit_sums)
        d_hidden = (d_x @ low).view(*gradients[0].shape, -1)
        return None, d_hidden, weight_grad(d_x.t(), flat), d_bias, d_output[None], d_output_bias


def launch_options(width: int) -> dict[str, int]:
    """Return tile sizes and compiler options for vectors of `width`."""
    padded = triton.next_power_of_2(width)
    return {"ROWS": max(1, TILE // padded), "WIDTH": padded, "num_warps": 4}


@triton.jit
def rtd_head_forward(
    x, output, output_bias, logits, count, width, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """Write the logits of one block of tokens."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row < count)[:, None] & (column < width)[None, :]
    value = tl.load(x + row[:, None] * width + column[None, :], mask=inside, other=0.0).to(
        tl.float32
    )
    weight = tl.load(output + column, mask=column < width, other=0.0)
    cdf, _ = gelu_cdf_pdf(value)
    logit = tl.sum(value * cdf * weight[None, :], axis=1) + tl.load(output_bias)
    tl.store(logits + row, logit, mask=row < count)


@triton.jit
def rtd_head_backward(
    gradient,
    x,
    output,
    d_x,
    sums,
    logit_sums,
    count,
    width,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Write dx of the program's tokens, and their sums for dw, dbias and db."""
    program, column = tl.program_id(0), tl.arange(0, WIDTH)
    weight = tl.load(output + column, mask=column < width, other=0.0)
    d_output = tl.zeros((ROWS, WIDTH), tl.float32)
    d_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    d_logits = tl.zeros((ROWS,), tl.float32)
    for first in range(program * ROWS, count, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < count)[:, None] & (column < width)[None, :]
        offset = row[:, None] * width + column[None, :]
        value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
        d_logit = tl.load(gradient + row, mask=row < count, other=0.0)
        cdf, bell = gelu_cdf_pdf(value)
        dx = d_logit[:, None] * weight[None, :] * (cdf + value * bell * 0.3989422804014327)
        tl.store(d_x + offset, dx.to(d_x.dtype.element_ty), mask=inside)
        d_output += d_logit[:, None] * value * cdf
        d_bias += dx
        d_logits += d_logit
    target = sums + program * 2 * width + column
    tl.store(target, tl.sum(d_output, axis=0), mask=column < width)
    tl.store(target + width, tl.sum(d_bias, axis=0), mask=column < width)
    tl.store(logit_sums + program, tl.sum(d_logits, axis=0))
