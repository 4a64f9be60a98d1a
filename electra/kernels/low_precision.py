"""Low-precision copies of parameters for the kernels' matrix products, and float32 gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from electra.kernels.deferred_grads import DeferredGradients


class LowPrecisionCopies:
    """Find the low-precision copy of a parameter that the optimizer updates with the parameter.

    A copy saves the cast of every weight in every pass.
    """

    def __init__(self) -> None:
        self.copies: dict[int, Tensor] = {}  # by id(parameter)
        self.parameters: list[Tensor] = []  # kept alive: Python reuses the id of what is gone
        self.deferred: DeferredGradients | None = None  # None: autograd gets all gradients

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

    @contextmanager
    def defer_gradients(
        self, targets: Iterable[tuple[Tensor, Tensor]] = ()
    ) -> Iterator[DeferredGradients]:
        """Keep gradients of blocks from autograd; the caller merges them into those it returns.

        Matrices among the `targets`, pairs of a parameter and a tensor, get theirs written there.
        Where a registered parameter has a hook, which autograd would not call, none are deferred.
        """
        from electra.kernels.deferred_grads import DeferredGradients  # needs Triton

        deferred = DeferredGradients(targets)
        if not any(parameter._backward_hooks for parameter in self.parameters):
            self.deferred = deferred
        try:
            yield deferred
        finally:
            self.deferred = None


def weight_grad(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the gradient of a matrix in float32: a product over all tokens. `out` is overwritten
    with it.
    """
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32, out=out)
    return torch.mm(left.float(), right.float(), out=out)
