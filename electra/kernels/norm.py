"""Dropout, residual and LayerNorm in one pass.

    y = γ · x̂ + β    x̂ = (s − mean s) / √(var s + ε)    s = r + m · b / (1 − p)
    b  the branch (attention or feed-forward)     r  the residual     m  which values of b are kept

Backward, with w = dy · γ:  ds = (w − mean w − x̂ · mean(w · x̂)) / √(var s + ε),  db = m · ds / (1 − p).
x̂ is computed again from b and r, which costs what reading a stored s would. Sums over rows, for γ, β and the bias that
was added to b, are taken by a fixed number of programs over a fixed set of rows each, then over the programs.
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


@triton.jit
def centred(
    branch,
    residual,
    place,
    inside,
    row_words,
    column_words,
    threshold,
    boost,
    width,
    epsilon,
    DROP: tl.constexpr,
):
    """(x̂, 1/√(var + ε), which values of the branch are kept times 1/(1 − p))."""
    b = tl.load(branch + place, mask=inside, other=0.0).to(tl.float32)
    r = tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    share = tl.full(b.shape, 1.0, tl.float32)
    if DROP:
        share = tl.where(
            keep_mask(row_words[:, None], column_words[None, :], threshold), boost, 0.0
        )
    s = r + b * share
    distance = tl.where(inside, s - tl.sum(s, axis=1)[:, None] / width, 0.0)
    spread = tl.rsqrt(tl.sum(distance * distance, axis=1) / width + epsilon)[:, None]
    return distance * spread, spread, share


@triton.jit
def add_norm_forward(
    branch,
    residual,
    scale,
    shift,
    out,
    keys,
    site,
    threshold,
    boost,
    rows,
    width,
    epsilon,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    DROP: tl.constexpr,
):
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place = row[:, None] * width + column[None, :]
    normal, _, _ = centred(
        branch,
        residual,
        place,
        inside,
        random_words(row, keys, site, False),
        random_words(column, keys, site, True),
        threshold,
        boost,
        width,
        epsilon,
        DROP,
    )
    gamma = tl.load(scale + column, mask=column < width, other=0.0).to(tl.float32)
    beta = tl.load(shift + column, mask=column < width, other=0.0).to(tl.float32)
    tl.store(
        out + place, (normal * gamma[None, :] + beta[None, :]).to(out.dtype.element_ty), mask=inside
    )


@triton.jit
def add_norm_backward(
    gradient,
    branch,
    residual,
    scale,
    d_branch,
    d_residual,
    sums,
    keys,
    site,
    threshold,
    boost,
    rows,
    width,
    epsilon,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    DROP: tl.constexpr,
):
    program, column = tl.program_id(0), tl.arange(0, WIDTH)
    gamma = tl.load(scale + column, mask=column < width, other=0.0).to(tl.float32)
    column_words = random_words(column, keys, site, True)
    d_scale = tl.zeros((ROWS, WIDTH), tl.float32)
    d_shift = tl.zeros((ROWS, WIDTH), tl.float32)
    d_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(program * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        place = row[:, None] * width + column[None, :]
        normal, spread, share = centred(
            branch,
            residual,
            place,
            inside,
            random_words(row, keys, site, False),
            column_words,
            threshold,
            boost,
            width,
            epsilon,
            DROP,
        )
        dy = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
        w = dy * gamma[None, :]
        ds = (
            w
            - tl.sum(w, axis=1)[:, None] / width
            - normal * (tl.sum(w * normal, axis=1)[:, None] / width)
        ) * spread
        db = ds * share
        tl.store(d_residual + place, ds.to(d_residual.dtype.element_ty), mask=inside)
        tl.store(d_branch + place, db.to(d_branch.dtype.element_ty), mask=inside)
        d_scale += dy * normal
        d_shift += dy
        d_bias += tl.where(inside, db, 0.0)
    target = sums + program * 3 * width + column
    tl.store(target, tl.sum(d_scale, axis=0), mask=column < width)
    tl.store(target + width, tl.sum(d_shift, axis=0), mask=column < width)
    tl.store(target + 2 * width, tl.sum(d_bias, axis=0), mask=column < width)


def add_norm(
    branch: Tensor, residual: Tensor, scale: Tensor, shift: Tensor, site: DropoutSite
) -> Tensor:
    """LayerNorm(residual + dropout(branch)); [N, D] each."""
    out = torch.empty_like(residual)
    rows, width = residual.shape
    settings = tiles(width, site)
    add_norm_forward[(triton.cdiv(rows, settings["ROWS"]),)](
        branch,
        residual,
        scale,
        shift,
        out,
        site.keys,
        site.key_row,
        drop_threshold(site.rate),
        1 / (1 - site.rate),
        rows,
        width,
        EPSILON,
        **settings,
    )
    return out


def add_norm_gradients(
    gradient: Tensor, branch: Tensor, residual: Tensor, scale: Tensor, site: DropoutSite
) -> tuple[Tensor, Tensor, Tensor]:
    """d branch, d residual [N, D], and for `reduce_partials` [programs, 3, D]: dγ, dβ and the branch's
    bias.
    """
    d_branch, d_residual = torch.empty_like(branch), torch.empty_like(residual)
    rows, width = residual.shape
    settings = tiles(width, site)
    programs = min(PROGRAMS, triton.cdiv(rows, settings["ROWS"]))
    sums = torch.empty(programs, 3, width, dtype=torch.float32, device=branch.device)
    add_norm_backward[(programs,)](
        gradient,
        branch,
        residual,
        scale,
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
        **settings,
    )
    return d_branch, d_residual, sums


def tiles(width: int, site: DropoutSite) -> dict[str, int | bool]:
    whole = triton.next_power_of_2(width)
    return {"ROWS": max(1, TILE // whole), "WIDTH": whole, "DROP": site.rate > 0, "num_warps": 4}
