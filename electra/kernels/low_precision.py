"""Low-precision copies of parameters for the kernels' matrix products, and float32 gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class LowPrecisionCopies:
    """Find the low-precision copy of a parameter that the optimizer updates with the parameter.

    A copy saves the cast of every weight in every pass.
    """

    def __init__(self) -> None:
        self.copies: dict[int, Tensor] = {}  # by id(parameter)
        self.parameters: list[Tensor] = []  # kept alive: Python reuses the id of what is gone

    def __deepcopy__(self, memo: dict[int, object]) -> LowPrecisionCopies:
        """Return an empty registry: the copy of a module has parameters of its own."""
        return LowPrecisionCopies()

    def register(self, parameters_and_copies: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Add copies; whoever registers them keeps them equal to their parameters."""
        for parameter, copy in parameters_and_copies:
            self.parameters.append(parameter)
            self.copies[id(parameter)] = copy

    def __call__(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the registered copy of `weight` in `dtype`, or cast `weight` now."""
        copy = self.copies.get(id(weight))
        if copy is not None and copy.dtype == dtype:
            return copy
        return weight.detach().to(dtype)


def weight_grad(left: Tensor, right: Tensor) -> Tensor:
    """Return the gradient of a matrix in float32: a product over all tokens."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()
