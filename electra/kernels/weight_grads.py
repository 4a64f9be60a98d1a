"""The gradients of a block's matrices: products over all tokens, in float32.

Each is a product of cuBLAS. For matrices as narrow as those of Small's generator that is two
launches each, most of whose time is starting and ending. There one kernel makes all four products,
in tiles and in parts of the tokens, and `column_sums` adds the parts, always in the same order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.deferred_grads import DeferredGradients, sum_gradients
from electra.kernels.low_precision import weight_grad

MAX_NARROW_WIDTH = 64  # the largest width of hidden states whose blocks take the kernel
PAIRS = 4  # matrices of a block
PROGRAMS = 264  # what an H200 holds at once
TILE = 64  # rows and columns of a tile, and tokens that are multiplied at once


class WeightGrads:
    """Gradients leftᵀ · right, taken one by one or, for narrow hidden states, all in the end."""

    def __init__(self, width: int, deferred: DeferredGradients | None) -> None:
        self.is_narrow = width <= MAX_NARROW_WIDTH
        self.deferred = deferred
        self.matrices: list[Tensor] = []
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self.gradients: list[Tensor | None] = []

    def add(self, matrix: Tensor, left: Tensor, right: Tensor) -> None:
        """Take the gradient of one more matrix [out, in], from [N, out] and [N, in]."""
        if self.is_narrow:
            self.matrices.append(matrix)
            self.pairs.append((left, right))
        else:
            self.gradients.append(product_gradient(matrix, left, right, self.deferred))

    def all(self) -> list[Tensor | None]:
        """Return the gradients of all four matrices; None for those that are deferred."""
        if self.is_narrow:
            partials = narrow_weight_grads(self.pairs)
            return sum_gradients([partials], self.matrices, self.deferred)
        return self.gradients


def product_gradient(
    matrix: Tensor, left: Tensor, right: Tensor, deferred: DeferredGradients | None
) -> Tensor | None:
    """Return the gradient leftᵀ · right of a matrix, from [N, out] and [N, in]; None if it was
    written to the matrix's target.
    """
    target = None
    if deferred is not None:
        target = deferred.take_target(matrix)
    gradient = weight_grad(left.t(), right, out=target)
    if target is None:
        return gradient
    return None


def narrow_weight_grads(pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return leftᵀ · right in float32 of four pairs [N, out] and [N, in], side by side, of each
    part of the tokens: [parts, …].
    """
    assert len(pairs) == PAIRS
    count = len(pairs[0][0])
    shapes = [(left.shape[1], right.shape[1]) for left, right in pairs]
    tiles = [triton.cdiv(rows, TILE) * triton.cdiv(columns, TILE) for rows, columns in shapes]
    blocks = triton.cdiv(count, TILE)
    blocks_per_part = triton.cdiv(blocks, max(1, PROGRAMS // sum(tiles)))
    parts = triton.cdiv(blocks, blocks_per_part)
    sizes = [rows * columns for rows, columns in shapes]
    device = pairs[0][0].device
    partials = torch.empty(parts, sum(sizes), dtype=torch.float32, device=device)
    weight_grad_tiles[(sum(tiles), parts)](
        *(tensor for pair in pairs for tensor in pair),
        partials,
        count,
        blocks_per_part * TILE,
        sum(sizes),
        *(width for shape in shapes for width in shape),
        TILE=TILE,
        num_warps=4,
        num_stages=3,
    )
    return partials


@triton.jit
def weight_grad_tiles(
    left_a,
    right_a,
    left_b,
    right_b,
    left_c,
    right_c,
    left_d,
    right_d,
    partials,
    count,
    tokens_per_part,
    total,
    rows_a,
    columns_a,
    rows_b,
    columns_b,
    rows_c,
    columns_c,
    rows_d,
    columns_d,
    TILE: tl.constexpr,
):
    """Write one tile of one of the products, over one part of the tokens."""
    tile, part = tl.program_id(0), tl.program_id(1)
    tiles_a = tl.cdiv(rows_a, TILE) * tl.cdiv(columns_a, TILE)
    tiles_b = tl.cdiv(rows_b, TILE) * tl.cdiv(columns_b, TILE)
    tiles_c = tl.cdiv(rows_c, TILE) * tl.cdiv(columns_c, TILE)
    # One loop for whichever product it is: four would each take shared memory of their own.
    left, right, rows, columns = left_a, right_a, rows_a, columns_a
    target = partials + part.to(tl.int64) * total
    if tile >= tiles_a:
        target += rows_a * columns_a
        left, right, rows, columns = left_b, right_b, rows_b, columns_b
    if tile >= tiles_a + tiles_b:
        target += rows_b * columns_b
        left, right, rows, columns = left_c, right_c, rows_c, columns_c
    if tile >= tiles_a + tiles_b + tiles_c:
        target += rows_c * columns_c
        left, right, rows, columns = left_d, right_d, rows_d, columns_d
        tile -= tiles_a + tiles_b + tiles_c
    elif tile >= tiles_a + tiles_b:
        tile -= tiles_a + tiles_b
    elif tile >= tiles_a:
        tile -= tiles_a
    tokens = (part * tokens_per_part, tl.minimum((part + 1) * tokens_per_part, count))
    write_tile(left, right, target, tile, tokens, rows, columns, TILE)


@triton.jit
def write_tile(left, right, target, tile, tokens, rows, columns, TILE: tl.constexpr):
    """Write one tile of leftᵀ · right, over tokens from the first to before the last."""
    strips = tl.cdiv(columns, TILE)
    row = tile // strips * TILE + tl.arange(0, TILE)
    column = tile % strips * TILE + tl.arange(0, TILE)
    product = tl.zeros((TILE, TILE), tl.float32)
    begin, end = tokens
    for first in range(begin, end, TILE):
        token = (first + tl.arange(0, TILE)).to(tl.int64)[:, None]
        left_tile = tl.load(
            left + token * rows + row[None, :],
            mask=(token < end) & (row < rows)[None, :],
            other=0.0,
        )
        right_tile = tl.load(
            right + token * columns + column[None, :],
            mask=(token < end) & (column < columns)[None, :],
            other=0.0,
        )
        product = tl.dot(tl.trans(left_tile), right_tile, product, input_precision="ieee")
    tl.store(
        target + row[:, None] * columns + column[None, :],
        product,
        mask=(row < rows)[:, None] & (column < columns)[None, :],
    )
