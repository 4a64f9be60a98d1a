"""Dropout, residual and LayerNorm in one pass.

    y = γ · x̂ + β    x̂ = (s − mean s) / √(var s + ε)    s = r + m · b / (1 − p)
    b  the branch (attention or feed-forward)     r  the residual     m  which values of b are kept

Backward, with w = dy · γ:

    ds = (w − mean w − x̂ · mean(w · x̂)) / √(var s + ε)    db = m · ds / (1 − p)

x̂ is computed again from b and r, which costs what reading a stored s would. Sums over rows, for γ,
β and the bias that was added to b, are taken by a fixed number of programs over a fixed set of rows
each, then over the programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.dropout import DropoutSite, drop_threshold, keep_mask, random_words

EPSILON = 1e-12  # as electra.model.encoder has it
PROGRAMS = 264  # that share the rows in the backward pass: what an H200 holds at once
TILE = 4096  # values that a program holds at once


def add_norm(
    branch: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, site: DropoutSite
) -> Tensor:
    """Return LayerNorm(residual + dropout(branch)); [N, D] each."""
    out = torch.empty_like(residual)
    rows, width = residual.shape
    options = launch_options(width, site)
    add_norm_forward[(triton.cdiv(rows, options["ROWS"]),)](
        branch,
        residual,
        weight,
        bias,
        out,
        site.keys,
        site.key_row,
        drop_threshold(site.rate),
        1 / (1 - site.rate),
        rows,
        width,
        EPSILON,
        **options,
    )
    return out


def add_norm_gradients(
    gradient: Tensor, branch: Tensor, residual: Tensor, weight: Tensor, site: DropoutSite
) -> tuple[Tensor, Tensor, Tensor]:
    """Return d branch, d residual [N, D], and for `reduce_partials` [programs, 3, D]: dγ, dβ and
    the gradient of the branch's bias.
    """
    d_branch, d_residual = torch.empty_like(branch), torch.empty_like(residual)
    rows, width = residual.shape
    options = launch_options(width, site)
    programs = min(PROGRAMS, triton.cdiv(rows, options["ROWS"]))
    sums = torch.empty(programs, 3, width, dtype=torch.float32, device=branch.device)
    add_norm_backward[(programs,)](
        gradient,
        branch,
        residual,
        weight,
        d_branch,
        d_residual,
        sums,
        site.keys,
        site.key_row,
        drop_threshold(site.rate),
        1 / (1 - site.rate),
        rows,
        width,
        EPSILON,
        **options,
    )
    return d_branch, d_residual, sums


def launch_options(width: int, site: DropoutSite) -> dict[str, int | bool]:
    """Return tile sizes and compiler options for vectors of `width`."""
    padded = triton.next_power_of_2(width)
    return {"ROWS": max(1, TILE // padded), "WIDTH": padded, "DROP": site.rate > 0, "num_warps": 4}


@triton.jit
def normalize_sum(
    branch,
    residual,
    offset,
    inside,
    row_words,
    column_words,
    threshold,
    keep_scale,
    width,
    epsilon,
    DROP: tl.constexpr,
):
    """Return x̂, 1/√(var + ε), and the dropout mask of the branch times 1/(1 − p)."""
    b = tl.load(branch + offset, mask=inside, other=0.0).to(tl.float32)
    r = tl.load(residual + offset, mask=inside, other=0.0).to(tl.float32)
    scaled_mask = tl.full(b.shape, 1.0, tl.float32)
    if DROP:
        keep = keep_mask(row_words[:, None], column_words[None, :], threshold)
        scaled_mask = tl.where(keep, keep_scale, 0.0)
    s = r + b * scaled_mask
    centered = tl.where(inside, s - tl.sum(s, axis=1)[:, None] / width, 0.0)
    inverse_std = tl.rsqrt(tl.sum(centered * centered, axis=1) / width + epsilon)[:, None]
    return centered * inverse_std, inverse_std, scaled_mask


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
):
    """Write y of one block of rows."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    offset = row[:, None] * width + column[None, :]
    normalized, _, _ = normalize_sum(
        branch,
        residual,
        offset,
        inside,
        random_words(row, keys, key_row, False),
        random_words(column, keys, key_row, True),
        threshold,
        keep_scale,
        width,
        epsilon,
        DROP,
    )
    gamma = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    beta = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    tl.store(
        out + offset,
        (normalized * gamma[None, :] + beta[None, :]).to(out.dtype.element_ty),
        mask=inside,
    )


@triton.jit
def add_norm_backward(
    gradient,
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
    DROP: tl.constexpr,
):
    """Write db and ds of the program's rows, and their sums for dγ, dβ and the branch's bias."""
    program, column = tl.program_id(0), tl.arange(0, WIDTH)
    gamma = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    column_words = random_words(column, keys, key_row, True)
    d_weight = tl.zeros((ROWS, WIDTH), tl.float32)
    d_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    d_branch_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(program * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        offset = row[:, None] * width + column[None, :]
        normalized, inverse_std, scaled_mask = normalize_sum(
            branch,
            residual,
            offset,
            inside,
            random_words(row, keys, key_row, False),
            column_words,
            threshold,
            keep_scale,
            width,
            epsilon,
            DROP,
        )
        dy = tl.load(gradient + offset, mask=inside, other=0.0).to(tl.float32)
        ds = norm_input_gradient(dy, gamma, normalized, inverse_std, width)
        db = ds * scaled_mask
        tl.store(d_residual + offset, ds.to(d_residual.dtype.element_ty), mask=inside)
        tl.store(d_branch + offset, db.to(d_branch.dtype.element_ty), mask=inside)
        d_weight += dy * normalized
        d_bias += dy
        d_branch_bias += tl.where(inside, db, 0.0)
    target = sums + program * 3 * width + column
    tl.store(target, tl.sum(d_weight, axis=0), mask=column < width)
    tl.store(target + width, tl.sum(d_bias, axis=0), mask=column < width)
    tl.store(target + 2 * width, tl.sum(d_branch_bias, axis=0), mask=column < width)
