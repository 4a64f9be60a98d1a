from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import nn

from electra.kernels import fuse, low_precision_matrices
from electra.kernels.low_precision import LowPrecisionCopies
from electra.kernels.rtd_head import RTDHeadWeights, rtd_head
from electra.model.shape import EncoderShape
from electra.objectives.settings import MaskedLMConfig
from tests.conftest import toy_batch, toy_objective

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_a_registered_copy_is_returned_in_its_own_dtype_alone() -> None:
    weight = nn.Parameter(torch.randn(3))
    copy = torch.zeros(3, dtype=torch.float16)
    low_precision = LowPrecisionCopies()
    low_precision.register([(weight, copy)])
    assert low_precision(weight, torch.float16) is copy
    assert low_precision(weight, torch.bfloat16).equal(weight.detach().bfloat16())


def test_a_weight_without_a_copy_is_cast_and_gets_no_gradient_through_the_cast() -> None:
    weight = nn.Parameter(torch.randn(3))
    low = LowPrecisionCopies()(weight, torch.float16)
    assert low.equal(weight.detach().half())
    assert not low.requires_grad


def test_a_kernel_reads_the_registered_copy_instead_of_the_weight() -> None:
    hidden = torch.ones(1, 1, 16, dtype=torch.float16, device=DEVICE)
    dense, dense_bias, output, output_bias = (
        nn.Parameter(torch.zeros(size, device=DEVICE)) for size in ((16, 16), (16,), (1, 16), (1,))
    )
    nn.init.ones_(output)
    weights = RTDHeadWeights(dense, dense_bias, None, output, output_bias)
    low_precision = LowPrecisionCopies()
    without_copy = rtd_head(hidden, weights, low_precision)
    low_precision.register([(dense, torch.ones(16, 16, dtype=torch.float16, device=DEVICE))])
    with_copy = rtd_head(hidden, weights, low_precision)
    assert without_copy.item() == 0
    assert with_copy.item() > 200  # 16 times gelu(16)


@pytest.mark.parametrize("family", ["electra", pytest.param("modernbert", marks=pytest.mark.slow)])
def test_the_matrices_of_blocks_are_read_from_their_copies_alone(
    family: Literal["electra", "modernbert"],
) -> None:
    """Losses and gradients stay what they are when the float32 weights are lost."""
    shape = EncoderShape(
        family=family, layers=1, width=32, heads=2, feedforward=64, embedding=32, positions=16
    )
    objective = toy_objective(MaskedLMConfig(), shape).to(DEVICE)
    dtype = torch.float16
    fuse(objective).register(
        [(each, each.detach().to(dtype).clone()) for each in objective.parameters()]
    )
    parameters = list(objective.parameters())

    def losses_and_gradients() -> list[torch.Tensor]:
        torch.manual_seed(1)
        with torch.autocast(DEVICE.type, dtype=dtype):
            loss = objective(toy_batch([8], length=8).to(DEVICE)).total
        return [loss, *torch.autograd.grad(loss, parameters)]

    before = losses_and_gradients()
    matrices = low_precision_matrices(objective)
    assert len(matrices) == 4
    with torch.no_grad():
        for matrix in matrices:
            matrix.fill_(float("nan"))
    after = losses_and_gradients()
    assert all(mine.equal(other) for mine, other in zip(after, before, strict=True))
