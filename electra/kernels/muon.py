"""Muon over one stretch of memory that holds all hidden matrices, before and after the products
that orthogonalise them:

    g = min(1, max_norm / (‖g‖ + 1e-6)) · g    m = μm + (1 − μ)g    u = (1 − μ)g + μm
    w = w − rate · decay · w − step · O(u)

As in AdamW, nothing changes from the first norm on that is not finite.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.adamw import BLOCK, is_finite


@dataclass(frozen=True, kw_only=True)
class MuonBuffers:
    """The memory that a Muon step reads and writes; [n] float32 where nothing else is said."""

    weight: Tensor
    gradient: Tensor
    momentum: Tensor
    direction: Tensor  # [n] what is orthogonalised, then the orthogonal matrices
    low_precision: Tensor  # [n] copy of `weight`
    group_index: Tensor  # [n / BLOCK] int32, the parameter group of each block
    norm: Tensor  # of the gradients of all parameters
    failed_step: Tensor  # first step whose norm was not finite, or 0


def momentum_step(buffers: MuonBuffers, *, max_norm: float, momentum: float) -> None:
    """Clip the gradient at `max_norm`, update the momentum and write the direction."""
    momentum_kernel[(len(buffers.group_index),)](
        buffers.gradient,
        buffers.momentum,
        buffers.direction,
        buffers.norm,
        buffers.failed_step,
        max_norm,
        momentum,
        BLOCK=BLOCK,
        num_warps=4,
    )


def weight_step(buffers: MuonBuffers, group_settings: Tensor) -> None:
    """Decay the weights and subtract the orthogonal matrices from them.

    `group_settings` [groups, 2] holds step and rate · decay.
    """
    weight_kernel[(len(buffers.group_index),)](
        buffers.weight,
        buffers.direction,
        buffers.low_precision,
        buffers.group_index,
        group_settings,
        buffers.norm,
        buffers.failed_step,
        BLOCK=BLOCK,
        num_warps=4,
    )


@triton.jit
def may_change(norm, failed_step):
    """Whether this gradient and all before it were finite."""
    return is_finite(tl.load(norm)) & (tl.load(failed_step) == 0)


@triton.jit
def momentum_kernel(
    gradient,
    momentum,
    direction,
    norm,
    failed_step,
    max_norm,
    decay,
    BLOCK: tl.constexpr,
):
    """Update the momentum of one block."""
    if may_change(norm, failed_step):
        index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        clip = tl.minimum(1.0, max_norm / (tl.load(norm) + 1e-6))
        g = tl.load(gradient + index) * clip
        m = decay * tl.load(momentum + index) + (1.0 - decay) * g
        u = (1.0 - decay) * g + decay * m
        tl.store(momentum + index, m)
        tl.store(direction + index, u.to(direction.dtype.element_ty))


@triton.jit
def weight_kernel(
    weight,
    direction,
    low_precision,
    group_index,
    group_settings,
    norm,
    failed_step,
    BLOCK: tl.constexpr,
):
    """Update one block of weights."""
    if may_change(norm, failed_step):
        program = tl.program_id(0)
        group = group_settings + 2 * tl.load(group_index + program)
        index = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        w = tl.load(weight + index)
        o = tl.load(direction + index).to(tl.float32)
        w = w - tl.load(group + 1) * w - tl.load(group) * o
        tl.store(weight + index, w)
        tl.store(low_precision + index, w.to(low_precision.dtype.element_ty))
