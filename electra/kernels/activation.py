"""The exact gelu and its gradient:  x · Φ(x)  and  Φ(x) + x · φ(x),  with the column sums that a
bias needs.

Φ(x) = 1 − T for x ≥ 0 and T for x < 0, where T = e^(−x²/2) · (a₁t + … + a₅t⁵) / 2 and t = 1 / (1 +
p|x|/√2): Abramowitz and Stegun's 7.1.26, off by less than 1e-7. Its exponential is φ(x) but for a
factor, so the gradient costs no second one; the library's erf would make these kernels wait for
arithmetic instead of memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 1056  # what an H200 holds at once
ROWS, COLUMNS = 16, 128
BLOCK = 2048


def gelu(x: Tensor) -> Tensor:
    """Return x · Φ(x)."""
    out = torch.empty_like(x)
    gelu_forward[(triton.cdiv(x.numel(), BLOCK),)](x, out, x.numel(), BLOCK=BLOCK, num_warps=4)
    return out


def gelu_gradients(gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return d x [N, F], and for `reduce_partials` [programs, F]: the gradient of the bias that was
    added to make x.
    """
    d_x, (rows, width) = torch.empty_like(x), x.shape
    strips = triton.cdiv(width, COLUMNS)
    programs = min(max(1, PROGRAMS // strips), triton.cdiv(rows, ROWS))
    sums = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    gelu_backward[(strips, programs)](
        gradient, x, d_x, sums, rows, width, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4
    )
    return d_x, sums


@triton.jit
def gelu_cdf_pdf(x):
    """Return Φ(x), and φ(x) without its factor 1/√2π: e^(−x²/2)."""
    bell = tl.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + 0.3275911 * 0.7071067811865476 * tl.abs(x))
    series = t * (
        0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )
    tail = 0.5 * bell * series
    return tl.where(x >= 0, 1.0 - tail, tail), bell


@triton.jit
def gelu_forward(x, out, count, BLOCK: tl.constexpr):
    """Write gelu of one block of values."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + index, mask=index < count, other=0.0).to(tl.float32)
    cdf, _ = gelu_cdf_pdf(value)
    tl.store(out + index, (value * cdf).to(out.dtype.element_ty), mask=index < count)


@triton.jit
def gelu_backward(gradient, x, d_x, sums, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write dx of a strip of columns in the program's rows, and its sums over them."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(tl.program_id(1) * ROWS, rows, tl.num_programs(1) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        offset = row.to(tl.int64)[:, None] * width + column[None, :]
        value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
        cdf, bell = gelu_cdf_pdf(value)
        dy = tl.load(gradient + offset, mask=inside, other=0.0).to(tl.float32)
        dx = dy * (cdf + value * bell * 0.3989422804014327)
        tl.store(d_x + offset, dx.to(d_x.dtype.element_ty), mask=inside)
        total += dx
    tl.store(sums + tl.program_id(1) * width + column, tl.sum(total, axis=0), mask=column < width)
