"""Clipping and AdamW over one stretch of memory that holds every weight:

    g = min(1, limit / (‖g‖ + 1e-6)) · g    m = β₁m + (1 − β₁)g    v = β₂v + (1 − β₂)g²
    w = (1 − rate · decay) w − step · m / (√v · root + ε)          step = rate / (1 − β₁ᵗ), root = 1 / √(1 − β₂ᵗ)

Nothing changes when the norm is not finite, nor ever after: `broken` keeps the number of that step,
so that the host may look for it much later and still find the weights as they were before it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # values of one program, all of one parameter


@triton.jit
def adamw_update(
    weight,
    gradient,
    mean,
    square,
    low,
    group_of,
    settings,
    norm,
    broken,
    limit,
    first_beta,
    second_beta,
    BLOCK: tl.constexpr,
):
    """`settings` has a row for each group: step, root, ε, rate · decay; and after them the number
    of this step.
    """
    program = tl.program_id(0)
    row = settings + 5 * tl.load(group_of + program)
    length = tl.load(norm)
    finite = (length == length) & (tl.abs(length) != float("inf"))
    if (program == 0) & (tl.load(broken) == 0) & (finite == 0):
        tl.store(broken, tl.load(row + 4))
    if finite & (tl.load(broken) == 0):
        place = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        g = tl.load(gradient + place) * tl.minimum(1.0, limit / (length + 1e-6))
        m = first_beta * tl.load(mean + place) + (1.0 - first_beta) * g
        v = second_beta * tl.load(square + place) + (1.0 - second_beta) * g * g
        w = tl.load(weight + place)
        w = (
            w
            - tl.load(row + 3) * w
            - tl.load(row) * m / (tl.sqrt(v) * tl.load(row + 1) + tl.load(row + 2))
        )
        tl.store(mean + place, m)
        tl.store(square + place, v)
        tl.store(weight + place, w)
        tl.store(low + place, w.to(low.dtype.element_ty))


def update(
    weight: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    low: Tensor,
    *,
    group_of: Tensor,
    settings: Tensor,
    norm: Tensor,
    broken: Tensor,
    limit: float,
    betas: tuple[float, float],
) -> None:
    """All of [n] float32 but `low`; `group_of` [n / BLOCK] names the row of `settings` for each
    block.
    """
    adamw_update[(len(group_of),)](
        weight,
        gradient,
        mean,
        square,
        low,
        group_of,
        settings,
        norm,
        broken,
        limit,
        *betas,
        BLOCK=BLOCK,
        num_warps=4,
    )
