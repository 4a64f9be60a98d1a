"""The kernels of narrow blocks, against the block of one kernel for each step."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from electra.kernels import fuse
from electra.kernels.block import (
    SITES,
    BlockPasses,
    BlockSettings,
    BlockWeights,
    block_backward,
    block_forward,
)
from electra.kernels.dropout import draw_keys
from electra.kernels.narrow_block import NARROW_PASSES, is_narrow
from electra.kernels.narrow_block_backward import narrow_backward
from electra.kernels.narrow_block_forward import narrow_forward
from electra.kernels.packing import PackedRows
from electra.model.electra_encoder import ElectraEncoder
from electra.model.shape import EncoderShape
from tests.kernels.test_block import DEVICE, weights

# Triton's interpreter multiplies bf16 as if it were whole numbers; a GPU would spill in float32.
EXACT, WIDTH = torch.float32, 16
if DEVICE.type == "cuda":
    EXACT, WIDTH = torch.bfloat16, 64
CASES = {
    "a full row and an empty one": (128, [128, 0], 0.1, EXACT),
    "a block of queries and one more, and a single token": (70, [65, 1], 0.0, torch.float16),
}
if DEVICE.type == "cuda":  # an interpreter would take minutes
    CASES["small's generator"] = (128, [128, 1, 0, *range(2, 129)], 0.1, torch.bfloat16)
TOLERANCES = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def rows_of(lengths: list[int], max_length: int) -> PackedRows:
    ends = torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()
    return PackedRows(ends, max_length, None, torch.Size((len(lengths), max_length)))


def errors(ours: tuple[Tensor | None, ...], expected: tuple[Tensor | None, ...]) -> list[float]:
    found = []
    for a, b in zip(ours, expected, strict=True):
        assert a is not None
        assert b is not None
        found.append(float((a.double() - b.double()).norm() / b.double().norm()))
    return found


@pytest.mark.parametrize(("max_length", "lengths", "rate", "dtype"), CASES.values(), ids=CASES)
def test_a_narrow_block_saves_and_returns_what_separate_kernels_do(
    max_length: int, lengths: list[int], rate: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    rows, width = rows_of(lengths, max_length), WIDTH
    settings = BlockSettings(1, rate, 2 * rate, draw_keys(2 * SITES, DEVICE), SITES)
    parameters = weights(width, 128)
    low = BlockWeights(*(weight.to(dtype) for weight in parameters))
    hidden, gradient = torch.randn(2, sum(lengths), width, device=DEVICE).to(dtype)
    output, saved = narrow_forward(hidden, rows, settings, parameters, low)
    expected, expected_saved = block_forward(hidden, rows, settings, parameters, low)
    arguments = (rows, settings, parameters, None)
    d_hidden, d_weights = narrow_backward(gradient, saved, *arguments)
    d_expected, d_expected_weights = block_backward(gradient, expected_saved, *arguments)
    ours = (output, *saved, d_hidden, *d_weights)
    theirs = (expected, *expected_saved, d_expected, *d_expected_weights)
    assert max(errors(ours, theirs)) < TOLERANCES[dtype]


@pytest.mark.parametrize(
    ("heads", "width", "max_length", "taken"),
    [
        (1, 64, 128, True),
        (2, 64, 128, False),
        (1, 48, 128, False),
        (1, 128, 128, False),
        (1, 64, 129, False),
    ],
)
def test_one_narrow_head_in_short_rows_takes_these_kernels(
    heads: int, width: int, max_length: int, taken: bool
) -> None:
    settings = BlockSettings(heads, 0.1, 0.1, draw_keys(SITES, DEVICE), 0)
    hidden, rows = torch.zeros(3, width, device=DEVICE), rows_of([3], max_length)
    parameters = weights(width, 4 * width)
    assert is_narrow(hidden.half(), rows, settings, parameters) == taken
    assert not is_narrow(hidden, rows, settings, parameters)


@pytest.mark.parametrize("heads", [1, 2])
def test_an_encoder_runs_its_narrow_blocks_by_these_kernels(heads: int) -> None:
    shape = EncoderShape(
        layers=1, width=16, heads=heads, feedforward=32, embedding=16, positions=4, dropout=0.0
    )
    encoder = ElectraEncoder(shape, vocabulary=8).to(DEVICE)
    fuse(encoder)
    ids = torch.arange(4, device=DEVICE)[None]
    with torch.autocast(DEVICE.type, dtype=torch.float16):
        hidden = encoder(ids, torch.zeros_like(ids), ids >= 0)
    assert hidden.grad_fn is not None
    (block, _), *_ = hidden.grad_fn.next_functions  # before the view of [N, D] as [B, T, D]
    passes: BlockPasses = cast(Any, block).passes
    assert (passes == NARROW_PASSES) == (heads == 1)
