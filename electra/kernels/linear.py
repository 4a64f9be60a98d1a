"""A linear layer over tokens, with the optimizer's low-precision copies of its parameters.

Under autocast `nn.Linear` casts its parameters in every pass and their gradients back, and torch's
sum over tokens takes 15 µs for the gradient of a bias.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from electra.kernels.column_sums import reduce_partials
from electra.kernels.low_precision import LowPrecisionCopies, weight_grad

PROGRAMS = 256  # that share the tokens of a strip of columns
ROWS, COLUMNS = 32, 64


def linear(hidden: Tensor, layer: nn.Linear, low_precision: LowPrecisionCopies) -> Tensor:
    """Return `layer` of `hidden` [..., in], in the low precision of `hidden`."""
    return cast(Tensor, LinearFunction.apply(low_precision, hidden, layer.weight, layer.bias))


class LinearFunction(torch.autograd.Function):
    """One product forward. Backward two, and the sum over tokens where there is a bias."""

    @staticmethod
    def forward(
        ctx: Any,
        low_precision: LowPrecisionCopies,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        flat, low = hidden.reshape(-1, hidden.shape[-1]), low_precision(weight, hidden.dtype)
        if bias is None:
            out = flat @ low.t()
        else:
            out = torch.addmm(low_precision(bias, hidden.dtype), flat, low.t())
        ctx.has_bias = bias is not None
        ctx.save_for_backward(flat, low)
        return out.view(*hidden.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        flat, low = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, len(low)).contiguous()
        d_bias = None
        if ctx.has_bias:
            d_bias = sum_tokens(gradient)
        d_hidden = (gradient @ low).view(*gradients[0].shape[:-1], -1)
        return None, d_hidden, weight_grad(gradient.t(), flat), d_bias


def sum_tokens(values: Tensor) -> Tensor:
    """Return the sums [D] of `values` [N, D] in float32, always added in the same order."""
    rows, width = values.shape
    programs = min(PROGRAMS, triton.cdiv(rows, ROWS))
    partials = torch.empty(programs, width, dtype=torch.float32, device=values.device)
    token_sums[(triton.cdiv(width, COLUMNS), programs)](
        values, partials, rows, width, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4
    )
    return reduce_partials(partials)[0]


@triton.jit
def token_sums(values, partials, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write the sums of a strip of columns over the program's tokens."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(tl.program_id(1) * ROWS, rows, tl.num_programs(1) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        offset = row.to(tl.int64)[:, None] * width + column[None, :]
        total += tl.load(values + offset, mask=inside, other=0.0).to(tl.float32)
    target = partials + tl.program_id(1) * width + column
    tl.store(target, tl.sum(total, axis=0), mask=column < width)
