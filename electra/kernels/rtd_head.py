"""The discriminator's head: the logit that a token was replaced.

    logit = gelu(x) · w + b    x = hidden · denseᵀ + bias

The product is cuBLAS's; one kernel reads x and writes nothing but logits. Backward, another reads x
again:

    dx = dlogit · w · gelu′(x)    dw = Σ dlogit · gelu(x)    db = Σ dlogit    dbias = Σ dx

with sums over tokens, taken by a fixed number of programs over a fixed set of tokens each, then
over the programs.

ModernBERT's head has no bias in x, and a LayerNorm without bias after the gelu:

    logit = γ · ĝ · w + b    ĝ = (gelu(x) − mean) / √(var + ε)
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.activation import gelu_cdf_pdf, gelu_slope
from electra.kernels.column_sums import reduce_partials
from electra.kernels.low_precision import LowPrecisionCopies, weight_grad
from electra.kernels.norm import norm_input_gradient
from electra.model.modernbert_encoder import NORM_EPSILON

PROGRAMS = 512
TILE = 2048  # values that a program holds at once


class RTDHeadWeights(NamedTuple):
    """The parameters of a head. The paper's has a bias, ModernBERT's a norm."""

    dense: Tensor  # [D, D]
    dense_bias: Tensor | None
    norm: Tensor | None
    output: Tensor  # [1, D]
    output_bias: Tensor


def rtd_head(hidden: Tensor, weights: RTDHeadWeights, low_precision: LowPrecisionCopies) -> Tensor:
    """Return logits [...] in float32, of `hidden` [..., D] in low precision."""
    return cast(Tensor, RTDHeadFunction.apply(low_precision, hidden, *weights))


class RTDHeadFunction(torch.autograd.Function):
    """hidden → dense → gelu → norm, where there is one → output → logits."""

    @staticmethod
    def forward(
        ctx: Any, low_precision: LowPrecisionCopies, hidden: Tensor, *parameters: Any
    ) -> Tensor:
        weights = RTDHeadWeights(*parameters)
        flat, low = hidden.reshape(-1, hidden.shape[-1]), low_precision(weights.dense, hidden.dtype)
        if weights.dense_bias is None:
            x = flat @ low.t()
        else:
            x = torch.addmm(low_precision(weights.dense_bias, hidden.dtype), flat, low.t())
        logits = torch.empty(len(x), dtype=torch.float32, device=x.device)
        options, (_, _, *last) = launch_options(x.shape[1], weights.norm), weights
        rtd_head_forward[(triton.cdiv(len(x), options["ROWS"]),)](
            x, *last, logits, *x.shape, NORM_EPSILON, **options
        )
        ctx.save_for_backward(flat, low, x, weights.norm, weights.output)
        return logits.view(hidden.shape[:-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        flat, low, x, norm, output = ctx.saved_tensors
        (count, width), options = x.shape, launch_options(x.shape[1], norm)
        programs = min(PROGRAMS, triton.cdiv(count, options["ROWS"]))
        d_x = torch.empty_like(x)
        sums = output.new_empty(programs, 2, width)
        logit_sums = output.new_empty(programs, 1)
        rtd_head_backward[(programs,)](
            gradients[0].contiguous(),
            x,
            norm,
            output,
            d_x,
            sums,
            logit_sums,
            count,
            width,
            NORM_EPSILON,
            **options,
        )
        (d_output, second), d_output_bias = reduce_partials(sums, logit_sums)
        d_bias, d_norm = (second, None) if norm is None else (None, second)
        d_hidden = (d_x @ low).view(*gradients[0].shape, -1)
        d_dense = weight_grad(d_x.t(), flat)
        return None, d_hidden, d_dense, d_bias, d_norm, d_output[None], d_output_bias


def launch_options(width: int, norm: Tensor | None) -> dict[str, int | bool]:
    """Return tile sizes and compiler options for vectors of `width`."""
    padded = triton.next_power_of_2(width)
    rows = max(1, TILE // padded)
    return {"ROWS": rows, "WIDTH": padded, "NORM": norm is not None, "num_warps": 4}


@triton.jit
def normalize_gelu(activated, inside, width, epsilon):
    """Return ĝ and 1/√(var + ε); gelu(0) = 0, so what lies beyond the width adds nothing."""
    mean = tl.sum(activated, axis=1)[:, None] / width
    centered = tl.where(inside, activated - mean, 0.0)
    inverse_std = tl.rsqrt(tl.sum(centered * centered, axis=1) / width + epsilon)[:, None]
    return centered * inverse_std, inverse_std


@triton.jit
def rtd_head_forward(
    x,
    norm,
    output,
    output_bias,
    logits,
    count,
    width,
    epsilon,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    NORM: tl.constexpr,
):
    """Write the logits of one block of tokens."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row < count)[:, None] & (column < width)[None, :]
    offset = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(output + column, mask=column < width, other=0.0)
    cdf, _ = gelu_cdf_pdf(value)
    activated = value * cdf
    if NORM:
        weight *= tl.load(norm + column, mask=column < width, other=0.0)
        activated, _ = normalize_gelu(activated, inside, width, epsilon)
    logit = tl.sum(activated * weight[None, :], axis=1) + tl.load(output_bias)
    tl.store(logits + row, logit, mask=row < count)


@triton.jit
def rtd_head_backward(
    gradient,
    x,
    norm,
    output,
    d_x,
    sums,
    logit_sums,
    count,
    width,
    epsilon,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    NORM: tl.constexpr,
):
    """Write dx of the program's tokens, and their sums for dw, dbias or dγ, and db."""
    program, column = tl.program_id(0), tl.arange(0, WIDTH)
    weight = tl.load(output + column, mask=column < width, other=0.0)
    gamma = weight
    if NORM:
        gamma = tl.load(norm + column, mask=column < width, other=0.0)
    d_output = tl.zeros((ROWS, WIDTH), tl.float32)
    d_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    d_logits = tl.zeros((ROWS,), tl.float32)
    for first in range(program * ROWS, count, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < count)[:, None] & (column < width)[None, :]
        offset = row.to(tl.int64)[:, None] * width + column[None, :]
        value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
        d_logit = tl.load(gradient + row, mask=row < count, other=0.0)
        cdf, bell = gelu_cdf_pdf(value)
        d_activated = d_logit[:, None] * weight[None, :]
        if NORM:
            normalized, inverse_std = normalize_gelu(value * cdf, inside, width, epsilon)
            d_activated = norm_input_gradient(d_activated, gamma, normalized, inverse_std, width)
        dx = d_activated * gelu_slope(value, cdf, bell)
        tl.store(d_x + offset, dx.to(d_x.dtype.element_ty), mask=inside)
        if NORM:
            d_output += d_logit[:, None] * normalized
        else:
            d_output += d_logit[:, None] * value * cdf
            d_bias += dx
        d_logits += d_logit
    target = sums + program * 2 * width + column
    first_sum = tl.sum(d_output, axis=0)
    if NORM:
        tl.store(target, first_sum * gamma, mask=column < width)
        tl.store(target + width, first_sum * weight, mask=column < width)
    else:
        tl.store(target, first_sum, mask=column < width)
        tl.store(target + width, tl.sum(d_bias, axis=0), mask=column < width)
    tl.store(logit_sums + program, tl.sum(d_logits, axis=0))
