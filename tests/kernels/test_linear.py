"""A linear layer over low-precision tokens, against plain float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from electra.kernels import linear as linear_layers
from electra.kernels.linear import linear, sum_tokens
from electra.kernels.low_precision import LowPrecisionCopies

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 3e-6), (torch.float16, 2e-3)])
def test_a_layer_and_its_gradients_are_those_of_plain_float64(
    bias: bool, dtype: torch.dtype, within: float
) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(24, 72, bias=bias, device=DEVICE)
    plain = nn.Linear(24, 72, bias=bias, device=DEVICE, dtype=torch.float64)
    for ours, theirs in zip(layer.parameters(), plain.parameters(), strict=True):
        ours.data = ours.data.to(dtype).float()
        theirs.data = ours.data.double()
    hidden = torch.randn(5, 9, 24, device=DEVICE).to(dtype).requires_grad_()
    gradient = torch.randn(5, 9, 72, device=DEVICE).to(dtype)
    out = linear(hidden, layer, LowPrecisionCopies())
    assert out.dtype == dtype
    reference = hidden.detach().double().requires_grad_()
    expected = F.linear(reference, plain.weight, plain.bias)
    ours_all = [out, *torch.autograd.grad(out, [hidden, *layer.parameters()], gradient)]
    plain_all = [
        expected,
        *torch.autograd.grad(expected, [reference, *plain.parameters()], gradient.double()),
    ]
    for ours_one, plain_one in zip(ours_all, plain_all, strict=True):
        error = (ours_one.double() - plain_one).detach().norm()
        assert float(error) < within * float(plain_one.detach().norm())


@pytest.mark.parametrize("shape", [(1, 1), (33, 65), (200, 6)])
def test_tokens_of_any_number_and_width_are_summed(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_layers, "PROGRAMS", 4)  # which take two blocks of tokens then
    values = torch.randn(shape, device=DEVICE)
    assert torch.allclose(sum_tokens(values), values.sum(0), atol=1e-3)
