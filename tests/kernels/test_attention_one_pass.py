"""The gradients of attention with each score computed once, against plain float64 with the same
dropout, and against the kernel that computes scores twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from electra.kernels.attention import attend
from electra.kernels.attention_backward import (
    SavedAttention,
    attend_gradients,
    computes_scores_once,
    one_pass_gradients,
)
from electra.kernels.dropout import DropoutSite, draw_keys, keep_mask_reference
from electra.kernels.packing import PackedRows
from electra.kernels.rotary import RotaryPositions
from electra.kernels.tiles import ONE_PASS_ROWS_AND_HEADS
from electra.model.modernbert_encoder import rotary_angles
from tests.kernels.test_block import DEVICE, TOLERANCES, relative_error
from tests.kernels.test_modernbert_block import turn

LOW = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16


class Case(NamedTuple):
    lengths: tuple[int, ...]
    heads: int
    width: int  # of a head
    rate: float
    rotary: bool = False
    dtype: torch.dtype = torch.float32


CASES = {
    "rows of several lengths": Case((3, 0, 131), 2, 16, 0.1),
    "rotary positions": Case((130, 20), 1, 32, 0.0, rotary=True),
    "low precision": Case((140, 64), 1, 64, 0.5, dtype=LOW),
}
MORE_CASES = {
    "rotary positions and dropout": Case((300, 129), 2, 64, 0.1, rotary=True, dtype=LOW),
    "rows of 512": Case((512, 511, 257, 1), 2, 64, 0.1, dtype=LOW),
    "heads that are no power of two": Case((150,), 3, 24, 0.1),
}
each_case = pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=name) for name, case in CASES.items()),
        *(pytest.param(c, id=name, marks=pytest.mark.slow) for name, c in MORE_CASES.items()),
    ],
)


class Inputs(NamedTuple):
    saved: SavedAttention
    d_out: Tensor
    rows: PackedRows
    site: DropoutSite


def attention_inputs(case: Case) -> Inputs:
    torch.manual_seed(sum(case.lengths))
    tokens, values = sum(case.lengths), case.heads * case.width
    ends = torch.tensor((0, *case.lengths)).cumsum(0).to(DEVICE, torch.int32)
    rows = PackedRows(ends, max(case.lengths), None, torch.Size((1, tokens)))
    site, positions = DropoutSite(case.rate, draw_keys(2, DEVICE), 1), None
    if case.rotary:
        angles = rotary_angles(rows.max_seqlen, case.width, 10_000.0, DEVICE)
        cosine, sine = (half[:, : case.width // 2].contiguous() for half in angles)
        positions = RotaryPositions(cosine, sine)
    qkv, d_out = torch.randn(tokens, 4 * values, device=DEVICE).to(case.dtype).split(3 * values, 1)
    qkv, d_out = qkv.contiguous(), d_out.contiguous()
    out, log_sums = attend(qkv, rows, case.heads, site, positions)
    return Inputs(SavedAttention(qkv, out, log_sums, positions), d_out, rows, site)


def plain_gradients(inputs: Inputs) -> Tensor:
    """Return d qkv in float64."""
    (qkv, _, log_sums, positions), d_out, rows, site = inputs
    heads, tokens = log_sums.shape
    leaf = qkv.detach().double().requires_grad_()
    masks = torch.ones(heads * tokens, rows.max_seqlen, device=DEVICE)
    if site.rate > 0:
        masks = keep_mask_reference(heads * tokens, rows.max_seqlen, site) / (1 - site.rate)
    for row in range(len(rows.cu_seqlens) - 1):
        begin, end = (int(bound) for bound in rows.cu_seqlens[row : row + 2])
        projected = leaf[begin:end].unflatten(1, (3, heads, -1))
        query, key, value = projected.permute(1, 2, 0, 3)
        if positions is not None:
            cosine, sine = (table[: end - begin] for table in positions[:2])
            angles = RotaryPositions(cosine, sine)
            query, key = turn(query, angles), turn(key, angles)
        probs = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1)
        mask = masks.view(heads, tokens, -1)[:, begin:end, : end - begin]
        context = ((probs * mask) @ value).transpose(0, 1).flatten(1)
        context.backward(d_out[begin:end].double())
    assert leaf.grad is not None
    return leaf.grad


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill new memory with what is not a number, so that nothing reads it before it is written."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan().all()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@each_case
def test_gradients_are_those_of_plain_float64(case: Case) -> None:
    inputs = attention_inputs(case)
    with poisoned_memory():
        d_qkv, sums = one_pass_gradients(*inputs, has_bias=not case.rotary)
    expected = plain_gradients(inputs)
    errors = [
        relative_error(*pair) for pair in zip(d_qkv.chunk(3, 1), expected.chunk(3, 1), strict=True)
    ]
    assert max(errors) < TOLERANCES[case.dtype]
    if sums is not None:
        assert relative_error(sums.sum(0), expected.sum(0)) < TOLERANCES[case.dtype]


@pytest.mark.slow
@pytest.mark.parametrize("case", (CASES | MORE_CASES).values(), ids=CASES | MORE_CASES)
def test_gradients_are_those_of_the_kernel_that_computes_scores_twice(case: Case) -> None:
    inputs = attention_inputs(case)
    assert not computes_scores_once(inputs.saved, inputs.rows.max_seqlen)
    expected, expected_sums = attend_gradients(*inputs, has_bias=not case.rotary)
    d_qkv, sums = one_pass_gradients(*inputs, has_bias=not case.rotary)
    again, _ = one_pass_gradients(*inputs, has_bias=not case.rotary)
    assert again.equal(d_qkv)
    assert relative_error(d_qkv, expected.double()) < TOLERANCES[case.dtype] / 5
    if sums is not None and expected_sums is not None:
        torch.testing.assert_close(sums.sum(0), expected_sums.sum(0), rtol=1e-4, atol=1e-4)


def test_keys_beyond_a_row_add_nothing_where_all_scores_are_far_below_zero() -> None:
    inputs = attention_inputs(Case((130,), 1, 16, 0.0))
    qkv = inputs.saved.qkv.clone()
    qkv[:, :16], qkv[:, 16:32] = 12.0, -12.0  # scores of −576, and 2^576 overflows
    out, log_sums = attend(qkv, inputs.rows, 1, inputs.site)
    inputs = inputs._replace(saved=SavedAttention(qkv, out, log_sums))
    d_qkv, _ = one_pass_gradients(*inputs, has_bias=False)
    assert relative_error(d_qkv, plain_gradients(inputs)) < 1e-4


def saved_shapes(pairs: int, length: int, width: int, window: int | None = None) -> SavedAttention:
    """Return tensors of these shapes, without memory; with a window, of rotary positions."""
    qkv = torch.empty(pairs * length, 3 * width, dtype=torch.bfloat16, device="meta")
    positions = None
    if window is not None:
        positions = RotaryPositions(qkv, qkv, window)
    return SavedAttention(qkv, qkv, torch.empty(1, len(qkv), device="meta"), positions)


@pytest.mark.parametrize(
    ("length", "width", "window", "pairs", "expected"),
    [
        (512, 64, None, ONE_PASS_ROWS_AND_HEADS, True),
        (512, 64, None, ONE_PASS_ROWS_AND_HEADS - 1, False),  # too few
        (128, 64, None, 1000, False),  # one block of keys
        (512, 128, None, 1000, False),  # not measured
        (512, 64, 64, 1000, False),  # few scores are seen
        (512, 64, 511, 1000, True),  # all are
        (512, 48, 511, 1000, False),  # halves that are no power of two
    ],
)
def test_shapes_alone_decide_whether_scores_are_computed_once(
    length: int, width: int, window: int | None, pairs: int, expected: bool
) -> None:
    assert computes_scores_once(saved_shapes(pairs, length, width, window), length) is expected


def test_scores_of_32_bits_are_computed_twice() -> None:
    saved = saved_shapes(1000, 512, 64)
    assert computes_scores_once(saved, 512)
    assert not computes_scores_once(saved._replace(qkv=saved.qkv.float()), 512)
