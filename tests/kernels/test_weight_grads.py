from __future__ import annotations

import pytest
import torch

from electra.kernels import weight_grads
from electra.kernels.deferred_grads import split_sums

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("tokens", [1, 200])
def test_the_products_of_four_matrices_are_those_of_float64(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_grads, "PROGRAMS", 14)  # two parts of two blocks of tokens
    torch.manual_seed(0)
    shapes = [(64, 100), (100, 24), (24, 24), (72, 24)]
    pairs = []
    for rows, columns in shapes:
        left, right = torch.randn(2, tokens, max(rows, columns), device=DEVICE).half()
        pairs.append((left[:, :rows].contiguous(), right[:, :columns].contiguous()))
    matrices = [torch.empty(shape, device=DEVICE) for shape in shapes]
    gradients = split_sums([weight_grads.narrow_weight_grads(pairs)], matrices)
    for gradient, (left, right) in zip(gradients, pairs, strict=True):
        expected = left.double().T @ right.double()
        assert float((gradient.double() - expected).norm()) < 1e-5 * float(expected.norm())
