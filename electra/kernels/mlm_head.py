"""The generator's head up to the vocabulary: the predicted embedding of a token.

    y = γ · ĝ + β    ĝ = (gelu(x) − mean) / √(var + ε)    x = hidden · denseᵀ + bias

The product is cuBLAS's; one kernel reads x and writes y. Backward, another reads x again, and sums
over tokens for γ, β and the bias are taken by a fixed number of programs over a fixed set of tokens
each, then over the programs. ModernBERT's head has neither bias nor β.
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
from electra.kernels.rtd_head import normalize_gelu

PROGRAMS = 256
TILE = 1024  # values that a program holds at once


class MLMHeadWeights(NamedTuple):
    """The parameters of a head; ModernBERT's has no biases."""

    dense: Tensor  # [E, D]
    dense_bias: Tensor | None
    norm: Tensor
    norm_bias: Tensor | None


def mlm_head(
    hidden: Tensor, weights: MLMHeadWeights, low_precision: LowPrecisionCopies, epsilon: float
) -> Tensor:
    """Return predicted embeddings [..., E] of `hidden` [..., D], in its low precision."""
    return cast(Tensor, MLMHeadFunction.apply(low_precision, epsilon, hidden, *weights))


class MLMHeadFunction(torch.autograd.Function):
    """hidden → dense → gelu → norm."""

    @staticmethod
    def forward(
        ctx: Any,
        low_precision: LowPrecisionCopies,
        epsilon: float,
        hidden: Tensor,
        *parameters: Any,
    ) -> Tensor:
        weights = MLMHeadWeights(*parameters)
        flat, low = hidden.reshape(-1, hidden.shape[-1]), low_precision(weights.dense, hidden.dtype)
        if weights.dense_bias is None:
            x = flat @ low.t()
        else:
            x = torch.addmm(low_precision(weights.dense_bias, hidden.dtype), flat, low.t())
        out, options = torch.empty_like(x), launch_options(x.shape[1], weights.norm_bias)
        mlm_head_forward[(triton.cdiv(len(x), options["ROWS"]),)](
            x, weights.norm, weights.norm_bias, out, *x.shape, epsilon, **options
        )
        ctx.epsilon = epsilon
        ctx.save_for_backward(flat, low, x, weights.norm, weights.norm_bias)
        return out.view(*hidden.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        flat, low, x, norm, norm_bias = ctx.saved_tensors
        options = launch_options(x.shape[1], norm_bias)
        programs = min(PROGRAMS, triton.cdiv(len(x), options["ROWS"]))
        d_x, d_out = torch.empty_like(x), gradients[0].reshape(x.shape).contiguous()
        sums = norm.new_empty(programs, 1 + 2 * options["HAS_BIAS"], x.shape[1])
        mlm_head_backward[(programs,)](d_out, x, norm, d_x, sums, *x.shape, ctx.epsilon, **options)
        (d_norm, *d_biases) = reduce_partials(sums)[0]
        d_norm_bias, d_dense_bias = d_biases or (None, None)
        d_hidden = (d_x @ low).view(*gradients[0].shape[:-1], -1)
        d_dense = weight_grad(d_x.t(), flat)
        return None, None, d_hidden, d_dense, d_dense_bias, d_norm, d_norm_bias


def launch_options(width: int, norm_bias: Tensor | None) -> dict[str, int | bool]:
    """Return tile sizes and compiler options for vectors of `width`."""
    padded = triton.next_power_of_2(width)
    rows = max(1, TILE // padded)
    return {"ROWS": rows, "WIDTH": padded, "HAS_BIAS": norm_bias is not None, "num_warps": 4}


@triton.jit
def mlm_head_forward(
    x,
    norm,
    norm_bias,
    out,
    count,
    width,
    epsilon,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Write y of one block of tokens."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row < count)[:, None] & (column < width)[None, :]
    offset = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    cdf, _ = gelu_cdf_pdf(value)
    normalized, _ = normalize_gelu(value * cdf, inside, width, epsilon)
    y = normalized * tl.load(norm + column, mask=column < width, other=0.0)[None, :]
    if HAS_BIAS:
        y += tl.load(norm_bias + column, mask=column < width, other=0.0)[None, :]
    tl.store(out + offset, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def mlm_head_backward(
    gradient,
    x,
    norm,
    d_x,
    sums,
    count,
    width,
    epsilon,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Write dx of the program's tokens, and their sums for dγ, dβ and the dense layer's bias."""
    program, column = tl.program_id(0), tl.arange(0, WIDTH)
    gamma = tl.load(norm + column, mask=column < width, other=0.0)
    d_norm = tl.zeros((ROWS, WIDTH), tl.float32)
    d_norm_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    d_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(program * ROWS, count, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < count)[:, None] & (column < width)[None, :]
        offset = row.to(tl.int64)[:, None] * width + column[None, :]
        value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(gradient + offset, mask=inside, other=0.0).to(tl.float32)
        cdf, bell = gelu_cdf_pdf(value)
        normalized, inverse_std = normalize_gelu(value * cdf, inside, width, epsilon)
        d_activated = norm_input_gradient(dy, gamma, normalized, inverse_std, width)
        dx = d_activated * gelu_slope(value, cdf, bell)
        tl.store(d_x + offset, dx.to(d_x.dtype.element_ty), mask=inside)
        d_norm += dy * normalized
        if HAS_BIAS:
            d_norm_bias += dy
            d_bias += dx
    target = sums + program * (1 + 2 * HAS_BIAS) * width + column
    tl.store(target, tl.sum(d_norm, axis=0), mask=column < width)
    if HAS_BIAS:
        tl.store(target + width, tl.sum(d_norm_bias, axis=0), mask=column < width)
        tl.store(target + 2 * width, tl.sum(d_bias, axis=0), mask=column < width)
