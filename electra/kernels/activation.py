"""The exact gelu and its gradient:  x · Φ(x)  and  Φ(x) + x · φ(x),  with the column sums that a
bias needs; and GeGLU, with dropout:  m · gelu(x) · g / (1 − p)  of [x, g].

Φ(x) = 1 − T for x ≥ 0 and T for x < 0, where T = e^(−x²/2) · (a₁t + … + a₅t⁵) / 2 and t = 1 / (1 +
p|x|/√2): Abramowitz and Stegun's 7.1.26, off by less than 1e-6. Its exponential is φ(x) but for a
factor, so the gradient costs no second one. What is done to every value decides the time: the
library's erf, or a division where the square of a reciprocal root will do, would make these kernels
wait for arithmetic instead of memory.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.dropout import DropoutSite, drop_threshold, keep_mask, random_words
from electra.kernels.tiles import tile_options


def gelu(x: Tensor) -> Tensor:
    """Return x · Φ(x)."""
    out = torch.empty_like(x)
    options = tile_options("gelu_forward", size=x.shape[-1], count=len(x))
    gelu_forward[(triton.cdiv(x.numel(), options["BLOCK"]),)](x, out, x.numel(), **options)
    return out


def gelu_gradients(gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return d x [N, F], and for `reduce_partials` [programs, F]: the gradient of the bias that was
    added to make x.
    """
    d_x, (rows, width) = torch.empty_like(x), x.shape
    options = dict(tile_options("gelu_backward", size=width, count=rows))
    strips = triton.cdiv(width, options["COLUMNS"])
    programs = min(max(1, options.pop("PROGRAMS") // strips), triton.cdiv(rows, options["ROWS"]))
    sums = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    gelu_backward[(strips, programs)](gradient, x, d_x, sums, rows, width, **options)
    return d_x, sums


def geglu(x_and_gate: Tensor, site: DropoutSite) -> Tensor:
    """Return [N, F] of x and its gate [N, 2F]."""
    out = x_and_gate.new_empty(len(x_and_gate), x_and_gate.shape[1] // 2)
    launch_geglu(geglu_forward, (x_and_gate, out), out.shape, site)
    return out


def geglu_gradients(gradient: Tensor, x_and_gate: Tensor, site: DropoutSite) -> Tensor:
    """Return the gradient [N, 2F] of x and its gate."""
    d_x_and_gate = torch.empty_like(x_and_gate)
    launch_geglu(geglu_backward, (gradient, x_and_gate, d_x_and_gate), gradient.shape, site)
    return d_x_and_gate


def launch_geglu(
    kernel: Any, tensors: tuple[Tensor, ...], shape: torch.Size, site: DropoutSite
) -> None:
    """Launch a kernel of GeGLU on tiles of [N, F]."""
    rows, width = shape
    options = tile_options(kernel.fn.__name__, size=width, count=rows)
    # Rows come first: every other axis of a grid ends at 65,535.
    kernel[(triton.cdiv(rows, options["ROWS"]), triton.cdiv(width, options["COLUMNS"]))](
        *tensors,
        site.keys,
        site.key_row,
        drop_threshold(site.rate),
        1 / (1 - site.rate),
        rows,
        width,
        DROP=site.rate > 0,
        **options,
    )


@triton.jit
def gelu_cdf_pdf(x):
    """Return Φ(x), and φ(x) without its factor 1/√2π: e^(−x²/2)."""
    bell = tl.exp2(-0.7213475204444817 * x * x)
    root = tl.rsqrt(1.0 + 0.3275911 * 0.7071067811865476 * tl.abs(x))
    t = root * root
    half_series = t * (
        0.127414796
        + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))
    )
    tail = bell * half_series
    return tl.where(x >= 0, 1.0 - tail, tail), bell


@triton.jit
def gelu_slope(x, cdf, bell):
    """Return Φ(x) + x · φ(x), from what `gelu_cdf_pdf` returns."""
    return cdf + x * bell * 0.3989422804014327


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
        dx = dy * gelu_slope(value, cdf, bell)
        tl.store(d_x + offset, dx.to(d_x.dtype.element_ty), mask=inside)
        total += dx
    tl.store(sums + tl.program_id(1) * width + column, tl.sum(total, axis=0), mask=column < width)


@triton.jit
def geglu_tile(rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the rows and columns of the program's tile, which values are inside, and the offsets
    of x; the gate's lie `width` after them.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    return row, column, inside, row.to(tl.int64)[:, None] * (2 * width) + column[None, :]


@triton.jit
def geglu_mask(row, column, keys, key_row, threshold, keep_scale):
    """Return the dropout mask times 1/(1 − p)."""
    row_words = random_words(row, keys, key_row, False)[:, None]
    column_words = random_words(column, keys, key_row, True)[None, :]
    return tl.where(keep_mask(row_words, column_words, threshold), keep_scale, 0.0)


@triton.jit
def geglu_forward(
    x_and_gate,
    out,
    keys,
    key_row,
    threshold,
    keep_scale,
    rows,
    width,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DROP: tl.constexpr,
):
    """Write m · gelu(x) · g / (1 − p) of one tile."""
    row, column, inside, offset = geglu_tile(rows, width, ROWS, COLUMNS)
    x = tl.load(x_and_gate + offset, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x_and_gate + offset + width, mask=inside, other=0.0).to(tl.float32)
    cdf, _ = gelu_cdf_pdf(x)
    y = x * cdf * gate
    if DROP:
        y *= geglu_mask(row, column, keys, key_row, threshold, keep_scale)
    target = out + row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(target, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def geglu_backward(
    gradient,
    x_and_gate,
    d_x_and_gate,
    keys,
    key_row,
    threshold,
    keep_scale,
    rows,
    width,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DROP: tl.constexpr,
):
    """Write dx and dg of one tile."""
    row, column, inside, offset = geglu_tile(rows, width, ROWS, COLUMNS)
    x = tl.load(x_and_gate + offset, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x_and_gate + offset + width, mask=inside, other=0.0).to(tl.float32)
    source = gradient + row.to(tl.int64)[:, None] * width + column[None, :]
    dy = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    if DROP:
        dy *= geglu_mask(row, column, keys, key_row, threshold, keep_scale)
    cdf, bell = gelu_cdf_pdf(x)
    dx = dy * gate * gelu_slope(x, cdf, bell)
    low = d_x_and_gate.dtype.element_ty
    tl.store(d_x_and_gate + offset, dx.to(low), mask=inside)
    tl.store(d_x_and_gate + offset + width, (dy * x * cdf).to(low), mask=inside)
