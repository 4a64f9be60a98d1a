"""Dropout, residual and LayerNorm in one pass.

    y = γ · x̂ + β    x̂ = (s − mean s) / √(var s + ε)    s = r + m · b / (1 − p)
    b  the branch (attention or feed-forward)     r  the residual     m  which values of b are kept

Backward, with w = dy · γ:

    ds = (w − mean w − x̂ · mean(w · x̂)) / √(var s + ε)    db = m · ds / (1 − p)

Where the norm stands after the residual connection, y is the next residual, and x̂ is computed again
from b and r, which costs what reading a stored s would. Where it stands before the next branch, s
is the next residual: it is written too, and its own gradient from there is added to ds. That norm
has no β, and no bias was added to b.

Sums over rows, for γ, β and the bias that was added to b, are taken by a fixed number of programs
over a fixed set of rows each, then over the programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.dropout import DropoutSite, drop_threshold, keep_mask, random_words
from electra.kernels.tiles import tile_options
from electra.model.electra_encoder import NORM_EPSILON

VALUES_PER_WARP = 256  # in one load of 16 bytes a thread, of 16 bits a value


def add_norm(
    branch: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, site: DropoutSite
) -> Tensor:
    """Return LayerNorm(residual + dropout(branch)); [N, D] each."""
    out = torch.empty_like(residual)
    launch_forward((branch, residual, weight, bias, out, None), site, NORM_EPSILON)
    return out


def add_pre_norm(
    branch: Tensor, residual: Tensor, weight: Tensor, site: DropoutSite, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return s = residual + dropout(branch), and LayerNorm(s) without bias; [N, D] each."""
    summed, out = torch.empty_like(residual), torch.empty_like(residual)
    launch_forward((branch, residual, weight, None, out, summed), site, epsilon)
    return summed, out


def launch_forward(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor | None],
    site: DropoutSite,
    epsilon: float,
) -> None:
    """Launch the kernel on branch, residual, weight, bias, y and s."""
    rows, width = tensors[0].shape
    options = launch_options("add_norm_forward", rows, width)
    add_norm_forward[(triton.cdiv(rows, options["ROWS"]),)](
        *tensors,
        site.keys,
        site.key_row,
        drop_threshold(site.rate),
        1 / (1 - site.rate),
        rows,
        width,
        epsilon,
        DROP=site.rate > 0,
        HAS_BIAS=tensors[3] is not None,
        KEEP_SUM=tensors[5] is not None,
        **options,
    )


def add_norm_gradients(
    gradient: Tensor, branch: Tensor, residual: Tensor, weight: Tensor, site: DropoutSite
) -> tuple[Tensor, Tensor, Tensor]:
    """Return d branch, d residual [N, D], and for `reduce_partials` [programs, 3, D]: dγ, dβ and
    the gradient of the branch's bias.
    """
    d_branch, d_residual = torch.empty_like(branch), torch.empty_like(residual)
    tensors = (gradient, None, branch, residual, weight, d_branch, d_residual)
    return d_branch, d_residual, launch_backward(tensors, site, NORM_EPSILON)


