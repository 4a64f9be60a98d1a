"""Sums of the partial results of several programs, always in the same order, for many tensors at
once.

Torch's own sum takes 8 µs for the few hundred partial sums of a norm's or a bias's gradient, a
hundred times a step: more than some kernels that make them. Here a program takes a strip of columns
and loads up to MAX_ROWS rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

# Of one launch: six blocks of the paper's family, or twelve of ModernBERT's. Twelve of the paper's
# in one took longer than in two (93 and 55 µs for `base`).
MAX_TENSORS = 24
TILE = 4096  # values that a program holds
MAX_ROWS = 256
ALIGNED = tl.constexpr(16)  # columns; where all rows begin at a multiple, loads are four wide


def reduce_partials(*partials: Tensor) -> list[Tensor]:
    """Sum each [programs, …] float32 over its first axis, of up to MAX_TENSORS tensors."""
    sums = reduce_to_flat(partials).split([partial[0].numel() for partial in partials])
    return [flat.view(partial.shape[1:]) for flat, partial in zip(sums, partials, strict=True)]


def reduce_to_flat(partials: Sequence[Tensor]) -> Tensor:
    """Return the sums of `reduce_partials` side by side, in one flat tensor."""
    widths = [partial[0].numel() for partial in partials]
    # The number of arguments is a power of two, so that few kernels have to be compiled.
    unused = int(triton.next_power_of_2(len(partials))) - len(partials)
    out = torch.empty(sum(widths), dtype=torch.float32, device=partials[0].device)
    rows = min(MAX_ROWS, int(triton.next_power_of_2(max(map(len, partials)))))
    columns = TILE // rows
    strips = sum(triton.cdiv(width, columns) for width in widths)
    column_sums[(strips,)](
        (*partials, *(partials[0],) * unused),
        (*map(len, partials), *(0,) * unused),
        (*widths, *(0,) * unused),
        out,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=4,
    )
    return out


@triton.jit
def strip_sums(partials, out, strip, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write the sums of one strip of columns."""
    column = strip * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        total += tl.load(
            partials + row.to(tl.int64)[:, None] * width + column[None, :], mask=inside, other=0.0
        )
    tl.store(out + column, tl.sum(total, axis=0), mask=column < width)


@triton.jit
def column_sums(partials, rows, widths, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write the sums of several tensors, whose strips of columns follow each other."""
    strip = tl.program_id(0)
    # One loop for whichever tensor it is: as many as there are would be too much code.
    tensor, row_count, width, target, begin = partials[0], rows[0], widths[0], out, 0
    end = tl.cdiv(widths[0], COLUMNS)
    for number in tl.static_range(1, len(partials)):
        if strip >= end:
            tensor, row_count, width, begin = partials[number], rows[number], widths[number], end
            target += widths[number - 1]
        end += tl.cdiv(widths[number], COLUMNS)
    if width % ALIGNED == 0:
        width = width // ALIGNED * ALIGNED  # tells the compiler
        strip_sums(tensor, target, strip - begin, row_count, width, ROWS, COLUMNS)
    else:
        strip_sums(tensor, target, strip - begin, row_count, width, ROWS, COLUMNS)
