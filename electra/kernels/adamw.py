"""Gradient clipping and AdamW over one stretch of memory that holds every weight:

    g = min(1, max_norm / (‖g‖ + 1e-6)) · g    m = β₁m + (1 − β₁)g    v = β₂v + (1 − β₂)g²
    w = (1 − rate · decay) w − step · m / (√v · root + ε)
    step = rate / (1 − β₁ᵗ)    root = 1 / √(1 − β₂ᵗ)

Nothing changes when the norm is not finite, nor ever after: `failed_step` keeps the number of that
step, so that the host may look for it much later and still find the weights as they were before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # values of one program, all of one parameter; Muon's too


@dataclass(frozen=True, kw_only=True)
class AdamWBuffers:
    """The memory that an AdamW step reads and writes; [n] float32 where nothing else is said."""

    weight: Tensor
    gradient: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    low_precision: Tensor  # [n] copy of `weight`
    group_index: Tensor  # [n / BLOCK] int32, the parameter group of each block
    norm: Tensor  # of the gradient
    failed_step: Tensor  # first step whose norm was not finite, or 0


def adamw_step(
    buffers: AdamWBuffers, group_settings: Tensor, *, max_norm: float, betas: tuple[float, float]
) -> None:
    """Clip the gradient at `max_norm` and update the weights.

    `group_settings` [groups, 5] holds step, root, ε, rate · decay and the number of this step.
    """
    adamw_kernel[(len(buffers.group_index),)](
        buffers.weight,
        buffers.gradient,
        buffers.exp_avg,
        buffers.exp_avg_sq,
        buffers.low_precision,
        buffers.group_index,
        group_settings,
        buffers.norm,
        buffers.failed_step,
        max_norm,
        *betas,
        BLOCK=BLOCK,
        num_warps=4,
    )


@triton.jit
def is_finite(length):
    return (length == length) & (tl.abs(length) != float("inf"))


@triton.jit
def adamw_kernel(
    weight,
    gradient,
    exp_avg,
    exp_avg_sq,
    low_precision,
    group_index,
    group_settings,
    norm,
    failed_step,
    max_norm,
    first_beta,
    second_beta,
    BLOCK: tl.constexpr,
):
    """Update one block of weights."""
    program = tl.program_id(0)
    group = group_settings + 5 * tl.load(group_index + program)
    length = tl.load(norm)
    norm_is_finite = is_finite(length)
    if (program == 0) & (tl.load(failed_step) == 0) & (norm_is_finite == 0):
        tl.store(failed_step, tl.load(group + 4))
    if norm_is_finite & (tl.load(failed_step) == 0):
        index = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        g = tl.load(gradient + index) * tl.minimum(1.0, max_norm / (length + 1e-6))
        m = first_beta * tl.load(exp_avg + index) + (1.0 - first_beta) * g
        v = second_beta * tl.load(exp_avg_sq + index) + (1.0 - second_beta) * g * g
        w = tl.load(weight + index)
        w = (
            w
            - tl.load(group + 3) * w
            - tl.load(group) * m / (tl.sqrt(v) * tl.load(group + 1) + tl.load(group + 2))
        )
        tl.store(exp_avg + index, m)
        tl.store(exp_avg_sq + index, v)
        tl.store(weight + index, w)
        tl.store(low_precision + index, w.to(low_precision.dtype.element_ty))
