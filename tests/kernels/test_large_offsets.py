"""Rows further than 2³¹ values from the first are read and written where they are.

Triton's interpreter runs one program on few rows of a huge width, of which a kernel reads the first
sixteen values. Offsets in 32 bits would go back instead of forward. Memory is reserved on both
sides, so that they would find zeros there.
"""

from __future__ import annotations

import math
import mmap

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels import corruption, embedding_tables, embeddings, linear_cross_entropy_kernels
from electra.kernels import norm as norms
from electra.kernels import rtd_head as heads

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter"),
    # Means over the huge width come out as they may: both rows have the same ones.
    pytest.mark.filterwarnings("ignore:.*:RuntimeWarning"),
]
STRIDE, COLUMNS, ROWS = 2**30, 16, 4  # row 2 begins at 2³¹
MAP_NORESERVE = 0x4000  # Python's mmap has no name for it


class SparseRows:
    """[3, STRIDE] values in memory that takes no room until it is touched."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype, itemsize = dtype, dtype.itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self.memory = mmap.mmap(-1, 5 * STRIDE * itemsize, flags=flags)

    def row(self, number: int) -> Tensor:
        """Return the first values of a row; rows −2 and −1 lie before the first."""
        begin = (2 + number) * STRIDE * self.dtype.itemsize
        return torch.frombuffer(self.memory, dtype=self.dtype, count=COLUMNS, offset=begin)

    @property
    def first(self) -> Tensor:
        """Return what a kernel takes as its pointer."""
        return self.row(0)


def filled() -> SparseRows:
    """Return rows 0 and 2 with the same values, and row 1 with others."""
    rows = SparseRows()
    for number in range(3):
        rows.row(number).copy_(torch.randn(COLUMNS, generator=torch.manual_seed(number % 2)))
    return rows


def assert_written(rows: SparseRows) -> None:
    assert rows.row(0).any()
    assert rows.row(2).equal(rows.row(0))


KEYS, ONES = torch.zeros(1, 2, dtype=torch.int32), torch.ones(COLUMNS)
NO_DROPOUT = (KEYS, 0, 0, 1.0)
TILE = {"ROWS": ROWS, "WIDTH": COLUMNS}


def test_the_norm_of_a_far_row_is_that_of_a_near_one_in_both_passes() -> None:
    branch, residual, out, summed = filled(), filled(), SparseRows(), SparseRows()
    norms.add_norm_forward[(1,)](
        *(branch.first, residual.first, ONES, ONES, out.first, summed.first),
        *NO_DROPOUT,
        *(3, STRIDE, 1e-5),
        DROP=False,
        HAS_BIAS=True,
        KEEP_SUM=True,
        **TILE,
    )
    assert_written(out)
    assert_written(summed)
    gradient, d_branch, d_residual = filled(), SparseRows(), SparseRows()
    norms.add_norm_backward[(1,)](
        *(gradient.first, None, branch.first, residual.first, ONES),
        *(d_branch.first, d_residual.first, SparseRows().first),
        *NO_DROPOUT,
        *(3, STRIDE, 1e-5),
        DROP=False,
        HAS_BIAS=True,
        HAS_BRANCH=True,
        ADD=False,
        WRITE_BRANCH=True,
        SUM_ROWS=1,
        **TILE,
    )
    assert_written(d_branch)
    assert_written(d_residual)


def test_the_embedding_of_a_far_token_is_that_of_a_near_one_in_both_passes() -> None:
    input_ids, words = torch.tensor([0, 1, 0]), filled()
    tables = (input_ids, None, None, words.first, None, None, ONES, None)
    sizes = (3, 3, 2, STRIDE, 1e-5)
    options = {"DROP": False, "POSITIONS": False, "PACKED": False, **TILE}
    out, d_sum, gradient = SparseRows(), SparseRows(), filled()
    embeddings.embed_forward[(1,)](*tables, out.first, *NO_DROPOUT, *sizes, **options)
    assert_written(out)
    sums = (SparseRows().first, torch.zeros(1))
    embeddings.embed_backward[(1,)](
        gradient.first, *tables, d_sum.first, *sums, *NO_DROPOUT, *sizes, **options
    )
    assert_written(d_sum)


def test_the_gradient_of_a_far_token_is_added_to_its_word() -> None:
    d_sum, totals = filled(), SparseRows(torch.int64)
    peaks = d_sum.row(0).abs().maximum(d_sum.row(1).abs()).max().view(1)
    embedding_tables.count_word_gradients[(1, 1)](
        *(d_sum.first, torch.tensor([0, 0, 1]), None, peaks, totals.first, None),
        *(3, 1, STRIDE, 2, 1),
        PROGRAMS=1,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        POSITIONS=False,
        PACKED=False,
    )
    unit = 61 - 2 - math.frexp(float(peaks))[1]
    torch.testing.assert_close((totals.row(1).double() * 2.0**-unit).float(), d_sum.row(0))


def test_the_logit_of_a_far_token_is_that_of_a_near_one_in_both_passes() -> None:
    x, d_x, logits = filled(), SparseRows(), torch.zeros(3)
    weights, sizes = (None, ONES), (3, STRIDE, 1e-5)
    heads.rtd_head_forward[(1,)](
        x.first, *weights, torch.zeros(1), logits, *sizes, NORM=False, **TILE
    )
    assert logits[2] == logits[0] != logits[1]
    sums = (SparseRows().first, torch.zeros(1))
    heads.rtd_head_backward[(1,)](
        torch.ones(3), x.first, *weights, d_x.first, *sums, *sizes, NORM=False, **TILE
    )
    assert_written(d_x)


def test_samples_are_put_into_a_far_row_as_into_a_near_one() -> None:
    text, corrupted = SparseRows(torch.int64), SparseRows(torch.int64)
    is_replaced = SparseRows(torch.bool)
    for number in range(3):
        text.row(number).copy_(torch.arange(COLUMNS) + number % 2)
    positions, sampled = torch.tensor([[1, 5]] * 3), torch.tensor([[70, 80]] * 3)
    corruption.replace_forward[(3, 1)](
        *(text.first, positions, torch.ones(3, 2, dtype=torch.bool), sampled),
        *(corrupted.first, is_replaced.first, STRIDE, 2),
        BLOCK=COLUMNS,
    )
    assert_written(corrupted)
    assert is_replaced.row(2).nonzero().flatten().tolist() == [1, 5]


@triton.jit
def copy_columns(matrix, out, count, E: tl.constexpr, ROWS: tl.constexpr, WIDTH_TILE: tl.constexpr):
    rows = tl.arange(0, ROWS)
    tile = linear_cross_entropy_kernels.load_columns(matrix, rows, count, 0, E, WIDTH_TILE)
    tl.store(out + rows[:, None] * WIDTH_TILE + tl.arange(0, WIDTH_TILE)[None, :], tile)


def test_the_hidden_vector_of_a_far_row_is_read_where_it_is() -> None:
    hidden, out = filled(), torch.zeros(ROWS, COLUMNS)
    copy_columns[(1,)](hidden.first, out, 3, E=STRIDE, ROWS=ROWS, WIDTH_TILE=COLUMNS)
    assert out[2].equal(hidden.row(2))
