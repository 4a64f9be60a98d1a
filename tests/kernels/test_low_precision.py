from __future__ import annotations

import torch
from torch import nn

from electra.kernels.low_precision import LowPrecisionCopies
from electra.kernels.rtd_head import RTDHeadWeights, rtd_head

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
