"""The generator's head, against plain float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from electra.kernels import mlm_head as heads
from electra.kernels.low_precision import LowPrecisionCopies
from electra.kernels.mlm_head import MLMHeadWeights, mlm_head

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("shape", [(2, 5, 24, 16), (3, 11, 16, 100)])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float16, 5e-3)])
@pytest.mark.parametrize("bias", [True, False], ids=["electra", "modernbert"])
def test_outputs_and_gradients_are_those_of_plain_float64(
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    within: float,
    bias: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heads, "PROGRAMS", 2)  # which take several blocks of tokens then
    torch.manual_seed(0)
    rows, positions, width, embedding = shape
    sizes = [(embedding, width), (embedding,), (embedding,), (embedding,)]
    values = [torch.randn(*size, device=DEVICE).to(dtype).float() for size in sizes]
    hidden = torch.randn(rows, positions, width, device=DEVICE).to(dtype)
    gradient = torch.randn(rows, positions, embedding, device=DEVICE).to(dtype)
    kept = [0, 1, 2, 3] if bias else [0, 2]

    def run(inputs: list[torch.Tensor], *, fused: bool) -> list[torch.Tensor]:
        leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
        given: list[torch.Tensor | None] = [None] * 4
        for number, leaf in zip(kept, leaves[1:], strict=True):
            given[number] = leaf
        dense, dense_bias, norm, norm_bias = given
        assert dense is not None
        assert norm is not None
        if fused:
            weights = MLMHeadWeights(dense, dense_bias, norm, norm_bias)
            out = mlm_head(leaves[0], weights, LowPrecisionCopies(), 1e-5)
            assert out.dtype == dtype
        else:
            activated = F.gelu(F.linear(leaves[0], dense, dense_bias))
            out = F.layer_norm(activated, (embedding,), norm, norm_bias, 1e-5)
        return [out.detach(), *torch.autograd.grad(out, leaves, gradient.to(out.dtype))]

    inputs = [hidden, *(values[number] for number in kept)]
    ours = run(inputs, fused=True)
    plain = run([tensor.double() for tensor in inputs], fused=False)
    for our, expected in zip(ours, plain, strict=True):
        assert float((our.double() - expected).norm()) < within * float(expected.norm())