def add_pre_norm_gradients(
    gradients: tuple[Tensor, Tensor | None],
    summed: Tensor,
    weight: Tensor,
    site: DropoutSite,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return d branch and d residual [N, D], and for `reduce_partials` [programs, 1, D]: dγ.

    `gradients` are those of y and of s; the latter is None where nothing else reads s. Without
    dropout both results are one tensor.
    """
    d_out, d_summed = gradients
    d_residual, d_branch = torch.empty_like(summed), None
    if site.rate > 0:
        d_branch = torch.empty_like(d_out)
    tensors = (d_out, d_summed, None, summed, weight, d_branch, d_residual)
    sums = launch_backward(tensors, site, epsilon)
    if d_branch is None:
        d_branch = d_residual
    return d_branch, d_residual, sums


def launch_backward(
    tensors: tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor, Tensor | None, Tensor],
    site: DropoutSite,
    epsilon: float,
) -> Tensor:
    """Launch the kernel on dy, ds from elsewhere, branch, residual or s, weight, d branch and
    d residual; return the sums of its programs.
    """
    rows, width = tensors[0].shape
    is_after = tensors[2] is not None
    options = launch_options("add_norm_backward", rows, width)
    programs = min(options.pop("PROGRAMS"), triton.cdiv(rows, options["ROWS"]))
    rows_at_once = options["num_warps"] * VALUES_PER_WARP // options["WIDTH"]
    sums = tensors[4].new_empty(programs, 3 if is_after else 1, width)
    add_norm_backward[(programs,)](
        *tensors,
        sums,
        site.keys,
        site.key_row,
        drop_threshold(site.rate),
        1 / (1 - site.rate),
        rows,
        width,
        epsilon,
        DROP=site.rate > 0,
        HAS_BIAS=is_after,
        HAS_BRANCH=is_after,
        ADD=tensors[1] is not None,
        WRITE_BRANCH=tensors[5] is not None,
        SUM_ROWS=min(options["ROWS"], max(1, rows_at_once)),
        **options,
    )
    return sums


def launch_options(kernel: str, rows: int, width: int) -> dict[str, int]:
    """Return tile sizes and compiler options for `rows` vectors of `width`."""
    options = dict(tile_options(kernel, size=width, count=rows))
    padded = triton.next_power_of_2(width)
    return {"ROWS": max(1, options.pop("TILE") // padded), "WIDTH": padded, **options}


@triton.jit
def kept_values(row, column_words, keys, key_row, threshold):
    """Return which values of some rows are kept."""
    row_words = random_words(row, keys, key_row, False)
    return keep_mask(row_words[:, None], column_words[None, :], threshold)


@triton.jit
def drop(values, keep, keep_scale, DROP: tl.constexpr):
    """Return values after dropout, where there is one."""
    if DROP:
        values = tl.where(keep, values * keep_scale, 0.0)
    return values


@triton.jit
def normalize(s, inside, width, epsilon):
    """Return x̂ and 1/√(var + ε)."""
    centered = tl.where(inside, s - tl.sum(s, axis=1)[:, None] / width, 0.0)
    inverse_std = tl.rsqrt(tl.sum(centered * centered, axis=1) / width + epsilon)[:, None]
    return centered * inverse_std, inverse_std


@triton.jit
def norm_input_gradient(dy, gamma, normalized, inverse_std, width):
    """Return ds, the gradient of what the norm reads."""
    w = dy * gamma[None, :]
    return (
        w
        - tl.sum(w, axis=1)[:, None] / width
        - normalized * (tl.sum(w * normalized, axis=1)[:, None] / width)
    ) * inverse_std


@triton.jit
def add_norm_forward(
    branch,
    residual,
    weight,
    bias,
    out,
    summed,
    keys,
    key_row,
    threshold,
    keep_scale,
    rows,
    width,
    epsilon,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    DROP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KEEP_SUM: tl.constexpr,
):
    """Write y of one block of rows, and s where it is kept."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    offset = row.to(tl.int64)[:, None] * width + column[None, :]
    s = tl.load(residual + offset, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(branch + offset, mask=inside, other=0.0).to(tl.float32)
    keep = inside
    if DROP:
        column_words = random_words(column, keys, key_row, True)
        keep = kept_values(row, column_words, keys, key_row, threshold)
    s += drop(b, keep, keep_scale, DROP)
    if KEEP_SUM:  # rounded, so that both passes see the same s
        s = s.to(residual.dtype.element_ty).to(tl.float32)
        tl.store(summed + offset, s.to(summed.dtype.element_ty), mask=inside)
    normalized, _ = normalize(s, inside, width, epsilon)
    gamma = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    y = normalized * gamma[None, :]
    if HAS_BIAS:
        beta = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
        y += beta[None, :]
    tl.store(out + offset, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def fold(values, SUM_ROWS: tl.constexpr):
    """Return [SUM_ROWS, D] of [ROWS, D]: in row r, the sum of rows r, r + SUM_ROWS, and so on.

    A thread holds all of them, so it adds them without an exchange, and fewer sums fill registers.
    """
    groups: tl.constexpr = values.shape[0] // SUM_ROWS
    return tl.sum(tl.reshape(values, (groups, SUM_ROWS, values.shape[1])), axis=0)


@triton.jit
def store_bias_sums(target, d_bias, d_branch_bias, column, width):
    """Store the program's part of the sums for dβ and the branch's bias, into [2, D]."""
    tl.store(target, tl.sum(d_bias, axis=0), mask=column < width)
    tl.store(target + width, tl.sum(d_branch_bias, axis=0), mask=column < width)


@triton.jit
def third_tensor(branch, d_summed, residual, HAS_BRANCH: tl.constexpr, ADD: tl.constexpr):
    """Return what the backward pass reads beside dy and r; where it needs no more, r again."""
    if HAS_BRANCH:
        return branch
    elif ADD:
        return d_summed
    else:
        return residual


@triton.jit
def load_backward(tensors, first, column, rows, width, ROWS: tl.constexpr):
    """Load dy, r or s, and b or the gradient of s from elsewhere, of a block of rows."""
    gradient, residual, third = tensors
    row = first + tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    offset = row.to(tl.int64)[:, None] * width + column[None, :]
    dy = tl.load(gradient + offset, mask=inside, other=0.0)
    s = tl.load(residual + offset, mask=inside, other=0.0)
    return dy, s, tl.load(third + offset, mask=inside, other=0.0)


@triton.jit
def add_norm_backward(
    gradient,
    d_summed,
    branch,
    residual,
    weight,
    d_branch,
    d_residual,
    sums,
    keys,
    key_row,
    threshold,
    keep_scale,
    rows,
    width,
    epsilon,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    SUM_ROWS: tl.constexpr,
    DROP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_BRANCH: tl.constexpr,
    ADD: tl.constexpr,
    WRITE_BRANCH: tl.constexpr,
):
    """Write db and ds of the program's rows, and their sums for dγ, dβ and the branch's bias."""
    program, column = tl.program_id(0), tl.arange(0, WIDTH)
    gamma = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    column_words = random_words(column, keys, key_row, True)
    d_weight = tl.zeros((SUM_ROWS, WIDTH), tl.float32)
    d_bias = tl.zeros((SUM_ROWS, WIDTH), tl.float32)
    d_branch_bias = tl.zeros((SUM_ROWS, WIDTH), tl.float32)
    tensors = (gradient, residual, third_tensor(branch, d_summed, residual, HAS_BRANCH, ADD))
    stride = tl.num_programs(0) * ROWS
    # Loaded a block ahead: the kernel waits for memory more than it computes.
    next_dy, next_s, next_third = load_backward(tensors, program * ROWS, column, rows, width, ROWS)
    for first in range(program * ROWS, rows, stride):
        dy, s, third = next_dy.to(tl.float32), next_s.to(tl.float32), next_third.to(tl.float32)
        next_dy, next_s, next_third = load_backward(
            tensors, first + stride, column, rows, width, ROWS
        )
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        offset = row.to(tl.int64)[:, None] * width + column[None, :]
        keep = inside
        if DROP:
            keep = kept_values(row, column_words, keys, key_row, threshold)
        if HAS_BRANCH:
            s += drop(third, keep, keep_scale, DROP)
        normalized, inverse_std = normalize(s, inside, width, epsilon)
        ds = norm_input_gradient(dy, gamma, normalized, inverse_std, width)
        if ADD:
            ds += third
        db = drop(ds, keep, keep_scale, DROP)
        tl.store(d_residual + offset, ds.to(d_residual.dtype.element_ty), mask=inside)
        if WRITE_BRANCH:
            tl.store(d_branch + offset, db.to(d_branch.dtype.element_ty), mask=inside)
        d_weight += fold(dy * normalized, SUM_ROWS)
        if HAS_BIAS:
            d_bias += fold(dy, SUM_ROWS)
            d_branch_bias += fold(tl.where(inside, db, 0.0), SUM_ROWS)
    target = sums + program * (1 + 2 * HAS_BIAS) * width + column
    tl.store(target, tl.sum(d_weight, axis=0), mask=column < width)
    if HAS_BIAS:
        store_bias_sums(target + width, d_bias, d_branch_bias, column, width)
